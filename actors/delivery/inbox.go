package delivery

import "sync"

// inbox is what the goroutines of an actor have for it. Unlike its mailbox, which
// drops what is for nobody else when the actor ends, it keeps everything until
// somebody takes it: the actor, or who closes it.
type inbox struct {
	mu     sync.Mutex // guards the fields below
	all    []any      // turned, ended
	closed bool
}

// put reports whether the actor will see m.
func (b *inbox) put(m any) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.closed {
		b.all = append(b.all, m)
	}
	return !b.closed
}

// next takes the oldest; false: there is none.
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

// close takes all that is left, and lets nothing more in.
func (b *inbox) close() []any {
	b.mu.Lock()
	defer b.mu.Unlock()
	left := b.all
	b.all, b.closed = nil, true
	return left
}
