//go:build unix

package egress

import (
	"fmt"
	"net"
	"syscall"
)

// leasedConn is a connection on which nothing is written without the lease. It
// has no ReadFrom on purpose: every byte passes Write.
type leasedConn struct {
	net.Conn
	raw  syscall.RawConn
	live func() bool
}

// leased takes c over; on an error it is closed.
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

// Write implements net.Conn. What does not fit into the socket at once is asked
// about again when there is room: the wait may have been as long as the process
// was stopped.
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
		case err != nil: // closed, or its deadline has passed
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
