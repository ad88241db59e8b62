package delivery

import (
	"context"
	"time"

	"agentsvc/persistence/outbox"
	"agentsvc/persistence/store"
	"agentsvc/schemas/id"
	"agentsvc/schemas/span"
)

// Outbox claims deliveries and settles results (outbox.Outbox). An error of Turn means that
// the results may not be durable, and that nothing may be sent: deliveries that were claimed
// all the same come due again automatically. Claimed.Next lies in the past only if more was
// due than was wanted.
type Outbox interface {
	Turn(ctx context.Context, t outbox.Turn) (outbox.Claimed, error)
}

// Endpoints reads an endpoint as it is now; nil if there is none (store.Store). It sees every
// change that was already answered: see Targets.
type Endpoints interface {
	Endpoint(ctx context.Context, t id.TenantID, w id.WebhookID) (*store.Endpoint, error)
}

// Outcome is the result of sending an attempt.
type Outcome struct {
	HTTPStatus int           // 0: there was no response
	Error      string        // "" for a success
	Duration   time.Duration // of the attempt
	Unsent     bool          // the endpoint cannot have the whole body
}

// Spans gets the spans of attempts (trace.Tracer). It does not block.
type Spans interface{ Delivery(d span.Delivery) }

// Sender signs and sends. The end of ctx cancels the attempt: an unsent one is not sent, one
// already sent ends soon.
type Sender interface {
	Send(ctx context.Context, to *store.Endpoint, a outbox.Attempt) Outcome
}
