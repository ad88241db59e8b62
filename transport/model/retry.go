package model

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	schema "agentsvc/schemas/model"
	"agentsvc/schemas/pause"
)

const (
	tries         = 3
	firstPause    = 500 * time.Millisecond
	pauseGrowth   = 4
	maxRetryAfter = time.Minute
)

// Retrying tries a turn three times in all if it fails before its first token because of the
// connection, 429 or 5xx (open-parts.md, Questions settled). The pauses grow, and are at
// least as long as the provider requests, up to a minute.
type Retrying struct {
	Client schema.Client
	Sleep  func(ctx context.Context, d time.Duration) error // nil: a timer
	Rand   func() float64                                   // in [0,1); nil: math/rand
}

// Stream implements schema.Client. The sink receives only the attempt that succeeded, or that
// broke after its first token.
func (r *Retrying) Stream(ctx context.Context, req *schema.Request, sink schema.Sink) (*schema.Result, error) {
	sleep, random := r.Sleep, r.Rand
	if sleep == nil {
		sleep = sleepFor
	}
	if random == nil {
		random = rand.Float64
	}
	wait := firstPause
	for try := 1; ; try++ {
		res, err := r.Client.Stream(ctx, req, sink)
		if err == nil {
			return res, nil
		}
		var e *schema.Error
		if !errors.As(err, &e) || e.Kind != schema.Unavailable || !e.BeforeFirstToken || try == tries {
			return nil, err
		}
		d := time.Duration(float64(wait) * (0.75 + random()/2))
		if err := sleep(ctx, max(d, min(e.RetryAfter, maxRetryAfter))); err != nil {
			return nil, &schema.Error{Kind: schema.Cancelled, Message: "the turn was cancelled", BeforeFirstToken: true, Err: err}
		}
		wait *= pauseGrowth
	}
}

// sleepFor is the Sleep of a Retrying that has none.
func sleepFor(ctx context.Context, d time.Duration) error {
	if !pause.For(ctx, d) {
		return context.Cause(ctx)
	}
	return nil
}
