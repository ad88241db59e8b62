//go:build unix

package mcp

import (
	"os"
	"syscall"

	"agentsvc/transport/egress"
)

// writeLive writes to a pipe as long as live returns true, and otherwise fails with
// egress.ErrSuspended; n bytes were written. If the pipe is full, it checks the lease again
// once there is room: the process may have been stopped during the wait.
func writeLive(to *os.File, b []byte, live func() bool) (n int, err error) {
	raw, err := to.SyscallConn()
	if err != nil {
		return 0, err
	}
	for n < len(b) {
		var k int
		var failed error
		err := raw.Write(func(fd uintptr) (done bool) {
			if !live() {
				k, failed = 0, egress.ErrSuspended
				return true
			}
			k, failed = syscall.Write(int(fd), b[n:])
			return failed != syscall.EAGAIN
		})
		switch {
		case err != nil: // closed
			return n, err
		case failed == nil:
			n += k
		case failed != syscall.EINTR:
			return n, failed
		}
	}
	return n, nil
}
