package membership

import (
	"sync/atomic"
	"time"
)

// clock is this process's monotonic clock plus the offset to Postgres' clock. Changes of the
// machine's wall clock do not affect it.
type clock struct {
	start  time.Time
	offset atomic.Int64 // nanoseconds
}

func newClock() *clock { return &clock{start: time.Now()} }

// local returns the monotonic clock as a time of day.
func (c *clock) local(at time.Time) time.Time { return c.start.Add(at.Sub(c.start)).Round(0) }

// now returns the estimate of Postgres' clock.
func (c *clock) now() time.Time {
	return c.local(time.Now()).Add(time.Duration(c.offset.Load())).UTC()
}

// measured takes a reading of Postgres' clock that was made between sent and received. The
// true offset lies between the two differences. If the current offset does too, it stays, so
// that the clock does not jitter with the network. It returns by how much the offset moved.
func (c *clock) measured(sent, received, theirs time.Time, first bool) (moved time.Duration) {
	low, high := theirs.Sub(c.local(received)), theirs.Sub(c.local(sent))
	before := time.Duration(c.offset.Load())
	now := before
	switch {
	case first:
		now = (low + high) / 2
	case now < low:
		now = low
	case now > high:
		now = high
	}
	c.offset.Store(int64(now))
	return now - before
}
