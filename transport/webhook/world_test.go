package webhook

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"agentsvc/schemas/id"
	"agentsvc/transport/egress"
)

const (
	secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	event  = `{"id":"1","type":"webhook.test","data":{"café":"☕"},"created_at":"2026-11-21T23:00:00Z"}`
)

// TestMain has this process trust the certificate of httptest's TLS servers, which
// is for 127.0.0.1.
func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "roots")
	if err != nil {
		panic(err)
	}
	s := httptest.NewTLSServer(nil)
	file := filepath.Join(dir, "roots.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600); err != nil {
		panic(err)
	}
	s.Close()
	os.Setenv("SSL_CERT_FILE", file)
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		os.RemoveAll(dir)
		os.Exit(code)
	}))
}

// names is a resolver without a network. A name with several answers gives the next one each
// time, and then repeats the last.
type names struct {
	mu   sync.Mutex
	list map[string][]string
}

func (n *names) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	list := n.list[host]
	if len(list) == 0 {
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	if len(list) > 1 {
		n.list[host] = list[1:]
	}
	return []netip.Addr{netip.MustParseAddr(list[0])}, nil
}

var errNoNetwork = errors.New("tests dial loopback only")

// record keeps what the guard said at dial time and never lets a public address be
// dialled.
type record struct {
	mu   sync.Mutex
	seen []string
}

func (v *record) observe(to netip.AddrPort, verdict error) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.seen = append(v.seen, fmt.Sprintf("%s %v", to, verdict == nil))
	if !to.Addr().Unmap().IsLoopback() {
		return errNoNetwork
	}
	return nil
}

func (v *record) String() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return strings.Join(v.seen, ", ")
}

var loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}

// open is a guard that lets tests reach loopback.
func open(r egress.Resolver) *egress.Guard {
	return egress.New(egress.Config{Allow: loopback, Resolver: r, Observe: new(record).observe})
}

func newSender(t testing.TB, cfg Config) *Sender {
	t.Helper()
	if cfg.Guard == nil {
		cfg.Guard = open(nil)
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = 5 * time.Second
	}
	cfg.RequireTLS, cfg.Version = true, "1.2.3"
	s := New(cfg)
	t.Cleanup(s.Close)
	return s
}

func message(url string) Message {
	return Message{URL: url, Secret: secret, Delivery: id.DeliveryID{UUID: id.NewAnywhere()}, Body: []byte(event)}
}

func server(t testing.TB, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

// raw is a server that talks to each connection itself. f gets it when the whole
// of the event has been read from it.
func raw(t testing.TB, f func(net.Conn)) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				if readEvent(c) {
					f(c)
				}
			})
		}
	})
	t.Cleanup(func() { ln.Close(); wg.Wait() })
	return "http://" + ln.Addr().String()
}

// readEvent reads a request up to the end of the event.
func readEvent(c net.Conn) bool {
	var all bytes.Buffer
	b := make([]byte, 4096)
	for !bytes.HasSuffix(all.Bytes(), []byte(event)) {
		n, err := c.Read(b)
		if err != nil {
			return false
		}
		all.Write(b[:n])
	}
	return true
}

// hold keeps a connection until the other side leaves.
func hold(c net.Conn) { _, _ = io.Copy(io.Discard, c) }

// hanging is a resolver that never answers; it closes the channel when asked.
type hanging chan struct{}

func (h hanging) LookupNetIP(ctx context.Context, _, _ string) ([]netip.Addr, error) {
	close(h)
	<-ctx.Done()
	return nil, ctx.Err()
}

// flood writes s until the other side leaves, or a GiB is written.
func flood(c net.Conn, s string) {
	for n := 0; n < 1<<30; n += len(s) {
		if _, err := io.WriteString(c, s); err != nil {
			return
		}
	}
}

// pause waits for d; false says that the other side has left meanwhile.
func pause(c net.Conn, d time.Duration) bool {
	_ = c.SetReadDeadline(time.Now().Add(d))
	_, err := c.Read(make([]byte, 1))
	return errors.Is(err, os.ErrDeadlineExceeded)
}

// readable waits until what was written has had time to be read alone.
func readable(c net.Conn) { pause(c, 50*time.Millisecond) }

// quiet keeps handshakes that are meant to fail out of the log.
var quiet = log.New(io.Discard, "", 0)
