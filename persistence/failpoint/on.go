//go:build failpoints

package failpoint

import (
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

// Enabled says whether this build can be killed at its points.
const Enabled = true

var (
	target, left = parse(os.Getenv("SVC_FAILPOINT"))
	countdown    atomic.Int64
)

func init() { countdown.Store(left) }

// parse reads name[:n]; n is 1 when it is missing or no number.
func parse(s string) (Point, int64) {
	name, count, _ := strings.Cut(s, ":")
	n, err := strconv.ParseInt(count, 10, 64)
	if err != nil || n < 1 {
		n = 1
	}
	return Point(name), n
}

// Hit kills the process when it is the hit that SVC_FAILPOINT asks for.
func Hit(p Point) {
	if p != target || countdown.Add(-1) != 0 {
		return
	}
	syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // the signal is on its way: nothing more of this goroutine
}
