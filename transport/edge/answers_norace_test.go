//go:build !race

package edge

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/testkit"
)

// held returns the bytes of answers that an account holds.
func (a *large) held(of account) int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.of[of]
}

type largeAnswer struct {
	Text string `json:"text"`
}

// What clients that do not read hold of the memory is bounded by tenant, its visitors apart.
// Changes are answered whatever is held; above the limit there are no further ones.
func TestAnswersThatAreNotReadAreBounded(t *testing.T) {
	const size = 15 << 20 // more than the buffers of a connection, four of a tenant
	text := strings.Repeat("x", size)
	w := newWorld(t, func(c *Config) {
		c.WriteTimeout = patience
		large := func(context.Context, *Caller, *nothing) (*largeAnswer, error) { return &largeAnswer{text}, nil }
		Handle(c.Table, Route{Method: "GET", Path: "/v1/large", ID: "readLarge", Summary: "Read", Tag: "Service", Role: lifecycle.RoleMember}, large)
		Handle(c.Table, Route{Method: "POST", Path: "/v1/large", ID: "makeLarge", Summary: "Change", Tag: "Service", Role: lifecycle.RoleMember}, large)
	})
	w.auth.keys["stranger"] = Identity{Tenant: w.other, Role: lifecycle.RoleMember, Principal: "user:s"}
	w.auth.keys["visitor"] = Identity{Tenant: w.tenant, Role: lifecycle.RoleMember, Principal: "embed:vid:v", Embed: Embedded{Key: id.EmbedKeyID{UUID: id.NewAnywhere()}}}
	own := account{tenant: w.tenant}
	// ask sends a request of the tenant and reads nothing.
	ask := func(method string) net.Conn {
		t.Helper()
		before := w.srv.answers.held(own)
		c, err := net.Dial("tcp", w.addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		if _, err := io.WriteString(c, method+" /v1/large HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nAuthorization: Bearer member\r\nX-Tenant-Id: "+w.tenant.String()+"\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, "the answer is counted", func() bool { return w.srv.answers.held(own) >= before+size })
		return c
	}
	refused := func(what string, got answer) {
		t.Helper()
		if p := got.problem(t); got.status != 429 || p.Code != "RATE_LIMITED" || got.header.Get("Retry-After") != "1" || !strings.Contains(p.Detail, "scope: answers") {
			t.Errorf("%s: %d %s", what, got.status, got.body)
		}
	}
	whole := func(what string, got answer) {
		t.Helper()
		if got.status != 200 || len(got.body) != size+len(`{"text":""}`) || got.header.Get("Content-Length") != fmt.Sprint(len(got.body)) || got.header.Get("Content-Type") != "application/json" {
			t.Errorf("%s: %d, %d bytes, %v", what, got.status, len(got.body), got.header)
		}
	}
	var unread []net.Conn
	for range heldEach / size {
		unread = append(unread, ask("GET"))
	}
	refused("a fifth", w.call("GET", "/v1/large", ""))
	if got := w.call("GET", "/v1/threads", ""); got.status != 200 {
		t.Errorf("a small answer: %d %s", got.status, got.body)
	}
	if got := w.call("HEAD", "/v1/large", ""); got.status != 200 || got.header.Get("Content-Length") != fmt.Sprint(size+len(`{"text":""}`)) {
		t.Errorf("HEAD: %d %v", got.status, got.header)
	}
	for _, cookie := range []string{"stranger", "visitor"} {
		whole(cookie, w.call("GET", "/v1/large", "", "Authorization: -", "X-Tenant-Id: -", "Cookie: svc_session="+cookie))
	}
	whole("a change", w.call("POST", "/v1/large", ""))
	testkit.Eventually(t, "it is read", func() bool { return w.srv.answers.held(own) <= heldEach })
	change := ask("POST")
	refused("a change after one that is not read", w.call("POST", "/v1/poke", ""))
	if got := w.call("GET", "/v1/threads", ""); got.status != 200 {
		t.Errorf("a small answer: %d %s", got.status, got.body)
	}
	got, err := exchange(change, bufio.NewReader(change), "")
	if err != nil {
		t.Fatal(err)
	}
	whole("the change, later", got)
	testkit.Eventually(t, "it is read", func() bool { return w.srv.answers.held(own) <= heldEach })
	if got := w.call("POST", "/v1/poke", ""); got.status != 200 {
		t.Errorf("a change: %d %s", got.status, got.body)
	}
	for _, c := range unread {
		_ = c.Close()
	}
	testkit.Eventually(t, "everything comes back", func() bool {
		w.srv.answers.mu.Lock()
		defer w.srv.answers.mu.Unlock()
		return w.srv.answers.all == 0 && len(w.srv.answers.of) == 0
	})
	whole("afterwards", w.call("GET", "/v1/large", ""))
}
