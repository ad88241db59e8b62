package journal

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"agentsvc/schemas/id"
	"agentsvc/schemas/problem"
)

const (
	// retryAfter is what refused new work is told to wait.
	retryAfter = time.Second
	// wantFor is how long a tenant that was turned away counts as wanting.
	wantFor = time.Second
	// maxWanting bounds the memory of who was turned away.
	maxWanting = 4096
)

// tickets are the places of new work. A tenant alone may hold all but an eighth,
// which is left for who comes next; as soon as others hold or want some, it gets
// no further ticket beyond its fair share.
type tickets struct {
	total int
	now   func() time.Time

	mu      sync.Mutex // guards the fields below
	free    int
	held    map[id.TenantID]int
	wanting map[id.TenantID]time.Time // turned away and holding none, until when
	swept   time.Time                 // when wanting was last cleared of the past
}

func newTickets(total int, now func() time.Time) *tickets {
	return &tickets{total: total, now: now, free: total, held: map[id.TenantID]int{}, wanting: map[id.TenantID]time.Time{}}
}

// take takes a ticket for the tenant, or answers false.
func (t *tickets) take(tenant id.TenantID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	mine := t.held[tenant]
	if t.free == 0 || mine >= t.limit(tenant, mine) {
		if mine == 0 && len(t.wanting) < maxWanting {
			t.wanting[tenant] = t.now().Add(wantFor)
		}
		return false
	}
	t.free--
	t.held[tenant] = mine + 1
	delete(t.wanting, tenant)
	return true
}

// limit is how many tickets the tenant may hold now.
func (t *tickets) limit(tenant id.TenantID, mine int) int {
	if len(t.wanting) > 0 {
		if now := t.now(); now.Sub(t.swept) >= wantFor/8 {
			t.swept = now
			for who, until := range t.wanting {
				if now.After(until) {
					delete(t.wanting, who)
				}
			}
		}
	}
	sharers := len(t.held) + len(t.wanting)
	if _, wants := t.wanting[tenant]; mine == 0 && !wants {
		sharers++
	}
	if sharers <= 1 {
		return max(1, t.total-t.total/8)
	}
	return max(1, t.total/sharers)
}

func (t *tickets) release(tenant id.TenantID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.free++
	if t.held[tenant]--; t.held[tenant] == 0 {
		delete(t.held, tenant)
	}
}

// Admit takes a ticket for new work of the tenant, before it is decided, and waits
// for its turn; release gives it back, once, whatever became of the work. The error
// is a *problem.Error with UNAVAILABLE and Retry-After: storage cannot serve, the
// queue of new work is full, the tenant holds its fair share of it, or its turn
// did not come in time.
func (w *Writer) Admit(ctx context.Context, tenant id.TenantID) (release func(), err error) {
	if w.Down() != nil {
		w.metrics.turnedAway.WithLabelValues("storage").Inc()
		return nil, problem.Unavailable("Storage is not available.", retryAfter)
	}
	if !w.tickets.take(tenant) {
		w.metrics.turnedAway.WithLabelValues("full").Inc()
		return nil, problem.Unavailable("The queue of new work is full.", retryAfter)
	}
	w.metrics.tickets.Inc()
	var released atomic.Bool
	giveBack := func() {
		if !released.Swap(true) {
			w.tickets.release(tenant)
			w.metrics.tickets.Dec()
		}
	}
	leave, err := w.turns.take(ctx, tenant)
	if err != nil {
		giveBack()
		if ctx.Err() == nil { // else the caller left
			w.metrics.turnedAway.WithLabelValues("late").Inc()
		}
		return nil, problem.Unavailable("The node has too much new work.", retryAfter)
	}
	return func() {
		leave()
		giveBack()
	}, nil
}
