package main

import (
	"context"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const choice = "[a]pprove [r]eject [e]dit re[s]pond [w]ait: "

// terminal is a person at a terminal.
type terminal struct {
	t        *testing.T
	keyboard *os.File
	in       *os.File
	out      logText
	errs     logText
	ended    chan int
	read     int // of out
}

// atTerminal runs a command whose input is a terminal.
func atTerminal(t *testing.T, args ...string) *terminal {
	t.Helper()
	keyboard, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(int(keyboard.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(keyboard.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	in, err := os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	tt := &terminal{t: t, keyboard: keyboard, in: in, ended: make(chan int, 1)}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	go func() { tt.ended <- execute(ctx, args, in, &tt.out, &tt.errs) }()
	t.Cleanup(func() {
		cancel()
		keyboard.Close() // ends a read that is under way
		in.Close()
	})
	return tt
}

func (tt *terminal) types(text string) {
	tt.t.Helper()
	if _, err := tt.keyboard.WriteString(text); err != nil {
		tt.t.Fatal(err)
	}
}

// sees waits until the output goes on with something that ends in text.
func (tt *terminal) sees(text string) string {
	tt.t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	deadline := time.Now().Add(30 * time.Second)
	for range tick.C {
		all := tt.out.String()
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
	tt.t.Fatalf("no %q in %q (errors %q)", text, tt.out.String()[tt.read:], tt.errs.String())
	return ""
}

func (tt *terminal) leaves(code int) {
	tt.t.Helper()
	select {
	case got := <-tt.ended:
		if got != code {
			tt.t.Errorf("exit code %d, want %d: %s", got, code, tt.errs.String())
		}
	case <-time.After(30 * time.Second):
		tt.t.Fatalf("it has not ended: %q", tt.out.String())
	}
}
