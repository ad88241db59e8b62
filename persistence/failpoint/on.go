//go:build failpoints

package failpoint

import (
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

// Enabled reports whether this build can be killed at its points.
const Enabled = true

var (
	target, left = parse(os.Getenv("SVC_FAILPOINT"))
	countdown    atomic.Int64
)

func init() { countdown.Store(left) }

// parse parses name[:n]; n is 1 if it is missing or not a number.
func parse(s string) (Point, int64) {
	name, count, _ := strings.Cut(s, ":")
	n, err := strconv.ParseInt(count, 10, 64)
	if err != nil || n < 1 {
		n = 1
	}
	return Point(name), n
}

// Hit kills the process if this is the hit that SVC_FAILPOINT selects.
func Hit(p Point) {
	if p != target || countdown.Add(-1) != 0 {
		return
	}
	syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // the signal is on its way: this goroutine must not continue
}

// list prints a point if SVC_FAILPOINT asks for the list.
func list(name string) {
	if target == List {
		os.Stderr.WriteString(Listed + name + "\n")
	}
}
