// Package quota passes the state of a rate limit from the bucket that was charged to the
// edge, which sends it in the RateLimit fields of the response.
package quota

import (
	"context"
	"time"
)

// Quota is the state of a limit after a request was charged to it, or refused.
type Quota struct {
	Limit     int64         // requests that a full bucket holds
	Remaining int64         // requests left now
	Reset     time.Duration // until it is full again, if nothing else is taken
}

// Noter receives every limit that a request is charged to.
type Noter interface{ Charged(Quota) }

// Key is the context key of the Noter of a request.
type Key struct{}

// Note passes a limit that charged or refused a request to the Noter in ctx. Outside a
// request it does nothing.
func Note(ctx context.Context, q Quota) {
	if n, ok := ctx.Value(Key{}).(Noter); ok {
		n.Charged(q)
	}
}
