package egress

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"agentsvc/schemas/testkit"
)

// lease is one that tests take away. It runs out by itself after some looks
// where left is set.
type lease struct {
	lost  atomic.Bool
	looks atomic.Int64
	left  atomic.Int64 // > 0: so many looks are still answered yes
}

func (l *lease) live() bool {
	l.looks.Add(1)
	live := !l.lost.Load()
	if n := l.left.Load(); n > 0 && l.left.Add(-1) == 0 {
		l.lost.Store(true)
	}
	return live
}

// security.md, Invariants 23: a node without its lease stops acting.
func TestNothingLeavesWithoutTheLease(t *testing.T) {
	var served atomic.Int64
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		served.Add(1)
		io.Copy(io.Discard, r.Body)
		io.WriteString(w, "ok")
	})
	plain, tls := httptest.NewServer(handler), httptest.NewUnstartedServer(handler)
	tls.EnableHTTP2 = true
	tls.StartTLS()
	defer plain.Close()
	defer tls.Close()
	for name, s := range map[string]*httptest.Server{"plain": plain, "TLS and HTTP/2": tls} {
		t.Run(name, func(t *testing.T) {
			l := &lease{}
			hc := New(Config{Allow: loopback, Live: l.live}).Client(Options{})
			tr := hc.Transport.(*roundTripper).base
			tr.TLSClientConfig = s.Client().Transport.(*http.Transport).TLSClientConfig
			defer hc.CloseIdleConnections()
			post := func() (reused bool, err error) {
				ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { reused = i.Reused }})
				r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL, strings.NewReader("amount=15"))
				if err != nil {
					t.Fatal(err)
				}
				resp, err := hc.Do(r)
				if err != nil {
					return reused, err
				}
				defer resp.Body.Close()
				_, err = io.Copy(io.Discard, resp.Body)
				return reused, err
			}
			if _, err := post(); err != nil {
				t.Fatal(err)
			}
			testkit.Eventually(t, "a kept connection is used", func() bool { // a busy machine may lose one
				reused, err := post()
				if err != nil {
					t.Fatal(err)
				}
				return reused
			})
			before := served.Load()
			l.lost.Store(true)
			if _, err := post(); !errors.Is(err, ErrSuspended) || !errors.Is(err, context.Canceled) || errors.Is(err, ErrRefused) {
				t.Fatalf("without the lease: %v", err)
			}
			if served.Load() != before {
				t.Fatal("the server was asked")
			}
			l.lost.Store(false)
			if _, err := post(); err != nil {
				t.Fatalf("with the lease again: %v", err)
			}
			// The lease runs out behind the first look, which is that of the request:
			// the kept connection is there, and must stay silent.
			testkit.Eventually(t, "it has a kept connection", func() bool {
				l.lost.Store(false)
				if _, err := post(); err != nil {
					t.Fatal(err)
				}
				before = served.Load()
				l.left.Store(1)
				reused, err := post()
				if !errors.Is(err, ErrSuspended) {
					t.Fatalf("a lease that ends on the way: %v", err)
				}
				if served.Load() != before {
					t.Fatal("the server was asked on a kept connection")
				}
				return reused
			})
		})
	}
}

// A lease that ends at any moment of a request leaves the server with a part of
// it, never with all.
func TestALeaseThatEndsInTheMiddle(t *testing.T) {
	whole := atomic.Int64{}
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if b, err := io.ReadAll(r.Body); err == nil && len(b) == 8<<20 {
			whole.Add(1)
		}
	}))
	defer s.Close()
	body := bytes.Repeat([]byte("x"), 8<<20)
	ask := func(left int64) (l *lease, err error) {
		l = &lease{}
		l.left.Store(left)
		hc := New(Config{Allow: loopback, Live: l.live}).Client(Options{})
		defer hc.CloseIdleConnections()
		resp, err := hc.Post(s.URL, "text/plain", bytes.NewReader(body))
		if err == nil {
			resp.Body.Close()
		}
		return l, err
	}
	l, err := ask(0)
	if err != nil || whole.Load() != 1 {
		t.Fatal(err)
	}
	// How many looks there are depends on the pace of the server, but it is one at least for each
	// 32 KiB, in which the body is copied.
	const middle = 100
	if n := l.looks.Load(); n < 2*middle {
		t.Fatalf("only %d looks at the lease for %d bytes", n, len(body))
	}
	for _, left := range []int64{1, 2, 3, 4, 5, middle} {
		if _, err := ask(left); !errors.Is(err, ErrSuspended) {
			t.Errorf("after %d looks: %v", left, err)
		}
	}
	if n := whole.Load(); n != 1 {
		t.Errorf("%d requests arrived whole", n-1)
	}
}

// Bytes that wait for a full socket when the lease ends are not sent later.
func TestAFullSocketAsksAgain(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	l := &lease{}
	c, err := New(Config{Allow: loopback, Live: l.live}).Dial(t.Context(), "tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	peer, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	type result struct {
		n   int
		err error
	}
	done := make(chan result, 1)
	dialed := l.looks.Load()
	go func() {
		n, err := c.Write(make([]byte, 64<<20))
		done <- result{n, err}
	}()
	for seen, still := int64(-1), 0; still < 20; { // until the writer waits
		select {
		case r := <-done:
			t.Fatalf("%d bytes went into a socket that nobody reads: %v", r.n, r.err)
		case <-time.After(5 * time.Millisecond):
		}
		if now := l.looks.Load(); now == seen && now > dialed+1 { // the first bytes were sent before the second look
			still++
		} else {
			seen, still = now, 0
		}
	}
	l.lost.Store(true)
	wrote := make(chan result, 1)
	go func() {
		r := <-done
		c.Close()
		wrote <- r
	}()
	got, err := io.Copy(io.Discard, peer)
	r := <-wrote
	if !errors.Is(r.err, ErrSuspended) || r.n == 0 || r.n == 64<<20 || err != nil || got != int64(r.n) {
		t.Errorf("%d bytes of which %d arrived, %v, %v", r.n, got, r.err, err)
	}
}

func TestAWriteKeepsItsDeadline(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	c, err := New(Config{Allow: loopback, Live: func() bool { return true }}).Dial(t.Context(), "tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if n, err := c.Write(nil); n != 0 || err != nil {
		t.Fatal(n, err)
	}
	if err := c.SetWriteDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	_, err = c.Write(make([]byte, 64<<20))
	var ne net.Error
	if !errors.As(err, &ne) || !ne.Timeout() {
		t.Fatal(err)
	}
	c.Close()
	if _, err := c.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Fatal(err)
	}
}

// A write that fails without the lease ends its connection, and the transport may report that
// end instead. The other side must not be taken for the cause.
func TestARequestThatFailsWithoutTheLease(t *testing.T) {
	for _, lost := range []bool{true, false} {
		l := &lease{}
		s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			l.lost.Store(lost)
			panic(http.ErrAbortHandler)
		}))
		hc := New(Config{Allow: loopback, Live: l.live}).Client(Options{})
		_, err := hc.Post(s.URL, "text/plain", strings.NewReader("a"))
		if !errors.Is(err, io.EOF) || errors.Is(err, ErrSuspended) != lost {
			t.Errorf("lease lost %v: %v", lost, err)
		}
		hc.CloseIdleConnections()
		s.Close()
	}
}
