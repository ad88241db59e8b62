package sse

import (
	"net"
	"time"
)

// pump is the socket of a stream whose descriptor cannot be taken over: one goroutine writes,
// another detects the hang-up.
type pump struct {
	conn net.Conn
	wake chan struct{} // holds at most one pending call
	over chan struct{}
}

func (p *pump) send([]byte) (int, error) { return 0, errFull }

func (p *pump) want(on bool) {
	if on {
		select {
		case p.wake <- struct{}{}:
		default:
		}
	}
}

func (p *pump) close() {
	close(p.over)
	// Closing a TLS connection may block, so listen closes it, not the holder of the stream's
	// lock. A deadline in the past wakes both goroutines.
	_ = p.conn.SetDeadline(time.Unix(1, 0))
}

// write sends what the stream keeps. It does not hold the lock while it waits; meanwhile no
// other goroutine touches the outbox's tail, nor gets its chunk if the stream is cut.
func (p *pump) write(c *Conn) {
	for {
		select {
		case <-p.over:
			return
		case <-p.wake:
		}
		c.mu.Lock()
		for !c.dead && c.out != nil {
			b := c.out.next()
			if len(b) == 0 {
				c.unblock()
				break
			}
			c.out.lent = true
			c.mu.Unlock()
			n, err := p.conn.Write(b)
			c.mu.Lock()
			if c.dead {
				break
			}
			c.out.lent = false
			if n > 0 {
				c.stale = 0
				c.out.took(n)
			}
			if err != nil {
				c.kill(Hangup)
			}
		}
		c.mu.Unlock()
	}
}

// listen discards the client's bytes and ends the stream when the client hangs up.
func (p *pump) listen(c *Conn) {
	defer p.conn.Close()
	var junk [512]byte
	for said := 0; ; {
		n, err := p.conn.Read(junk[:])
		if err != nil {
			c.end(Hangup)
			return
		}
		if said += n; said > maxTalk {
			c.end(Flooded)
			return
		}
	}
}

// maxTalk limits the bytes that a client may send on a read-only stream.
const maxTalk = 64 << 10
