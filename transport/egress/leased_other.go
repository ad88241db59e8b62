//go:build !unix

package egress

import "net"

// leasedConn is a connection that writes only while the lease is held.
type leasedConn struct {
	net.Conn
	live func() bool
}

func leased(c net.Conn, live func() bool) (net.Conn, error) { return &leasedConn{c, live}, nil }

// Write implements net.Conn.
func (c *leasedConn) Write(b []byte) (n int, err error) {
	if !c.live() {
		return 0, ErrSuspended
	}
	return c.Conn.Write(b)
}
