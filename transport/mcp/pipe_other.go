//go:build !unix

package mcp

import (
	"os"

	"agentsvc/transport/egress"
)

// writeLive writes to a pipe if live says so, and fails with egress.ErrSuspended
// if it does not; n bytes were written.
func writeLive(to *os.File, b []byte, live func() bool) (n int, err error) {
	if !live() {
		return 0, egress.ErrSuspended
	}
	return to.Write(b)
}
