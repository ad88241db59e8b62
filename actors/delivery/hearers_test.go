package delivery

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"agentsvc/actors/durable"
	"agentsvc/cluster"
	"agentsvc/persistence/store"
	"agentsvc/persistence/vault"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/testkit"
	"agentsvc/schemas/webhook"
)

// told records who was woken.
type told struct {
	t   testing.TB
	mu  sync.Mutex // guards all
	all map[cluster.Address]int
}

func (w *told) Tell(a cluster.Address, m any) {
	if _, ok := m.(durable.Wake); !ok || a.Kind != msg.KindDelivery {
		w.t.Errorf("%s was told %T", a, m)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.all == nil {
		w.all = map[cluster.Address]int{}
	}
	w.all[a]++
}

func (w *told) of(t id.TenantID, h store.Hearing) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.all[Address(t, h.ID)]
}

// endpointsOf are the endpoints of tenants, as rows.
type endpointsOf struct {
	mu    sync.Mutex // guards the fields below
	of    map[id.TenantID][]store.Hearing
	err   error
	hold  chan struct{} // nil: reads end at once
	reads atomic.Int64
	under atomic.Int64
}

func (r *endpointsOf) Hearing(ctx context.Context, t id.TenantID) ([]store.Hearing, error) {
	r.reads.Add(1)
	r.under.Add(1)
	defer r.under.Add(-1)
	r.mu.Lock()
	of, err, hold := r.of[t], r.err, r.hold
	r.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return of, err
}

func (r *endpointsOf) set(t id.TenantID, of ...store.Hearing) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.of == nil {
		r.of = map[id.TenantID][]store.Hearing{}
	}
	r.of[t] = of
}

func (r *endpointsOf) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = err
}

func hears(events ...webhook.Type) store.Hearing {
	return store.Hearing{ID: id.WebhookID{UUID: id.NewAnywhere()}, Events: events}
}

// A listener counts as a subscriber, and is not woken: it pulls.
func TestAListenerIsNotWoken(t *testing.T) {
	a, b := newTenant(), newTenant()
	listener, lone, e := hears(webhook.All), hears(webhook.All), hears(webhook.All)
	listener.Listener, lone.Listener = true, true
	r := &endpointsOf{}
	r.set(a, listener, e)
	r.set(b, lone)
	h, w := newHearers(t, r, nil)
	h.Committed(b, webhook.RunFailed)
	h.Committed(a, webhook.RunFailed)
	testkit.Eventually(t, "both are read", func() bool { _, known := h.cache.Get(b); return known && w.of(a, e) == 1 })
	h.Committed(b, webhook.RunFailed)
	h.Committed(a, webhook.RunFailed)
	testkit.Eventually(t, "the endpoint is woken", func() bool { return w.of(a, e) == 2 })
	h.Stop() // all wakes have been sent
	if n := w.of(a, listener) + w.of(b, lone); n != 0 {
		t.Errorf("listeners were woken %d times", n)
	}
	if !h.Hears(b) {
		t.Error("the tenant has no subscribers")
	}
}

func newTenant() id.TenantID { return id.TenantID{UUID: id.NewAnywhere()} }

func newHearers(t *testing.T, r Reader, valid func() bool) (*Hearers, *told) {
	t.Helper()
	w := &told{t: t}
	h := NewHearers(HearersConfig{Reader: r, Tell: w, Live: valid, Log: zerolog.Nop()})
	if err := h.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Stop)
	return h, w
}

func TestWhoHearsIsWoken(t *testing.T) {
	a, b, quiet := newTenant(), newTenant(), newTenant()
	all, failed, both, other := hears(webhook.All), hears(webhook.RunFailed), hears(webhook.RunFailed, webhook.RunCompleted), hears(webhook.All)
	r := &endpointsOf{}
	r.set(a, all, failed, both)
	r.set(b, other)
	h, w := newHearers(t, r, nil)
	if !h.Hears(a) || !h.Hears(quiet) {
		t.Error("who is not known may hear")
	}
	testkit.Eventually(t, "they are known", func() bool { return h.Hears(a) && !h.Hears(quiet) })
	h.Committed(a, webhook.RunCompleted)
	testkit.Eventually(t, "the subscribers are woken", func() bool { return w.of(a, all) == 1 && w.of(a, both) == 1 })
	if w.of(a, failed) != 0 || w.of(b, other) != 0 {
		t.Error("who does not hear of it was woken")
	}
	h.Committed(b, webhook.ApprovalRequested) // not known yet
	testkit.Eventually(t, "a tenant that was not cached is woken", func() bool { return w.of(b, other) == 1 })
	before := r.reads.Load()
	for range 1000 {
		h.Committed(a, webhook.RunFailed)
		h.Hears(b)
	}
	testkit.Eventually(t, "all are woken", func() bool { return w.of(a, failed) > 0 && w.of(a, both) > 1 })
	if n := r.reads.Load() - before; n != 0 {
		t.Errorf("%d reads of what is known", n)
	}
}

// Concurrent events are one read and one wake: a slow endpoint is woken once.
func TestEventsOfAMomentAreOneWake(t *testing.T) {
	a, e := newTenant(), hears(webhook.RunFailed, webhook.RunCompleted)
	r := &endpointsOf{hold: make(chan struct{})}
	r.set(a, e)
	h, w := newHearers(t, r, nil)
	h.Committed(a, webhook.RunFailed)
	testkit.Eventually(t, "it is read", func() bool { return r.under.Load() == 1 })
	for range 1000 {
		h.Committed(a, webhook.RunCompleted)
		h.Committed(a, webhook.RunFailed)
	}
	close(r.hold)
	testkit.Eventually(t, "it is woken", func() bool { return w.of(a, e) > 0 })
	h.Stop() // all wakes have been sent
	if n := w.of(a, e); n > 3 {
		t.Errorf("it was woken %d times", n)
	}
	if n := r.reads.Load(); n != 1 {
		t.Errorf("it was read %d times", n)
	}
}

// A change that was answered is seen: nothing that was read before Forget counts.
func TestForgottenHearersAreReadAnew(t *testing.T) {
	a := newTenant()
	was, is := hears(webhook.All), hears(webhook.All)
	r := &endpointsOf{}
	h, w := newHearers(t, r, nil)
	h.Hears(a)
	testkit.Eventually(t, "the tenant has no subscribers", func() bool { return !h.Hears(a) })
	r.set(a, was)
	h.Forget(a)
	if !h.Hears(a) {
		t.Fatal("forgotten, and still known")
	}
	h.Committed(a, webhook.RunFailed)
	testkit.Eventually(t, "the new one is woken", func() bool { return w.of(a, was) == 1 })
	r.set(a, is)
	h.ForgetAll()
	h.Committed(a, webhook.RunFailed)
	testkit.Eventually(t, "the newest is woken", func() bool { return w.of(a, is) == 1 })
	if w.of(a, was) != 1 {
		t.Error("who is gone was woken")
	}
	// The same while the read is in progress.
	r.mu.Lock()
	r.hold = make(chan struct{})
	hold := r.hold
	r.mu.Unlock()
	h.Forget(a)
	h.Hears(a)
	testkit.Eventually(t, "it is read", func() bool { return r.under.Load() == 1 })
	r.set(a)
	h.Forget(a)
	close(hold)
	testkit.Eventually(t, "the tenant has no subscribers", func() bool { return !h.Hears(a) })
}

// An event after a change wakes the endpoints as they are then, though a read from before the change has not quite ended.
func TestAnEventDuringAnOldReadWakesTheNewEndpoint(t *testing.T) {
	a := newTenant()
	was, is := hears(webhook.All), hears(webhook.All)
	r := &endpointsOf{}
	h, w := newHearers(t, r, nil)
	h.mu.Lock()
	h.reading[a] = true // it has its rows
	h.mu.Unlock()
	r.set(a, is)
	h.Forget(a)
	h.Committed(a, webhook.RunFailed)
	testkit.Eventually(t, "the event waits for the end of the read", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return len(h.unknown[a]) == 1
	})
	h.loaded(t.Context(), a, []store.Hearing{was}, nil, nil)
	testkit.Eventually(t, "the new endpoint is woken", func() bool { return w.of(a, is) == 1 })
	if w.of(a, was) != 0 {
		t.Error("who is gone was woken")
	}
}

func TestWithoutTheLeaseNothingIsKnown(t *testing.T) {
	a := newTenant()
	var valid atomic.Bool
	valid.Store(true)
	h, _ := newHearers(t, &endpointsOf{}, valid.Load)
	h.Hears(a)
	testkit.Eventually(t, "the tenant has no subscribers", func() bool { return !h.Hears(a) })
	valid.Store(false)
	if !h.Hears(a) {
		t.Error("a node without its lease knows that nobody hears")
	}
}

// A failed read wakes no endpoint and is retried at the next event; one that hangs blocks
// nothing, and delays no tenant that is cached.
func TestReadsThatFailOrHang(t *testing.T) {
	a, known := newTenant(), newTenant()
	e, k := hears(webhook.All), hears(webhook.All)
	r := &endpointsOf{}
	r.set(a, e)
	r.set(known, k)
	h, w := newHearers(t, r, nil)
	r.fail(errors.New("no database"))
	h.Committed(a, webhook.RunFailed)
	testkit.Eventually(t, "it was read", func() bool { return r.reads.Load() == 1 && r.under.Load() == 0 })
	r.fail(nil)
	if !h.Hears(a) {
		t.Error("a read that failed says that nobody hears")
	}
	h.Committed(a, webhook.RunFailed)
	testkit.Eventually(t, "it is woken", func() bool { return w.of(a, e) > 0 })
	h.Committed(known, webhook.RunFailed)
	testkit.Eventually(t, "it is woken", func() bool { return w.of(known, k) == 1 })

	r.mu.Lock()
	r.hold = make(chan struct{})
	r.mu.Unlock()
	began := time.Now()
	for range 10000 {
		h.Committed(newTenant(), webhook.RunFailed)
		h.Hears(newTenant())
	}
	if took := time.Since(began); took > 30*time.Second { // usually 50 ms
		t.Errorf("20,000 calls took %v", took)
	}
	testkit.Eventually(t, "the loaders hang", func() bool { return r.under.Load() == loaders })
	h.Committed(known, webhook.RunFailed)
	testkit.Eventually(t, "a cached tenant is woken", func() bool { return w.of(known, k) == 2 })
	if n := r.under.Load(); n != loaders {
		t.Errorf("%d reads at a time", n)
	}
}

// Events that cannot be handled yet are bounded.
func TestCommittedIsBounded(t *testing.T) {
	h := NewHearers(HearersConfig{Reader: &endpointsOf{}, Tell: &told{t: t}}) // runOnce does not run
	for range maxCommitted + 100 {
		h.Committed(newTenant(), webhook.RunFailed)
	}
	a := newTenant()
	for range 100 {
		h.Committed(a, webhook.RunFailed)
	}
	if n := len(h.committed); n != maxCommitted {
		t.Errorf("%d tenants are kept", n)
	}
	h.Stop()
}

func TestTargets(t *testing.T) {
	at := endpointAt{newTenant(), id.WebhookID{UUID: id.NewAnywhere()}}
	rows := &rowsOf{secret: "first"}
	valid := true
	s := NewTargets(TargetsConfig{Endpoints: rows, Live: func() bool { return valid }})
	get := func(want string, reads int) {
		t.Helper()
		to, err := s.Endpoint(t.Context(), at.tenant, at.webhook)
		got := ""
		if to != nil {
			got = string(to.Secret.Reveal())
		}
		if err != nil || got != want || rows.reads != reads {
			t.Errorf("%q, %v after %d reads, want %q after %d", got, err, rows.reads, want, reads)
		}
	}
	get("first", 1)
	rows.secret = "second"
	get("first", 1)
	s.Forget(at.tenant, at.webhook)
	get("second", 2)
	rows.secret = "third"
	s.ForgetAll()
	get("third", 3)
	valid = false
	rows.secret = "fourth"
	get("fourth", 4)
	valid = true
	s.Forget(at.tenant, at.webhook)
	rows.gone = true
	get("", 5)
	get("", 6)
}

// rowsOf is one endpoint's row.
type rowsOf struct {
	secret string
	gone   bool
	reads  int
}

func (r *rowsOf) Endpoint(context.Context, id.TenantID, id.WebhookID) (*store.Endpoint, error) {
	r.reads++
	if r.gone {
		return nil, nil
	}
	return &store.Endpoint{URL: "https://a.example/", Secret: vault.NewSecret([]byte(r.secret)), Enabled: true}, nil
}
