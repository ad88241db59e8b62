package sse

import (
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// pollers watch the descriptors taken over, with one epoll set for each core.
type pollers struct {
	all  []*poller
	next atomic.Uint32
}

type poller struct {
	ep   int
	quit int // eventfd that ends the loop

	mu   sync.Mutex // guards the fields below
	byFD map[int32]*descriptor
	gen  int32
}

// descriptor is the socket of one stream. Its generation distinguishes a late event of a
// closed descriptor from an event of the next stream with the same number.
type descriptor struct {
	p     *poller
	conn  *Conn
	fd    int32
	gen   int32
	said  int
	armed bool
}

const (
	onInput  = unix.EPOLLIN | unix.EPOLLRDHUP | unix.EPOLLET
	onOutput = onInput | unix.EPOLLOUT
)

func (ps *pollers) start(s *Streams, n int) error {
	for range n {
		ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
		if err != nil {
			ps.stop()
			return fmt.Errorf("create epoll: %w", err)
		}
		quit, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
		if err == nil {
			err = unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, quit, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(quit)})
		}
		if err != nil {
			_ = unix.Close(ep)
			ps.stop()
			return fmt.Errorf("create eventfd: %w", err)
		}
		p := &poller{ep: ep, quit: quit, byFD: map[int32]*descriptor{}}
		ps.all = append(ps.all, p)
		s.wg.Go(p.loop)
	}
	return nil
}

func (ps *pollers) stop() {
	for _, p := range ps.all {
		_, _ = unix.Write(p.quit, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	}
}

// take duplicates the descriptor of c for conn and closes c, which releases the connection
// from the HTTP server. It returns false if c has no descriptor.
func (ps *pollers) take(conn *Conn, c net.Conn) (bool, error) {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return false, nil
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return false, err
	}
	fd := -1
	ctlErr := raw.Control(func(f uintptr) {
		if fd, err = unix.FcntlInt(f, unix.F_DUPFD_CLOEXEC, 0); err != nil {
			return
		}
		// Bound the bytes that the kernel holds for a stalled reader, and detect a peer that
		// vanished silently.
		cfg := conn.s.cfg
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, cfg.Unsent)
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(cfg.Stall.Milliseconds()))
		err = unix.SetNonblock(fd, true)
	})
	if ctlErr != nil {
		return false, ctlErr
	}
	if err != nil {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
		return false, fmt.Errorf("duplicate descriptor: %w", err)
	}
	p := ps.all[int(ps.next.Add(1))%len(ps.all)]
	d := &descriptor{p: p, conn: conn, fd: int32(fd)}
	conn.sock = d
	p.mu.Lock()
	p.gen++
	d.gen = p.gen
	p.byFD[d.fd] = d
	p.mu.Unlock()
	if err := d.ctl(unix.EPOLL_CTL_ADD, onInput); err != nil {
		p.mu.Lock()
		delete(p.byFD, d.fd)
		p.mu.Unlock()
		_ = unix.Close(fd)
		return false, fmt.Errorf("watch descriptor: %w", err)
	}
	_ = c.Close()
	return true, nil
}

func (d *descriptor) ctl(op int, events uint32) error {
	return unix.EpollCtl(d.p.ep, op, int(d.fd), &unix.EpollEvent{Events: events, Fd: d.fd, Pad: d.gen})
}

func (d *descriptor) send(b []byte) (int, error) {
	sent := 0
	for sent < len(b) {
		n, err := unix.Write(int(d.fd), b[sent:])
		switch err {
		case nil:
			sent += n
		case unix.EINTR:
		case unix.EAGAIN:
			return sent, errFull
		default:
			return sent, err
		}
	}
	return sent, nil
}

func (d *descriptor) want(on bool) {
	if on == d.armed {
		return
	}
	d.armed = on
	events := uint32(onInput)
	if on {
		events = onOutput
	}
	// This fails only for a descriptor that is not in the set; a stream that gets no event is
	// then cut as stalled.
	_ = d.ctl(unix.EPOLL_CTL_MOD, events)
}

func (d *descriptor) close() {
	d.p.mu.Lock()
	delete(d.p.byFD, d.fd)
	d.p.mu.Unlock()
	d.discard() // unread bytes would turn the close into a reset that destroys the last frame
	_ = unix.Close(int(d.fd))
}

// discard reads and drops the client's bytes. It reports whether the client hung up and
// whether it sent too much.
func (d *descriptor) discard() (gone, flooded bool) {
	var junk [2048]byte
	for d.said <= maxTalk {
		n, err := unix.Read(int(d.fd), junk[:])
		switch {
		case err == unix.EINTR:
		case err == unix.EAGAIN:
			return false, false
		case err != nil || n == 0:
			return true, false
		default:
			d.said += n
		}
	}
	return false, true
}

func (p *poller) loop() {
	defer func() {
		_ = unix.Close(p.ep)
		_ = unix.Close(p.quit)
	}()
	events := make([]unix.EpollEvent, 256)
	for {
		n, err := unix.EpollWait(p.ep, events, -1)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			panic(fmt.Sprintf("wait for epoll: %v", err)) // only this package closes the set: this is a bug
		}
		for _, e := range events[:n] {
			if e.Fd == int32(p.quit) {
				return
			}
			p.mu.Lock()
			d := p.byFD[e.Fd]
			p.mu.Unlock()
			if d != nil && d.gen == e.Pad {
				d.handle(e.Events)
			}
		}
	}
}

func (d *descriptor) handle(events uint32) {
	c := d.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead {
		return
	}
	if events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		c.kill(Hangup)
		return
	}
	if events&unix.EPOLLIN != 0 {
		if gone, flooded := d.discard(); gone || flooded {
			why := Hangup
			if flooded {
				why = Flooded
			}
			c.kill(why)
			return
		}
	}
	if events&unix.EPOLLOUT != 0 && c.out != nil {
		c.flush()
	}
}
