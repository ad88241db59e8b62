package journal

import (
	"context"
	"sync"
	"time"

	"agentsvc/schemas/id"
)

const (
	// alonePerCPU and besidePerCPU are how much new work may be under way for each
	// CPU: of a tenant alone enough to fill flushes, because large ones cost least,
	// and beside others little enough that what is under way is not slowed by what
	// could as well wait.
	alonePerCPU  = 128
	besidePerCPU = 16
	// placeFor is how long a place is held at most. Who waits longer for an answer,
	// for one of another node say, uses no CPU here.
	placeFor = 50 * time.Millisecond
	// turnWithin is how long new work waits for its turn.
	turnWithin = 4 * time.Second
	// companyFor is how long a tenant counts as company of the others after it came: who
	// comes to a cluster a few times a second comes to each of its nodes every few
	// seconds. It is longer than anybody waits for a place and holds it.
	companyFor = 10 * time.Second
	// A flush is slow from slowFlush on, from slowCommit for each of its commits where
	// they are many, or from slowTimes as long as the quickest one of the last ten to
	// twenty seconds, where the database is farther away.
	slowFlush   = 3 * time.Millisecond
	slowCommit  = 100 * time.Microsecond
	slowTimes   = 5
	quickestFor = 10 * time.Second
	// fewestPlaces is what a tenant may always hold.
	fewestPlaces = 1
)

// turns hands out places to new work that has a ticket, one tenant after another:
// however many posts of a tenant wait, another one's next post is the next but one.
// Beside others there are fewer places, of which a tenant holds at most half, and
// less while flushes are slow: what is under way when somebody comes is little.
type turns struct {
	alone  int // places while there is one tenant
	beside int // places while there are more
	now    func() time.Time

	mu       sync.Mutex // guards the fields below
	taken    int
	held     map[id.TenantID]int
	waiting  map[id.TenantID][]*turn // oldest first
	tenants  []id.TenantID           // who waits, next one first
	last     visit                   // the last tenant that came
	former   visit                   // the last one before it that was another
	most     float64                 // places that a tenant may hold beside others
	quickest [2]time.Duration        // flush of the present quickestFor, and of the one before
	since    time.Time               // when the present one began
}

type visit struct {
	tenant id.TenantID
	at     time.Time
}

// turn is one that waits for a place.
type turn struct {
	come chan struct{} // closed when it has one
	gone bool          // it has left; the lock is the turns'
}

func newTurns(alone, beside int, now func() time.Time) *turns {
	return &turns{alone: alone, beside: beside, now: now, held: map[id.TenantID]int{}, waiting: map[id.TenantID][]*turn{}, most: float64(beside / 2)}
}

// flushed takes note of how long a flush of n commits took.
func (t *turns) flushed(n int, took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now := t.now(); now.Sub(t.since) >= quickestFor {
		former := t.quickest[0]
		if now.Sub(t.since) >= 2*quickestFor {
			former = 0 // nothing was flushed for long
		}
		t.since, t.quickest = now, [2]time.Duration{took, former}
	}
	t.quickest[0] = min(t.quickest[0], took)
	quickest := t.quickest[0]
	if t.quickest[1] > 0 {
		quickest = min(quickest, t.quickest[1])
	}
	if took >= max(slowFlush, time.Duration(n)*slowCommit, slowTimes*quickest) {
		t.most = max(fewestPlaces, t.most*0.9)
	} else {
		t.most = min(float64(t.beside/2), t.most+0.25)
	}
}

// take waits for a place, at most until ctx ends or for turnWithin; release gives
// it back, once or more often.
func (t *turns) take(ctx context.Context, tenant id.TenantID) (release func(), err error) {
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
	w := &turn{come: make(chan struct{})}
	if len(t.waiting[tenant]) == 0 {
		t.tenants = append(t.tenants, tenant)
	}
	t.waiting[tenant] = append(t.waiting[tenant], w)
	t.admit(now)
	t.mu.Unlock()

	ctx, cancel := context.WithTimeout(ctx, turnWithin)
	defer cancel()
	select {
	case <-w.come:
		return t.hold(tenant), nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	select {
	case <-w.come: // meanwhile
		t.leave(tenant)
	default:
		w.gone = true
	}
	return nil, ctx.Err()
}

// room reports whether the tenant may have a place now. The lock is held.
func (t *turns) room(tenant id.TenantID, now time.Time) bool {
	if t.company(tenant, now) {
		return t.taken < t.beside && t.held[tenant] < int(t.most)
	}
	return t.taken < t.alone
}

// company reports whether another tenant came lately. The lock is held.
func (t *turns) company(tenant id.TenantID, now time.Time) bool {
	other := t.last
	if other.tenant == tenant {
		other = t.former
	}
	return now.Sub(other.at) < companyFor
}

// shared reports whether more than one tenant came lately, and whether each may hold
// less than its half of the places, because flushes were slow.
func (t *turns) shared() (shared, heldBack bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.now().Sub(t.former.at) < companyFor, t.most < float64(t.beside/2)
}

// enter gives the tenant a place. The lock is held.
func (t *turns) enter(tenant id.TenantID) {
	t.taken++
	t.held[tenant]++
}

// leave takes a place back and gives it to whose turn it is. The lock is held.
func (t *turns) leave(tenant id.TenantID) {
	t.taken--
	if t.held[tenant]--; t.held[tenant] == 0 {
		delete(t.held, tenant)
	}
	t.admit(t.now())
}

// admit lets in who waits, one tenant after another, as far as there is room. Who
// holds what it may is passed over. The lock is held.
func (t *turns) admit(now time.Time) {
	for i := 0; i < len(t.tenants) && (t.taken < t.beside || len(t.tenants) == 1); {
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

// hold is the release of a place, which also comes by itself after placeFor.
func (t *turns) hold(tenant id.TenantID) (release func()) {
	var once sync.Once
	back := func() {
		once.Do(func() {
			t.mu.Lock()
			defer t.mu.Unlock()
			t.leave(tenant)
		})
	}
	late := time.AfterFunc(placeFor, back)
	return func() {
		late.Stop()
		back()
	}
}
