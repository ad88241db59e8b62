package delivery

import "sync"

// inbox receives the results of an actor's goroutines. The mailbox drops its messages when
// the actor ends; the inbox keeps its entries until the actor takes them, or the caller of
// close.
type inbox struct {
	mu     sync.Mutex // guards the fields below
	all    []any      // turned, ended
	closed bool
}

// put adds m and reports whether the actor will see it.
func (b *inbox) put(m any) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.closed {
		b.all = append(b.all, m)
	}
	return !b.closed
}

// next removes the oldest entry; false means that there is none.
func (b *inbox) next() (any, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.all) == 0 {
		b.all = nil
		return nil, false
	}
	m := b.all[0]
	b.all[0] = nil
	b.all = b.all[1:]
	return m, true
}

// close returns the remaining entries, and refuses new ones.
func (b *inbox) close() []any {
	b.mu.Lock()
	defer b.mu.Unlock()
	left := b.all
	b.all, b.closed = nil, true
	return left
}
