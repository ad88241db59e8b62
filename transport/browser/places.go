package browser

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"agentsvc/schemas/id"
)

// places are the sessions that may be open. A freed place goes to the tenant whose turn it is,
// so that one with many jobs delays another by one job at most.
type places struct {
	all, each, queue int

	mu      sync.Mutex // guards what is below
	taken   int
	of      map[id.TenantID]int
	waiting map[id.TenantID][]*waiter
	turns   []id.TenantID // tenants that wait, in order
	queued  int
	closed  bool
}

type waiter struct{ ready chan struct{} }

func newPlaces(all, each, queue int) *places {
	return &places{all: all, each: min(each, all), queue: queue, of: map[id.TenantID]int{}, waiting: map[id.TenantID][]*waiter{}}
}

// take waits for a place. It fails with ErrUnavailable if too many wait, or too many of the
// tenant.
func (p *places) take(ctx context.Context, t id.TenantID) (release func(), err error) {
	p.mu.Lock()
	switch {
	case p.closed:
		p.mu.Unlock()
		return nil, errStopping
	case p.taken < p.all && p.of[t] < p.each && len(p.waiting[t]) == 0:
		p.give(t)
		p.mu.Unlock()
		return p.releaser(t), nil
	case p.queued >= p.queue || len(p.waiting[t]) >= max(1, p.queue/2):
		p.mu.Unlock()
		refused.Inc()
		return nil, fmt.Errorf("%w: too many jobs wait for a browser", ErrUnavailable)
	}
	w := &waiter{make(chan struct{})}
	if len(p.waiting[t]) == 0 {
		p.turns = append(p.turns, t)
	}
	p.waiting[t] = append(p.waiting[t], w)
	p.queued++
	p.mu.Unlock()
	select {
	case <-w.ready:
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-w.ready:
		if p.closed {
			return nil, errStopping
		}
		if ctx.Err() == nil {
			return p.releaser(t), nil
		}
		p.back(t)
	default:
		p.forget(t, w)
	}
	return nil, ctx.Err()
}

func (p *places) give(t id.TenantID) {
	p.taken++
	p.of[t]++
}

func (p *places) releaser(t id.TenantID) func() {
	return sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.back(t)
	})
}

// back frees a place and gives what is free to those whose turn it is.
func (p *places) back(t id.TenantID) {
	p.taken--
	if p.of[t]--; p.of[t] == 0 {
		delete(p.of, t)
	}
	p.next()
}

func (p *places) next() {
	for i := 0; i < len(p.turns) && p.taken < p.all; {
		t := p.turns[i]
		if p.of[t] >= p.each {
			i++
			continue
		}
		w := p.waiting[t][0]
		p.forget(t, w)
		if j := slices.Index(p.turns, t); j >= 0 { // it has more: to the end
			p.turns = append(slices.Delete(p.turns, j, j+1), t)
		}
		p.give(t)
		close(w.ready)
		i = 0
	}
}

func (p *places) forget(t id.TenantID, w *waiter) {
	i := slices.Index(p.waiting[t], w)
	if i < 0 {
		return
	}
	p.queued--
	if p.waiting[t] = slices.Delete(p.waiting[t], i, i+1); len(p.waiting[t]) == 0 {
		delete(p.waiting, t)
		p.turns = slices.DeleteFunc(p.turns, func(x id.TenantID) bool { return x == t })
	}
}

// close refuses everyone who waits.
func (p *places) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	p.closed = true
	for _, ws := range p.waiting {
		for _, w := range ws {
			close(w.ready)
		}
	}
	p.waiting, p.turns, p.queued = map[id.TenantID][]*waiter{}, nil, 0
}

// busy reports whether a session is open.
func (p *places) busy() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.taken > 0
}
