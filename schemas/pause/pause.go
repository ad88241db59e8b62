// Package pause waits for a time that a context can cut short, as the loops do that repeat what
// could not be done yet, and bounds the time of each of many steps.
//
// It is not an actor. It holds nothing beyond a call; jitter and the growth of a pause are the
// caller's.
package pause

import (
	"context"
	"time"
)

// For waits for d. It returns false if ctx ended before. Without a time to wait, it returns at
// once whether ctx goes on.
func For(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
