package cluster

import (
	"slices"
	"sync"
	"time"

	"github.com/asynkron/protoactor-go/actor"
)

const (
	// maxIdleWorkers is how many idle goroutines a node keeps; further ones end.
	maxIdleWorkers = 256
	// workersStay is how long a goroutine may be idle before it ends; it may take up to
	// twice as long.
	workersStay = 5 * time.Second
)

// crew is a pool of goroutines that run mailboxes and what actors begin beside them. A new
// goroutine begins with a small stack, which grows by copying; without the pool this happened
// for each message to an idle mailbox, and for each effect.
type crew struct {
	mu       sync.Mutex // guards the fields below
	idle     []worker   // the last one was busy most recently, and is taken next
	unused   int        // how many of the first ones were not needed since the last trim
	trimming bool       // a trim is due
	closed   bool       // no goroutine stays
}

// worker is an idle goroutine: it runs what it is sent and ends when it is closed.
type worker chan func()

var _ actor.Dispatcher = (*crew)(nil)

// Throughput is asked by protoactor. Our mailboxes use the constant.
func (c *crew) Throughput() int { return throughput }

// Schedule runs a mailbox, or another function, beside its caller.
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

// stay adds w to the idle workers if there is room, and reports whether it did.
func (c *crew) stay(w worker) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || len(c.idle) == maxIdleWorkers {
		return false
	}
	c.idle = append(c.idle, w)
	if !c.trimming {
		c.trimming, c.unused = true, 0
		time.AfterFunc(workersStay, c.trim)
	}
	return true
}

// trim ends the workers that were not needed since the last trim.
func (c *crew) trim() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end(c.unused)
	c.unused = len(c.idle)
	if c.trimming = c.unused > 0; c.trimming {
		time.AfterFunc(workersStay, c.trim)
	}
}

// close ends the idle workers. A busy one ends after its mailbox.
func (c *crew) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.end(len(c.idle))
}

// end ends the first n idle workers. The lock is held.
func (c *crew) end(n int) {
	for _, w := range c.idle[:n] {
		close(w)
	}
	c.idle = slices.Delete(c.idle, 0, n)
	c.unused = min(c.unused, len(c.idle))
}
