package sse

import (
	"errors"
	"sync"

	"agentsvc/schemas/event"
)

// socket is the writing side of a stream. Its methods are called with the stream's lock held.
type socket interface {
	// send writes as much as fits without blocking; errFull when the socket takes no more.
	send(b []byte) (int, error)
	// want requests a call of flush once the socket takes more, or cancels the request.
	want(on bool)
	// close frees the socket. Bytes that the kernel has accepted are still delivered.
	close()
}

var errFull = errors.New("the socket is full")

// Conn is one open stream. Its methods never block, except Backfill, and are safe for
// concurrent use.
type Conn struct {
	s     *Streams
	owner Owner
	sub   Subscriber

	slot, pos int // place on the wheel; guarded by Streams.mu

	mu       sync.Mutex // guards the fields below
	sock     socket
	out      *outbox // nil while the socket takes everything
	empty    chan struct{}
	stale    uint8 // sweeps without progress
	closing  bool
	dead     bool
	attached bool
	mourning bool // ended before Attach returned
}

// Owner says on whose behalf the stream is open.
func (c *Conn) Owner() Owner { return c.owner }

// Send sends f, or keeps it while the socket is full. It returns false when the stream has
// ended, or ends because of this frame.
func (c *Conn) Send(f *event.Frame) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead || c.closing {
		return false
	}
	if c.out != nil {
		return c.keep(f)
	}
	b := f.Bytes()
	n, err := c.sock.send(b)
	if err != nil && err != errFull {
		c.kill(Hangup)
		return false
	}
	c.s.sent(1, len(b))
	if n < len(b) {
		c.block(b[n:])
	}
	return true
}

// SendAll is Send for several frames, in as few writes as possible.
func (c *Conn) SendAll(frames []*event.Frame) bool {
	if len(frames) == 0 {
		c.mu.Lock()
		defer c.mu.Unlock()
		return !c.dead && !c.closing
	}
	if len(frames) == 1 {
		return c.Send(frames[0])
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead || c.closing {
		return false
	}
	buf := chunks.Get().(*[chunkSize]byte)
	defer chunks.Put(buf)
	for i := 0; i < len(frames); {
		if c.out != nil {
			if !c.keep(frames[i]) {
				return false
			}
			i++
			continue
		}
		b, took := fill(buf[:0], frames[i:])
		n, err := c.sock.send(b)
		if err != nil && err != errFull {
			c.kill(Hangup)
			return false
		}
		i += took
		if n == len(b) {
			c.s.sent(took, n)
		} else {
			// The chunk returns to the pool: the rest is the tail of one frame and the whole
			// frames after it.
			rest := len(b) - n
			first := i
			for size := 0; size < rest; {
				first--
				size += len(frames[first].Bytes())
				if size >= rest {
					whole := frames[first].Bytes()
					c.block(whole[size-rest:])
				}
			}
			c.s.sent(took-(i-first-1), n+c.out.size)
			for _, f := range frames[first+1 : i] {
				if !c.keep(f) {
					return false
				}
			}
		}
	}
	return true
}

// Backfill is SendAll for a client that is catching up: it waits until the client has taken
// the frames instead of cutting a slow client. Only Attach may call it. A client that takes
// nothing is cut after Config.Stall. The slice is Backfill's: it drops the frames that were
// sent, so that their memory is free while the client takes the rest.
func (c *Conn) Backfill(frames []*event.Frame) bool {
	for len(frames) > 0 {
		size, n := 0, 0
		for n < len(frames) && (n == 0 || size+len(frames[n].Bytes()) <= c.s.cfg.MaxPending/2) {
			size += len(frames[n].Bytes())
			n++
		}
		if !c.SendAll(frames[:n]) {
			return false
		}
		clear(frames[:n])
		frames = frames[n:]
		c.mu.Lock()
		if c.dead {
			c.mu.Unlock()
			return false
		}
		if c.out == nil {
			c.mu.Unlock()
			continue
		}
		if c.empty == nil {
			c.empty = make(chan struct{})
		}
		empty := c.empty
		c.mu.Unlock()
		<-empty
	}
	return true
}

// Close ends the stream once the client has taken what is pending. Use it after the terminal
// frame. A client that does not take the rest is cut.
func (c *Conn) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead || c.closing {
		return
	}
	c.closing = true
	if c.out == nil {
		c.kill(Closed)
	}
}

// Cut ends the stream at once.
func (c *Conn) Cut() { c.end(Revoked) }

func (c *Conn) end(why Reason) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead {
		return false
	}
	c.kill(why)
	return true
}

// keep adds f to the outbox. The first frame after the socket filled is always kept, so that
// a frame larger than the bound can be delivered.
func (c *Conn) keep(f *event.Frame) bool {
	if !c.out.add(f, c.s.cfg.MaxPending) {
		c.kill(Overflow)
		return false
	}
	c.s.sent(1, len(f.Bytes()))
	return true
}

// block starts keeping frames; rest holds the bytes that the full socket did not take.
func (c *Conn) block(rest []byte) {
	c.out = outboxes.Get().(*outbox)
	c.out.tail, c.out.size = rest, len(rest)
	c.stale = 0
	c.s.watch(c)
	c.sock.want(true)
}

// flush sends kept bytes until the socket is full again; mu is held.
func (c *Conn) flush() {
	for {
		b := c.out.next()
		if len(b) == 0 {
			c.unblock()
			return
		}
		n, err := c.sock.send(b)
		if n > 0 {
			c.stale = 0
			c.out.took(n)
		}
		if err == errFull || err == nil && n < len(b) {
			return
		}
		if err != nil {
			c.kill(Hangup)
			return
		}
	}
}

// unblock stops keeping frames: the client has taken everything.
func (c *Conn) unblock() {
	c.release()
	c.sock.want(false)
	if c.closing {
		c.kill(Closed)
	}
}

func (c *Conn) release() {
	if c.out != nil {
		c.out.reset()
		outboxes.Put(c.out)
		c.out = nil
		c.s.unwatch(c)
	}
	if c.empty != nil {
		close(c.empty)
		c.empty = nil
	}
}

// kill ends the stream; mu is held.
func (c *Conn) kill(why Reason) {
	c.dead = true
	c.sock.close()
	c.release()
	c.s.died(c, why)
}

// beat sends a heartbeat, unless frames are already waiting.
func (c *Conn) beat() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead || c.closing || c.out != nil {
		return
	}
	n, err := c.sock.send(beatBytes)
	if err != nil && err != errFull {
		c.kill(Hangup)
		return
	}
	c.s.sent(1, len(beatBytes))
	if n < len(beatBytes) {
		c.block(beatBytes[n:])
	}
}

// age counts a sweep without progress and cuts the stream at the limit.
func (c *Conn) age() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead || c.out == nil {
		return
	}
	if c.stale++; c.stale > stallTicks {
		c.kill(Stalled)
	}
}

// settle records that Attach has returned.
func (c *Conn) settle() {
	c.mu.Lock()
	c.attached = true
	owed := c.mourning
	c.mu.Unlock()
	if owed {
		c.sub.Gone()
	}
}

// mourn notifies the subscriber that the stream has ended, or leaves that to settle.
func (c *Conn) mourn() {
	c.mu.Lock()
	if !c.attached {
		c.mourning = true
		c.mu.Unlock()
		return
	}
	c.mu.Unlock()
	c.sub.Gone()
}
