//go:build storm

package blackbox

import (
	"context"
	"testing"
	"time"
)

// TestClusterRolls restarts every node twenty times, one after another, while runs
// call slow tools that must not be called twice.
func TestClusterRolls(t *testing.T) { rolls(t, 20) }

// TestClusterRollsShort is the same for about a minute.
func TestClusterRollsShort(t *testing.T) { rolls(t, 2) }

func rolls(t *testing.T, rounds int) {
	o := newOperated(t, 6*time.Second)
	ctx := within(t, time.Duration(rounds)*2*time.Minute)
	s := newSlow(t, ctx, o.c, 1500*time.Millisecond)
	stop := s.load(ctx, 16)
	defer stop()
	var slowest time.Duration
	for range rounds {
		for _, m := range o.nodes {
			s.busy(ctx)
			slowest = max(slowest, m.term())
			m.back(ctx)
		}
	}
	stop()
	runs := s.judge(t, ctx)
	o.book.report(t)
	if least := 10 * rounds; runs < least {
		t.Errorf("%d runs: the test is void", runs)
	}
	t.Logf("%d runs over %d rolls; a node ended %s after SIGTERM at the latest", runs, rounds, slowest.Round(time.Millisecond))
}

// busy waits until calls are under way.
func (s *slow) busy(ctx context.Context) {
	s.t.Helper()
	eventually(s.t, ctx, "calls are under way", func() bool { return s.underWay() >= 4 })
}
