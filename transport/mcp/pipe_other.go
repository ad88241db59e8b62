//go:build !unix

package mcp

import (
	"os"

	"agentsvc/transport/egress"
)

// writeLive writes to a pipe if live returns true, and otherwise fails with
// egress.ErrSuspended; n bytes were written.
func writeLive(to *os.File, b []byte, live func() bool) (n int, err error) {
	if !live() {
		return 0, egress.ErrSuspended
	}
	return to.Write(b)
}
