// Package turn gives out a node's places for long work, to the tenants that wait in turn: a tenant
// with much to do holds up no other for longer than one piece of work.
//
// It is not an actor: the places are the node's own. Order: within a tenant, as asked. Loss: none; a
// place lives as long as its holder.
package turn

import (
	"context"
	"slices"
	"sync"

	"agentsvc/schemas/id"
)

// Places are the places of a node. They are safe for concurrent use.
type Places struct {
	each int // most places of one tenant

	mu    sync.Mutex // guards the fields below
	free  int
	held  map[id.TenantID]int
	lines map[id.TenantID][]waiting
	order []id.TenantID // tenants with a line, the next one first
}

// waiting is work that waits for n places.
type waiting struct {
	n     int
	ahead bool
	got   chan struct{} // closed once it has them
}

// New returns so many places, of which one tenant has at most each.
func New(places, each int) *Places {
	return &Places{each: each, free: places, held: map[id.TenantID]int{}, lines: map[id.TenantID][]waiting{}}
}

// Take waits for a place. The caller calls Give in the end, unless there is an error.
func (p *Places) Take(ctx context.Context, t id.TenantID) error {
	_, err := p.TakeIf(ctx, t, func(int, int) bool { return true })
	return err
}

// TakeAhead does what TakeIf does for work that comes before what else waits of its tenant.
func (p *Places) TakeAhead(ctx context.Context, t id.TenantID, room func(mine, all int) bool) (bool, error) {
	return p.take(ctx, t, 1, true, room)
}

// TakeIf waits for a place if room says that one more may wait beside so much other work, of the tenant and of all.
// It returns false at once if it may not; else it does what Take does.
func (p *Places) TakeIf(ctx context.Context, t id.TenantID, room func(mine, all int) bool) (bool, error) {
	return p.take(ctx, t, 1, false, room)
}

// TakeSome waits for n places at once, or for as many as a tenant may have. The caller returns as many with GiveSome,
// unless there is an error. Work that needs many is not passed by work that needs few.
func (p *Places) TakeSome(ctx context.Context, t id.TenantID, n int) (int, error) {
	n = min(n, p.each)
	_, err := p.take(ctx, t, n, false, func(int, int) bool { return true })
	return n, err
}

// Yield gives a place to whom it is due, and waits for one again before what else waits of its tenant: it goes on at once if no other
// tenant waits. With an error it has none.
func (p *Places) Yield(ctx context.Context, t id.TenantID) error {
	p.mu.Lock()
	p.free++
	if p.held[t]--; p.held[t] == 0 {
		delete(p.held, t)
	}
	_, err := p.takeLocked(ctx, t, 1, true, func(int, int) bool { return true })
	return err
}

func (p *Places) take(ctx context.Context, t id.TenantID, n int, ahead bool, room func(mine, all int) bool) (bool, error) {
	p.mu.Lock()
	return p.takeLocked(ctx, t, n, ahead, room)
}

// takeLocked is called with mu, and unlocks it.
func (p *Places) takeLocked(ctx context.Context, t id.TenantID, n int, ahead bool, room func(mine, all int) bool) (bool, error) {
	if len(p.order) == 0 && p.free >= n && p.held[t]+n <= p.each {
		p.free -= n
		p.held[t] += n
		p.mu.Unlock()
		return true, nil
	}
	all := 0
	for _, o := range p.order {
		all += len(p.lines[o])
	}
	if !room(len(p.lines[t]), all) {
		p.mu.Unlock()
		return false, nil
	}
	mine := waiting{n, ahead, make(chan struct{})}
	if len(p.lines[t]) == 0 {
		p.order = append(p.order, t)
	}
	at := len(p.lines[t])
	if ahead {
		if i := slices.IndexFunc(p.lines[t], func(w waiting) bool { return !w.ahead }); i >= 0 {
			at = i
		}
	}
	p.lines[t] = slices.Insert(p.lines[t], at, mine)
	p.next()
	p.mu.Unlock()
	select {
	case <-mine.got:
		return true, nil
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.lines[t], mine); i >= 0 {
		p.leave(t, i)
		p.next() // others may have waited behind it
	} else { // it was given its places meanwhile
		p.give(t, n)
	}
	return true, ctx.Err()
}

// Try takes a place if one is free and no work waits for it.
func (p *Places) Try(t id.TenantID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.free == 0 || p.held[t] >= p.each || len(p.lines[t]) > 0 {
		return false
	}
	p.free--
	p.held[t]++
	return true
}

// Give returns a place.
func (p *Places) Give(t id.TenantID) { p.GiveSome(t, 1) }

// GiveSome returns n places.
func (p *Places) GiveSome(t id.TenantID, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.give(t, n)
}

func (p *Places) give(t id.TenantID, n int) {
	p.free += n
	if p.held[t] -= n; p.held[t] == 0 {
		delete(p.held, t)
	}
	p.next()
}

// leave takes waiting work out of its line.
func (p *Places) leave(t id.TenantID, i int) {
	p.lines[t] = slices.Delete(p.lines[t], i, i+1)
	if len(p.lines[t]) == 0 {
		delete(p.lines, t)
		p.order = slices.DeleteFunc(p.order, func(o id.TenantID) bool { return o == t })
	}
}

// next gives free places to the tenants whose turn it is.
func (p *Places) next() {
	for {
		i := slices.IndexFunc(p.order, func(t id.TenantID) bool { return p.held[t]+p.lines[t][0].n <= p.each })
		if i < 0 {
			return
		}
		t := p.order[i]
		mine := p.lines[t][0]
		if mine.n > p.free {
			return
		}
		p.order = append(slices.Delete(p.order, i, i+1), t) // behind the others
		p.leave(t, 0)
		p.free -= mine.n
		p.held[t] += mine.n
		close(mine.got)
	}
}

// Wanted reports whether work waits for a place.
func (p *Places) Wanted() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.order) > 0
}

type tenantKey struct{}

// With returns a context of work for a tenant: what is deep below it takes places in the tenant's turn.
func With(ctx context.Context, t id.TenantID) context.Context {
	return context.WithValue(ctx, tenantKey{}, t)
}

// Tenant returns the tenant of the work; zero if the context names none.
func Tenant(ctx context.Context) id.TenantID {
	t, _ := ctx.Value(tenantKey{}).(id.TenantID)
	return t
}
