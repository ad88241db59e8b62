package blackbox

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// races are stories whose approval ends by the first of several events.
var races = []story{
	{"approve against cancel", "one", false, []gatedCall{{plainTool, approveOrCancel}}},
	{"approve against cancel, with a key", "one", false, []gatedCall{{keyedTool, approveOrCancel}}},
	{"approve against expiry", "brief", false, []gatedCall{{plainTool, approveOrExpire}}},
	{"approve against cancel against expiry", "brief", false, []gatedCall{{plainTool, anyOfThree}}},
}

// TestDecisionRaces makes approve, cancel and expiry meet a thousand times: approval, run and tool log
// agree on the first one.
func TestDecisionRaces(t *testing.T) {
	t.Parallel()
	n := newSceneNode(t, calm)
	n.start()
	w := newScene(t, n)
	ctx := within(t, time.Minute)
	const rounds, atOnce = 1000, 24
	tales := make([]*tale, rounds)
	places := make(chan struct{}, atOnce)
	var wg sync.WaitGroup
	for i := range tales {
		tales[i] = w.newTale(races[i%len(races)])
		places <- struct{}{}
		wg.Go(func() {
			defer func() { <-places }()
			w.tell(ctx, tales[i])
		})
	}
	wg.Wait()
	r := w.judge(t, tales)
	w.examine(r)
	r.report(t)
	for _, race := range races {
		fate := race.calls[0].fate
		for _, end := range ends[fate] {
			if r.ends[string(fate)+": "+end] < 10 {
				t.Errorf("%s ended as %s only %d times: the test is void", race.name, end, r.ends[string(fate)+": "+end])
			}
		}
	}
	if r.unknown > 0 || r.again > 0 {
		t.Errorf("without a crash %d outcomes are unknown and %d calls were repeated", r.unknown, r.again)
	}
	t.Log(r)
}

// Of fifty simultaneous decisions by two principals, one counts if one approval is required, and one of
// each principal if two are.
func TestFiftyDecisionsAtOnce(t *testing.T) {
	t.Parallel()
	n := newSceneNode(t, calm)
	n.start()
	w := newScene(t, n)
	ctx := within(t, time.Minute)
	for _, row := range []struct {
		agent   string
		actions []string
		counted []string // the responses other than ALREADY_DECIDED, sorted
	}{
		{"one", []string{"approve"}, []string{"approved"}},
		{"one", []string{"approve", "reject", "respond", "edit"}, nil}, // whichever comes first
		{"two", []string{"approve"}, []string{"approved", "pending, 1 so far"}},
	} {
		t.Run(fmt.Sprintf("%s %v", row.agent, row.actions), func(t *testing.T) {
			x := w.newTale(story{"crowd", row.agent, false, []gatedCall{{plainTool, isApproved}}})
			a := x.asked[0]
			var answers []string
			x.crowd = func(ctx context.Context) error {
				got := make([]string, 50)
				errs := make([]error, len(got))
				begin := make(chan struct{})
				var wg sync.WaitGroup
				a.sent = time.Now()
				for i := range got {
					wg.Go(func() {
						who, action, args, feedback := []*caller{w.first, w.second}[i%2], row.actions[i/2%len(row.actions)], "", ""
						switch action {
						case "edit":
							args = a.edited()
						case "respond":
							feedback = "/say as told " + x.id
						}
						<-begin
						got[i], errs[i] = w.verb(ctx, a, who, action, args, feedback, strconv.Itoa(i))
					})
				}
				close(begin)
				wg.Wait()
				for i, g := range got {
					if errs[i] != nil {
						return errs[i]
					}
					if g != "ALREADY_DECIDED" {
						answers = append(answers, g)
					}
				}
				return nil
			}
			w.tell(ctx, x)
			slices.Sort(answers)
			if row.counted != nil && !slices.Equal(answers, row.counted) || row.counted == nil && len(answers) != 1 {
				t.Fatalf("%v counted, want %v", answers, row.counted)
			}
			if row.counted == nil {
				a.fate = fate(answers[0])
			}
			w.judge(t, []*tale{x}).report(t)
		})
	}
}

// aim is how long before a race's moment approve and cancel are sent. Delays depend on the load of the
// machine, so the winner is sent later the next time and the loser earlier: each outcome occurs.
type aim struct{ approve, cancel atomic.Int64 } // nanoseconds

// learn adjusts the aim to the outcome of a race with this many possible ends.
func (m *aim) learn(status string, ends int) {
	const step = int64(2 * time.Millisecond)
	for winner, early := range map[string]*atomic.Int64{"approved": &m.approve, "cancelled": &m.cancel} {
		if status == winner {
			early.Add(-step * int64(ends-1))
		} else {
			early.Add(step)
		}
	}
}

// race sends approve and its rivals around one moment: that of the expiry if the expiry takes part.
func (w *scene) race(ctx context.Context, x *tale, a *asking) error {
	moment := a.expires
	if a.fate == approveOrCancel {
		moment = time.Now()
	}
	await := func(early *atomic.Int64) {
		about := 10*time.Millisecond - rand.N(20*time.Millisecond)
		timer := time.NewTimer(time.Until(moment.Add(about - time.Duration(early.Load()))))
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	var cancelled error
	var wg sync.WaitGroup
	if a.fate != approveOrExpire {
		wg.Go(func() {
			await(&w.aims[a.fate].cancel)
			cancelled = w.cancelRun(ctx, x)
		})
	}
	await(&w.aims[a.fate].approve)
	a.sent = time.Now()
	got, err := w.verb(ctx, a, w.first, "approve", "", "", "")
	if err == nil {
		counts := got == "approved"
		a.counted = &counts
		x.must(counts || got == "ALREADY_DECIDED", "approve of %s was answered %s", a.order, got)
	}
	wg.Wait()
	return errors.Join(err, cancelled)
}
