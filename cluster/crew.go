package cluster

import (
	"slices"
	"sync"
	"time"

	"github.com/asynkron/protoactor-go/actor"
)

const (
	// maxIdleWorkers is how many goroutines of a node at most wait for a mailbox that has
	// something to do; further ones end.
	maxIdleWorkers = 256
	// workersStay is how long one may have nothing to do, up to twice that.
	workersStay = 5 * time.Second
)

// crew runs mailboxes in goroutines that stay for the next one. A new goroutine begins
// with a small stack, and it grew by copies to what a turn needs, for each message that
// met an idle mailbox.
type crew struct {
	mu      sync.Mutex // guards the fields below
	idle    []worker   // who was last at work is at the end, and is next
	unused  int        // so many of the first were not needed since the last look
	looking bool       // a look is due
	closed  bool       // nobody stays
}

// worker is an idle goroutine: it runs what it is sent and ends when it is closed.
type worker chan func()

var _ actor.Dispatcher = (*crew)(nil)

// Throughput is protoactor's; our mailboxes have theirs.
func (c *crew) Throughput() int { return throughput }

// Schedule runs a mailbox.
func (c *crew) Schedule(run func()) {
	c.mu.Lock()
	last := len(c.idle) - 1
	if last < 0 {
		c.mu.Unlock()
		go c.work(make(worker, 1), run)
		return
	}
	w := c.idle[last]
	c.idle = c.idle[:last]
	c.unused = min(c.unused, last)
	c.mu.Unlock()
	w <- run
}

func (c *crew) work(w worker, run func()) {
	for run != nil { // once w is closed
		run()
		if !c.stay(w) {
			return
		}
		run = <-w
	}
}

// stay makes w one of the idle, if there is room.
func (c *crew) stay(w worker) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || len(c.idle) == maxIdleWorkers {
		return false
	}
	c.idle = append(c.idle, w)
	if !c.looking {
		c.looking, c.unused = true, 0
		time.AfterFunc(workersStay, c.look)
	}
	return true
}

// look ends those that were not needed since the last one.
func (c *crew) look() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end(c.unused)
	c.unused = len(c.idle)
	if c.looking = c.unused > 0; c.looking {
		time.AfterFunc(workersStay, c.look)
	}
}

// close ends the idle; who is at work ends after it.
func (c *crew) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.end(len(c.idle))
}

// end ends the first n of the idle. The lock is held.
func (c *crew) end(n int) {
	for _, w := range c.idle[:n] {
		close(w)
	}
	c.idle = slices.Delete(c.idle, 0, n)
	c.unused = min(c.unused, len(c.idle))
}
