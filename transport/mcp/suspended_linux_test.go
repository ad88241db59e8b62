package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"agentsvc/schemas/testkit"
)

// cut is a stdio server, its gateway and its lease.
type cut struct {
	*Gateway
	lease lease
	to    Target
	notes string // the file of all that the processes were told
}

func newCut(t *testing.T) *cut {
	c := &cut{to: stdioTarget(), notes: filepath.Join(t.TempDir(), "notes")}
	c.Gateway = stdio(t, "noting", func(cfg *Config) {
		cfg.Stdio["self"] = append(cfg.Stdio["self"], c.notes)
		cfg.Live = c.lease.live
	})
	return c
}

// told counts the messages that the processes were told, parts of one included.
func (c *cut) told(t *testing.T, what string) int {
	t.Helper()
	b, err := os.ReadFile(c.notes)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return strings.Count(string(b), what)
}

func (c *cut) pid(t *testing.T) string {
	t.Helper()
	return call(t, c.Gateway, c.to, "pid", `{}`).Content
}

// signal sends a signal to a process of ours.
func signal(t *testing.T, pid string, s syscall.Signal) {
	t.Helper()
	n, err := strconv.Atoi(pid)
	if err == nil {
		err = syscall.Kill(n, s)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// begin calls echo with so many bytes and a mark.
func (c *cut) begin(ctx context.Context, mark string, size int) <-chan error {
	args, _ := json.Marshal(map[string]string{"mark": mark, "text": strings.Repeat("x", size)})
	end := make(chan error, 1)
	go func() {
		_, err := c.Call(ctx, c.to, "echo", args)
		end <- err
	}()
	return end
}

// box is the only process's input.
func (c *cut) box() *inbox {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.entries {
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.cur.proc.in
	}
	return nil
}

// full waits until the pump has written a part and waits for room in the pipe.
func (b *inbox) full(t *testing.T) {
	t.Helper()
	pipe, err := b.to.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the pipe is full", func() bool {
		var holds, size int
		var err error
		pipe.Control(func(fd uintptr) {
			if size, err = unix.FcntlInt(fd, unix.F_GETPIPE_SZ, 0); err == nil {
				holds, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		return holds > size-os.Getpagesize()
	})
}

// over waits until the inbox holds more than so many bytes.
func (b *inbox) over(t *testing.T, size int) {
	t.Helper()
	testkit.Eventually(t, "the call waits to be written", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.unread > size
	})
}

// security.md, Invariants 23, for tool servers that no connection leads to.
func TestAProcessHearsNothingWithoutTheLease(t *testing.T) {
	t.Run("before it is started", func(t *testing.T) {
		c := newCut(t)
		c.lease.lost.Store(true)
		_, err := c.Call(t.Context(), c.to, "echo", nil)
		cutOff(t, err, false)
		if _, err := os.Stat(c.notes); !errors.Is(err, os.ErrNotExist) || c.forks.taken != 0 {
			t.Fatal("it was started", err)
		}
		c.lease.back()
		c.pid(t)
	})
	t.Run("before a call", func(t *testing.T) {
		c := newCut(t)
		pid := c.pid(t)
		c.lease.lost.Store(true)
		_, err := c.Call(t.Context(), c.to, "echo", json.RawMessage(`{"mark":"first"}`))
		cutOff(t, err, false)
		c.lease.back()
		if c.pid(t) != pid {
			t.Fatal("the process is another one, although it missed nothing")
		}
		if c.told(t, "first") != 0 {
			t.Fatal("it heard of the call")
		}
	})
	t.Run("behind the last look of the caller", func(t *testing.T) {
		c := newCut(t)
		pid := c.pid(t)
		c.lease.endAfter(1)
		_, err := c.Call(t.Context(), c.to, "echo", json.RawMessage(`{"mark":"first"}`))
		cutOff(t, err, false)
		c.lease.back()
		if c.pid(t) == pid {
			t.Fatal("the process that has missed something is used on")
		}
		testkit.Eventually(t, "it is gone", func() bool { return gone(pid) })
		if c.told(t, "first") != 0 {
			t.Fatal("it heard of the call")
		}
	})
	t.Run("within its first words", func(t *testing.T) {
		for looks := int64(1); ; looks++ { // until one comes through
			c := newCut(t)
			c.lease.endAfter(looks)
			_, err := c.Call(t.Context(), c.to, "echo", json.RawMessage(`{"mark":"first"}`))
			if err == nil {
				if looks < 6 {
					t.Fatalf("only %d looks at the lease", looks)
				}
				break
			}
			cutOff(t, err, false)
			c.lease.back()
			call(t, c.Gateway, c.to, "echo", `{"mark":"second"}`)
			if c.told(t, "first") != 0 || c.told(t, "second") != 1 {
				t.Fatalf("after %d looks it heard of the call", looks)
			}
		}
	})
	t.Run("while others wait behind a part of a call", func(t *testing.T) {
		c := newCut(t)
		pid := c.pid(t)
		signal(t, pid, syscall.SIGSTOP)
		in := c.box()
		first := c.begin(t.Context(), "first", 1<<20)
		in.full(t)
		in.over(t, 1<<20)
		second := c.begin(t.Context(), "second", 1<<10)
		in.over(t, 1<<20+1<<10)
		c.lease.lost.Store(true)
		signal(t, pid, syscall.SIGCONT)
		cutOff(t, <-first, true)
		cutOff(t, <-second, false)
		testkit.Eventually(t, "it is gone", func() bool { return gone(pid) })
		c.lease.back()
		if c.pid(t) == pid {
			t.Fatal("the same process")
		}
		if c.told(t, "second") != 0 || c.told(t, strings.Repeat("x", 1<<20)) != 0 {
			t.Fatal("it heard of a call")
		}
	})
	t.Run("while others wait behind a part of a call, and the lease comes back at once", func(t *testing.T) {
		c := newCut(t)
		pid := c.pid(t)
		signal(t, pid, syscall.SIGSTOP)
		in := c.box()
		first := c.begin(t.Context(), "first", 1<<20)
		in.full(t)
		in.over(t, 1<<20)
		second := c.begin(t.Context(), "second", 1<<10)
		in.over(t, 1<<20+1<<10)
		c.lease.short.Store(c.lease.looks.Load() + 1)
		signal(t, pid, syscall.SIGCONT)
		cutOff(t, <-first, true)
		if err := <-second; err != nil { // another process answers it
			t.Fatalf("%+v", err)
		}
		if c.pid(t) == pid || c.told(t, "second") != 1 {
			t.Fatal("the call was not written to another process")
		}
	})
	t.Run("of a call whose caller has left", func(t *testing.T) {
		c := newCut(t)
		pid := c.pid(t)
		in := c.box()
		ctx, cancel := context.WithCancel(t.Context())
		end := make(chan error, 1)
		go func() {
			_, err := c.Call(ctx, c.to, "hang", nil)
			end <- err
		}()
		testkit.Eventually(t, "it hears of the call", func() bool { return c.told(t, "hang") == 1 })
		c.lease.lost.Store(true)
		cancel()
		var e *Error
		if err := <-end; !errors.As(err, &e) || e.Kind != Cancelled || !e.MaybeRan {
			t.Fatal(err)
		}
		testkit.Eventually(t, "the cancellation is not written", in.missed.Load)
		c.lease.back()
		if c.pid(t) == pid || c.told(t, "notifications/cancelled") != 0 {
			t.Fatal("the process is used on, or was told")
		}
		testkit.Eventually(t, "it is gone", func() bool { return gone(pid) })
	})
}

// A call whose caller has left before it was written is never written, even after the node
// has its lease back; and the caller knows.
func TestACallWithoutACallerIsNotWritten(t *testing.T) {
	c := newCut(t)
	pid := c.pid(t)
	signal(t, pid, syscall.SIGSTOP)
	in := c.box()
	first := c.begin(t.Context(), "first", 1<<20)
	in.full(t)
	in.over(t, 1<<20)
	ctx, cancel := context.WithCancel(t.Context())
	second := c.begin(ctx, "second", 1<<10)
	in.over(t, 1<<20+1<<10)
	cancel()
	var e *Error
	if err := <-second; !errors.As(err, &e) || e.Kind != Cancelled || e.MaybeRan {
		t.Fatalf("%+v", err)
	}
	signal(t, pid, syscall.SIGCONT)
	if err := <-first; err != nil {
		t.Fatal(err)
	}
	if c.pid(t) != pid || c.told(t, "second") != 0 || c.told(t, "first") != 1 {
		t.Fatal("it was written")
	}
}

func TestRequestID(t *testing.T) {
	for _, c := range []struct{ name, message, want string }{
		{"a request", `{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"id":5}}` + "\n", "4"},
		{"a request in another order", `{"params":{"id":5,"method":"x"},"method":"tools/call","id":"a"}`, `"a"`},
		{"an answer", `{"jsonrpc":"2.0","id":4,"result":{"method":"x"}}`, ""},
		{"a notification", `{"jsonrpc":"2.0","method":"notifications/initialized"}`, ""},
		{"no object", `[4]`, ""},
		{"no JSON", `{"id":4,"method"`, ""},
		{"nothing", ``, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := requestID([]byte(c.message)); got != c.want {
				t.Fatalf("%q", got)
			}
		})
	}
}

// BenchmarkRequestID is what each message to a process costs more.
func BenchmarkRequestID(b *testing.B) {
	m := []byte(`{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":"echo","arguments":{"text":"` + strings.Repeat("x", 4<<10) + `"}}}`)
	for b.Loop() {
		requestID(m)
	}
}
