// Package quota carries what a rate limit says of itself from the bucket that was
// charged to the edge, which sends it in the RateLimit fields of the answer.
package quota

import (
	"context"
	"time"
)

// Quota is the state of a limit after a request was charged to it, or refused.
type Quota struct {
	Limit     int64         // requests that a full bucket holds
	Remaining int64         // requests that it holds now
	Reset     time.Duration // until it is full again, if nothing else is taken
}

// Noter is told of every limit that a request is charged to.
type Noter interface{ Charged(Quota) }

// Key is the context key of the Noter of a request.
type Key struct{}

// Note tells the request that ctx belongs to of a limit that it was charged to or
// refused by. Outside of a request it does nothing.
func Note(ctx context.Context, q Quota) {
	if n, ok := ctx.Value(Key{}).(Noter); ok {
		n.Charged(q)
	}
}
