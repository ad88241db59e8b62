package blackbox

import (
	"context"
	"testing"
	"time"
)

// warm runs the load for a moment on a bed that is not shaken, and returns what the bed uses
// at rest after it.
func (l *load) warm(t *testing.T, n crowd) rest {
	t.Helper()
	l.run(t, 2*time.Minute, n, func(ctx context.Context) { pauseFor(ctx, 3*time.Second) })
	l.c.HTTP.CloseIdleConnections()
	var r rest
	eventually(t, within(t, 10*time.Second), "no stream is open", func() bool {
		now, err := l.resting()
		steady := err == nil && now.goroutines <= r.goroutines
		r = now
		return steady
	})
	return r
}

// judged holds all laws against what has happened.
func (s *shaker) judged(t *testing.T, before rest) {
	t.Helper()
	ctx := within(t, time.Minute)
	s.settle(ctx)
	f := s.find(t)
	r := s.scene.judge(t, s.tales)
	s.flows.judgeFlows(t, s.ran)
	s.flows.flowsNotVoid(t, s.ran, true)
	s.scene.examine(r)
	f.hold(s.book, r)
	told := s.audit(t, f)
	s.book.outagesHold()
	s.book.bucketsHold()
	s.book.drainsHold()
	s.book.silencesHold(f.calls)
	s.c.HTTP.CloseIdleConnections() // what was opened for the verdict
	s.rests(before)
	s.book.rule(lawLives, true, "")
	s.weighed(t, r, f, lawAccepted, lawMutating, lawCrowd, lawFinal, lawIdle, lawAdmits, lawRetry, lawFlows, lawStalled, lawKeyed, lawHooks, lawRepeats, lawSecret, lawReadEnd, lawRevoked, lawCutOff, lawSigterm, lawNoFalse, lawHeals, lawSilent, lawBaseline, lawTurn, lawRoom, lawPlaces, lawRelay, lawForeign, lawThreads)
	told.weighed(t, s.kills)
	for _, race := range races {
		for _, e := range ends[race.calls[0].fate] {
			if r.ends[string(race.calls[0].fate)+": "+e] == 0 {
				t.Logf("no race %s ended as %s", race.name, e)
			}
		}
	}
	t.Logf("%d kills", s.kills)
}
