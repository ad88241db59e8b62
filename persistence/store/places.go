package store

import (
	"context"
	"slices"
	"sync"

	"agentsvc/schemas/id"
)

// Places bound what one tenant, and what all tenants together, do at a time. A place that is free goes to the tenant
// with the fewest, and among equals to the caller that has waited longest.
type Places struct {
	each, all, waits int

	mu      sync.Mutex // guards the fields below
	total   int
	under   map[id.TenantID]int // places that are taken
	waiting []*waiter           // in the order in which they came
}

type waiter struct {
	tenant id.TenantID
	got    chan struct{} // closed when it has its place
}

// NewPlaces returns places: each for a tenant, all together, and so many callers of a tenant that may wait.
func NewPlaces(each, all, waits int) *Places {
	return &Places{each: each, all: all, waits: waits, under: map[id.TenantID]int{}}
}

// Enter waits for a place. It reports false if there is none before ctx ends, or too many callers of the tenant wait
// already; else the caller calls Leave.
func (p *Places) Enter(ctx context.Context, t id.TenantID) bool {
	w := &waiter{t, make(chan struct{})}
	p.mu.Lock()
	mine := 0
	for _, o := range p.waiting {
		if o.tenant == t {
			mine++
		}
	}
	if mine >= p.waits {
		p.mu.Unlock()
		return false
	}
	p.waiting = append(p.waiting, w)
	p.grant()
	p.mu.Unlock()
	select {
	case <-w.got:
		return true
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.waiting, w); i >= 0 {
		p.waiting = slices.Delete(p.waiting, i, i+1)
		return false
	}
	p.gives(t) // it got one at the last moment
	return false
}

// Leave gives a place back.
func (p *Places) Leave(t id.TenantID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gives(t)
}

func (p *Places) gives(t id.TenantID) {
	p.total--
	if p.under[t]--; p.under[t] == 0 {
		delete(p.under, t)
	}
	p.grant()
}

// grant gives free places away.
func (p *Places) grant() {
	for p.total < p.all {
		next := -1
		for i, w := range p.waiting {
			if n := p.under[w.tenant]; n < p.each && (next < 0 || n < p.under[p.waiting[next].tenant]) {
				next = i
			}
		}
		if next < 0 {
			return
		}
		w := p.waiting[next]
		p.waiting = slices.Delete(p.waiting, next, next+1)
		p.total++
		p.under[w.tenant]++
		close(w.got)
	}
}
