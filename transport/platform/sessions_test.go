package platform

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"agentsvc/persistence/store"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/transport/edge"
)

// open-parts.md: HttpOnly, SameSite=Lax, Secure in production.
func TestTheCookie(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	got, _ := w.login(fmt.Sprintf(`{"email": %q, "password": %q}`, w.newHuman(w.a, "kim@example.com", lifecycle.RoleMember).email, goodPassword))
	cookies := (&http.Response{Header: got.header}).Cookies()
	if len(cookies) != 1 {
		t.Fatal(got.header)
	}
	c := cookies[0]
	if c.Name != "svc_session" || len(c.Value) != 86 || !c.HttpOnly || c.SameSite != http.SameSiteLaxMode || c.Path != "/" || c.Secure || c.MaxAge != int(store.SessionLife.Seconds()) || c.Domain != "" {
		t.Errorf("%+v", c)
	}
	in := (&Platform{Config: Config{Production: true}}).cookie("x")
	if in != "svc_session=x; Path=/; HttpOnly; SameSite=Lax; Max-Age=604800; Secure" {
		t.Error(in)
	}
	if out := (&Platform{Config: Config{Production: true}}).cookie(""); out != "svc_session=; Path=/; HttpOnly; SameSite=Lax; Max-Age=0; Secure" {
		t.Error(out)
	}
	if got.header.Get("Cache-Control") != "no-store" {
		t.Error(got.header)
	}
}

// open-parts.md: a cookie call that changes something must carry X-Svc-CSRF: 1 or an Origin
// equal to SVC_PUBLIC_URL.
func TestCSRF(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cookie := w.enter(w.newHuman(w.a, "kim@example.com", lifecycle.RoleAdmin))
	node := "/v1/org-nodes/" + w.a.node.String()
	for _, c := range []struct {
		name, method, path, body string
		header                   []string
		status                   int
	}{
		{"a read", "GET", "/v1/org-nodes", "", nil, 200},
		{"a read from elsewhere", "GET", "/v1/org-nodes", "", []string{"Origin", "https://evil.example"}, 200},
		{"HEAD", "HEAD", "/v1/org-nodes", "", nil, 200},
		{"POST with nothing", "POST", "/v1/org-nodes", `{"name": "x"}`, nil, 403},
		{"PATCH with nothing", "PATCH", node, `{"name": "x"}`, nil, 403},
		{"PUT with nothing", "PUT", node + "/managers/" + w.a.owner.String(), "", nil, 403},
		{"DELETE with nothing", "DELETE", node + "/managers/" + w.a.owner.String(), "", nil, 403},
		{"logout with nothing", "POST", "/v1/auth/logout", "", nil, 403},
		{"with the header", "POST", "/v1/org-nodes", `{"name": "x"}`, []string{"X-Svc-CSRF", "1"}, 201},
		{"with the header, from elsewhere", "POST", "/v1/org-nodes", `{"name": "x"}`, []string{"X-Svc-CSRF", "1", "Origin", "https://evil.example"}, 201},
		{"with another header", "POST", "/v1/org-nodes", `{"name": "x"}`, []string{"X-Svc-CSRF", "0"}, 403},
		{"from the console", "POST", "/v1/org-nodes", `{"name": "x"}`, []string{"Origin", "https://console.example"}, 201},
		{"from its plain-http twin", "POST", "/v1/org-nodes", `{"name": "x"}`, []string{"Origin", "http://console.example"}, 403},
		{"from another port", "POST", "/v1/org-nodes", `{"name": "x"}`, []string{"Origin", "https://console.example:8443"}, 403},
		{"from below", "POST", "/v1/org-nodes", `{"name": "x"}`, []string{"Origin", "https://a.console.example"}, 403},
		{"from a longer name", "POST", "/v1/org-nodes", `{"name": "x"}`, []string{"Origin", "https://console.example.evil.example"}, 403},
		{"from nowhere", "POST", "/v1/org-nodes", `{"name": "x"}`, []string{"Origin", "null"}, 403},
		{"the wrong session comes first", "POST", "/v1/auth/logout", "", []string{"Cookie", "svc_session=x"}, 401},
	} {
		got := w.send(cookie, c.method, c.path, c.body, c.header...)
		if got.status != c.status || c.status == 403 && got.code() != "FORBIDDEN" {
			t.Errorf("%s: %d %s", c.name, got.status, got.body)
		}
	}
	for text, want := range map[string]string{"http://127.0.0.1:8080": "http://127.0.0.1:8080", "https://X.example/": "https://x.example",
		"http://x.example:80/a": "http://x.example", "https://x.example:80": "https://x.example:80", "": "", "x": ""} {
		if got := originOf(text); got != want {
			t.Errorf("the origin of %q is %q", text, got)
		}
	}
	none := NewSessions(SessionsConfig{})
	if none.safe(&edge.Credentials{Method: "POST"}) {
		t.Error("without a public URL every Origin is accepted")
	}
}

// A session needs no X-Tenant-Id; a different tenant's is 401.
func TestASessionAndTenants(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cookie := w.enter(w.newHuman(w.a, "kim@example.com", lifecycle.RoleMember))
	other := w.enter(w.newHuman(w.b, "kim@example.com", lifecycle.RoleMember))
	token, _ := store.ParseToken(cookie)
	theirs, _ := store.ParseToken(other)
	moved := token
	moved.Tenant = w.b.tenant
	swapped := token
	swapped.ID = theirs.ID
	for _, c := range []struct {
		name, cookie string
		header       []string
		status       int
	}{
		{"no tenant", cookie, nil, 200},
		{"its tenant", cookie, []string{"X-Tenant-Id", w.a.tenant.String()}, 200},
		{"its tenant in capitals", cookie, []string{"X-Tenant-Id", strings.ToUpper(w.a.tenant.String())}, 200},
		{"another tenant", cookie, []string{"X-Tenant-Id", w.b.tenant.String()}, 401},
		{"a tenant that is none", cookie, []string{"X-Tenant-Id", "x"}, 401},
		{"a token under another tenant", moved.Text(), nil, 401},
		{"a token with another's id", swapped.Text(), nil, 401},
		{"a changed secret", cookie[:85] + map[bool]string{true: "g", false: "A"}[cookie[85] == 'A'], nil, 401},
		{"a shorter token", cookie[:85], nil, 401},
		{"a longer token", cookie + "A", nil, 401},
		{"no token", "x", nil, 401},
		{"a key goes before a session", cookie, []string{"Authorization", "Bearer x", "X-Tenant-Id", w.a.tenant.String()}, 401},
	} {
		for range 2 { // uncached, then cached
			if got := w.send(c.cookie, "GET", "/v1/auth/me", "", c.header...); got.status != c.status {
				t.Errorf("%s: %d %s", c.name, got.status, got.body)
			}
		}
	}
	if fmt.Sprint(token) != "[redacted]" || strings.Contains(fmt.Sprintf("%v %s", token, token), "secret") {
		t.Error("a token is shown")
	}
}

// A session ends after 12 h without use or after 7 days.
func TestASessionExpires(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	kim := w.newHuman(w.a, "kim@example.com", lifecycle.RoleMember)
	alive := func(cookie string) bool {
		t.Helper()
		got := w.send(cookie, "GET", "/v1/auth/me", "")
		if got.status != 200 && got.status != 401 {
			t.Fatal(got)
		}
		return got.status == 200
	}
	cookie := w.enter(kim)
	w.clock.move(store.SessionIdle - time.Minute)
	if !alive(cookie) {
		t.Error("ended before 12 hours without use")
	}
	w.clock.move(store.SessionIdle - time.Minute)
	if !alive(cookie) {
		t.Error("its use was not written")
	}
	w.clock.move(store.SessionIdle + time.Second)
	if alive(cookie) {
		t.Error("valid after 12 hours without use")
	}
	cookie = w.enter(kim)
	for range 13 {
		w.clock.move(store.SessionIdle - time.Minute)
		if !alive(cookie) {
			t.Fatal("ended while in use")
		}
	}
	w.clock.move(11 * time.Hour)
	if !alive(cookie) {
		t.Error("ended before 7 days")
	}
	w.clock.move(2 * time.Hour)
	if alive(cookie) {
		t.Error("valid after 7 days")
	}
	// A cached session expires as well: its expiry is checked at each use.
	cookie = w.enter(kim)
	token, _ := store.ParseToken(cookie)
	_, err := w.admin.Exec(t.Context(), "UPDATE sessions SET used_at = $2 WHERE id = $1", token.ID, w.clock.now().Add(10*time.Second-store.SessionIdle))
	w.must(err)
	row, err := w.Store.View(w.a.tenant).Session(t.Context(), id.SessionID{UUID: token.ID})
	w.must(err)
	if left := row.Until().Sub(w.clock.now()); left <= 0 || left > 10*time.Second {
		t.Errorf("ends in %v", left)
	}
}

// Uses of a session are written once a minute, and the session is seldom read.
func TestUsesOfASessionAreWrittenOnceAMinute(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cookie := w.enter(w.newHuman(w.a, "kim@example.com", lifecycle.RoleMember))
	token, _ := store.ParseToken(cookie)
	creds := edge.Credentials{Cookie: cookie, Method: "GET"}
	used := func() (at time.Time) {
		w.must(w.admin.QueryRow(t.Context(), "SELECT used_at FROM sessions WHERE id = $1", token.ID).Scan(&at))
		return at
	}
	if w.Sessions.Cached(creds) {
		t.Error("cached before its first use")
	}
	first := used()
	use := func() {
		t.Helper()
		if _, err := w.Sessions.Authenticate(t.Context(), creds); err != nil {
			t.Fatal(err)
		}
	}
	use()
	if !w.Sessions.Cached(creds) {
		t.Error("not cached")
	}
	before := w.pool.Stat().AcquireCount()
	for range 50 {
		use()
	}
	if n := w.pool.Stat().AcquireCount() - before; n != 0 || used() != first {
		t.Errorf("50 uses read or wrote %d times", n)
	}
	w.clock.move(31 * time.Second)
	if use(); used() != first {
		t.Error("a use within a minute was written")
	}
	w.clock.move(31 * time.Second)
	if use(); !used().After(first) {
		t.Error("a use after a minute was not written")
	}
}

// Ending a session takes effect at once: no request is accepted after the response.
func TestSessionsEndAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, c := range map[string]struct {
		method, path, body string // by the user if the path has no id
		others             bool   // the user's other session ends too
		told               string
	}{
		"logout":                   {"POST", "/v1/auth/logout", "", false, "one of {id}"},
		"a new password":           {"POST", "/v1/auth/password", `{"current": "` + goodPassword + `", "new": "battery horse correct"}`, true, "all of {id}"},
		"a new password by admins": {"PATCH", "/v1/users/{id}", `{"password": "battery horse correct"}`, true, "all of {id}"},
		"removal":                  {"DELETE", "/v1/users/{id}", "", true, "all of {id}"},
	} {
		h := w.newHuman(w.a, fmt.Sprint(id.NewAnywhere(), "@example.com"), lifecycle.RoleMember)
		neighbour := w.enter(w.newHuman(w.a, fmt.Sprint(id.NewAnywhere(), "@example.com"), lifecycle.RoleMember))
		first, second := w.enter(h), w.enter(h)
		stop := make(chan struct{})
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
						w.send(first, "GET", "/v1/tenant", "")
					}
				}
			})
		}
		w.ended.take()
		r := strings.NewReplacer("{id}", h.id.String())
		by := "owner"
		if !strings.Contains(c.path, "{id}") {
			by = first
		}
		got := w.person(by, c.method, r.Replace(c.path), c.body)
		if got.status >= 300 {
			t.Fatalf("%s: %d %s", name, got.status, got.body)
		}
		for range 3 {
			if got := w.send(first, "GET", "/v1/tenant", ""); got.status != 401 {
				t.Errorf("%s: accepted afterwards", name)
			}
		}
		close(stop)
		wg.Wait()
		if got := w.send(first, "GET", "/v1/tenant", ""); got.status != 401 {
			t.Errorf("%s: cached again", name)
		}
		if alive := w.send(second, "GET", "/v1/tenant", "").status == 200; alive == c.others {
			t.Errorf("%s: the other session is valid: %v", name, alive)
		}
		if got := w.send(neighbour, "GET", "/v1/tenant", ""); got.status != 200 {
			t.Errorf("%s: another user's session ended", name)
		}
		if told := w.ended.take(); told != r.Replace(c.told) {
			t.Errorf("%s: told %q", name, told)
		}
		if by == first && (cookieOf(got) != "" || !strings.Contains(got.header.Get("Set-Cookie"), "svc_session=; ") || !strings.Contains(got.header.Get("Set-Cookie"), "Max-Age=0")) {
			t.Errorf("%s: the cookie stays: %s", name, got.header.Get("Set-Cookie"))
		}
		old, _ := w.login(fmt.Sprintf(`{"email": %q, "password": %q}`, h.email, goodPassword))
		if fits := old.status == 200; fits == c.others {
			t.Errorf("%s: the old password: %d", name, old.status)
		}
		if changed, _ := w.login(fmt.Sprintf(`{"email": %q, "password": "battery horse correct"}`, h.email)); strings.Contains(c.body, "battery") != (changed.status == 200) {
			t.Errorf("%s: the new password: %d", name, changed.status)
		}
	}
	if n := w.audited(w.a.tenant); n["auth.logout"] != 1 {
		t.Errorf("%v", n)
	}
}

// A role change takes effect at once, both ways, on sessions that stay.
func TestARoleChangeTakesEffectAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	h := w.newHuman(w.a, "kim@example.com", lifecycle.RoleMember)
	cookie := w.enter(h)
	for range 5 {
		for _, c := range []struct {
			role   string
			status int
		}{{"admin", 200}, {"member", 403}} {
			if got := w.person("owner", "PATCH", "/v1/users/"+h.id.String(), `{"role": "`+c.role+`"}`); got.status != 200 {
				t.Fatal(got)
			}
			if got := w.send(cookie, "GET", "/v1/users", ""); got.status != c.status {
				t.Errorf("as %s: %d", c.role, got.status)
			}
		}
	}
	// Their streams end, which were opened with the role of before.
	if told, want := w.ended.take(), strings.TrimSuffix(strings.Repeat("all of "+h.id.String()+", ", 10), ", "); told != want {
		t.Errorf("ended are %s, want %s", told, want)
	}
}

// A change during a look-up: the look-up does not cache the old role, nor a session that ended.
func TestALookUpRacingWithTheEndOfASession(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	h := w.newHuman(w.a, "kim@example.com", lifecycle.RoleAdmin)
	for name, c := range map[string]struct {
		change func(tx *store.Tx, ctx context.Context, s id.SessionID) error
		forget func(s id.SessionID)
		gone   bool
	}{
		"logout": {func(tx *store.Tx, ctx context.Context, s id.SessionID) error { return tx.EndSession(ctx, s, h.id) },
			func(s id.SessionID) { w.Sessions.Forget(w.a.tenant, s) }, true},
		"demotion": {func(tx *store.Tx, ctx context.Context, _ id.SessionID) error {
			role := lifecycle.RoleMember
			_, err := tx.UpdateUser(ctx, h.id, lifecycle.RoleOwner, store.UserChange{Role: &role})
			return err
		}, func(id.SessionID) { w.Sessions.ForgetUser(w.a.tenant, h.id) }, false},
	} {
		cookie := w.enter(h)
		token, _ := store.ParseToken(cookie)
		at, s := w.Sessions.at(&token), id.SessionID{UUID: token.ID}
		// The row changes after it was read and before it is cached.
		live, ok, err := w.Sessions.live.Load(t.Context(), at, func(ctx context.Context) (*liveSession, bool, error) {
			live, ok, err := w.Sessions.read(ctx, &token)
			if first := w.Sessions.at(&token) == at; ok && first && live.role == lifecycle.RoleAdmin {
				w.must(w.Store.Change(ctx, store.By{Tenant: w.a.tenant, Actor: "system"}, func(ctx context.Context, tx *store.Tx) ([]byte, error) {
					return nil, c.change(tx, ctx, s)
				}))
				c.forget(s)
			}
			return live, ok, err
		})
		w.must(err)
		if c.gone && ok {
			t.Errorf("%s: %+v", name, live)
		}
		who, err := w.Sessions.Authenticate(t.Context(), edge.Credentials{Cookie: cookie, Method: "GET"})
		if c.gone != (err != nil) || err == nil && who.Role != lifecycle.RoleMember {
			t.Errorf("%s: %+v %v", name, who, err)
		}
		role := lifecycle.RoleAdmin
		w.must(w.Store.Change(t.Context(), store.By{Tenant: w.a.tenant, Actor: "system"}, func(ctx context.Context, tx *store.Tx) ([]byte, error) {
			_, err := tx.UpdateUser(ctx, h.id, lifecycle.RoleOwner, store.UserChange{Role: &role})
			return nil, err
		}))
		w.Sessions.ForgetUser(w.a.tenant, h.id)
	}
}

// While the node's lease is expired, cached sessions do not count.
func TestSessionsWithoutALease(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cookie := w.enter(w.newHuman(w.a, "kim@example.com", lifecycle.RoleMember))
	valid := true
	s := NewSessions(SessionsConfig{Store: w.Store, PublicURL: console, Live: func() bool { return valid }})
	creds := edge.Credentials{Cookie: cookie, Method: "GET"}
	who, err := s.Authenticate(t.Context(), creds)
	if err != nil || !s.Cached(creds) || who.Session.IsZero() || who.Until.IsZero() || !who.Key.IsZero() {
		t.Fatal(who, err)
	}
	if valid = false; s.Cached(creds) {
		t.Error("cached without a lease")
	}
	if valid = true; !s.Cached(creds) {
		t.Error("not cached with a lease")
	}
	if s.ForgetAll(); s.Cached(creds) {
		t.Error("not dropped")
	}
}

// A session's changes are audited as user:<id>, and kept responses belong to that user.
func TestASessionIsAPrincipal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	kim := w.newHuman(w.a, "kim@example.com", lifecycle.RoleAdmin)
	cookie := w.enter(kim)
	made := w.person(cookie, "POST", "/v1/org-nodes", `{"name": "x"}`)
	var log struct {
		Items []struct {
			Actor, Action, IP string
			Target            struct{ Kind, ID string }
		}
	}
	got := w.send(cookie, "GET", "/v1/audit?actor=user:"+kim.id.String()+"&limit=1", "")
	w.must(json.Unmarshal([]byte(got.body), &log))
	if len(log.Items) != 1 || log.Items[0].Action != "org_node.create" || log.Items[0].Target.ID != made.get("id") || log.Items[0].Target.Kind != "org_node" || log.Items[0].IP != "127.0.0.1" {
		t.Errorf("%s", got.body)
	}
	// A kept response belongs to the principal.
	req := func(key string) answer {
		r, err := http.NewRequestWithContext(t.Context(), "POST", w.addr+"/v1/users", strings.NewReader(`{"email": "a@example.com", "name": "a", "role": "member", "password": "twelve chars"}`))
		w.must(err)
		r.Header.Set("Cookie", "svc_session="+cookie)
		r.Header.Set("X-Svc-CSRF", "1")
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Idempotency-Key", key)
		return w.do(r)
	}
	first, again := req("k"), req("k")
	if first.status != 201 || first.body != again.body || again.header.Get("Idempotency-Replayed") != "true" {
		t.Errorf("%d %s\n%d %s", first.status, first.body, again.status, again.body)
	}
	if got := req("other"); got.code() != "EMAIL_TAKEN" {
		t.Errorf("%d %s", got.status, got.body)
	}
}
