package delivery

import (
	"bytes"
	"context"
	"net/http"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"agentsvc/cluster"
	"agentsvc/persistence/outbox"
	"agentsvc/persistence/pgtest"
	"agentsvc/persistence/store"
	"agentsvc/persistence/vault"
	"agentsvc/schemas/id"
	"agentsvc/schemas/testkit"
)

func TestADeliveryArrivesAndTheActorLeaves(t *testing.T) {
	x := newWorld(t)
	v := newReceiver(t, status(204))
	e := x.endpoint(v.url)
	d := x.pending(e, 1)[0]
	p := x.process(nil)
	wake(p.Node, e)
	testkit.Eventually(t, "it succeeds", func() bool { return x.row(d).Status == "succeeded" })
	r := x.row(d)
	if r.Attempts != 1 || r.Begun || r.NextAttemptAt != nil || *r.LastHTTPStatus != 204 || r.LastError != nil || len(r.Log) != 1 || *r.Log[0].HTTPStatus != 204 || r.Log[0].DurationMS == nil {
		t.Errorf("%+v", r)
	}
	got := v.heard()
	if len(got) != 1 || got[0].delivery != d.String() || got[0].body != string(r.Body) || !got[0].signed("whsec_first") {
		t.Errorf("%+v", got)
	}
	testkit.Eventually(t, "it leaves memory", func() bool { return left(p.Node, e) })
}

// Retry: "5 attempts, exponential backoff …; then the delivery is failed"; content:
// "identical bytes, same id, same Svc-Delivery-Id, fresh signature". No wake comes in
// between.
func TestFiveAttemptsAndNeverASixth(t *testing.T) {
	x := newWorld(t)
	v := newReceiver(t, status(503))
	e := x.endpoint(v.url)
	d := x.pending(e, 1)[0]
	p := x.process(nil)
	wake(p.Node, e)
	testkit.Eventually(t, "it fails", func() bool { return x.row(d).Status == "failed" })
	r, got := x.row(d), v.heard()
	if r.Attempts != 5 || r.Begun || r.NextAttemptAt != nil || *r.LastHTTPStatus != 503 || *r.LastError != "the endpoint answered with status 503" || len(r.Log) != 5 {
		t.Errorf("%+v", r)
	}
	if len(got) != 5 {
		t.Fatalf("%d attempts", len(got))
	}
	for i, h := range got {
		if h.delivery != d.String() || h.body != got[0].body || !h.signed("whsec_first") {
			t.Errorf("attempt %d: %+v", i+1, h)
		}
		if i == 0 {
			continue
		}
		pause, want := h.at.Sub(got[i-1].at), testBackoff<<(i-1)
		if pause < want || pause > want+6*time.Second {
			t.Errorf("attempt %d came after %v, want about %v", i+1, pause, want)
		}
	}
	testkit.Eventually(t, "it leaves memory", func() bool { return left(p.Node, e) })
	// Another one's attempts are begun and ended after this: a sixth would have been.
	other := x.pending(e, 1)[0]
	wake(p.Node, e)
	testkit.Eventually(t, "the other fails", func() bool { return x.row(other).Status == "failed" })
	if n := v.of()[d.String()]; n != 5 {
		t.Errorf("%d attempts in the end", n)
	}
}

// "fresh signature with the endpoint's current secret": a rotation between two
// attempts, told as revocations are.
func TestARotationBetweenAttempts(t *testing.T) {
	x := newWorld(t)
	v := newReceiver(t, func(w http.ResponseWriter, _ *http.Request, n int) {
		if n < 2 {
			w.WriteHeader(500)
		}
	})
	e := x.endpoint(v.url)
	p := x.process(func(c *Config) { c.Backoff = time.Second })
	d := x.pending(e, 1)[0]
	wake(p.Node, e)
	testkit.Eventually(t, "the first attempt is settled", func() bool { r := x.row(d); return r.Attempts == 1 && !r.Begun })
	x.exec(`UPDATE webhooks SET secret = convert_to('whsec_second', 'UTF8') WHERE id = $1`, e.ID)
	p.targets.Forget(e.Tenant, e.ID)
	testkit.Eventually(t, "it succeeds", func() bool { return x.row(d).Status == "succeeded" })
	got := v.heard()
	if len(got) != 3 || !got[0].signed("whsec_first") || !got[1].signed("whsec_second") || !got[2].signed("whsec_second") || got[0].body != got[2].body {
		t.Errorf("%+v", got)
	}
}

// An endpoint that never answers and one that does not exist delay only their own deliveries,
// with at most 32 attempts in flight each.
func TestSlowAndDeadEndpointsDelayNobodyElse(t *testing.T) {
	x := newWorld(t)
	var under, most atomic.Int64
	slow := newReceiver(t, func(_ http.ResponseWriter, r *http.Request, _ int) {
		n := under.Add(1)
		defer under.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		<-r.Context().Done()
	})
	p := x.process(func(c *Config) { c.Sender = newSender(t, time.Minute) })
	stuck, dead := x.endpoint(slow.url), x.endpoint("http://"+testkit.Reserved(t))
	all := []outbox.Endpoint{stuck, dead}
	healthy := map[outbox.Endpoint]*receiver{}
	for range 6 {
		v := newReceiver(t, nil)
		e := x.endpoint(v.url)
		healthy[e] = v
		all = append(all, e)
	}
	for _, e := range all {
		x.pending(e, 100)
	}
	wake(p.Node, stuck, dead)
	testkit.Eventually(t, "32 are under way", func() bool { return under.Load() == Most })
	wake(p.Node, all...)
	for e, v := range healthy {
		testkit.Eventually(t, "a healthy endpoint has all", func() bool { return x.count(e, "succeeded") == 100 })
		if of := v.of(); len(of) != 100 || len(v.heard()) != 100 {
			t.Errorf("%d deliveries, %d attempts", len(of), len(v.heard()))
		}
	}
	testkit.Eventually(t, "the dead one's have failed", func() bool { return x.count(dead, "failed") == 100 })
	if n := len(slow.heard()); n != 32 || most.Load() != 32 || x.count(stuck, "pending") != 100 {
		t.Errorf("the slow endpoint heard of %d, %d at a time, and was waited for", n, most.Load())
	}
}

// A node that stops in the middle: sent attempts count, unsent ones do not, and another node
// continues the schedule. There is no sixth attempt.
func TestAStopInTheMiddle(t *testing.T) {
	x := newWorld(t)
	v := newReceiver(t, func(w http.ResponseWriter, r *http.Request, n int) {
		if n < Most {
			hang(w, r, n)
		}
	})
	e := x.endpoint(v.url)
	all := x.pending(e, 60)
	first := x.process(func(c *Config) { c.Sender = newSender(t, time.Minute) })
	wake(first.Node, e)
	testkit.Eventually(t, "32 are under way", func() bool { return len(v.heard()) == Most })
	testkit.Stop(t, first.Node.Stop)
	for _, d := range all {
		switch r, n := x.row(d), v.of()[d.String()]; {
		case n == 0 && (r.Attempts != 0 || r.Begun):
			t.Errorf("never sent: %+v", r)
		case n == 1 && (r.Attempts != 1 || r.Begun || r.Status != "pending" || len(r.Log) != 1 || *r.LastError != "the node ended before the endpoint answered"):
			t.Errorf("sent: %+v", r)
		}
	}
	second := x.process(nil)
	wake(second.Node, e)
	testkit.Eventually(t, "all succeed", func() bool { return x.count(e, "succeeded") == 60 })
	of := v.of()
	for _, d := range all {
		r := x.row(d)
		if n := of[d.String()]; n != r.Attempts || n < 1 || n > 2 {
			t.Errorf("%d attempts arrived: %+v", n, r)
		}
	}
}

// Deliveries claimed and not sent when their node stops are due at once, and do not count as
// attempts.
func TestAStopBeforeAnythingIsSent(t *testing.T) {
	x := newWorld(t)
	e := x.endpoint("https://unreachable.example/")
	all := x.pending(e, 5)
	var under atomic.Int64
	p := x.process(func(c *Config) {
		c.Sender = sendFunc(func(ctx context.Context, _ *store.Endpoint, _ outbox.Attempt) Outcome {
			under.Add(1)
			<-ctx.Done()
			return Outcome{Error: "it was called off", Unsent: true}
		})
	})
	wake(p.Node, e)
	testkit.Eventually(t, "all are under way", func() bool { return under.Load() == 5 })
	if r := x.row(all[0]); r.Attempts != 1 || !r.Begun {
		t.Errorf("under way: %+v", r)
	}
	testkit.Stop(t, p.Node.Stop)
	for _, d := range all {
		if r := x.row(d); r.Status != "pending" || r.Attempts != 0 || r.Begun || len(r.Log) != 0 || r.NextAttemptAt.After(time.Now()) {
			t.Errorf("%+v", r)
		}
	}
}

// A turn that is answered after its actor has ended: what it claimed is given back,
// and what ended meanwhile is made durable.
func TestATurnThatOutlivesItsActor(t *testing.T) {
	x := newWorld(t)
	release := make(chan struct{})
	v := newReceiver(t, func(_ http.ResponseWriter, r *http.Request, _ int) { await(r, release) })
	e := x.endpoint(v.url)
	sent := x.pending(e, 3)
	f := &flaky{}
	var ends atomic.Int64
	p := x.process(func(c *Config) {
		f.Outbox, c.Outbox = c.Outbox, f
		real := newSender(t, time.Minute)
		c.Sender = sendFunc(func(ctx context.Context, to *store.Endpoint, a outbox.Attempt) Outcome {
			defer ends.Add(1)
			return real.Send(ctx, to, a)
		})
	})
	wake(p.Node, e)
	testkit.Eventually(t, "all are under way", func() bool { return len(v.heard()) == 3 })
	claimed := x.pending(e, 4)
	hold := make(chan struct{})
	f.hold.Store(&hold)
	wake(p.Node, e)
	testkit.Eventually(t, "a turn has claimed the others", func() bool { return f.held.Load() == 1 && x.row(claimed[0]).Begun })
	close(release)
	testkit.Eventually(t, "the attempts have ended", func() bool { return ends.Load() == 3 })
	stopped := make(chan struct{})
	go func() { testkit.Stop(t, p.Node.Stop); close(stopped) }()
	testkit.Eventually(t, "the actor has ended", func() bool { return left(p.Node, e) })
	f.hold.Store(nil)
	close(hold)
	<-stopped
	for _, d := range sent {
		if r := x.row(d); r.Status != "succeeded" {
			t.Errorf("sent: %+v", r)
		}
	}
	for _, d := range claimed {
		if r := x.row(d); r.Status != "pending" || r.Attempts != 0 || r.Begun {
			t.Errorf("claimed: %+v", r)
		}
	}
	if len(v.heard()) != 3 {
		t.Errorf("%d were sent", len(v.heard()))
	}
}

// Messages that an actor has not received when it ends: the result of an attempt counts, and
// claims of a turn are given back, with their places.
func TestAStopBeforeWhatHasComeIsReceived(t *testing.T) {
	x := newWorld(t)
	x.peers = nobody{}
	answer := make(chan struct{})
	v := newReceiver(t, func(_ http.ResponseWriter, r *http.Request, _ int) { await(r, answer) })
	e := x.endpoint(v.url)
	sent := x.pending(e, 2)
	f := &flaky{}
	var receives atomic.Bool // the next Receive waits
	waits, goOn := make(chan struct{}), make(chan struct{})
	p := x.process(func(c *Config) {
		f.Outbox, c.Outbox, c.Sender = c.Outbox, f, newSender(t, time.Minute)
		c.Live = func() bool {
			if receives.CompareAndSwap(true, false) {
				close(waits)
				<-goOn
			}
			return true
		}
	})
	wake(p.Node, e)
	testkit.Eventually(t, "two are under way", func() bool { return len(v.heard()) == 2 })
	testkit.Eventually(t, "no turn is", func() bool { return !running("turn") })
	claimed := x.pending(e, 4)
	hold := make(chan struct{})
	f.hold.Store(&hold)
	wake(p.Node, e)
	testkit.Eventually(t, "a turn has claimed the others", func() bool { return f.held.Load() == 1 })
	receives.Store(true)
	wake(p.Node, e)
	<-waits
	f.hold.Store(nil)
	close(hold)
	close(answer)
	testkit.Eventually(t, "all has come", func() bool { return !running("turn") && !running("attempt") })
	p.Yield(true)
	if err := p.SetMembers([]id.MemberID{{UUID: id.NewAnywhere()}}); err != nil {
		t.Fatal(err)
	}
	close(goOn) // it was told to end
	testkit.Stop(t, p.Node.Stop)
	for _, d := range sent {
		if r := x.row(d); r.Status != "succeeded" || r.Attempts != 1 || len(r.Log) != 1 {
			t.Errorf("sent: %+v", r)
		}
	}
	for _, d := range claimed {
		if r := x.row(d); r.Status != "pending" || r.Attempts != 0 || r.Begun || len(r.Log) != 0 {
			t.Errorf("claimed: %+v", r)
		}
	}
	if n := p.hosting.taken.Load(); n != 0 || len(v.heard()) != 2 {
		t.Errorf("%d places are taken, %d were sent", n, len(v.heard()))
	}
}

// await waits for the answer, or until the other side leaves.
func await(r *http.Request, answer <-chan struct{}) {
	select {
	case <-answer:
	case <-r.Context().Done():
	}
}

// running reports whether a goroutine of an actor is within a method of hosting.
func running(method string) bool {
	stacks := make([]byte, 1<<20)
	return bytes.Contains(stacks[:runtime.Stack(stacks, true)], []byte("delivery.(*hosting)."+method+"("))
}

// Large bodies take the places of many small ones: the bytes in flight are bounded. An
// endpoint with none in flight may always have one, and all places are returned.
func TestLargeBodiesTakeMorePlaces(t *testing.T) {
	x := newWorld(t)
	answer := make(chan struct{})
	v := newReceiver(t, func(_ http.ResponseWriter, r *http.Request, _ int) { await(r, answer) })
	e, other := x.endpoint(v.url), x.endpoint(v.url)
	x.pending(e, 20)
	x.exec(`UPDATE webhook_deliveries SET body = convert_to(repeat('a', 7 * $2 + 1), 'UTF8') WHERE webhook_id = $1`, e.ID, placeBytes)
	p := x.process(func(c *Config) { c.Places, c.Sender = 16, newSender(t, time.Minute) })
	wake(p.Node, e)
	// Of 16 places 4 are requested, then 2, and each time one body exceeds them.
	testkit.Eventually(t, "as many are under way as there are places for", func() bool { return len(v.heard()) == 2 && p.hosting.taken.Load() == 16 })
	x.pending(other, 3)
	x.exec(`UPDATE webhook_deliveries SET body = convert_to(repeat('a', 9 * $2 + 1), 'UTF8') WHERE webhook_id = $1`, other.ID, placeBytes)
	wake(p.Node, other)
	testkit.Eventually(t, "another has one", func() bool { return len(v.heard()) == 3 && p.hosting.taken.Load() == 16+10 })
	wake(p.Node, e, other)
	testkit.Eventually(t, "no turn is in flight", func() bool { return !running("turn") })
	if n, taken := len(v.heard()), p.hosting.taken.Load(); n != 3 || taken != 26 {
		t.Errorf("%d are under way, %d places are taken", n, taken)
	}
	close(answer)
	testkit.Eventually(t, "all succeed", func() bool { return x.count(e, "succeeded")+x.count(other, "succeeded") == 23 })
	testkit.Eventually(t, "all places are back", func() bool { return p.hosting.taken.Load() == 0 })
}

// crowd are more endpoints of a tenant than may have an attempt while no place is free, on a
// process without places. It returns when as many as may have theirs and the others wait.
func (x *world) crowd(v *receiver) (all []outbox.Endpoint, p *process) {
	x.t.Helper()
	for range beyondEach + 5 {
		all = append(all, x.endpoint(v.url))
		x.pending(all[len(all)-1], 1)
	}
	p = x.process(func(c *Config) { c.Places, c.Sender = 1, newSender(x.t, time.Minute) })
	wake(p.Node, all...)
	testkit.Eventually(x.t, "some have an attempt, and the others wait", func() bool {
		return len(v.heard()) == beyondEach && p.hosting.beyond.Wanted() && !running("run")
	})
	return all, p
}

// While no place is free, a tenant's endpoints have so many attempts together. The others get
// theirs when these end, and another tenant's does not wait for them.
func TestAttemptsBeyondThePlaces(t *testing.T) {
	x := newWorld(t)
	answer := make(chan struct{})
	v, other := newReceiver(t, func(_ http.ResponseWriter, r *http.Request, _ int) { await(r, answer) }), newReceiver(t, nil)
	all, p := x.crowd(v)
	neighbour := outbox.Endpoint{Tenant: pgtest.Tenant(t, x.pool), ID: id.WebhookID{UUID: id.NewAnywhere()}}
	x.exec(`INSERT INTO webhooks (tenant_id, id, url, events, secret) VALUES ($1, $2, $3, '{*}', convert_to('s', 'UTF8'))`, neighbour.Tenant, neighbour.ID, other.url)
	x.pending(neighbour, 3)
	wake(p.Node, neighbour)
	testkit.Eventually(t, "another tenant's are sent", func() bool { return x.count(neighbour, "succeeded") == 3 })
	wake(p.Node, all...)
	if n := len(v.heard()); n != beyondEach {
		t.Errorf("%d attempts are in flight", n)
	}
	close(answer)
	for _, e := range append(all, neighbour) {
		testkit.Eventually(t, "all succeed and leave memory", func() bool { return x.count(e, "pending") == 0 && left(p.Node, e) })
	}
	if n, taken := len(v.heard()), p.hosting.taken.Load(); n != len(all) || taken != 0 || p.hosting.beyond.Wanted() {
		t.Errorf("%d of %d were sent, %d places are taken", n, len(all), taken)
	}
	for range beyondEach {
		if !p.hosting.beyond.Try(x.tenant) {
			t.Fatal("an attempt beyond the places was not given back")
		}
	}
}

// A node that stops does not wait for the endpoints that wait, and has claimed nothing for them.
func TestANodeStopsWhileEndpointsWait(t *testing.T) {
	x := newWorld(t)
	answer := make(chan struct{})
	v := newReceiver(t, func(_ http.ResponseWriter, r *http.Request, _ int) { await(r, answer) })
	all, p := x.crowd(v)
	close(answer)
	p.Yield(true)
	if err := p.SetMembers([]id.MemberID{{UUID: id.NewAnywhere()}}); err != nil {
		t.Fatal(err)
	}
	testkit.Stop(t, p.Node.Stop)
	begun, sent := 0, v.of()
	for _, e := range all {
		begun += x.count(e, "succeeded")
		var n int
		if err := x.pool.QueryRow(t.Context(), `SELECT count(*) FROM webhook_deliveries WHERE webhook_id = $1 AND status = 'pending' AND (begun_at IS NOT NULL OR attempts > 0)`, e.ID).Scan(&n); err != nil || n != 0 {
			t.Errorf("%d are claimed and not settled, %v", n, err)
		}
	}
	if begun != len(sent) || begun < beyondEach || p.hosting.taken.Load() != 0 {
		t.Errorf("%d succeeded, %d were sent, %d places are taken", begun, len(sent), p.hosting.taken.Load())
	}
}

// A delivery that was recovered while its first attempt is on its way: the answer to
// that one does not settle the one after.
func TestAnAnswerOfAFormerRound(t *testing.T) {
	x := newWorld(t)
	answers := []chan struct{}{make(chan struct{}), make(chan struct{})}
	v := newReceiver(t, func(_ http.ResponseWriter, r *http.Request, n int) { await(r, answers[min(n, 1)]) })
	e := x.endpoint(v.url)
	d := x.pending(e, 1)[0]
	f := &flaky{}
	p := x.process(func(c *Config) { f.Outbox, c.Outbox = c.Outbox, f; c.Sender = newSender(t, time.Minute) })
	wake(p.Node, e)
	testkit.Eventually(t, "it is under way", func() bool { return len(v.heard()) == 1 })
	x.exec(`UPDATE webhook_deliveries SET attempts = 0, begun_at = NULL, next_attempt_at = now() WHERE id = $1`, d)
	wake(p.Node, e)
	testkit.Eventually(t, "it is under way again", func() bool { return len(v.heard()) == 2 })
	close(answers[0])
	testkit.Eventually(t, "the former has ended", func() bool { return f.most.Load() == 1 && !running("turn") && p.hosting.taken.Load() == 1 })
	if r := x.row(d); r.Status != "pending" || !r.Begun {
		t.Errorf("%+v", r)
	}
	close(answers[1])
	testkit.Eventually(t, "it succeeds", func() bool { return x.row(d).Status == "succeeded" })
}

// A process that died between a claim and its result: the attempt counts, its
// outcome is said to be unknown, and the delivery goes on when it is due again.
func TestAfterACrash(t *testing.T) {
	x := newWorld(t)
	v := newReceiver(t, nil)
	e := x.endpoint(v.url)
	all := x.pending(e, 3)
	p := x.process(nil)
	x.exec(`UPDATE webhook_deliveries SET attempts = 1, begun_at = now() - interval '1 minute', next_attempt_at = now() + interval '300 ms' WHERE id = $1`, all[0])
	x.exec(`UPDATE webhook_deliveries SET attempts = 4, begun_at = now() - interval '1 minute' WHERE id = $1`, all[1])
	x.exec(`UPDATE webhook_deliveries SET attempts = 5, begun_at = now() - interval '1 minute' WHERE id = $1`, all[2])
	wake(p.Node, e)
	testkit.Eventually(t, "all have ended", func() bool { return x.count(e, "pending") == 0 })
	for i, want := range []struct {
		status          string
		attempts, heard int
	}{{"succeeded", 2, 1}, {"succeeded", 5, 1}, {"failed", 5, 0}} {
		r := x.row(all[i])
		if r.Status != want.status || r.Attempts != want.attempts || v.of()[all[i].String()] != want.heard || *r.Log[0].Error != "the outcome of this attempt is not known" {
			t.Errorf("%d: %+v, heard %d times", i, r, v.of()[all[i].String()])
		}
	}
	testkit.Eventually(t, "it leaves memory", func() bool { return left(p.Node, e) })
}

// A shard that moves: the former owner settles what it has sent, the new one sends
// the rest.
func TestAMove(t *testing.T) {
	x := newWorld(t)
	v := newReceiver(t, func(w http.ResponseWriter, r *http.Request, n int) {
		if n < Most {
			hang(w, r, n)
		}
	})
	e := x.endpoint(v.url)
	x.pending(e, 60)
	next := x.process(nil)
	x.peers = tells{next.Node}
	former := x.process(func(c *Config) { c.Sender = newSender(t, 3*testTimeout) }) // the first must not end before all have begun
	wake(former.Node, e)
	testkit.Eventually(t, "32 are under way", func() bool { return len(v.heard()) == Most })
	former.Yield(true)
	if err := former.SetMembers([]id.MemberID{next.Member()}); err != nil {
		t.Fatal(err)
	}
	wake(next.Node, e)
	testkit.Eventually(t, "all succeed", func() bool { return x.count(e, "succeeded") == 60 })
	again := 0
	for d, n := range v.of() {
		u, err := id.Parse(d)
		if err != nil {
			t.Fatal(err)
		}
		r := x.row(id.DeliveryID{UUID: u})
		if r.Attempts != n || n > 2 {
			t.Errorf("%d attempts arrived: %+v", n, r)
		}
		if n == 1 {
			continue
		}
		again++
		// Not at the time set by the claim, which is all that the new owner knew.
		if pause := r.Log[1].At.Sub(r.Log[0].At); pause > testTimeout+6*time.Second {
			t.Errorf("it came again after %v", pause)
		}
	}
	if again == 0 {
		t.Error("none came again: void")
	}
}

// tells are the Peers of a node that knows one other.
type tells struct{ to *cluster.Node }

func (p tells) Tell(_ id.MemberID, a cluster.Address, m any) error { return p.to.ReceiveTold(a, m) }

func (tells) Ask(context.Context, id.MemberID, cluster.Address, any) (any, error) {
	return nil, cluster.ErrUnknownMember
}

func (tells) Call(context.Context, id.MemberID, string, any) (any, error) {
	return nil, cluster.ErrUnknownMember
}

// nobody are the Peers of a node that reaches no other.
type nobody struct{ tells }

func (nobody) Tell(id.MemberID, cluster.Address, any) error { return cluster.ErrUnknownMember }

// "disabled endpoints skip delivery"; a listener fetches; one that is gone has
// nothing.
func TestWhereNothingIsSent(t *testing.T) {
	x := newWorld(t)
	v := newReceiver(t, nil)
	disabled, listener, good := x.endpoint(v.url), x.endpoint(v.url), x.endpoint(v.url)
	gone := outbox.Endpoint{Tenant: x.tenant, ID: id.WebhookID{UUID: id.NewAnywhere()}}
	for _, e := range []outbox.Endpoint{disabled, listener} {
		x.pending(e, 3)
	}
	d := x.pending(good, 1)[0]
	x.exec(`UPDATE webhooks SET enabled = false WHERE id = $1`, disabled.ID)
	x.exec(`UPDATE webhooks SET url = '', expires_at = now() + interval '1 hour' WHERE id = $1`, listener.ID)
	p := x.process(nil)
	all := []outbox.Endpoint{disabled, listener, gone, good}
	wake(p.Node, all...)
	for _, e := range all {
		testkit.Eventually(t, "it leaves memory", func() bool { return left(p.Node, e) })
	}
	if got := v.heard(); len(got) != 1 || got[0].delivery != d.String() {
		t.Errorf("%+v", got)
	}
	for _, e := range []outbox.Endpoint{disabled, listener} {
		var n int
		if err := x.pool.QueryRow(t.Context(), `SELECT count(*) FROM webhook_deliveries WHERE webhook_id = $1 AND status = 'pending' AND attempts = 0`, e.ID).Scan(&n); err != nil || n != 3 {
			t.Errorf("%d of 3 as they were, %v", n, err)
		}
	}
	// One that is disabled between claim and sending: nothing is sent either.
	late := x.endpoint(v.url)
	x.pending(late, 5)
	closing := x.process(func(c *Config) { c.Endpoints = &closes{open: 1, url: v.url} })
	wake(closing.Node, late)
	testkit.Eventually(t, "it leaves memory", func() bool { return left(closing.Node, late) })
	if n := len(v.heard()); n != 1 || x.count(late, "pending") != 5 {
		t.Errorf("%d were sent", n-1)
	}
}

// closes are Endpoints that are disabled after some looks.
type closes struct {
	open int64
	seen atomic.Int64
	url  string
}

func (c *closes) Endpoint(context.Context, id.TenantID, id.WebhookID) (*store.Endpoint, error) {
	return &store.Endpoint{URL: c.url, Secret: vault.NewSecret([]byte("s")), Enabled: c.seen.Add(1) <= c.open}, nil
}

// A suspended node gives back its claims, and claims nothing.
func TestWithoutTheLease(t *testing.T) {
	x := newWorld(t)
	v := newReceiver(t, nil)
	e := x.endpoint(v.url)
	d := x.pending(e, 1)[0]
	var live, begun atomic.Bool
	live.Store(true)
	p := x.process(func(c *Config) {
		c.Live = live.Load
		real := c.Sender
		c.Sender = sendFunc(func(ctx context.Context, to *store.Endpoint, a outbox.Attempt) Outcome {
			if !live.Load() {
				t.Error("claimed without the lease")
			}
			if begun.Load() {
				return real.Send(ctx, to, a)
			}
			begun.Store(x.row(d).Begun)
			live.Store(false) // before anything is sent
			return Outcome{Unsent: true}
		})
	})
	wake(p.Node, e)
	testkit.Eventually(t, "it leaves memory", func() bool { return begun.Load() && left(p.Node, e) })
	if r := x.row(d); r.Status != "pending" || r.Attempts != 0 || r.Begun || len(v.heard()) != 0 {
		t.Errorf("%+v", r)
	}
	live.Store(true)
	wake(p.Node, e)
	testkit.Eventually(t, "it succeeds", func() bool { return x.row(d).Status == "succeeded" })
}

// An attempt that panics has failed, and takes nothing else with it.
func TestAnAttemptThatPanics(t *testing.T) {
	x := newWorld(t)
	v := newReceiver(t, nil)
	e := x.endpoint(v.url)
	all := x.pending(e, 2)
	p := x.process(func(c *Config) {
		c.Sender = sendFunc(func(ctx context.Context, to *store.Endpoint, a outbox.Attempt) Outcome {
			if a.Delivery == all[0] && a.N < 3 {
				panic("boom")
			}
			return newSender(t, testTimeout).Send(ctx, to, a)
		})
	})
	wake(p.Node, e)
	testkit.Eventually(t, "both succeed", func() bool { return x.count(e, "succeeded") == 2 })
	if r := x.row(all[0]); r.Attempts != 3 || *r.Log[0].Error != "the attempt failed within the service" {
		t.Errorf("%+v", r)
	}
}

type sendFunc func(context.Context, *store.Endpoint, outbox.Attempt) Outcome

func (f sendFunc) Send(ctx context.Context, to *store.Endpoint, a outbox.Attempt) Outcome {
	return f(ctx, to, a)
}

// flaky is an outbox whose Turns can be made to fail before or after they are
// written.
type flaky struct {
	Outbox
	before, after atomic.Bool
	failed        atomic.Int64
	most          atomic.Int64 // results in one Turn
	hold          atomic.Pointer[chan struct{}]
	held          atomic.Int64 // Turns that are written and not answered
}

func (f *flaky) Turn(ctx context.Context, t outbox.Turn) (outbox.Claimed, error) {
	for n, m := int64(len(t.Results)), f.most.Load(); n > m && !f.most.CompareAndSwap(m, n); m = f.most.Load() {
	}
	if f.before.Load() {
		f.failed.Add(1)
		return outbox.Claimed{}, outbox.ErrUnavailable
	}
	c, err := f.Outbox.Turn(ctx, t)
	if hold := f.hold.Load(); hold != nil {
		f.held.Add(1)
		<-*hold
	}
	if f.after.Load() {
		f.failed.Add(1)
		return outbox.Claimed{}, outbox.ErrUnavailable
	}
	return c, err
}

// Turns that fail: results are kept and made durable later, and nothing is sent
// again meanwhile.
func TestWhileTheDatabaseIsGone(t *testing.T) {
	x := newWorld(t)
	release := make(chan struct{})
	v := newReceiver(t, func(_ http.ResponseWriter, r *http.Request, n int) {
		if n < Most {
			await(r, release)
		}
	})
	e := x.endpoint(v.url)
	x.pending(e, 80)
	f := &flaky{}
	p := x.process(func(c *Config) { f.Outbox, c.Outbox, c.Sender = c.Outbox, f, newSender(t, time.Minute) })
	wake(p.Node, e)
	testkit.Eventually(t, "32 are under way", func() bool { return len(v.heard()) == Most })
	f.before.Store(true)
	close(release)
	testkit.Eventually(t, "turns fail", func() bool { return f.failed.Load() > 3 })
	if n := x.count(e, "pending"); n != 80 || len(v.heard()) != Most {
		t.Errorf("%d are pending, %d were sent", n, len(v.heard()))
	}
	f.before.Store(false)
	testkit.Eventually(t, "all succeed", func() bool { return x.count(e, "succeeded") == 80 })
	if n := len(v.heard()); n != 80 || f.most.Load() != Most {
		t.Errorf("%d were sent; at most %d results in a turn", n, f.most.Load())
	}
	// A Turn whose answer is lost: results are written twice, which has the effect of once,
	// and its claims come due again automatically.
	f.after.Store(true) // before the delivery is there: whichever Turn claims it loses its answer
	d := x.pending(e, 1)[0]
	wake(p.Node, e)
	testkit.Eventually(t, "it is claimed", func() bool { return x.row(d).Begun })
	lost := f.failed.Load()
	testkit.Eventually(t, "the answer is lost", func() bool { wake(p.Node, e); return f.failed.Load() >= lost+2 }) // the first may be the claim's own
	f.after.Store(false)
	x.exec(`UPDATE webhook_deliveries SET next_attempt_at = now() WHERE id = $1`, d)
	wake(p.Node, e)
	testkit.Eventually(t, "it succeeds", func() bool { return x.row(d).Status == "succeeded" })
	if r := x.row(d); r.Attempts != 2 || *r.Log[0].Error != "the outcome of this attempt is not known" || v.of()[d.String()] != 1 {
		t.Errorf("%+v", r)
	}
}

// Two activations of one endpoint, as for a moment while a shard moves: each delivery
// is sent once.
func TestTwoActivations(t *testing.T) {
	x := newWorld(t)
	v := newReceiver(t, nil)
	e := x.endpoint(v.url)
	x.pending(e, 300)
	a, b := x.process(nil), x.process(nil)
	wake(a.Node, e)
	wake(b.Node, e)
	testkit.Eventually(t, "all succeed", func() bool { return x.count(e, "succeeded") == 300 })
	if of := v.of(); len(of) != 300 || len(v.heard()) != 300 {
		t.Errorf("%d deliveries, %d attempts", len(of), len(v.heard()))
	}
}

// A wake during a turn is not lost, whatever the turn has found.
func TestAWakeDuringATurn(t *testing.T) {
	x := newWorld(t)
	v := newReceiver(t, nil)
	e := x.endpoint(v.url)
	f := &flaky{}
	p := x.process(func(c *Config) { f.Outbox, c.Outbox = c.Outbox, f })
	hold := make(chan struct{})
	f.hold.Store(&hold)
	wake(p.Node, e)
	testkit.Eventually(t, "a turn has found nothing", func() bool { return f.held.Load() == 1 })
	d := x.pending(e, 1)[0]
	wake(p.Node, e)
	f.hold.Store(nil)
	close(hold)
	testkit.Eventually(t, "it succeeds", func() bool { return x.row(d).Status == "succeeded" })
}

func TestRegisterWantsItsParts(t *testing.T) {
	for i := range 3 {
		cfg := Config{Outbox: &flaky{}, Endpoints: &closes{}, Sender: sendFunc(nil)}
		switch i {
		case 0:
			cfg.Outbox = nil
		case 1:
			cfg.Endpoints = nil
		case 2:
			cfg.Sender = nil
		}
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%d: registered", i)
				}
			}()
			Register(cluster.New(cluster.Config{Member: id.MemberID{UUID: id.NewAnywhere()}}), cfg)
		}()
	}
}
