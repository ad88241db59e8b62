package delivery

import (
	"context"
	"time"

	"agentsvc/persistence/outbox"
	"agentsvc/schemas/id"
)

// Outbox is where deliveries come from and results go (outbox.Outbox). An error of
// Turn says that the results may not be durable, and that nothing is to be sent:
// what was claimed all the same comes due again by itself. Claimed.Next has passed
// only where there was more than was wanted.
type Outbox interface {
	Turn(ctx context.Context, t outbox.Turn) (outbox.Claimed, error)
}

// Target is what an attempt needs of an endpoint now.
type Target struct {
	URL     string // "": a listener, which fetches
	Secret  string
	Enabled bool
}

// Endpoints reads an endpoint as it is now; ok is false where there is none. A
// change of it that was answered is seen: see Targets.
type Endpoints interface {
	Endpoint(ctx context.Context, t id.TenantID, w id.WebhookID) (to Target, ok bool, err error)
}

// Outcome is what became of an attempt.
type Outcome struct {
	HTTPStatus int           // 0: there was no answer
	Error      string        // "" for a success
	Duration   time.Duration // of the attempt
	Unsent     bool          // the endpoint cannot have the whole of the body
}

// Sender signs and sends. The end of ctx calls the attempt off: what has not been
// sent then is not, what has been ends soon.
type Sender interface {
	Send(ctx context.Context, to Target, a outbox.Attempt) Outcome
}
