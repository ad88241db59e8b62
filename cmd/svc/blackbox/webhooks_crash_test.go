//go:build failpoints

package blackbox

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// webhookPoint reports whether only deliveries pass a failpoint.
func webhookPoint(name string) bool {
	return strings.HasPrefix(name, "outbox.") || strings.HasPrefix(name, "delivery.")
}

// The laws of deliveries: every committed event reaches its subscribers.
const (
	lawTold      = "every event comes to every endpoint that hears of it, as one delivery"
	lawBytes     = "all attempts of a delivery are the same bytes under the same ids"
	lawFive      = "there are at most five attempts"
	lawFailed    = "what has failed has five attempts, and each says what became of it or that this is not known"
	lawSucceeded = "what has succeeded stays so, and is not sent again"
	lawSigned    = "an attempt is signed with the secret that holds when it begins"
	lawPauses    = "no pause is shorter than the schedule's"
	lawSettled   = "every delivery ends as its endpoint answers"
)

var webhookLaws = []string{lawTold, lawBytes, lawFive, lawFailed, lawSucceeded, lawSigned, lawPauses, lawSettled}

const (
	stormBackoff = 150 * time.Millisecond
	stormTimeout = 500 * time.Millisecond
)

// mailing is a tenant whose runs are reported to endpoints while its node is killed.
type mailing struct {
	*node
	c     *caller
	agent string
	to    map[string]*subscriber // by their behaviour
	laws  *book

	mu   sync.Mutex           // guards the fields below
	runs []string             // the started runs
	done map[string]time.Time // when a delivery was first seen as succeeded
}

// The behaviours of a mailing's endpoints.
const (
	accepts    = "accepts"
	late       = "is late"
	failsTwice = "fails twice"
	refuses    = "refuses"
)

func newMailing(t *testing.T) *mailing {
	t.Helper()
	n := newSceneNode(t, "SVC_WEBHOOK_BACKOFF="+stormBackoff.String(), "SVC_WEBHOOK_TIMEOUT="+stormTimeout.String())
	n.start()
	ctx := within(t, 20*time.Second)
	c := n.tenant("mailing")
	m := &mailing{node: n, c: c, agent: c.publish(t, "Helper", simulatedModel), to: map[string]*subscriber{}, laws: newBook(), done: map[string]time.Time{}}
	for name, does := range map[string]reaction{
		accepts: answers(204), failsTwice: failsFirst(2), refuses: answers(500),
		late: func(_ http.ResponseWriter, r *http.Request, _ int) { pauseFor(r.Context(), 80*time.Millisecond) },
	} {
		m.to[name] = c.subscribe(t, ctx, newSink(t, does), "run.completed")
	}
	return m
}

// begins starts runs, each until it gets a response, until stop is closed.
func (m *mailing) begins(ctx context.Context, who int, every time.Duration, stop <-chan struct{}) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-tick.C:
		case <-stop:
			return nil
		}
		var started struct {
			RunID string `json:"run_id"`
		}
		if err := m.c.once(ctx, "/v1/agents/"+m.agent+"/runs", fmt.Sprintf("run-%d-%d", who, i), object{"input": "/say told"}, &started); err != nil {
			return err
		}
		m.mu.Lock()
		m.runs = append(m.runs, started.RunID)
		m.mu.Unlock()
	}
}

// watches polls the deliveries while a node answers, and rotates the secret of one of the endpoints.
func (m *mailing) watches(ctx context.Context, stop <-chan struct{}) error {
	for i := 0; ; i++ {
		select {
		case <-stop:
			return nil
		default:
		}
		if err := m.to[failsTwice].rotate(ctx, fmt.Sprint("rotate-", i)); err != nil {
			return err
		}
		for _, s := range m.to {
			m.look(ctx, s)
		}
		pauseFor(ctx, 100*time.Millisecond)
	}
}

// look records which deliveries have succeeded; a node that is down shows none.
func (m *mailing) look(ctx context.Context, s *subscriber) []deliveryAnswer {
	all, err := s.tryDeliveries(ctx)
	if err != nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, d := range all {
		if _, seen := m.done[d.ID]; d.Status == "succeeded" && !seen {
			m.done[d.ID] = time.Now()
		}
	}
	return all
}

// storm starts runs while kills is at work, and checks the laws when everything has ended.
func (m *mailing) storm(t *testing.T, kills func(ctx context.Context)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for who := range 2 {
		wg.Go(func() {
			if err := m.begins(ctx, who, 120*time.Millisecond, stop); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Go(func() {
		if err := m.watches(ctx, stop); err != nil {
			t.Error(err)
		}
	})
	m.kill()
	kills(ctx)
	m.launch()
	close(stop)
	wg.Wait()
	if err := m.ready(time.Minute); err != nil {
		t.Fatal(err)
	}
	for _, run := range m.runs {
		m.c.poll(t, ctx, run, "succeeded")
	}
	for name, s := range m.to {
		m.judge(t, name, s, m.settles(t, ctx, s))
	}
	for _, law := range webhookLaws {
		for i, why := range m.laws.breaches(law) {
			if i == 3 {
				t.Errorf("%s: and %d more", law, len(m.laws.breaches(law))-i)
				break
			}
			t.Errorf("%s: %s", law, why)
		}
	}
	m.laws.notVoid(t, webhookLaws...)
}

// settles waits until no delivery is pending.
func (m *mailing) settles(t *testing.T, ctx context.Context, s *subscriber) (all []deliveryAnswer) {
	t.Helper()
	eventually(t, ctx, "all deliveries have ended", func() bool {
		all = m.look(ctx, s)
		return len(all) > 0 && !slices.ContainsFunc(all, func(d deliveryAnswer) bool { return d.Status == "pending" })
	})
	return all
}

// judge checks the laws for one endpoint's deliveries.
func (m *mailing) judge(t *testing.T, name string, s *subscriber, all []deliveryAnswer) {
	t.Helper()
	rule := func(law string, ok bool, format string, args ...any) {
		m.laws.rule(law, ok, "%s: %s", name, fmt.Sprintf(format, args...))
	}
	came, told, silent := s.byDelivery(), map[string]int{}, 0
	for _, d := range all {
		as := came[d.ID]
		delete(came, d.ID)
		if len(as) == 0 && unknowns(d) == 5 { // each attempt began, and its node was killed before sending
			silent++
			continue
		}
		rule(lawTold, len(as) > 0, "no attempt arrived of the delivery %+v", d)
		rule(lawFive, len(as) <= 5 && d.Attempts <= 5, "%d attempts of the delivery %s came, %d are counted", len(as), d.ID, d.Attempts)
		rule(lawFailed, len(d.AttemptLog) == d.Attempts && len(as) <= d.Attempts && len(d.AttemptLog)-unknowns(d) <= len(as) && (d.Status != "failed" || d.Attempts == 5),
			"%d attempts came of the delivery %+v", len(as), d)
		m.mu.Lock()
		seen, succeeded := m.done[d.ID]
		m.mu.Unlock()
		if succeeded && len(as) > 0 {
			last := as[len(as)-1].at
			rule(lawSucceeded, d.Status == "succeeded" && last.Before(seen), "seen at %s, the last attempt at %s: %+v", seen, last, d)
		}
		if name == refuses {
			rule(lawSettled, d.Status == "failed", "the delivery %+v", d)
		} else { // unless kills used up the attempts that would have succeeded
			rule(lawSettled, d.Status == "succeeded" || unknowns(d) >= 3, "the delivery %+v", d)
		}
		for i := range as {
			a := &as[i]
			if i == 0 {
				k := a.event(t)
				told[k.about]++
				e := a.envelope(t)
				rule(lawBytes, e.ID == d.EventID && e.Type == d.Type && k.status == "succeeded", "the delivery %s has %s", d.ID, a.body)
			} else {
				before := &as[i-1]
				rule(lawBytes, a.body == before.body, "the delivery %s has %s and %s", d.ID, before.body, a.body)
				rule(lawPauses, a.at.Sub(before.at) >= stormBackoff<<(i-1)-pauseSlack, "attempt %d of the delivery %s came %s after the one before", i+1, d.ID, a.at.Sub(before.at))
				rule(lawSigned, !s.signedLate(*a, before.at), "attempt %d of the delivery %s is signed with the secret %d, which was replaced before the attempt before", i+1, d.ID, s.signer(*a))
			}
			rule(lawSigned, s.signer(*a) >= 0, "attempt %d of the delivery %s: %s", i+1, d.ID, a.signature)
		}
	}
	for id := range came {
		rule(lawTold, false, "the delivery %s came, and there is none", id)
	}
	for _, run := range m.runs {
		rule(lawTold, told[run] == 1 || told[run] == 0 && silent > 0, "of run %s came %d events", run, told[run])
	}
	rule(lawTold, len(all) == len(m.runs), "%d deliveries of %d runs", len(all), len(m.runs))
}

// repeated returns how many attempts the accepting endpoint got again, and how many attempts have an unknown
// outcome.
func (m *mailing) repeated(t *testing.T, ctx context.Context) (repeated, lost int) {
	t.Helper()
	for _, as := range m.to[accepts].byDelivery() {
		repeated += len(as) - 1
	}
	for _, s := range m.to {
		for _, d := range s.deliveries(t, ctx) {
			lost += unknowns(d)
		}
	}
	return repeated, lost
}

// TestCrashAtEveryWebhookFailpoint kills the process repeatedly at every point between the commit of an event and its
// last attempt: before and after the commits of events, of claims and of results, and around the sending.
func TestCrashAtEveryWebhookFailpoint(t *testing.T) {
	const rounds = 6
	only := 0
	var repeated, lost atomic.Int64
	t.Cleanup(func() { // when all points are done
		if repeated.Load() == 0 || lost.Load() == 0 {
			t.Errorf("%d attempts were repeated, of %d the outcome is not known: the test is void", repeated.Load(), lost.Load())
		}
	})
	for _, point := range failpoints(t) {
		within, own := 40, webhookPoint(point) // passages of the point before the kill
		switch {
		case own:
			only++
		case point == "journal.after_commit" || point == "run.before_ended":
			within = 20
		default:
			continue
		}
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			m := newMailing(t)
			m.storm(t, func(ctx context.Context) {
				for range rounds {
					m.dieAt(ctx, t, point, 1+rand.IntN(within))
				}
			})
			again, unknown := m.repeated(t, t.Context())
			t.Logf("%d runs; %d repeats to the accepting endpoint, %d attempts whose outcome is not known", len(m.runs), again, unknown)
			repeated.Add(int64(again))
			lost.Add(int64(unknown))
		})
	}
	if only < 4 {
		t.Errorf("only %d points are passed by deliveries alone: the test is void", only)
	}
}

// TestCrashWebhooksAtRandom kills at random moments while attempts are made.
func TestCrashWebhooksAtRandom(t *testing.T) {
	t.Parallel()
	m := newMailing(t)
	m.storm(t, func(ctx context.Context) {
		for range 10 {
			m.launch()
			if err := m.ready(time.Minute); err != nil {
				t.Error(err)
			}
			pauseFor(ctx, 200*time.Millisecond+rand.N(time.Second))
			m.kill()
		}
	})
	again, unknown := m.repeated(t, t.Context())
	t.Logf("%d runs; %d repeats to the accepting endpoint, %d attempts whose outcome is not known", len(m.runs), again, unknown)
	if unknown == 0 {
		t.Error("the outcome of every attempt is known: the test is void")
	}
}

// TestCrashWebhooksOfStories runs every story of a gated call over kills: each event of a run and of an approval is
// delivered, once.
func TestCrashWebhooksOfStories(t *testing.T) {
	t.Parallel()
	n := newSceneNode(t, "SVC_WEBHOOK_BACKOFF="+stormBackoff.String(), "SVC_WEBHOOK_TIMEOUT="+stormTimeout.String())
	n.start()
	w := newScene(t, n)
	s := w.first.subscribe(t, within(t, 10*time.Second), newSink(t, answers(204)), "*")
	tales := w.storm(t, 4*time.Minute, func(ctx context.Context) {
		for range 8 {
			n.kill()
			n.launch()
			pauseFor(ctx, 500*time.Millisecond+rand.N(time.Second))
		}
	})
	for _, x := range tales {
		if x.err != nil {
			t.Fatal(x.err)
		}
	}
	ctx := within(t, time.Minute)
	want := w.first.tidings(t, ctx, runsOf(tales))
	all := s.ended(t, ctx, len(want))
	s.intact(t, all)
	s.tells(t, want)
	t.Logf("%d stories, %d events", len(tales), len(want))
}

// A restart between two attempts keeps the schedule: the next attempt comes at the time planned before.
func TestCrashKeepsTheSchedule(t *testing.T) {
	t.Parallel()
	const first = time.Second
	n := newSceneNode(t, "SVC_WEBHOOK_BACKOFF="+first.String(), "SVC_WEBHOOK_TIMEOUT="+stormTimeout.String())
	n.start()
	ctx := within(t, 30*time.Second)
	s := n.tenant("schedule").subscribe(t, ctx, newSink(t, failsFirst(3)), "*")
	d := s.test(t, ctx)
	for _, attempts := range []int{1, 2} {
		eventually(t, ctx, "an attempt has failed", func() bool { return len(s.delivery(t, ctx, d).AttemptLog) == attempts })
		due := *s.delivery(t, ctx, d).NextAttemptAt
		n.kill()
		n.start()
		up := time.Now()
		eventually(t, ctx, "the next attempt", func() bool { return len(s.arrivals()) == attempts+1 })
		a := s.arrivals()[attempts]
		if from := later(due, up); a.at.Before(due.Add(-pauseSlack)) || a.at.After(from.Add(4*time.Second)) {
			t.Errorf("attempt %d was due at %s, the node was up at %s, the attempt came at %s", attempts+1, due, up, a.at)
		}
	}
	if got := s.ended(t, ctx, 1)[0]; got.Status != "succeeded" || got.Attempts != 4 || len(got.AttemptLog) != 4 || unknowns(got) != 0 {
		t.Errorf("%+v", got)
	}
	s.intact(t, s.deliveries(t, ctx))
}
