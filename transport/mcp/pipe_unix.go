//go:build unix

package mcp

import (
	"os"
	"syscall"

	"agentsvc/transport/egress"
)

// writeLive writes to a pipe as long as live says so, and fails with
// egress.ErrSuspended when it does not; n bytes were written. What does not fit
// into the pipe at once is asked about again when there is room: the wait may have
// been as long as this process was stopped.
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
