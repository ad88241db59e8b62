package clitest

import (
	"context"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Choice is the prompt for the decision about one approval.
const Choice = "[a]pprove [r]eject [e]dit re[s]pond [w]ait: "

// Terminal is a terminal at which a test types and reads.
type Terminal struct {
	Out, Errs Output

	t        *testing.T
	keyboard *os.File
	ended    chan int
	read     int // of Out
}

// AtTerminal starts run, which runs a command whose input is in, a terminal, and
// returns its exit code. The command ends with the test.
func AtTerminal(t *testing.T, run func(ctx context.Context, in *os.File, out, errs *Output) int) *Terminal {
	t.Helper()
	keyboard, in := openTerminal(t)
	tt := &Terminal{t: t, keyboard: keyboard, ended: make(chan int, 1)}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	go func() { tt.ended <- run(ctx, in, &tt.Out, &tt.Errs) }()
	t.Cleanup(func() {
		cancel()
		keyboard.Close() // ends a pending read
		in.Close()
	})
	return tt
}

// openTerminal opens a terminal: what is written to one of the files is read from the other.
func openTerminal(t *testing.T) (master, terminal *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	terminal, err = os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	return master, terminal
}

// Types enters text.
func (tt *Terminal) Types(text string) {
	tt.t.Helper()
	if _, err := tt.keyboard.WriteString(text); err != nil {
		tt.t.Fatal(err)
	}
}

// Sees waits until the output continues with something that ends in text, and
// returns it.
func (tt *Terminal) Sees(text string) string {
	tt.t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	deadline := time.Now().Add(30 * time.Second)
	for range tick.C {
		all := tt.Out.String()
		if i := strings.Index(all[tt.read:], text); i >= 0 {
			end := tt.read + i + len(text)
			seen := all[tt.read:end]
			tt.read = end
			return seen
		}
		if time.Now().After(deadline) {
			break
		}
	}
	tt.t.Fatalf("no %q in %q (errors %q)", text, tt.Out.String()[tt.read:], tt.Errs.String())
	return ""
}

// Leaves waits until the command has ended, which must be with this exit code.
func (tt *Terminal) Leaves(code int) {
	tt.t.Helper()
	select {
	case got := <-tt.ended:
		if got != code {
			tt.t.Errorf("exit code %d, want %d: %s", got, code, tt.Errs.String())
		}
	case <-time.After(30 * time.Second):
		tt.t.Fatalf("the command has not ended: %q", tt.Out.String())
	}
}
