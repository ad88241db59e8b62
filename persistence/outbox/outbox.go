package outbox

import (
	"time"

	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/webhook"
)

// Endpoint identifies a webhook endpoint.
type Endpoint struct {
	Tenant id.TenantID
	ID     id.WebhookID
}

// Attempt is a claimed delivery: its attempt is durably begun and must be sent now.
type Attempt struct {
	Delivery id.DeliveryID
	Event    id.EventID
	Type     webhook.Type
	Body     []byte
	N        int // 1 to webhook.Attempts
	BegunAt  time.Time
}

// Grace is the time that an attempt has besides its time-out, from its claim until its result
// is durable. Only after that is the delivery attempted again, or ended if it was the last
// attempt.
const Grace = 7 * time.Second

// Result is the result of an attempt. It changes nothing if the delivery is not the
// endpoint's, or if attempt N is no longer in flight.
type Result struct {
	Delivery id.DeliveryID
	N        int
	// BegunAt is when the attempt began. It distinguishes the attempt from attempt N of
	// another round, after the delivery was sent again by hand; zero matches any.
	BegunAt    time.Time
	Status     lifecycle.DeliveryStatus // succeeded, failed, or pending if another attempt follows
	HTTPStatus int                      // 0: there was no response
	Error      string                   // "" for a success; the first 1000 bytes are kept
	Duration   time.Duration
	NextAt     time.Time // time of the next attempt, if Status is pending
	// Unsent means that nothing was sent: the attempt does not count, and is due again. Then
	// only Delivery, N and BegunAt are used.
	Unsent bool
}

// Turn is one endpoint's part of a flush: its results are made durable, then as many due
// deliveries are claimed as it has room for.
type Turn struct {
	Endpoint Endpoint
	Results  []Result
	Want     int
	// Bytes limits the bodies of the claims: the one that exceeds it is the last. 0 means the
	// limit of a Turn.
	Bytes int
}

// Claimed is the result of a Turn.
type Claimed struct {
	Attempts []Attempt
	// Next is when the endpoint's next pending delivery that was not claimed now is due; zero
	// if there is none. A delivery already in flight counts with the time at which it is
	// attempted again if no result arrives. A time in the past means that more was due than
	// was wanted, or than Bytes allowed.
	Next time.Time
}
