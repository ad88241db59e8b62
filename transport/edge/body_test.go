package edge

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"testing"

	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/testkit"
)

// asked returns how often a caller was authenticated.
func (a *stubAuth) asked() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.seen)
}

// set changes who presents a key or session; nil revokes it.
func (a *stubAuth) set(name string, change func(*Identity)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	who := a.keys[name]
	if change == nil {
		delete(a.keys, name)
		return
	}
	change(&who)
	a.keys[name] = who
}

// arriving is a request whose body is still being sent.
type arriving struct {
	w *world
	c net.Conn
	r *bufio.Reader
}

// begin sends the head of a request with the beginning of its body, and returns once its caller
// was authenticated.
func (w *world) begin(method, path, body string, headers ...string) *arriving {
	w.t.Helper()
	before := w.auth.asked()
	c, err := net.Dial("tcp", w.addr)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = c.Close() })
	if _, err := io.WriteString(c, method+" "+path+" HTTP/1.1\r\nHost: x\r\n"+strings.Join(headers, "\r\n")+"\r\n\r\n"+body); err != nil {
		w.t.Fatal(err)
	}
	testkit.Eventually(w.t, "the caller is authenticated", func() bool { return w.auth.asked() > before })
	return &arriving{w, c, bufio.NewReader(c)}
}

// end sends the rest and returns the answer.
func (s *arriving) end(rest string) answer {
	s.w.t.Helper()
	a, err := exchange(s.c, s.r, rest)
	if err != nil {
		s.w.t.Fatal(err)
	}
	return a
}

func chunk(text string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(text), text) }

// A client decides how long its body takes. What was revoked meanwhile changes nothing, a role
// counts as it is at the end, and nothing is charged twice (service.md, API key; open-parts.md,
// Org nodes, users, sessions).
func TestACallerIsAuthenticatedAgainAtTheEndOfItsBody(t *testing.T) {
	var roles []lifecycle.Role
	w := newWorld(t, func(c *Config) {
		Handle(c.Table, Route{Method: "POST", Path: "/v1/whoami", ID: "whoami", Summary: "Tell the role", Tag: "Service", Role: lifecycle.RoleMember},
			func(_ context.Context, c *Caller, _ *struct{ Body struct{} }) (*Empty, error) {
				roles = append(roles, c.Role)
				return nil, nil
			})
	})
	w.limits.tenant, w.limits.user, w.limits.ip = 1000, 1000, 1000
	const agent = `{"agent_id": "0198c0de-0000-7000-8000-000000000000"`
	part := "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\nhello"
	long := strings.Repeat(" ", readAhead) + "}"
	key := func(name string) []string {
		return []string{"Authorization: Bearer " + name, "X-Tenant-Id: " + w.tenant.String()}
	}
	session := func(name string) []string { return []string{"Cookie: svc_session=session-" + name} }
	chunked := []string{"Content-Type: application/json", "Transfer-Encoding: chunked"}
	form := []string{"Content-Type: multipart/form-data; boundary=b", "Transfer-Encoding: chunked"}
	revoked := (func(*Identity))(nil)
	as := func(r lifecycle.Role) func(*Identity) { return func(who *Identity) { who.Role = r } }
	for _, c := range []struct {
		name, path, who string
		head            []string
		begin, rest     string
		change          func(*Identity)
		status          int
		code            string
	}{
		{"a revoked key, chunked", "POST /v1/threads", "member", chunked, chunk(agent), chunk("}") + "0\r\n\r\n", revoked, 401, "UNAUTHORIZED"},
		{"a revoked key, of a declared length", "POST /v1/threads", "member", []string{"Content-Type: application/json", fmt.Sprint("Content-Length: ", len(agent)+len(long))},
			agent + long[:readAhead], long[readAhead:], revoked, 401, "UNAUTHORIZED"},
		{"a revoked key, an empty body", "POST /v1/poke", "member", chunked, "", "0\r\n\r\n", revoked, 401, "UNAUTHORIZED"},
		{"a revoked key, an upload", "POST /v1/attachments", "member", form, chunk(part), chunk("\r\n--b--\r\n") + "0\r\n\r\n", revoked, 401, "UNAUTHORIZED"},
		{"an ended session", "POST /v1/threads", "session-member", chunked, chunk(agent), chunk("}") + "0\r\n\r\n", revoked, 401, "UNAUTHORIZED"},
		{"an ended session, an upload", "POST /v1/attachments", "session-member", form, chunk(part), chunk("\r\n--b--\r\n") + "0\r\n\r\n", revoked, 401, "UNAUTHORIZED"},
		{"a former role", "PATCH /v1/tenant", "session-owner", chunked, chunk(`{"name":`), chunk(`"x"}`) + "0\r\n\r\n", as(lifecycle.RoleAdmin), 403, "FORBIDDEN"},
		{"a role that still suffices", "POST /v1/whoami", "session-admin", chunked, chunk("{"), chunk("}") + "0\r\n\r\n", as(lifecycle.RoleMember), 204, ""},
		{"another caller", "POST /v1/threads", "admin", chunked, chunk(agent), chunk("}") + "0\r\n\r\n", func(who *Identity) { who.Principal = "apikey:other" }, 401, "UNAUTHORIZED"},
		{"a tenant's other key", "POST /v1/threads", "owner", chunked, chunk(agent), chunk("}") + "0\r\n\r\n", func(who *Identity) { who.Tenant = w.other }, 401, "UNAUTHORIZED"},
	} {
		before := w.auth.keys[c.who]
		head := append(key(c.who), c.head...)
		if name, is := strings.CutPrefix(c.who, "session-"); is {
			head = append(session(name), c.head...)
		}
		method, path, _ := strings.Cut(c.path, " ")
		charged := w.limits.counts()
		s := w.begin(method, path, c.begin, append(head, "Idempotency-Key: k")...)
		testkit.Eventually(t, "the call is charged", func() bool { return w.limits.counts() != charged })
		charged = w.limits.counts()
		w.auth.set(c.who, c.change)
		got := s.end(c.rest)
		if got.status != c.status || c.code != "" && got.problem(t).Code != c.code {
			t.Errorf("%s: %d %s", c.name, got.status, got.body)
		}
		if now := w.limits.counts(); now != charged {
			t.Errorf("%s: charged %q, then %q", c.name, charged, now)
		}
		if len(w.replays.rows) != 0 {
			t.Fatalf("%s: the handler committed", c.name)
		}
		w.auth.set(c.who, func(who *Identity) { *who = before })
	}
	if fmt.Sprint(roles) != "[member]" {
		t.Errorf("the handler was called as %v", roles)
	}
}

// What arriving bodies hold of the memory is bounded by tenant, its visitors apart, and by address where no tenant is
// known. Small bodies pass.
func TestArrivingBodiesAreBounded(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.ReadTimeout = patience })
	w.limits.tenant, w.limits.user, w.limits.ip = 1000, 1000, 1000
	w.auth.keys["stranger"] = Identity{Tenant: w.other, Role: lifecycle.RoleMember, Principal: "user:s"}
	w.auth.keys["visitor"] = Identity{Tenant: w.tenant, Role: lifecycle.RoleMember, Principal: "embed:vid:v", Embed: Embedded{Key: id.EmbedKeyID{UUID: id.NewAnywhere()}}}
	start := `{"agent_id": "0198c0de-0000-7000-8000-000000000000"` + strings.Repeat(" ", readAhead)
	rest := strings.Repeat(" ", MaxJSON-len(start)-1) + "}"
	whole := start + strings.Repeat(" ", small) + "}"
	key := []string{"Authorization: Bearer member", "X-Tenant-Id: " + w.tenant.String(), "Content-Type: application/json"}
	own := account{tenant: w.tenant}
	held := func() int64 {
		w.srv.bodies.mu.Lock()
		defer w.srv.bodies.mu.Unlock()
		return w.srv.bodies.of[own]
	}
	var open []*arriving
	for range heldEach / MaxJSON {
		before := held()
		open = append(open, w.begin("POST", "/v1/threads", start, append(key, fmt.Sprint("Content-Length: ", MaxJSON))...))
		testkit.Eventually(t, "the body is counted", func() bool { return held() == before+MaxJSON })
	}
	refused := func(what string, got answer) {
		t.Helper()
		if p := got.problem(t); got.status != 429 || p.Code != "RATE_LIMITED" || got.header.Get("Retry-After") != "1" || !strings.Contains(p.Detail, "scope: bodies") {
			t.Errorf("%s: %d %s", what, got.status, got.body)
		}
	}
	refused("of a declared length", w.call("POST", "/v1/threads", whole))
	chunked := w.begin("POST", "/v1/threads", chunk(start), append(key, "Transfer-Encoding: chunked")...)
	refused("chunked", chunked.end(chunk(strings.Repeat(" ", small))))
	if got := w.call("POST", "/v1/threads", start+"}"); got.status != 200 {
		t.Errorf("a small body: %d %s", got.status, got.body)
	}
	for _, cookie := range []string{"stranger", "visitor"} {
		if got := w.call("POST", "/v1/threads", whole, "Authorization: -", "X-Tenant-Id: -", "Cookie: svc_session="+cookie); got.status != 200 {
			t.Errorf("%s: %d %s", cookie, got.status, got.body)
		}
	}
	if got := open[0].end(rest); got.status != 200 {
		t.Errorf("a body that was counted: %d %s", got.status, got.body)
	}
	if got := w.call("POST", "/v1/threads", whole); got.status != 200 {
		t.Errorf("once it is served: %d %s", got.status, got.body)
	}
	for _, s := range open[1:] {
		_ = s.c.Close()
	}
	testkit.Eventually(t, "everything comes back", func() bool {
		w.srv.bodies.mu.Lock()
		defer w.srv.bodies.mu.Unlock()
		return w.srv.bodies.all == 0 && len(w.srv.bodies.of) == 0
	})
}

// A body that was there with its head costs no second authentication; one that may have
// arrived later costs one.
func TestABodyThatIsThereCostsOneAuthentication(t *testing.T) {
	w := newWorld(t)
	const short = `{"agent_id": "0198c0de-0000-7000-8000-000000000000"}`
	for _, c := range []struct {
		name, method, path, body string
		headers                  []string
		times                    int
	}{
		{"a read", "GET", "/v1/threads", "", nil, 1},
		{"no body", "POST", "/v1/poke", "", nil, 1},
		{"a small body", "POST", "/v1/threads", short, nil, 1},
		{"a large body", "POST", "/v1/threads", short + strings.Repeat(" ", readAhead), nil, 2},
	} {
		before := w.auth.asked()
		if got := w.call(c.method, c.path, c.body, c.headers...); got.status != 200 {
			t.Fatalf("%s: %d %s", c.name, got.status, got.body)
		}
		seen := w.auth.seen[before:]
		if len(seen) != c.times || seen[0].Again {
			t.Errorf("%s: %+v", c.name, seen)
		}
		if c.times == 2 {
			first := seen[0]
			if first.Again = true; first != seen[1] {
				t.Errorf("%s: other credentials the second time: %+v", c.name, seen)
			}
		}
	}
}

// A request that has waited for another one with its Idempotency-Key gets its answer only if its
// caller may still call.
func TestARevokedKeyGetsNoAnswerOfAnotherRequest(t *testing.T) {
	inside, goOn := make(chan struct{}), make(chan struct{})
	w := newWorld(t, func(c *Config) {
		Handle(c.Table, Route{Method: "POST", Path: "/v1/slow", ID: "slow", Summary: "Wait", Tag: "Service", Role: lifecycle.RoleMember, Idempotent: true},
			func(context.Context, *Caller, *nothing) (*thread, error) {
				close(inside)
				<-goOn
				return &thread{ID: id.ThreadID{UUID: id.NewAnywhere()}}, nil
			})
	})
	head := []string{"Authorization: Bearer member", "X-Tenant-Id: " + w.tenant.String(), "Idempotency-Key: k", "Content-Length: 0"}
	first := w.begin("POST", "/v1/slow", "", head...)
	<-inside
	second := w.begin("POST", "/v1/slow", "", head...)
	testkit.Eventually(t, "the second waits for the first", func() bool {
		all := make([]byte, 1<<20)
		return strings.Contains(string(all[:runtime.Stack(all, true)]), "[select]:\nagentsvc/transport/edge.(*Server).keyed(")
	})
	w.auth.set("member", nil)
	close(goOn)
	if got := first.end(""); got.status != 200 { // its body was complete
		t.Errorf("the first: %d %s", got.status, got.body)
	}
	if got := second.end(""); got.status != 401 {
		t.Errorf("the second: %d %s", got.status, got.body)
	}
}
