package ingest

import (
	"context"
	"sync"

	"agentsvc/actors/durable"
	"agentsvc/cluster"
	"agentsvc/schemas/turn"
)

// Documents wait for their places before their row says anything: one that waits over the ends of many
// processes has not been begun. What waits in memory is bounded, of a tenant and of all; further documents leave
// memory, and the sweep wakes them later.
const (
	mostWaiting    = 300 // the default of Config.Waiting
	mostWaitingAll = 5000
	leastWaiting   = 10 // of a tenant, however many others wait

	cleaningPlaces = 4
)

// entered keeps the places of documents between Enter and Build.
type entered struct {
	mu sync.Mutex // guards the field below
	at map[cluster.Address]*turn.Places
}

// put keeps the place of a document, unless its activation has ended. It reports whether it does.
func (e *entered) put(ctx context.Context, a cluster.Address, p *turn.Places) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if ctx.Err() != nil {
		return false
	}
	if old := e.at[a]; old != nil {
		old.Give(a.Tenant)
	}
	e.at[a] = p
	return true
}

// take returns the place of a document; nil if it has none.
func (e *entered) take(a cluster.Address) *turn.Places {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := e.at[a]
	delete(e.at, a)
	return p
}

// forget gives back the place of a document whose activation has ended before it was used.
func (k *kind) forget(a cluster.Address) {
	if p := k.entered.take(a); p != nil {
		p.Give(a.Tenant)
	}
}

// placesOf returns the places of a document: those for reading, or those for documents that get vectors.
func (k *kind) placesOf(r Row) *turn.Places {
	if r.embeds() {
		return k.embedding
	}
	return k.places
}

// enter waits for a place of the node.
func (k *kind) enter(ctx context.Context, a durable.Activation, r Row) any {
	places := k.placesOf(r)
	if ok, err := places.TakeIf(ctx, a.Address.Tenant, k.room); !ok || err != nil {
		return fullUnless(ok)
	}
	if !k.entered.put(ctx, a.Address, places) {
		places.Give(a.Address.Tenant)
		return nil
	}
	return Entered{}
}

// room reports whether one more document may wait beside so many of its tenant, and of all.
func (k *kind) room(mine, all int) bool {
	return mine < k.cfg.Waiting && (all < mostWaitingAll || mine < leastWaiting)
}

// fullUnless returns the result of an effect that got no place: nil if it waited for one until its activation ended.
func fullUnless(waited bool) any {
	if waited {
		return nil
	}
	return Full{}
}
