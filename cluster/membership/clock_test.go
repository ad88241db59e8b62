package membership

import (
	"testing"
	"time"

	"agentsvc/persistence/pgtest"
	"agentsvc/schemas/testkit"
)

func TestAReadingOfPostgresClock(t *testing.T) {
	const ms = time.Millisecond
	for name, c := range map[string]struct {
		known     time.Duration // the offset; Postgres' clock is a second ahead
		sent, got time.Duration // before and after it was read
		first     bool
		want      time.Duration
	}{
		"the first is taken in its middle":  {0, 10 * ms, 20 * ms, true, 995 * ms},
		"what it allows stays":              {1003 * ms, 5 * ms, 5 * ms, false, 1003 * ms},
		"at the edge, too":                  {1005 * ms, 5 * ms, 5 * ms, false, 1005 * ms},
		"what is too late comes to it":      {1006 * ms, 5 * ms, 1 * ms, false, 1005 * ms},
		"what is too early comes to it":     {990 * ms, 5 * ms, 1 * ms, false, 999 * ms},
		"a step of Postgres' clock is seen": {-time.Hour, 5 * ms, 1 * ms, false, 999 * ms},
	} {
		t.Run(name, func(t *testing.T) {
			k := newClock()
			k.offset.Store(int64(c.known))
			read := k.start.Add(time.Minute)
			moved := k.measured(read.Add(-c.sent), read.Add(c.got), read.Add(time.Second), c.first)
			if got := time.Duration(k.offset.Load()); got != c.want || moved != c.want-c.known {
				t.Errorf("the offset is %v, moved by %v, want %v", got, moved, c.want)
			}
		})
	}
}

// TestALookReadsTheClock: nodes agree on the time long before the next beat.
func TestALookReadsTheClock(t *testing.T) {
	m := join(t, pgtest.New(t).System(t), Config{Lease: 10 * time.Minute, Address: "127.0.0.1:1"})
	m.clock.offset.Add(int64(time.Hour))
	testkit.Eventually(t, "it has Postgres' clock, which is this machine's", func() bool {
		return time.Until(m.Now()).Abs() < time.Minute
	})
}
