package journal

import (
	"context"
	"sync"
	"time"

	"agentsvc/schemas/id"
)

const (
	// alonePerCPU and besidePerCPU limit the new work in flight for each CPU. A tenant
	// alone gets enough to fill flushes, because large flushes cost least. Beside other
	// tenants the limit is low, so that the work in flight is not slowed by work that can
	// wait.
	alonePerCPU  = 128
	besidePerCPU = 16
	// countedFor is how long new work counts as in flight at most. Work that takes longer
	// waits for something else, such as another node, and uses no CPU here.
	countedFor = 50 * time.Millisecond
	// enterWithin is how long new work waits to enter.
	enterWithin = 4 * time.Second
	// presentFor is how long a tenant counts as present after its last new work. A tenant
	// that posts to a cluster a few times a second reaches each node every few seconds. It
	// is longer than enterWithin and countedFor together.
	presentFor = 10 * time.Second
	// A flush is slow if it takes at least slowFlush, slowCommit for each of its commits,
	// and slowTimes as long as the quickest flush of the last ten to twenty seconds, which
	// is the time to the database.
	slowFlush   = 3 * time.Millisecond
	slowCommit  = 100 * time.Microsecond
	slowTimes   = 5
	quickestFor = 10 * time.Second
	// leastInFlight is what a tenant may always have in flight.
	leastInFlight = 1
)

// inflight limits the new work in flight. Work that has a ticket and does not fit waits,
// and tenants enter in round-robin order. While several tenants are present the limit is
// lower; a tenant has at most half of it, and less while flushes are slow, so that little is
// in flight when another tenant posts (docs/adr/0025).
type inflight struct {
	alone  int // the limit while one tenant is present
	beside int // the limit while several are
	now    func() time.Time

	mu       sync.Mutex // guards the fields below
	total    int
	held     map[id.TenantID]int       // in flight, by tenant
	waiting  map[id.TenantID][]*waiter // oldest first
	tenants  []id.TenantID             // with waiting work, the next one first
	last     visit                     // the last tenant with new work
	former   visit                     // the last other tenant before it
	most     float64                   // limit of a tenant beside others
	quickest [2]time.Duration          // flush of the current quickestFor, and of the one before
	since    time.Time                 // start of the current quickestFor
}

type visit struct {
	tenant id.TenantID
	at     time.Time
}

// waiter is new work that waits to enter.
type waiter struct {
	come chan struct{} // closed when it has entered
	gone bool          // its caller has left; guarded by inflight.mu
}

func newInflight(alone, beside int, now func() time.Time) *inflight {
	return &inflight{alone: alone, beside: beside, now: now, held: map[id.TenantID]int{}, waiting: map[id.TenantID][]*waiter{}, most: float64(beside / 2)}
}

// flushed adapts the limit of a tenant to the duration of a flush of n commits.
func (t *inflight) flushed(n int, took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now := t.now(); now.Sub(t.since) >= quickestFor {
		former := t.quickest[0]
		if now.Sub(t.since) >= 2*quickestFor {
			former = 0 // the last flush is long ago
		}
		t.since, t.quickest = now, [2]time.Duration{took, former}
	}
	t.quickest[0] = min(t.quickest[0], took)
	quickest := t.quickest[0]
	if t.quickest[1] > 0 {
		quickest = min(quickest, t.quickest[1])
	}
	if took >= max(slowFlush, time.Duration(n)*slowCommit, slowTimes*quickest) {
		t.most = max(leastInFlight, t.most*0.9)
	} else {
		t.most = min(float64(t.beside/2), t.most+0.25)
	}
}

// take waits until the work may enter, until ctx ends or for enterWithin. release ends it;
// it may be called more than once.
func (t *inflight) take(ctx context.Context, tenant id.TenantID) (release func(), err error) {
	t.mu.Lock()
	now := t.now()
	if t.last.tenant != tenant {
		t.former = t.last
	}
	t.last = visit{tenant, now}
	if len(t.tenants) == 0 && t.room(tenant, now) {
		t.enter(tenant)
		t.mu.Unlock()
		return t.hold(tenant), nil
	}
	w := &waiter{come: make(chan struct{})}
	if len(t.waiting[tenant]) == 0 {
		t.tenants = append(t.tenants, tenant)
	}
	t.waiting[tenant] = append(t.waiting[tenant], w)
	t.admit(now)
	t.mu.Unlock()

	ctx, cancel := context.WithTimeout(ctx, enterWithin)
	defer cancel()
	select {
	case <-w.come:
		return t.hold(tenant), nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	select {
	case <-w.come: // it entered in the meantime
		t.leave(tenant)
	default:
		w.gone = true
	}
	return nil, ctx.Err()
}

// room reports whether work of the tenant may enter now. The lock is held.
func (t *inflight) room(tenant id.TenantID, now time.Time) bool {
	if t.accompanied(tenant, now) {
		return t.total < t.beside && t.held[tenant] < int(t.most)
	}
	return t.total < t.alone
}

// accompanied reports whether another tenant is present. The lock is held.
func (t *inflight) accompanied(tenant id.TenantID, now time.Time) bool {
	other := t.last
	if other.tenant == tenant {
		other = t.former
	}
	return now.Sub(other.at) < presentFor
}

// shared reports whether more than one tenant is present, and whether slow flushes have
// reduced the limit of each below its half.
func (t *inflight) shared() (shared, heldBack bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.now().Sub(t.former.at) < presentFor, t.most < float64(t.beside/2)
}

// enter counts work of the tenant as in flight. The lock is held.
func (t *inflight) enter(tenant id.TenantID) {
	t.total++
	t.held[tenant]++
}

// leave ends work of the tenant and lets waiting work enter. The lock is held.
func (t *inflight) leave(tenant id.TenantID) {
	t.total--
	if t.held[tenant]--; t.held[tenant] == 0 {
		delete(t.held, tenant)
	}
	t.admit(t.now())
}

// admit lets waiting work enter while there is room, one tenant after another. A tenant at
// its limit is passed over. The lock is held.
func (t *inflight) admit(now time.Time) {
	for i := 0; i < len(t.tenants) && (t.total < t.beside || len(t.tenants) == 1); {
		tenant := t.tenants[i]
		own := t.waiting[tenant]
		for len(own) > 0 && own[0].gone {
			own = own[1:]
		}
		t.waiting[tenant] = own
		switch {
		case len(own) == 0:
			delete(t.waiting, tenant)
			t.tenants = append(t.tenants[:i], t.tenants[i+1:]...)
			continue
		case !t.room(tenant, now):
			i++
			continue
		}
		t.enter(tenant)
		close(own[0].come)
		t.tenants = append(t.tenants[:i], t.tenants[i+1:]...)
		if own = own[1:]; len(own) == 0 {
			delete(t.waiting, tenant)
		} else {
			t.waiting[tenant] = own
			t.tenants = append(t.tenants, tenant)
		}
	}
}

// hold returns the release of work in flight. After countedFor it is released anyway.
func (t *inflight) hold(tenant id.TenantID) (release func()) {
	var once sync.Once
	back := func() {
		once.Do(func() {
			t.mu.Lock()
			defer t.mu.Unlock()
			t.leave(tenant)
		})
	}
	late := time.AfterFunc(countedFor, back)
	return func() {
		late.Stop()
		back()
	}
}
