package membership

import (
	"sync/atomic"
	"time"
)

// clock is this process's monotonic clock plus the offset to Postgres' clock.
// Steps of the machine's own clock do not reach it.
type clock struct {
	start  time.Time
	offset atomic.Int64 // nanoseconds
}

func newClock() *clock { return &clock{start: time.Now()} }

// local is the monotonic clock, read as a time of day.
func (c *clock) local(at time.Time) time.Time { return c.start.Add(at.Sub(c.start)).Round(0) }

// now is Postgres' clock as far as it is known.
func (c *clock) now() time.Time {
	return c.local(time.Now()).Add(time.Duration(c.offset.Load())).UTC()
}

// measured takes a reading of Postgres' clock that was made between sent and
// received. The true offset lies between the two differences; an offset that
// does stays as it is, so that the clock does not jitter with the network.
func (c *clock) measured(sent, received, theirs time.Time, first bool) {
	low, high := theirs.Sub(c.local(received)), theirs.Sub(c.local(sent))
	now := time.Duration(c.offset.Load())
	switch {
	case first:
		now = (low + high) / 2
	case now < low:
		now = low
	case now > high:
		now = high
	}
	c.offset.Store(int64(now))
}
