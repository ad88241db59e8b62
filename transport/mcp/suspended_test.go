package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"agentsvc/transport/egress"
)

// lease is one that tests take away.
type lease struct {
	lost  atomic.Bool
	looks atomic.Int64
	last  atomic.Int64 // > 0: the look of this number, and those behind it, find it lost
	short atomic.Int64 // > 0: the look of this number finds it lost, those behind it do not
}

func (l *lease) live() bool {
	n, last := l.looks.Add(1), l.last.Load()
	return !l.lost.Load() && (last == 0 || n < last) && n != l.short.Load()
}

// endAfter has the lease end after so many more looks.
func (l *lease) endAfter(n int64) { l.last.Store(l.looks.Load() + n + 1) }

func (l *lease) back() {
	l.last.Store(0)
	l.lost.Store(false)
}

// cutOff checks the error of a call that the lost lease ended.
func cutOff(t *testing.T, err error, maybeRan bool) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) || e.Kind != Cancelled || e.MaybeRan != maybeRan || !errors.Is(err, egress.ErrSuspended) || !errors.Is(err, context.Canceled) {
		t.Fatalf("%+v", err)
	}
}

func leasedGateway(t *testing.T, l *lease) *Gateway {
	return gateway(t, func(c *Config) {
		c.Guard = egress.New(egress.Config{Allow: loopback, Observe: noNetwork, Resolver: nowhere{}, Live: l.live})
		c.Live = l.live
	})
}

// security.md, Invariants 23: a node cut off stops acting. A call that it did not make is not
// reported as the server's failure.
func TestACallWithoutTheLease(t *testing.T) {
	t.Run("before anything was asked", func(t *testing.T) {
		l, f := &lease{}, newFake(t, nil)
		g := leasedGateway(t, l)
		to := target(f.URL)
		l.lost.Store(true)
		_, err := g.Call(t.Context(), to, "write", nil)
		cutOff(t, err, false)
		_, err = g.Tools(t.Context(), to)
		cutOff(t, err, false)
		if len(f.tokens) != 0 {
			t.Fatalf("the server heard %v", f.heard)
		}
		l.back()
		call(t, g, to, "write", `{}`)
	})
	t.Run("before the call", func(t *testing.T) {
		l, f := &lease{}, newFake(t, func(f *fake) { f.sessions = true })
		g := leasedGateway(t, l)
		to := target(f.URL)
		call(t, g, to, "write", `{}`)
		l.lost.Store(true)
		_, err := g.Call(t.Context(), to, "write", nil)
		cutOff(t, err, false)
		if n := f.count("tools/call"); n != 1 {
			t.Fatalf("called %d times", n)
		}
		l.back()
		call(t, g, to, "write", `{}`)
		if f.count("initialize") != 1 || f.count("tools/list") != 1 {
			t.Fatalf("what was known is lost: %v", f.heard)
		}
	})
	t.Run("within the call", func(t *testing.T) {
		l := &lease{}
		var whole atomic.Int32
		f := newFake(t, func(f *fake) {
			f.call = func(w http.ResponseWriter, _ *http.Request, m message) {
				if m.Params.Name == "write" { // a part of one is no JSON
					whole.Add(1)
				}
				text(w, m, "done")
			}
		})
		g := leasedGateway(t, l)
		to := target(f.URL)
		big, _ := json.Marshal(map[string]string{"text": strings.Repeat("x", 4<<20)})
		before := l.looks.Load()
		call(t, g, to, "write", `{}`)
		call(t, g, to, "write", string(big))
		if whole.Load() != 2 || l.looks.Load() < before+6 {
			t.Fatal(whole.Load(), l.looks.Load())
		}
		for _, looks := range []int64{2, 3} { // the request's, the first write's, and one in the middle
			l.endAfter(looks)
			_, err := g.Call(t.Context(), to, "write", big)
			cutOff(t, err, true)
			l.back()
		}
		if n := whole.Load(); n != 2 {
			t.Fatalf("called %d times", n)
		}
	})
}

// A node that was cut off fetches every list again, and earlier results do not count.
func TestForgetAll(t *testing.T) {
	asked, answer := make(chan struct{}, 1), make(chan string)
	var held atomic.Bool
	f := newFake(t, func(f *fake) {
		f.sessions = true
		list := f.list
		f.list = func(w http.ResponseWriter, r *http.Request, m message) {
			if held.Load() {
				asked <- struct{}{}
				result(w, m, <-answer)
				return
			}
			list(w, r, m)
		}
	})
	g := gateway(t, nil)
	a, b := target(f.URL), target(f.URL)
	tools := func(to Target, want int) {
		t.Helper()
		if specs, err := g.Tools(t.Context(), to); err != nil || len(specs) != want {
			t.Fatal(specs, err)
		}
	}
	for range 2 {
		tools(a, 2)
		tools(b, 2)
	}
	if n := f.count("tools/list"); n != 2 {
		t.Fatalf("listed %d times", n)
	}
	g.ForgetAll()
	if g.bytes != 0 {
		t.Fatalf("%d bytes of lists are left", g.bytes)
	}
	for range 2 {
		tools(a, 2)
		tools(b, 2)
	}
	if f.count("tools/list") != 4 || f.count("initialize") != 2 {
		t.Fatalf("%v", f.heard)
	}

	g.ForgetAll()
	held.Store(true)
	old := make(chan int, 1)
	go func() {
		specs, _ := g.Tools(t.Context(), a)
		old <- len(specs)
	}()
	<-asked
	g.ForgetAll()
	held.Store(false)
	tools(a, 2) // does not wait for the old one
	answer <- `{"tools":[]}`
	if n := <-old; n != 0 {
		t.Fatalf("who asked before heard of %d tools", n)
	}
	tools(a, 2) // the old list has landed nowhere
	if n := f.count("tools/list"); n != 6 {
		t.Fatalf("listed %d times", n)
	}
}
