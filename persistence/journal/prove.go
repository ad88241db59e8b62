package journal

import (
	"context"
	"errors"

	"agentsvc/schemas/id"
)

// Prove has every lane commit a transaction that writes nothing, and returns nil once
// all of them have: their connections are alive. A lane that rests does not learn by
// itself that its connection was lost, and the first commits behind that would wait
// for another one.
func (w *Writer) Prove(ctx context.Context) error {
	if w.fenced.Load() {
		return ErrFenced
	}
	entries := make([]*entry, len(w.lanes))
	var errs []error
	for i, l := range w.lanes {
		c := &Commit{Op: id.OpID{UUID: id.NewAnywhere()}, New: true}
		w.routes.force(c, l)
		e := newEntry(ctx, c)
		if err := l.push(e); err != nil {
			w.routes.ended(c, l)
			errs = append(errs, err)
			continue
		}
		entries[i] = e
	}
	for i, e := range entries {
		if e == nil {
			continue
		}
		select {
		case err := <-e.done:
			errs = append(errs, err)
		case <-ctx.Done():
			w.lanes[i].withdraw(e)
			errs = append(errs, ctx.Err())
		}
	}
	return errors.Join(errs...)
}

// force sends c through l, whatever lane it would take.
func (r *routes) force(c *Commit, l *lane) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.tenants[c.Tenant]
	if t == nil {
		t = &route{}
		r.tenants[c.Tenant] = t
	}
	t.n++
	r.under[l]++
}
