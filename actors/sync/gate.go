package sync

import (
	"context"
	"slices"
	"sync"
	"time"

	"agentsvc/schemas/id"
)

// slice is how long a sync keeps its place while others wait for one.
const slice = time.Minute

// gate gives out the places of a node's syncs: one at a time for each tenant, and to waiting
// tenants in turn.
type gate struct {
	mu    sync.Mutex // guards the fields below
	free  int
	held  map[id.TenantID]bool
	lines map[id.TenantID][]chan struct{} // of waiting syncs
	turn  []id.TenantID                   // tenants with a line, the next one first
}

func newGate(places int) *gate {
	return &gate{free: places, held: map[id.TenantID]bool{}, lines: map[id.TenantID][]chan struct{}{}}
}

// take waits for a place.
func (g *gate) take(ctx context.Context, t id.TenantID) error {
	g.mu.Lock()
	if g.free > 0 && !g.held[t] && len(g.lines[t]) == 0 {
		g.free--
		g.held[t] = true
		g.mu.Unlock()
		return nil
	}
	mine := make(chan struct{})
	if len(g.lines[t]) == 0 {
		g.turn = append(g.turn, t)
	}
	g.lines[t] = append(g.lines[t], mine)
	g.mu.Unlock()
	waiting.Inc()
	defer waiting.Dec()
	select {
	case <-mine:
		return nil
	case <-ctx.Done():
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if i := slices.Index(g.lines[t], mine); i >= 0 {
		g.leave(t, i)
	} else { // it was given a place meanwhile
		g.free++
		delete(g.held, t)
		g.next()
	}
	return ctx.Err()
}

// leave takes a waiting sync out of its line.
func (g *gate) leave(t id.TenantID, i int) {
	g.lines[t] = slices.Delete(g.lines[t], i, i+1)
	if len(g.lines[t]) == 0 {
		delete(g.lines, t)
		g.turn = slices.DeleteFunc(g.turn, func(o id.TenantID) bool { return o == t })
	}
}

// give returns a place.
func (g *gate) give(t id.TenantID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.free++
	delete(g.held, t)
	g.next()
}

// next gives free places to the tenants whose turn it is.
func (g *gate) next() {
	for g.free > 0 {
		i := slices.IndexFunc(g.turn, func(t id.TenantID) bool { return !g.held[t] })
		if i < 0 {
			return
		}
		t := g.turn[i]
		mine := g.lines[t][0]
		g.turn = append(slices.Delete(g.turn, i, i+1), t) // behind the others
		g.leave(t, 0)
		g.free--
		g.held[t] = true
		close(mine)
	}
}

// wanted reports whether another sync waits for a place: of another tenant, or of this one.
func (g *gate) wanted() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.turn) > 0
}

// place is the place of one sync.
type place struct {
	gate   *gate
	tenant id.TenantID
	held   bool
}

func (p *place) take(ctx context.Context) error {
	if err := p.gate.take(ctx, p.tenant); err != nil {
		return err
	}
	p.held = true
	running.Inc()
	return nil
}

func (p *place) give() {
	if p.held {
		p.held = false
		running.Dec()
		p.gate.give(p.tenant)
	}
}
