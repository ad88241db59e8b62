package knowledge

import (
	"context"
	"slices"
	"sync"

	"agentsvc/schemas/id"
)

// Places of searches on a node. Each search holds one of the connections that all routes of the API
// share, for up to Timeout: without a bound the expensive searches of one tenant would take them all.
const (
	searchesEach    = 6   // of a tenant at a time
	searchesAll     = 10  // of all tenants at a time; the API has 16 connections
	searchesWaiting = 200 // of a tenant; further ones are refused at once
)

// places bounds the searches that are under way. A place that is free goes to the tenant with the
// fewest searches under way, and among equals to the search that has waited longest.
type places struct {
	each, all, waits int

	mu      sync.Mutex // guards the fields below
	total   int
	under   map[id.TenantID]int // searches under way
	waiting []*waiter           // in the order in which they came
}

type waiter struct {
	tenant id.TenantID
	got    chan struct{} // closed when it has its place
}

func newPlaces(each, all, waits int) *places {
	return &places{each: each, all: all, waits: waits, under: map[id.TenantID]int{}}
}

// enter waits for a place. It reports false if there is none before ctx ends, or too many searches
// of the tenant wait already; else the caller calls leave.
func (p *places) enter(ctx context.Context, t id.TenantID) bool {
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

func (p *places) leave(t id.TenantID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gives(t)
}

func (p *places) gives(t id.TenantID) {
	p.total--
	if p.under[t]--; p.under[t] == 0 {
		delete(p.under, t)
	}
	p.grant()
}

// grant gives free places away.
func (p *places) grant() {
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
