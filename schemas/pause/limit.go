package pause

import (
	"context"
	"time"
)

// Limit ends a context when a time runs out that can be set again: the time of one step of many.
type Limit struct {
	timer *time.Timer
	end   context.CancelCauseFunc
}

// NewLimit returns a context that ends with cause after d, unless the limit is held or set again before.
func NewLimit(ctx context.Context, d time.Duration, cause error) (context.Context, *Limit) {
	ctx, end := context.WithCancelCause(ctx)
	return ctx, &Limit{time.AfterFunc(d, func() { end(cause) }), end}
}

// Hold stops the time until it is set.
func (l *Limit) Hold() { l.timer.Stop() }

// Set begins the time anew.
func (l *Limit) Set(d time.Duration) { l.timer.Reset(d) }

// End ends the context and frees what the limit holds.
func (l *Limit) End() {
	l.timer.Stop()
	l.end(nil)
}
