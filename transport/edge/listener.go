package edge

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"agentsvc/schemas/problem"
	"agentsvc/schemas/quota"
	"agentsvc/transport/edge/sse"
)

// listener counts connections, in total and for each client address. It answers a connection
// over a limit with a problem instead of serving it. An address holds at most perIP
// connections, and at most as many as are still free, so that with any max other clients find
// room. Trusted proxies are exempt from the address limits: their connections belong to many
// clients.
type listener struct {
	net.Listener
	max, perIP int // 0: no limit
	trusted    []netip.Prefix

	mu    sync.Mutex // guards the fields below
	total int
	byIP  map[netip.Addr]int
	asks  map[*conn]struct{} // connections that are served and are not streams

	parting atomic.Int32
	wg      sync.WaitGroup // goroutines of refused connections
}

const (
	maxParting = 256 // refused connections that are still being answered; at most a sixteenth of max
	lingering  = 500 * time.Millisecond
	sending    = time.Second // after accepting stops, the time left for requests that are being sent
	answering  = time.Second // time left for the responses to requests that Shutdown cancels
)

const retryConn = 5 * time.Second

var fullProblem = canned(problem.Unavailable("The node has too many connections.", retryConn), nil)

// manyProblem is the response to an address that has n connections and may have no more.
func manyProblem(n int) []byte {
	return canned(problem.RateLimited("Rate limit of scope connections exceeded: "+strconv.Itoa(n)+" connections of this address are open.", retryConn),
		&quota.Quota{Limit: int64(n), Reset: retryConn})
}

func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			var ne net.Error
			if errors.As(err, &ne) && ne.Timeout() || isTooManyFiles(err) {
				time.Sleep(5 * time.Millisecond) // out of file descriptors: wait until some close
				continue
			}
			if errors.Is(err, net.ErrClosed) {
				return nil, io.EOF
			}
			return nil, err
		}
		tcp, ok := c.(*net.TCPConn)
		if !ok {
			return c, nil
		}
		counted := &conn{TCPConn: tcp, l: l, ip: remoteIP(c)}
		if refusal := l.admit(counted); refusal != nil {
			l.part(tcp, refusal)
			continue
		}
		return counted, nil
	}
}

func remoteIP(c net.Conn) netip.Addr {
	if a, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		return a.AddrPort().Addr().Unmap().WithZone("")
	}
	return netip.IPv6Loopback()
}

func (l *listener) admit(c *conn) (refusal []byte) {
	ip := bucketIP(c.ip)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.max > 0 && l.total >= l.max {
		return fullProblem
	}
	if n := l.byIP[ip]; l.perIP > 0 && n >= l.perIP || l.max > 0 && n >= l.max-l.total {
		if !within(c.ip, l.trusted) {
			return manyProblem(n)
		}
	}
	if l.byIP == nil {
		l.byIP = map[netip.Addr]int{}
	}
	l.byIP[ip]++
	l.total++
	if l.asks == nil {
		l.asks = map[*conn]struct{}{}
	}
	l.asks[c] = struct{}{}
	return nil
}

// asked marks that no further request is read from the connection.
func (l *listener) asked(c *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.asks, c)
}

// hurry ends the reading of requests. Requests that are not complete by then are dropped.
func (l *listener) hurry() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.asks {
		_ = c.SetReadDeadline(time.Now())
	}
}

func (l *listener) release(ip netip.Addr) {
	ip = bucketIP(ip)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total--
	if l.byIP[ip]--; l.byIP[ip] <= 0 {
		delete(l.byIP, ip)
	}
}

// part sends a refused client its problem and closes the connection. These connections hold
// descriptors too: past a small number the connection is closed without an answer.
func (l *listener) part(c *net.TCPConn, refusal []byte) {
	most := int32(maxParting)
	if l.max > 0 {
		most = min(most, int32(max(l.max/16, 4)))
	}
	if l.parting.Add(1) > most {
		l.parting.Add(-1)
		_ = c.Close()
		return
	}
	l.wg.Go(func() {
		defer l.parting.Add(-1)
		_ = c.SetDeadline(time.Now().Add(lingering))
		_, _ = c.Write(refusal)
		_ = c.CloseWrite()
		_, _ = io.Copy(io.Discard, io.LimitReader(c, 64<<10))
		_ = c.Close()
	})
}

// conn is a counted connection.
type conn struct {
	*net.TCPConn
	l      *listener
	ip     netip.Addr
	closed atomic.Bool

	// Only the goroutine that serves the connection touches the fields below.
	linger  bool   // unread bytes are coming: read them, so that a reset does not destroy the response
	kept    bool   // a stream still counts as this connection
	abandon func() // ends a stream that was promised and never began
}

// Close ends the connection. With linger it first lets the client read the response while it
// is still sending.
func (c *conn) Close() error {
	if c.closed.Swap(true) {
		return net.ErrClosed
	}
	if c.linger {
		if c.CloseWrite() == nil && c.SetReadDeadline(time.Now().Add(lingering)) == nil {
			_, _ = io.Copy(io.Discard, io.LimitReader(c.TCPConn, 4<<20))
		}
	}
	if c.abandon != nil {
		c.abandon()
	}
	if !c.kept {
		c.l.asked(c)
		c.l.release(c.ip)
	}
	return c.TCPConn.Close()
}

// counting keeps a stream's connection counted until the stream has ended.
type counting struct {
	sse.Subscriber
	l  *listener
	ip netip.Addr
}

func (c *counting) Gone() {
	c.l.release(c.ip)
	c.Subscriber.Gone()
}
