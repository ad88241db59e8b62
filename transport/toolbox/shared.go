package toolbox

import (
	"context"
	"sync"
	"time"

	"agentsvc/schemas/id"
	"agentsvc/schemas/tool"
)

// accesses joins reads of one agent's or workflow's access that wait at the same time. A caller
// gets a read that began after its call, so it misses nothing that was committed before. The
// result is shared and never changed.
type accesses struct {
	mu   sync.Mutex // guards the fields below, and those of the turns but access and err
	open map[owner]*turn
}

type owner struct {
	tenant id.TenantID
	of     id.UUID // an agent or a workflow
}

// turn is one read. It begins when the one before it has ended.
type turn struct {
	before *turn // nil: it begins at once
	done   chan struct{}

	reading bool          // it has begun: a caller that comes now needs the next one
	callers int           // that wait for it
	took    time.Duration // the read
	next    *turn         // of the callers that came after it began; nil: there are none

	access *tool.Access
	err    error
}

// A read costs the same for one caller and for many. So behind a read for at least manyCallers the next
// one begins later, by the time that the read took and at most by longestRest: more callers share it.
const (
	manyCallers = 8
	longestRest = 2 * time.Millisecond
)

// get returns the result of read, which it may call for other callers too. The time of read is
// bounded by itself.
func (a *accesses) get(ctx context.Context, o owner, read func(context.Context) (*tool.Access, error)) (*tool.Access, error) {
	a.mu.Lock()
	first := a.open[o]
	t := first
	if t != nil && t.reading {
		t = first.next
	}
	if t != nil {
		t.callers++
		a.mu.Unlock()
		select {
		case <-t.done:
			return t.access, t.err
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	mine := &turn{before: first, done: make(chan struct{}), callers: 1}
	if first == nil {
		a.open[o] = mine
	} else {
		first.next = mine
	}
	a.mu.Unlock()
	a.wait(mine)
	began := time.Now()
	defer func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		mine.took = time.Since(began)
		if mine.next == nil {
			delete(a.open, o)
		} else {
			a.open[o] = mine.next
		}
		close(mine.done)
	}()
	mine.access, mine.err = read(context.WithoutCancel(ctx))
	return mine.access, mine.err
}

// wait returns when a turn may begin. It is not long: the time of a read is bounded.
func (a *accesses) wait(t *turn) {
	if t.before != nil {
		<-t.before.done
		a.mu.Lock()
		many, rest := t.before.callers >= manyCallers, min(t.before.took, longestRest)
		t.before = nil
		a.mu.Unlock()
		if many {
			time.Sleep(rest)
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	t.reading = true
}
