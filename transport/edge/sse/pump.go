package sse

import (
	"net"
	"time"
)

// pump is the socket of a stream whose descriptor cannot be taken over: one
// goroutine writes, one notices the hang-up.
type pump struct {
	conn net.Conn
	wake chan struct{} // at most one call waits
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
	// Closing a TLS connection may wait, so listen does it, not who holds the
	// stream's lock: a deadline in the past wakes both goroutines.
	_ = p.conn.SetDeadline(time.Unix(1, 0))
}

// write sends what the stream keeps. The lock is not held while it waits; until
// it is back nobody else touches the outbox's tail, nor gets its chunk when the
// stream is cut meanwhile.
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

// listen discards what the client says and ends the stream when it hangs up.
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

// maxTalk is how much a client may say on a stream that is read only.
const maxTalk = 64 << 10
