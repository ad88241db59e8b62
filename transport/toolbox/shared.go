package toolbox

import (
	"context"
	"sync"

	"agentsvc/schemas/id"
	"agentsvc/schemas/tool"
)

// accesses joins reads of one agent's or workflow's access that wait at the same time. A caller
// gets a read that began after its call, so it misses nothing that was committed before. The
// result is shared and never changed.
type accesses struct {
	mu   sync.Mutex // guards the fields below, and next of the turns
	open map[owner]*turn
}

type owner struct {
	tenant id.TenantID
	of     id.UUID // an agent or a workflow
}

// turn is one read. It begins when the one before it has ended.
type turn struct {
	begin chan struct{} // nil: at once
	done  chan struct{}
	next  *turn // of the callers that came after it began; nil: there are none

	access *tool.Access
	err    error
}

// get returns the result of read, which it may call for other callers too. The time of read is
// bounded by itself.
func (a *accesses) get(ctx context.Context, o owner, read func(context.Context) (*tool.Access, error)) (*tool.Access, error) {
	a.mu.Lock()
	running := a.open[o]
	var mine *turn
	switch {
	case running == nil:
		mine = &turn{done: make(chan struct{})}
		a.open[o] = mine
	case running.next == nil:
		mine = &turn{begin: running.done, done: make(chan struct{})}
		running.next = mine
	default:
		t := running.next
		a.mu.Unlock()
		select {
		case <-t.done:
			return t.access, t.err
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if mine.next == nil {
			delete(a.open, o)
		} else {
			a.open[o] = mine.next
		}
		close(mine.done)
	}()
	if mine.begin != nil {
		<-mine.begin // not for long: the time of a read is bounded
	}
	mine.access, mine.err = read(context.WithoutCancel(ctx))
	return mine.access, mine.err
}
