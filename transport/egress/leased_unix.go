//go:build unix

package egress

import (
	"fmt"
	"net"
	"syscall"
)

// leasedConn is a connection that writes only while the lease is held. It has no ReadFrom on
// purpose: every byte passes Write.
type leasedConn struct {
	net.Conn
	raw  syscall.RawConn
	live func() bool
}

// leased takes over c; on an error c is closed.
func leased(c net.Conn, live func() bool) (net.Conn, error) {
	var raw syscall.RawConn
	err := fmt.Errorf("a %T has no descriptor", c)
	if sc, ok := c.(syscall.Conn); ok {
		raw, err = sc.SyscallConn()
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return &leasedConn{Conn: c, raw: raw, live: live}, nil
}

// Write implements net.Conn. If the socket is full, it checks the lease again once there is
// room: the process may have been stopped during the wait.
func (c *leasedConn) Write(b []byte) (n int, err error) {
	for n < len(b) {
		var k int
		var failed error
		err := c.raw.Write(func(fd uintptr) (done bool) {
			if !c.live() {
				k, failed = 0, ErrSuspended
				return true
			}
			k, failed = syscall.Write(int(fd), b[n:])
			return failed != syscall.EAGAIN
		})
		switch {
		case err != nil: // closed, or past its deadline
			return n, err
		case failed == nil:
			n += k
		case failed == ErrSuspended:
			return n, failed
		case failed != syscall.EINTR:
			return n, &net.OpError{Op: "write", Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: failed}
		}
	}
	return n, nil
}
