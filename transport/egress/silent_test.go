package egress

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// wire carries connections to a server until it is cut: then those that exist stay
// open and say nothing more, as behind a firewall that has forgotten them.
type wire struct {
	ln net.Listener
	to string
	wg sync.WaitGroup

	mu    sync.Mutex // guards the fields below
	conns []net.Conn
	lost  chan struct{} // closed by the cut
}

func newWire(t *testing.T, to string) *wire {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{ln: ln, to: to, lost: make(chan struct{})}
	w.wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			s, err := net.Dial("tcp", w.to)
			if err != nil {
				c.Close()
				continue
			}
			w.mu.Lock()
			w.conns = append(w.conns, c, s)
			lost := w.lost
			w.mu.Unlock()
			w.wg.Go(func() { carry(c, s, lost) })
			w.wg.Go(func() { carry(s, c, lost) })
		}
	})
	t.Cleanup(func() {
		ln.Close()
		w.mu.Lock()
		for _, c := range w.conns {
			c.Close()
		}
		w.mu.Unlock()
		w.wg.Wait()
	})
	return w
}

// carry copies until its connection is lost, and swallows from then on.
func carry(from, to net.Conn, lost <-chan struct{}) {
	b := make([]byte, 32<<10)
	for {
		n, err := from.Read(b)
		select {
		case <-lost:
		default:
			if _, err := to.Write(b[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// cutNow silences the connections that exist; new ones are carried.
func (w *wire) cutNow() {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.lost)
	w.lost = make(chan struct{})
}

// A connection of HTTP/2 that has died without a word is found out, and given up, by
// itself: the request after the one that met it goes over a new one.
func TestASilentConnectionIsGivenUp(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Proto)
	}))
	s.EnableHTTP2 = true
	s.StartTLS()
	defer s.Close()
	w := newWire(t, s.Listener.Addr().String())
	hc := client(t, Config{Allow: loopback}, Options{HeaderTimeout: time.Hour})
	tr := hc.Transport.(*roundTripper).base
	tr.TLSClientConfig = s.Client().Transport.(*http.Transport).TLSClientConfig
	if tr.HTTP2.SendPingTimeout+tr.HTTP2.PingTimeout >= 10*time.Second {
		t.Error("it takes as long as a whole attempt of a delivery")
	}
	tr.HTTP2.SendPingTimeout, tr.HTTP2.PingTimeout = 700*time.Millisecond, 700*time.Millisecond // not to wait for long
	post := func() (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+w.ln.Addr().String(), strings.NewReader("amount=15"))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := hc.Do(r)
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		return string(b), err
	}
	if proto, err := post(); err != nil || proto != "HTTP/2.0" {
		t.Fatalf("%q %v", proto, err)
	}
	w.cutNow()
	if _, err := post(); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("over a dead connection: %v", err)
	}
	tr.HTTP2.SendPingTimeout = time.Hour // of the new one
	if proto, err := post(); err != nil || proto != "HTTP/2.0" {
		t.Fatalf("over a new one: %q %v", proto, err)
	}
}
