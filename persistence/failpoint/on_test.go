//go:build failpoints

package failpoint

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// TestTheNthHitKills runs itself as the process that dies.
func TestTheNthHitKills(t *testing.T) {
	if os.Getenv("SVC_FAILPOINT") != "" {
		for range 3 {
			os.Stdout.WriteString("alive\n")
			Hit("test.kill")
		}
		return
	}
	for spec, alive := range map[string]int{"test.kill": 1, "test.kill:2": 2, "test.kill:9": 3} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestTheNthHitKills$")
		cmd.Env = append(os.Environ(), "SVC_FAILPOINT="+spec)
		out, err := cmd.Output()
		var exit *exec.ExitError
		killed := errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL
		if killed != (alive < 3) {
			t.Errorf("%s: killed %t (%v)", spec, killed, err)
		}
		if n := strings.Count(string(out), "alive\n"); n != alive {
			t.Errorf("%s: %d hits were reached, want %d", spec, n, alive)
		}
	}
}
