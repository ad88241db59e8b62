package embed_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"agentsvc/schemas/id"
	"agentsvc/transport/embed"
	"agentsvc/transport/embed/session"
)

// route is one of the routes that a session token calls, about a conversation.
type route struct {
	name, method string
	path         func(s said) string
	body         func(s said) string
	status       int
}

func none(said) string { return "" }

// tokenRoutes are all of them.
var tokenRoutes = []route{
	{"post in a thread", "POST", func(said) string { return "/v1/embed/messages" }, func(s said) string { return message("hi", s.Thread) }, 202},
	{"list threads", "GET", func(said) string { return "/v1/embed/threads" }, none, 200},
	{"read a thread", "GET", func(s said) string { return "/v1/embed/threads/" + s.Thread + "/messages" }, none, 200},
	{"cancel a run", "POST", func(s said) string { return "/v1/embed/runs/" + s.Run + "/cancel" }, none, 200},
	{"watch a run", "GET", func(s said) string { return "/v1/embed/runs/" + s.Run + "/events" }, none, 200},
}

// call makes the route's call with that token, from the page unless fields say otherwise.
func (r route) call(w *world, s said, token string, fields ...string) answer {
	w.t.Helper()
	return w.send(r.method, r.path(s), r.body(s), append([]string{"Authorization", "Bearer " + token, "Origin", page}, fields...)...)
}

// talked is a visitor with a conversation whose run has ended.
func (w *world) talked(k key) (*guest, said) {
	w.t.Helper()
	g := w.visit(k, "")
	s := g.say("hello", "")
	w.end(s.Run)
	return g, s
}

func (w *world) refused(what string, got answer, status int, code string) {
	w.t.Helper()
	if got.status != status || got.code() != code {
		w.t.Errorf("%s: %d %s, want %d %s", what, got.status, got.body, status, code)
	}
}

// service.md, Authentication, Embed: after the mint, a session token as Authorization:
// Bearer; Errors, EMBED_UNAUTHORIZED: missing, malformed or expired session token.
func TestEveryRouteRefusesWhatIsNoToken(t *testing.T) {
	w := newWorld(t)
	g, s := w.talked(w.newKey(w.a, w.a.agent, ""))
	payload, mac, _ := strings.Cut(strings.TrimPrefix(g.Token, "svc_es_"), ".")
	bytes, err := base64.RawURLEncoding.DecodeString(payload)
	w.must(err)
	claims, err := w.signer.Open(g.Token, time.Now())
	w.must(err)
	minted := func(change func(*session.Claims)) string {
		c := claims
		change(&c)
		return w.signer.Mint(c)
	}
	altered := append([]byte(nil), bytes...)
	altered[20] ^= 1
	other := w.newKey(w.a, w.a.agent, "")
	for name, token := range map[string]string{
		"empty":                            "",
		"a word":                           "nonsense",
		"a publishable key":                g.key.Key,
		"an API key":                       w.a.secret,
		"a visitor value":                  g.Visitor,
		"cut at its end":                   g.Token[:len(g.Token)-1],
		"cut in its middle":                g.Token[:len(g.Token)/2],
		"without its MAC":                  "svc_es_" + payload,
		"without its prefix":               payload + "." + mac,
		"upper case":                       strings.ToUpper(g.Token),
		"with padding":                     "svc_es_" + payload + "=." + mac,
		"in the other alphabet":            "svc_es_" + base64.RawStdEncoding.EncodeToString(bytes) + "=." + mac,
		"with another byte":                "svc_es_" + base64.RawURLEncoding.EncodeToString(altered) + "." + mac,
		"followed by something":            g.Token + "A",
		"twice":                            g.Token + "," + g.Token,
		"expired":                          minted(func(c *session.Claims) { c.Expires = time.Now().Add(-time.Second) }),
		"expires now":                      minted(func(c *session.Claims) { c.Expires = time.Now().Truncate(time.Second) }),
		"of another tenant with this key":  minted(func(c *session.Claims) { c.Tenant = w.b.tenant }),
		"of a key that never was":          minted(func(c *session.Claims) { c.Key = id.EmbedKeyID{UUID: id.NewAnywhere()} }),
		"of a former generation":           minted(func(c *session.Claims) { c.Generation-- }),
		"of another key, its generation +": minted(func(c *session.Claims) { c.Key, c.Generation = other.ID, c.Generation+1 }),
		"of an end user who never was":     minted(func(c *session.Claims) { c.EndUser = id.EndUserID{UUID: id.NewAnywhere()} }),
	} {
		for _, r := range tokenRoutes {
			w.refused(name+": "+r.name, r.call(w, s, token), 401, "EMBED_UNAUTHORIZED")
		}
	}
	for _, r := range tokenRoutes {
		w.refused("no Authorization: "+r.name, w.send(r.method, r.path(s), r.body(s), "Origin", page), 401, "EMBED_UNAUTHORIZED")
		w.refused("Basic: "+r.name, r.call(w, s, "", "Authorization", "Basic "+g.Token), 401, "EMBED_UNAUTHORIZED")
		for _, name := range []string{"token", "access_token", "authorization", "Authorization", "bearer", "session"} {
			got := w.send(r.method, r.path(s)+"?"+name+"="+g.Token, r.body(s), "Origin", page)
			w.refused("a token in the query, "+name+": "+r.name, got, 401, "EMBED_UNAUTHORIZED")
		}
		w.refused("a token in a cookie: "+r.name, w.send(r.method, r.path(s), r.body(s), "Origin", page, "Cookie", "svc_session="+g.Token), 401, "EMBED_UNAUTHORIZED")
		if got := r.call(w, s, g.Token); got.status != r.status {
			t.Errorf("%s with the token itself: %d %s", r.name, got.status, got.body)
		}
	}
}

// service.md, Errors: EMBED_KEY_INVALID, unknown publishable key.
func TestConfigAndSessionRefuseWhatIsNoKey(t *testing.T) {
	w := newWorld(t)
	k := w.newKey(w.a, w.a.agent, "")
	other := w.newKey(w.b, w.b.agent, "")
	g := w.visit(k, "")
	mixed := other.Key[:len("svc_pk_")+10] + k.Key[len("svc_pk_")+10:]
	var invalid string
	for name, value := range map[string]string{
		"missing":                 "",
		"a word":                  "nonsense",
		"an API key":              w.a.secret,
		"a token":                 g.Token,
		"cut":                     k.Key[:len(k.Key)-1],
		"followed by something":   k.Key + "A",
		"upper case":              strings.ToUpper(k.Key),
		"with another key's id":   mixed,
		"in a list with a second": k.Key + "," + k.Key,
	} {
		for _, call := range [][2]string{{"GET", "/v1/embed/config"}, {"POST", "/v1/embed/session"}} {
			got := w.send(call[0], call[1], "", "X-Svc-Embed-Key", value, "Origin", page)
			w.refused(name+": "+call[1], got, 401, "EMBED_KEY_INVALID")
			if invalid == "" {
				invalid = got.body
			}
			if got.body != invalid { // an oracle, otherwise
				t.Errorf("%s: %s, and of others %s", name, got.body, invalid)
			}
		}
	}
	// service.md, Authentication: the key never appears in a URL.
	for _, path := range []string{"/v1/embed/config?key=" + k.Key, "/v1/embed/config?X-Svc-Embed-Key=" + k.Key} {
		w.refused(path, w.send("GET", path, "", "Origin", page), 401, "EMBED_KEY_INVALID")
	}
	w.refused("as a bearer", w.send("GET", "/v1/embed/config", "", "Origin", page, "Authorization", "Bearer "+k.Key), 401, "EMBED_KEY_INVALID")
}

// open-parts.md, Questions settled: a rotated value is EMBED_KEY_INVALID, a revoked or
// paused key EMBED_KEY_DISABLED; tokens of a revoked or paused key likewise, tokens
// minted before a rotation EMBED_UNAUTHORIZED. A key whose enabled turns false or that
// is rotated or revoked ends its sessions and streams at once.
func TestWhatBecomesOfAKeyIsAnsweredAtOnce(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct {
		name         string
		change       func(w *world, k key)
		value, token string // what the value and a token from before are answered
		cut          bool   // its streams end
	}{
		{"as it was", func(*world, key) {}, "", "", false},
		{"renamed", func(w *world, k key) { w.patch(k, `{"name": "Another", "rate_limit_per_min": 7}`) }, "", "", false},
		{"another identity secret", func(w *world, k key) {
			w.ok(w.call(k.party, "POST", "/v1/embed-keys/"+k.ID.String()+"/identity-secret", ""), 200)
		}, "", "", false},
		{"rotated", rotated, "EMBED_KEY_INVALID", "EMBED_UNAUTHORIZED", true},
		{"rotated twice", func(w *world, k key) { rotated(w, k); rotated(w, k) }, "EMBED_KEY_INVALID", "EMBED_UNAUTHORIZED", true},
		{"paused", paused, "EMBED_KEY_DISABLED", "EMBED_KEY_DISABLED", true},
		{"paused and on again", func(w *world, k key) { paused(w, k); resumed(w, k) }, "", "EMBED_UNAUTHORIZED", true},
		{"paused and rotated", func(w *world, k key) { paused(w, k); rotated(w, k) }, "EMBED_KEY_INVALID", "EMBED_KEY_DISABLED", true},
		{"paused, rotated and on again", func(w *world, k key) { paused(w, k); rotated(w, k); resumed(w, k) }, "EMBED_KEY_INVALID", "EMBED_UNAUTHORIZED", true},
		{"revoked", revoked, "EMBED_KEY_DISABLED", "EMBED_KEY_DISABLED", true},
		{"rotated and revoked", func(w *world, k key) { rotated(w, k); revoked(w, k) }, "EMBED_KEY_INVALID", "EMBED_KEY_DISABLED", true},
		{"paused and revoked", func(w *world, k key) { paused(w, k); revoked(w, k) }, "EMBED_KEY_DISABLED", "EMBED_KEY_DISABLED", true},
		{"its agent is archived", func(w *world, k key) { w.ok(w.call(k.party, "DELETE", "/v1/agents/"+agentOf(w, k), ""), 204) }, "EMBED_KEY_DISABLED", "EMBED_KEY_DISABLED", true},
		{"the page's origin is removed", func(w *world, k key) { w.patch(k, `{"allowed_origins": ["https://else.example.com"]}`) }, "EMBED_ORIGIN_DENIED", "EMBED_ORIGIN_DENIED", true},
		{"no origin is left", func(w *world, k key) { w.patch(k, `{"allowed_origins": []}`) }, "EMBED_ORIGIN_DENIED", "EMBED_ORIGIN_DENIED", true},
		{"an origin is added", func(w *world, k key) {
			w.patch(k, `{"allowed_origins": ["https://else.example.com", "`+page+`"]}`)
		}, "", "", true},
		{"its origin was removed and is back", func(w *world, k key) {
			w.patch(k, `{"allowed_origins": []}`)
			w.patch(k, `{"allowed_origins": ["`+page+`"]}`)
		}, "", "", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			w.t = t
			k := w.newKey(w.a, w.newAgent(w.a, simple), "")
			g, s := w.talked(k)
			w.models.Hold()
			held := w.visit(k, "")
			open, _ := held.open(held.say("wait", "").Run, "")
			defer open.close()
			open.until("run.started")
			c.change(w, k)
			status := map[string]int{"": 200, "EMBED_ORIGIN_DENIED": 403}
			expect := func(what string, got answer, code string, fine int) {
				t.Helper()
				want, known := status[code]
				if !known {
					want = 401
				} else if code == "" {
					want = fine
				}
				if got.status != want || got.code() != code {
					t.Errorf("%s: %d %s, want %d %s", what, got.status, got.body, want, code)
				}
			}
			expect("config", w.send("GET", "/v1/embed/config", "", of(k)...), c.value, 200)
			expect("session", w.send("POST", "/v1/embed/session", "", of(k)...), c.value, 200)
			w.models.Release()
			if c.cut {
				if all := open.until(""); len(all) > 0 {
					t.Errorf("its stream goes on: %v", all)
				}
			} else if all := open.until(""); len(all) == 0 || all[len(all)-1].event != "run.completed" {
				t.Errorf("its stream ends: %v", all)
			}
			for _, r := range tokenRoutes {
				expect(r.name, r.call(w, s, g.Token), c.token, r.status)
			}
		})
	}
}

func rotated(w *world, k key) {
	w.t.Helper()
	w.ok(w.call(k.party, "POST", "/v1/embed-keys/"+k.ID.String()+"/rotate", ""), 200)
}

func revoked(w *world, k key) {
	w.t.Helper()
	w.ok(w.call(k.party, "DELETE", "/v1/embed-keys/"+k.ID.String(), ""), 204)
}

func paused(w *world, k key)  { w.t.Helper(); w.patch(k, `{"enabled": false}`) }
func resumed(w *world, k key) { w.t.Helper(); w.patch(k, `{"enabled": true}`) }

func agentOf(w *world, k key) string {
	return w.text(`SELECT agent_id::text FROM embed_keys WHERE id = $1`, k.ID)
}

// service.md, Embed, and Errors: EMBED_ORIGIN_DENIED, Origin not on the allowlist, or no
// Origin from a non-browser client and * not allowed; security.md: origins compare as
// parsed tuples, exact; null only under *.
func TestWhoMayUseAKey(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct {
		origins string
		allowed []string
		denied  []string
	}{
		{`["https://shop.example.com"]`,
			[]string{"https://shop.example.com", "https://SHOP.example.com", "HTTPS://shop.example.com", "https://shop.example.com:443"},
			[]string{"", "null", "*", "http://shop.example.com", "https://shop.example.com:8443", "https://www.shop.example.com", "https://example.com", "https://shop.example.com.evil.example",
				"https://shop.example.com/", "https://shop.example.com/path", "https://shop.example.com.", "https://evil.example/?https://shop.example.com", "https://user@shop.example.com",
				"https://shop.example.com https://evil.example", "shop.example.com", "chrome-extension://abcdefgh", "file://", "nonsense"}},
		{`["https://shop.example.com:8443"]`, []string{"https://shop.example.com:8443"}, []string{"https://shop.example.com", "https://shop.example.com:443", ""}},
		{`["http://localhost:3000"]`, []string{"http://localhost:3000", "http://LOCALHOST:3000"}, []string{"https://localhost:3000", "http://localhost", "http://127.0.0.1:3000"}},
		{`[]`, nil, []string{"https://shop.example.com", "", "null", "*"}},
		{`["*"]`, []string{"https://shop.example.com", "http://shop.example.com", "", "null", "chrome-extension://abcdefgh"}, nil},
	} {
		k := w.keyFor(w.a, w.a.agent, c.origins, "")
		for _, origin := range c.allowed {
			for _, call := range [][2]string{{"GET", "/v1/embed/config"}, {"POST", "/v1/embed/session"}} {
				if got := w.send(call[0], call[1], "", "X-Svc-Embed-Key", k.Key, "Origin", origin); got.status != 200 {
					t.Errorf("%s, from %q: %s: %d %s", c.origins, origin, call[1], got.status, got.body)
				}
			}
		}
		for _, origin := range c.denied {
			for _, call := range [][2]string{{"GET", "/v1/embed/config"}, {"POST", "/v1/embed/session"}} {
				got := w.send(call[0], call[1], "", "X-Svc-Embed-Key", k.Key, "Origin", origin)
				w.refused(fmt.Sprintf("%s, from %q: %s", c.origins, origin, call[1]), got, 403, "EMBED_ORIGIN_DENIED")
			}
		}
	}
	// Errors: responses for a denied origin also name the origin to add in detail.
	k := w.newKey(w.a, w.a.agent, "")
	if got := w.send("GET", "/v1/embed/config", "", "X-Svc-Embed-Key", k.Key, "Origin", "https://OTHER.example.com:443"); !strings.Contains(got.get("detail"), `"https://other.example.com"`) {
		t.Errorf("the detail does not name the origin to add: %s", got.body)
	}
	for _, origin := range []string{"", "null", "http://shop.example.com", "chrome-extension://abcdefgh"} {
		got := w.send("POST", "/v1/embed/session", "", "X-Svc-Embed-Key", k.Key, "Origin", origin)
		if detail := got.get("detail"); strings.Contains(detail, "Add ") || !strings.Contains(detail, `["*"]`) {
			t.Errorf("from %q, which no list can name: %s", origin, got.body)
		}
	}
}

// meanwhile lets something happen when a call has been let in and not yet been carried
// out.
type meanwhile struct {
	embed.Limits
	happens func()
}

func (m *meanwhile) Post(context.Context, id.TenantID, id.EmbedKeyID, int, id.VisitorID) error {
	m.happens()
	return nil
}

func (m *meanwhile) Read(context.Context, id.TenantID, id.VisitorID) error {
	m.happens()
	return nil
}

// A revocation applies at once also to a caller that was just admitted.
func TestAKeyThatChangesUnderACall(t *testing.T) {
	m := &meanwhile{happens: func() {}}
	w := worldWith(t, func(c *embed.Config) { m.Limits, c.Limits = c.Limits, m })
	for name, c := range map[string]struct {
		change func(w *world, k key)
		code   string
	}{"rotated": {rotated, "EMBED_UNAUTHORIZED"}, "paused": {paused, "EMBED_KEY_DISABLED"}, "revoked": {revoked, "EMBED_KEY_DISABLED"}} {
		for _, r := range tokenRoutes {
			m.happens = func() {}
			k := w.newKey(w.a, w.a.agent, "")
			g, s := w.talked(k)
			m.happens = func() { c.change(w, k) }
			w.refused(name+": "+r.name, r.call(w, s, g.Token), 401, c.code)
		}
	}
}

// The same holds for deleting the end user, and for changing the origins or the required
// identity.
func TestAVisitorIsRefusedDuringACall(t *testing.T) {
	m := &meanwhile{happens: func() {}}
	w := worldWith(t, func(c *embed.Config) { m.Limits, c.Limits = c.Limits, m })
	for name, c := range map[string]struct {
		identity string
		change   func(k key, g *guest)
		status   int
		code     string
	}{
		"deleted":           {`{"sub": "c-1"}`, func(_ key, g *guest) { w.ok(w.call(w.a, "DELETE", "/v1/end-users/"+g.EndUserID, ""), 204) }, 401, "EMBED_UNAUTHORIZED"},
		"elsewhere":         {"", func(k key, _ *guest) { w.patch(k, `{"allowed_origins": ["https://other.example.com"]}`) }, 403, "EMBED_ORIGIN_DENIED"},
		"nobody in general": {"", func(k key, _ *guest) { w.patch(k, `{"identity_required": true}`) }, 401, "EMBED_UNAUTHORIZED"},
	} {
		for _, r := range tokenRoutes {
			m.happens = func() {}
			k, body := w.newKey(w.a, w.a.agent, withSecret), ""
			if c.identity != "" {
				body = w.identified(k, c.identity)
			}
			g := w.visit(k, body)
			s := g.say("hello", "")
			w.end(s.Run)
			m.happens = func() {
				m.happens = func() {}
				c.change(k, g)
			}
			w.refused(name+": "+r.name, r.call(w, s, g.Token), c.status, c.code)
		}
	}
}

// A token that expires while the body of a call arrives is refused, and the call says nothing.
func TestATokenThatExpiresWhileABodyArrives(t *testing.T) {
	m := &meanwhile{happens: func() {}}
	w := worldWith(t, func(c *embed.Config) { m.Limits, c.Limits = c.Limits, m })
	g := w.visit(w.newKey(w.a, w.a.agent, ""), "")
	in := make(chan struct{})
	m.happens = func() { close(in) }
	r, send := io.Pipe()
	req, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+w.addr+"/v1/embed/messages", r)
	w.must(err)
	for name, value := range map[string]string{"Authorization": "Bearer " + g.Token, "Origin": page, "Content-Type": "application/json"} {
		req.Header.Set(name, value)
	}
	go func() {
		<-in
		w.clock.advance(time.Until(g.ExpiresAt) + time.Second)
		_, _ = io.WriteString(send, message("hi", ""))
		_ = send.Close()
	}()
	resp, err := http.DefaultClient.Do(req)
	w.must(err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	w.must(err)
	w.refused("an expired token", answer{resp.StatusCode, resp.Header, string(b)}, 401, "EMBED_UNAUTHORIZED")
	w.is("0", "SELECT count(*)::text FROM messages")
}

// A key that starts to require an identity ends the sessions of anonymous visitors only.
func TestRequiringIdentityEndsAnonymousSessions(t *testing.T) {
	w := newWorld(t)
	k := w.newKey(w.a, w.a.agent, withSecret)
	g, s := w.talked(k)
	known := w.visit(k, w.identified(k, `{"sub": "c-1"}`))
	w.patch(k, `{"identity_required": true}`)
	for _, r := range tokenRoutes {
		w.refused(r.name, r.call(w, s, g.Token), 401, "EMBED_UNAUTHORIZED")
	}
	if got := known.send("GET", "/v1/embed/threads", ""); got.status != 200 {
		t.Errorf("one who is known: %d %s", got.status, got.body)
	}
}

// Tokens of a deleted end user cost one look-up in total, and their calls are charged to no
// tenant.
func TestADeletedEndUserIsCachedBriefly(t *testing.T) {
	now := time.Now()
	w := worldWith(t, func(c *embed.Config) { c.Now = func() time.Time { return now } })
	k := w.newKey(w.a, w.a.agent, withSecret)
	g := w.visit(k, w.identified(k, `{"sub": "c-1"}`))
	w.ok(w.call(w.a, "DELETE", "/v1/end-users/"+g.EndUserID, ""), 204)
	read := func() answer { return g.send("GET", "/v1/embed/threads", "") }
	w.refused("deleted", read(), 401, "EMBED_UNAUTHORIZED")
	w.exec(`UPDATE end_users SET deleted_at = NULL WHERE id = $1`, g.EndUserID) // past the service, which need not look
	w.refused("at the same moment", read(), 401, "EMBED_UNAUTHORIZED")
	now = now.Add(3 * time.Second)
	if got := read(); got.status != 200 {
		t.Errorf("a moment later: %d %s", got.status, got.body)
	}
}

// An Origin that no browser sends is stored too: it goes into the audit log and the token.
func TestAnOriginIsPrintable(t *testing.T) {
	w := newWorld(t)
	k := w.keyFor(w.a, w.a.agent, `["*"]`, "")
	for name, origin := range map[string]string{"a byte that is no UTF-8": "https://a\xff", "not ASCII": "https://ä", "too long": "https://" + strings.Repeat("a", 400), "a space": "https://a b"} {
		got := w.raw("POST /v1/embed/session HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Svc-Embed-Key: " + k.Key + "\r\nOrigin: " + origin + "\r\n\r\n")
		if !strings.Contains(got, " 403 ") || !strings.Contains(got, "EMBED_ORIGIN_DENIED") || strings.Contains(got, "Access-Control-Allow-Origin") {
			t.Errorf("%s:\n%s", name, got)
		}
	}
	for name, origin := range map[string]string{"a control character": "https://a\x01b", "two of them": page + "\r\nOrigin: " + page} {
		got := w.raw("GET /v1/embed/config HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Svc-Embed-Key: " + k.Key + "\r\nOrigin: " + origin + "\r\n\r\n")
		if !strings.Contains(got, " 400 ") {
			t.Errorf("%s:\n%s", name, got)
		}
	}
}

// service.md, Embed: a missing Origin on a same-origin GET is evaluated as the implied
// page origin (origin of Referer, else of the request's own URL); security.md: else from
// SVC_PUBLIC_URL, never from Host.
func TestAMissingOriginIsThatOfThePage(t *testing.T) {
	w := newWorld(t)
	shop, own, nowhere := w.newKey(w.a, w.a.agent, ""), w.keyFor(w.a, w.a.agent, `["`+service+`"]`, ""), w.keyFor(w.a, w.a.agent, `[]`, "")
	for _, c := range []struct {
		name   string
		key    key
		fields []string
		status int
	}{
		{"the Referer's origin is allowed", shop, []string{"Referer", page + "/basket?x=1#y"}, 200},
		{"the Referer's origin, in upper case, with its port", shop, []string{"Referer", "HTTPS://SHOP.example.com:443/basket"}, 200},
		{"the Referer's origin is not allowed", shop, []string{"Referer", "https://evil.example/" + page}, 403},
		{"a user in the Referer", shop, []string{"Referer", "https://shop.example.com@evil.example/"}, 403},
		{"Origin goes before Referer", shop, []string{"Origin", "https://evil.example", "Referer", page + "/"}, 403},
		{"neither: the service's own origin is allowed", own, nil, 200},
		{"neither: the service's own origin is not allowed", shop, nil, 403},
		{"a Referer that is no URL is none", own, []string{"Referer", "nonsense"}, 200},
		{"a Referer of an app is none", own, []string{"Referer", "android-app://com.example"}, 200},
		{"Host says nothing", shop, []string{"Host", "shop.example.com"}, 403},
		{"X-Forwarded-Host says nothing", shop, []string{"X-Forwarded-Host", "shop.example.com", "X-Forwarded-Proto", "https"}, 403},
		{"a key for nowhere", nowhere, nil, 403},
	} {
		req, err := http.NewRequest("GET", "http://"+w.addr+"/v1/embed/config", nil)
		w.must(err)
		req.Header.Set("X-Forwarded-For", stranger())
		req.Header.Set("X-Svc-Embed-Key", c.key.Key)
		for i := 0; i < len(c.fields); i += 2 {
			if c.fields[i] == "Host" {
				req.Host = c.fields[i+1]
			}
			req.Header.Set(c.fields[i], c.fields[i+1])
		}
		resp, err := http.DefaultClient.Do(req)
		w.must(err)
		resp.Body.Close()
		if resp.StatusCode != c.status {
			t.Errorf("%s: %d, want %d", c.name, resp.StatusCode, c.status)
		}
		// A POST always names its origin, where a browser sends it.
		fields := append([]string{"X-Svc-Embed-Key", c.key.Key}, c.fields...)
		if got := w.send("POST", "/v1/embed/session", "", fields...); got.code() != "EMBED_ORIGIN_DENIED" {
			t.Errorf("POST, %s: %d %s", c.name, got.status, got.body)
		}
	}
}

// service.md, Errors: EMBED_ORIGIN_MISMATCH, session token used from another origin than
// it was minted for.
func TestATokenIsOfItsOrigin(t *testing.T) {
	w := worldWith(t, func(c *embed.Config) { c.PublicURL = "http://Box.internal:8080/base" })
	any := w.keyFor(w.a, w.a.agent, `["*"]`, "")
	const same, box = page, "http://box.internal:8080"
	for _, c := range []struct {
		name, minted string
		from         []string
		get, post    bool // accepted
	}{
		{"the same", same, []string{"Origin", same}, true, true},
		{"the same, written in another way", same, []string{"Origin", "https://SHOP.example.com:443"}, true, true},
		{"minted as written in another way", "https://SHOP.example.com:443", []string{"Origin", same}, true, true},
		{"another host", same, []string{"Origin", "https://www.example.com"}, false, false},
		{"another port", same, []string{"Origin", same + ":8443"}, false, false},
		{"another scheme", same, []string{"Origin", "http://shop.example.com"}, false, false},
		{"null", same, []string{"Origin", "null"}, false, false},
		{"*", same, []string{"Origin", "*"}, false, false},
		{"no Origin, and no Referer", same, nil, false, false},
		{"no Origin, the Referer's is it", same, []string{"Referer", same + "/x"}, true, false},
		{"no Origin, the Referer's is not", same, []string{"Referer", "https://evil.example/"}, false, false},
		{"null from null", "null", []string{"Origin", "null"}, true, true},
		{"a page from null", "null", []string{"Origin", same}, false, false},
		{"a client that is no browser", "", nil, true, true},
		{"a client that is no browser, from a page", "", []string{"Origin", same}, false, false},
		{"the service's own page", box, []string{"Origin", box}, true, true},
		{"the service's own page leaves Origin out of a GET", box, nil, true, false},
		{"the service's own page, with a Referer", box, []string{"Referer", box + "/embed/v1/demo"}, true, false},
	} {
		got := w.ok(w.send("POST", "/v1/embed/session", "", "X-Svc-Embed-Key", any.Key, "Origin", c.minted), 200)
		token := got.get("token")
		for method, fine := range map[string]bool{"GET": c.get, "POST": c.post} {
			path, body, status := "/v1/embed/threads", "", 200
			if method == "POST" {
				path, body, status = "/v1/embed/messages", message("hi", ""), 202
			}
			got := w.send(method, path, body, append([]string{"Authorization", "Bearer " + token}, c.from...)...)
			switch {
			case fine && got.status != status:
				t.Errorf("%s: %s: %d %s", c.name, method, got.status, got.body)
			case !fine:
				w.refused(c.name+": "+method, got, 403, "EMBED_ORIGIN_MISMATCH")
			}
		}
	}
	k := w.newKey(w.a, w.a.agent, "")
	g, s := w.talked(k)
	for _, r := range tokenRoutes {
		w.refused(r.name, r.call(w, s, g.Token, "Origin", "https://evil.example"), 403, "EMBED_ORIGIN_MISMATCH")
	}
}

// service.md, Embed rules: a foreign thread_id or run is 404, never 403; security.md,
// invariant 16: foreign ids answer like random ids on every route.
func TestWhatIsForeignIsNotThere(t *testing.T) {
	w := newWorld(t)
	second := w.newAgent(w.a, simple)
	const secret = `, "with_identity_secret": true`
	k, sibling, elsewhere, abroad := w.newKey(w.a, w.a.agent, secret), w.newKey(w.a, w.a.agent, ""), w.newKey(w.a, second, ""), w.newKey(w.b, w.b.agent, "")
	me := w.visit(k, "")
	known := w.visit(k, w.identified(k, `{"sub": "c-1"}`))
	known2 := w.visit(k, w.identified(k, `{"sub": "c-2"}`))
	deleted := me.say("hello", "")
	w.end(deleted.Run)
	w.ok(w.call(w.a, "DELETE", "/v1/threads/"+deleted.Thread, ""), 204)
	talk := func(g *guest) said {
		s := g.say("hello", "")
		w.end(s.Run)
		return s
	}
	platform := w.ok(w.call(w.a, "POST", "/v1/threads", fmt.Sprintf(`{"agent_id": %q}`, w.a.agent)), 200).get("id")
	run := w.ok(w.call(w.a, "POST", "/v1/threads/"+platform+"/messages", `{"content": "hi"}`), 202).get("run_id")
	w.end(run)
	mine, theirs := talk(me), talk(known)
	for _, c := range []struct {
		name  string
		who   *guest
		other said
	}{
		{"another visitor of the key", me, talk(w.visit(k, ""))},
		{"a visitor of another key of the agent", me, talk(w.visit(sibling, ""))},
		{"a visitor of another agent's key", me, talk(w.visit(elsewhere, ""))},
		{"a visitor of another tenant", me, talk(w.visit(abroad, ""))},
		{"an end user's, by a visitor without a name", me, theirs},
		{"a visitor's without a name, by an end user", known, mine},
		{"another end user's", known2, theirs},
		{"the same browser's, identified since", w.visit(k, w.identified(k, `{"sub": "c-3"}`, "visitor", me.Visitor)), mine},
		{"a thread that was deleted", me, deleted},
		{"one of the platform's", me, said{Thread: platform, Run: run}},
	} {
		nobody := said{Thread: id.NewAnywhere().String(), Run: id.NewAnywhere().String()}
		for _, r := range tokenRoutes {
			if r.name == "list threads" {
				continue
			}
			got, want := r.call(w, c.other, c.who.Token), r.call(w, nobody, c.who.Token)
			if got.status != 404 || got.code() != "NOT_FOUND" || got.body != want.body {
				t.Errorf("%s: %s: %d %s, and for a random id %d %s", c.name, r.name, got.status, got.body, want.status, want.body)
			}
			for _, name := range []string{"Content-Type", "Content-Length", "Cache-Control", "Vary", "Access-Control-Allow-Origin"} {
				if got.header.Get(name) != want.header.Get(name) {
					t.Errorf("%s: %s: %s %q, and for a random id %q", c.name, r.name, name, got.header.Get(name), want.header.Get(name))
				}
			}
		}
		if got := c.who.send("GET", "/v1/embed/threads", ""); strings.Contains(got.body, c.other.Thread) {
			t.Errorf("%s: it is in the list: %s", c.name, got.body)
		}
	}
	// The same end user of another key with the same agent is the same person, of one
	// with another agent is not.
	for _, c := range []struct {
		name   string
		key    key
		status int
	}{{"same agent", w.newKey(w.a, w.a.agent, secret), 200}, {"other agent", w.newKey(w.a, second, secret), 404}} {
		g := w.visit(c.key, w.identified(c.key, `{"sub": "c-1"}`))
		if got := g.send("GET", "/v1/embed/threads/"+theirs.Thread+"/messages", ""); got.status != c.status {
			t.Errorf("the end user by a key of the %s: %d %s", c.name, got.status, got.body)
		}
	}
	if w.text(`SELECT count(*)::text FROM runs WHERE status = 'cancelled'`) != "0" {
		t.Error("a foreign run was cancelled")
	}
}
