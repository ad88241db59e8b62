package outbox

import (
	"time"

	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/webhook"
)

// Endpoint names a webhook endpoint.
type Endpoint struct {
	Tenant id.TenantID
	ID     id.WebhookID
}

// Attempt is a delivery that was claimed: durably begun, and to be sent now.
type Attempt struct {
	Delivery id.DeliveryID
	Event    id.EventID
	Type     webhook.Type
	Body     []byte
	N        int // 1 to webhook.Attempts
	BegunAt  time.Time
}

// Grace is what an attempt may take beside its time-out, from its claim until its
// result is durable: only then is it begun again, or ended as the last one.
const Grace = 7 * time.Second

// Result is what became of an attempt. One of a delivery that is not the endpoint's,
// or whose attempt N is not under way any more, changes nothing.
type Result struct {
	Delivery id.DeliveryID
	N        int
	// BegunAt is the attempt's. It tells it from the attempt N of another round, where
	// the delivery was sent again by hand meanwhile; zero: whichever is under way.
	BegunAt    time.Time
	Status     lifecycle.DeliveryStatus // succeeded, failed, or pending where another attempt follows
	HTTPStatus int                      // 0: there was no answer
	Error      string                   // "" where it succeeded; the first 1000 bytes are kept
	Duration   time.Duration
	NextAt     time.Time // of the next attempt, where Status is pending
	// Unsent says that nothing was sent: the attempt does not count, and is due again.
	// The other fields beside Delivery, N and BegunAt mean nothing then.
	Unsent bool
}

// Turn is what one endpoint wants in a flush: results made durable, then as many
// due deliveries claimed as it has room for.
type Turn struct {
	Endpoint Endpoint
	Results  []Result
	Want     int
	// Bytes bounds the bodies of what is claimed: the one that goes beyond it is the
	// last. 0: by what fits in a Turn.
	Bytes int
}

// Claimed is the answer to a Turn.
type Claimed struct {
	Attempts []Attempt
	// Next is when the endpoint's next pending delivery is due that was not claimed
	// now; zero: there is none. One that is under way since earlier counts with the
	// time at which it is begun again should nobody say what became of it. A time that
	// has passed means that there was more than was wanted, or than Bytes let in.
	Next time.Time
}
