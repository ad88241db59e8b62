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
	// retryAfter is the Retry-After of refused new work.
	retryAfter = time.Second
	// freeTimes is how many times the free tickets a tenant may hold.
	freeTimes = 7
)

// tickets bound the new work that was admitted and has not ended. A tenant gets another
// ticket while it holds fewer than freeTimes of what is free. A tenant alone holds all but an
// eighth, which is left for the next one; of several that want all, each holds the same, and
// some stay free for another.
type tickets struct {
	mu   sync.Mutex // guards the fields below
	free int
	held map[id.TenantID]int
}

func newTickets(total int) *tickets {
	return &tickets{free: total, held: map[id.TenantID]int{}}
}

// take takes a ticket for the tenant. It returns false if there is none for it.
func (t *tickets) take(tenant id.TenantID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	mine := t.held[tenant]
	if mine >= freeTimes*t.free {
		return false
	}
	t.free--
	t.held[tenant] = mine + 1
	return true
}

func (t *tickets) release(tenant id.TenantID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.free++
	if t.held[tenant]--; t.held[tenant] == 0 {
		delete(t.held, tenant)
	}
}

// Admit takes a ticket for new work of the tenant, before it is decided, and waits until the
// work may enter (inflight). release gives the ticket back and is called once the work has
// ended. The error is a *problem.Error with UNAVAILABLE and Retry-After: storage is
// unavailable, the queue of new work is full, the tenant holds its share of it, or the work
// could not enter in time.
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
	leave, err := w.inflight.take(ctx, tenant)
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
