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

// take takes a ticket for the tenant, or answers false.
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
