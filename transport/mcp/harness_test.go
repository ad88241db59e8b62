package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"agentsvc/schemas/id"
	"agentsvc/schemas/tool"
	"agentsvc/transport/egress"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "stdio-server" {
		stdioServer(os.Args[2])
		return
	}
	goleak.VerifyTestMain(m)
}

const secret = "s3cr3t-t0ken/with+odd=chars"

// clock is a time that tests move.
type clock struct{ at atomic.Int64 }

func newClock() *clock {
	c := &clock{}
	c.at.Store(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).UnixNano())
	return c
}

func (c *clock) now() time.Time        { return time.Unix(0, c.at.Load()).UTC() }
func (c *clock) pass(by time.Duration) { c.at.Add(int64(by)) }

var loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}

// noNetwork lets a test reach loopback only, whatever the guard says.
func noNetwork(to netip.AddrPort, verdict error) error {
	if !to.Addr().Unmap().IsLoopback() {
		return errors.New("tests dial loopback only")
	}
	return nil
}

// nowhere is a resolver that knows only loopback names.
type nowhere struct{}

func (nowhere) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	if host == "tools.test" {
		return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
	}
	return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
}

func gateway(t testing.TB, change func(*Config)) *Gateway {
	t.Helper()
	c := Config{
		Guard:   egress.New(egress.Config{Allow: loopback, Observe: noNetwork, Resolver: nowhere{}}),
		Timeout: 30 * time.Second,
		Log:     zerolog.Nop(),
	}
	if change != nil {
		change(&c)
	}
	g := New(c)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		g.Close(ctx)
	})
	return g
}

// target is a bearer connection with an endpoint.
func target(endpoint string) Target {
	conn := id.ConnectionID{UUID: id.NewAnywhere()}
	return Target{
		Tenant: id.TenantID{UUID: id.NewAnywhere()}, Server: id.ServerID{UUID: id.NewAnywhere()}, Slug: "crm",
		Transport: tool.HTTP, Endpoint: endpoint, AuthKind: tool.AuthBearer, Version: time.Unix(1_700_000_000, 0), Connection: &conn,
		Credential: func(context.Context) (string, error) { return secret, nil },
	}
}

// message is what a fake server hears.
type message struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
		Cursor    string          `json:"cursor"`
		RequestID json.RawMessage `json:"requestId"`
	} `json:"params"`
}

// fake is a tool server under the test's command. It predates server/discover.
type fake struct {
	*httptest.Server
	sessions bool // gives and wants session ids
	polite   bool // returns {} for unknown methods
	// call answers tools/call; list answers tools/list; hear sees every request.
	call func(w http.ResponseWriter, r *http.Request, m message)
	list func(w http.ResponseWriter, r *http.Request, m message)
	hear func(r *http.Request, m message) // under mu

	mu     sync.Mutex
	heard  map[string]int
	live   map[string]bool
	tokens []string
}

const echoTool = `{"name":"echo","description":"Says it again","inputSchema":{"type":"object","properties":{"text":{"type":"string"}}},"annotations":{"readOnlyHint":true}}`

func newFake(t testing.TB, change func(*fake)) *fake {
	t.Helper()
	f := &fake{heard: map[string]int{}, live: map[string]bool{}}
	f.list = func(w http.ResponseWriter, r *http.Request, m message) {
		result(w, m, `{"tools":[`+echoTool+`,{"name":"write","inputSchema":{"type":"object"}}]}`)
	}
	f.call = func(w http.ResponseWriter, r *http.Request, m message) { text(w, m, string(m.Params.Arguments)) }
	if change != nil {
		change(f)
	}
	f.Server = httptest.NewServer(f)
	t.Cleanup(f.Server.Close)
	return f
}

func (f *fake) count(method string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.heard[method]
}

// forget ends all sessions, as a restart does.
func (f *fake) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.live)
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var m message
	body, _ := io.ReadAll(r.Body)
	_ = json.Unmarshal(body, &m)
	if r.Method != http.MethodPost {
		m.Method = r.Method
	}
	session := r.Header.Get("Mcp-Session-Id")
	f.mu.Lock()
	f.heard[m.Method]++
	f.tokens = append(f.tokens, r.Header.Get("Authorization")+r.Header.Get("X-Api-Key"))
	if f.hear != nil {
		f.hear(r, m)
	}
	known := f.live[session]
	if m.Method == "initialize" && f.sessions {
		session = fmt.Sprintf("session-%d", len(f.heard)*1000+f.heard[m.Method])
		f.live[session] = true
		w.Header().Set("Mcp-Session-Id", session)
	}
	f.mu.Unlock()
	switch {
	case m.Method == "server/discover" && f.polite:
		result(w, m, `{}`)
	case m.Method == "server/discover":
		reply(w, m, `"error":{"code":-32601,"message":"method not found"}`)
	case m.Method == "initialize":
		result(w, m, `{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"fake","version":"1"}}`)
	case f.sessions && !known:
		w.WriteHeader(http.StatusNotFound)
	case m.Method == "tools/list":
		f.list(w, r, m)
	case m.Method == "tools/call":
		f.call(w, r, m)
	case m.Method == http.MethodDelete:
		f.mu.Lock()
		delete(f.live, session)
		f.mu.Unlock()
	default:
		w.WriteHeader(http.StatusAccepted)
	}
}

func reply(w http.ResponseWriter, m message, rest string) {
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,%s}`, m.ID, rest)
}

func result(w http.ResponseWriter, m message, res string) { reply(w, m, `"result":`+res) }

func text(w http.ResponseWriter, m message, s string) {
	b, _ := json.Marshal(s)
	result(w, m, `{"content":[{"type":"text","text":`+string(b)+`}]}`)
}

// hijack gives the naked connection.
func hijack(w http.ResponseWriter, head string) io.WriteCloser {
	c, b, err := w.(http.Hijacker).Hijack()
	if err != nil {
		panic(err)
	}
	_, _ = b.WriteString(head)
	_ = b.Flush()
	return c
}

func newServer(t testing.TB, h http.Handler) string {
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

// newFront is a server before a server; it gets the body and may read it again.
func newFront(t testing.TB, h func(w http.ResponseWriter, r *http.Request, body []byte)) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(b))
		h(w, r, b)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// peek reads a request's message and puts its body back.
func peek(r *http.Request) message {
	var m message
	b, _ := io.ReadAll(r.Body)
	_ = json.Unmarshal(b, &m)
	r.Body = io.NopCloser(bytes.NewReader(b))
	return m
}

func kindOf(err error) Kind {
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return ""
}

// leaks gives the first form of the secret that s holds.
func leaks(s string) string {
	for _, f := range newMask(secret).Forms() {
		if strings.Contains(s, f) {
			return f
		}
	}
	return ""
}
