package journal

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"agentsvc/schemas/id"
)

// maxOutdated is how many tenants a basis tells apart.
const maxOutdated = 4096

// basis tells which commits were decided on what this node has forgotten since. It counts how
// often something was forgotten.
type basis struct {
	now atomic.Uint64 // begins at 1

	mu    sync.Mutex             // guards the fields below, and changes of now
	floor uint64                 // commits of every tenant are outdated below it
	of    map[id.TenantID]uint64 // and those of these tenants below theirs
}

func newBasis() *basis {
	b := &basis{of: map[id.TenantID]uint64{}}
	b.now.Store(1)
	return b
}

// forget outdates what was decided for t so far; for the zero tenant, everything.
func (b *basis) forget(t id.TenantID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.now.Load() + 1
	if t == (id.TenantID{}) || len(b.of) >= maxOutdated {
		b.floor = n
		clear(b.of)
	} else {
		b.of[t] = n
	}
	b.now.Store(n)
}

// outdated reports whether what c was decided on was forgotten since.
func (b *basis) outdated(c *Commit) bool {
	if c.Basis == 0 || c.Basis == b.now.Load() {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return c.Basis < max(b.floor, b.of[c.Tenant])
}

// Basis is what a decision that begins now puts into its commit (Commit.Basis).
func (w *Writer) Basis() uint64 { return w.basis.now.Load() }

// Outdate is called when this node has forgotten what it remembered of a tenant's endpoints.
// Once it returns nil, the commits of decisions that began before are written or will never
// be: they are answered ErrOutdated. It waits for the flush in which a lane is, if any.
func (w *Writer) Outdate(ctx context.Context, t id.TenantID) error {
	w.basis.forget(t)
	return w.between(ctx)
}

// OutdateAll is Outdate for every tenant.
func (w *Writer) OutdateAll(ctx context.Context) error { return w.Outdate(ctx, id.TenantID{}) }

// between waits until each lane has once been between two flushes.
func (w *Writer) between(ctx context.Context) error {
	for _, l := range w.lanes {
		select {
		case l.flushing <- struct{}{}:
			<-l.flushing
		case <-ctx.Done():
			return fmt.Errorf("wait for the flush of lane %d: %w", l.n, ctx.Err())
		}
	}
	return nil
}

// current answers the entries whose commits are outdated, and returns the others. The lane is
// flushing: what is outdated later waits for the end of the flush.
func (l *lane) current(batch []*entry) []*entry {
	kept := batch[:0]
	for _, e := range batch {
		if l.w.basis.outdated(e.c) {
			l.answer(e, ErrOutdated)
		} else {
			kept = append(kept, e)
		}
	}
	return kept
}
