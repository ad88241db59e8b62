package embed_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"agentsvc/schemas/id"
	"agentsvc/transport/embed"
)

// jwt is an identity token with these claims, and an hour to live unless they say
// otherwise.
func (w *world) jwt(k key, claims string) string {
	w.t.Helper()
	c := map[string]any{"exp": time.Now().Add(time.Hour).Unix()}
	w.must(json.Unmarshal([]byte(claims), &c))
	b, err := json.Marshal(c)
	w.must(err)
	return signed(k.Secret, `{"alg":"HS256","typ":"JWT"}`, string(b))
}

// signed is a JWT of that header and payload.
func signed(secret, header, payload string) string {
	text := base64.RawURLEncoding.EncodeToString([]byte(header)) + "." + base64.RawURLEncoding.EncodeToString([]byte(payload))
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(text))
	return text + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// identified is the body of a session of the person with these claims, with further
// members, in pairs.
func (w *world) identified(k key, claims string, more ...string) string {
	w.t.Helper()
	body := map[string]any{"user": map[string]string{"token": w.jwt(k, claims)}}
	for i := 0; i < len(more); i += 2 {
		body[more[i]] = more[i+1]
	}
	b, err := json.Marshal(body)
	w.must(err)
	return string(b)
}

const withSecret = `, "with_identity_secret": true`

// comesBack is the body of a session of a browser that was here before.
func comesBack(visitor string) string {
	b, err := json.Marshal(map[string]string{"visitor": visitor})
	if err != nil {
		panic(err)
	}
	return string(b)
}

// open-parts.md, Embed: visitor is an opaque value signed by the service; a browser that
// sends it back stays the same visitor and finds its threads, a missing or altered one
// starts a new visitor (an id alone proves nothing).
func TestABrowserThatComesBackIsTheSameVisitor(t *testing.T) {
	w := newWorld(t)
	k := w.newKey(w.a, w.a.agent, withSecret)
	sibling, abroad := w.newKey(w.a, w.a.agent, ""), w.newKey(w.b, w.b.agent, "")
	g, s := w.talked(k)
	swap := func(text string, at int) string {
		c := byte('A')
		if text[at] == c {
			c = 'B'
		}
		return text[:at] + string(c) + text[at+1:]
	}
	for _, c := range []struct {
		name, visitor string
		same          bool
	}{
		{"its value", g.Visitor, true},
		{"none", "", false},
		{"its id alone", g.VisitorID, false},
		{"a byte of the payload altered", swap(g.Visitor, len("svc_vi_")+8), false},
		{"a byte of the MAC altered", swap(g.Visitor, len(g.Visitor)-5), false},
		{"cut", g.Visitor[:len(g.Visitor)-1], false},
		{"longer", g.Visitor + "A", false},
		{"much longer", g.Visitor + strings.Repeat("A", 10_000), false},
		{"its token", g.Token, false},
		{"of another key of the agent", w.visit(sibling, "").Visitor, false},
		{"of another tenant's key", w.visit(abroad, "").Visitor, false},
		{"nonsense", "\u00e4\u0001 nonsense", false},
	} {
		back := w.visit(k, comesBack(c.visitor))
		if same := back.VisitorID == g.VisitorID; same != c.same || c.same && back.Visitor != g.Visitor {
			t.Errorf("%s: visitor %s, was %s", c.name, back.VisitorID, g.VisitorID)
		}
		got, want := back.send("GET", "/v1/embed/threads/"+s.Thread+"/messages", ""), 404
		if c.same {
			want = 200
		}
		if got.status != want {
			t.Errorf("%s: its thread: %d %s", c.name, got.status, got.body)
		}
	}
	// Another key's value is not the same visitor there, either.
	if back := w.visit(sibling, comesBack(g.Visitor)); back.VisitorID == g.VisitorID {
		t.Error("another key knows the visitor")
	}
	if back := w.visit(abroad, comesBack(g.Visitor)); back.VisitorID == g.VisitorID {
		t.Error("another tenant knows the visitor")
	}
	// It stays the visitor when it is identified, and when the key has another value.
	if back := w.visit(k, w.identified(k, `{"sub": "c-1"}`, "visitor", g.Visitor)); back.VisitorID != g.VisitorID || back.EndUserID == "" {
		t.Errorf("identified: %+v", back)
	}
	k.Key = w.ok(w.call(w.a, "POST", "/v1/embed-keys/"+k.ID.String()+"/rotate", ""), 200).get("key")
	if back := w.visit(k, comesBack(g.Visitor)); back.VisitorID != g.VisitorID {
		t.Error("after a rotation it is another visitor")
	}
}

// service.md, Errors: EMBED_IDENTITY_REQUIRED, EMBED_IDENTITY_UNAVAILABLE and
// EMBED_IDENTITY_INVALID, reason one of the values listed under Authentication;
// open-parts.md, Embed: it carries reason beside the problem fields.
func TestWhoAVisitorIsMustBeProved(t *testing.T) {
	w := newWorld(t)
	open, bare := w.newKey(w.a, w.a.agent, withSecret), w.newKey(w.a, w.a.agent, "")
	strict := w.newKey(w.a, w.a.agent, withSecret+`, "identity_required": true`)
	other := w.newKey(w.a, w.a.agent, withSecret)
	now := time.Now()
	at := func(d time.Duration) int64 { return now.Add(d).Unix() }
	claims := func(format string, args ...any) string {
		return w.jwt(open, fmt.Sprintf(format, args...))
	}
	meta := map[string]int{}
	for i := range 17 {
		meta[fmt.Sprint("m", i)] = i
	}
	many, err := json.Marshal(meta)
	w.must(err)
	for _, c := range []struct {
		name, token, reason string // reason empty: accepted
	}{
		{"fine", claims(`{"sub": "c-1"}`), ""},
		{"everything", claims(`{"sub": "c-1", "name": "N", "email": "e@example.com", "meta": {"groups": ["g"]}, "iat": %d, "nbf": %d}`, at(0), at(0)), ""},
		{"empty", "", "malformed"},
		{"two parts", "a.b", "malformed"},
		{"over 8 KiB", claims(`{"sub": "c-1", "meta": {"m": %q}}`, strings.Repeat("a", 8<<10)), "malformed"},
		{"alg none", signed(open.Secret, `{"alg":"none"}`, `{"sub":"c-1"}`), "alg"},
		{"alg HS512", signed(open.Secret, `{"alg":"HS512"}`, `{"sub":"c-1"}`), "alg"},
		{"another key's secret", w.jwt(other, `{"sub": "c-1"}`), "signature"},
		{"expired", claims(`{"sub": "c-1", "exp": %d}`, at(-time.Minute)), "expired"},
		{"no sub", claims(`{}`), "claims"},
		{"no exp", signed(open.Secret, `{"alg":"HS256"}`, `{"sub":"c-1"}`), "claims"},
		{"17 meta keys", claims(`{"sub": "c-1", "meta": %s}`, many), "claims"},
		{"exp over 24 h ahead", claims(`{"sub": "c-1", "exp": %d}`, at(24*time.Hour+time.Minute)), "exp_too_far"},
		{"iat over 5 min ahead", claims(`{"sub": "c-1", "iat": %d}`, at(6*time.Minute)), "iat_in_future"},
		{"nbf over 60 s ahead", claims(`{"sub": "c-1", "nbf": %d}`, at(2*time.Minute)), "not_yet_valid"},
	} {
		body, err := json.Marshal(map[string]any{"user": map[string]string{"token": c.token}})
		w.must(err)
		got := w.send("POST", "/v1/embed/session", string(body), of(open)...)
		if c.reason == "" {
			if got.status != 200 || got.get("end_user_id") == "" {
				t.Errorf("%s: %d %s", c.name, got.status, got.body)
			}
			continue
		}
		var p map[string]any
		w.must(json.Unmarshal([]byte(got.body), &p))
		if got.status != 401 || p["code"] != "EMBED_IDENTITY_INVALID" || p["reason"] != c.reason || p["type"] != "about:blank" || p["title"] == "" || p["detail"] == "" || p["status"] != 401.0 {
			t.Errorf("%s: %d %s, want reason %s", c.name, got.status, got.body, c.reason)
		}
		if got.header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s: %s", c.name, got.header.Get("Content-Type"))
		}
	}
	for _, c := range []struct {
		name, body string
		key        key
		code       string
	}{
		{"required, and nobody", "", strict, "EMBED_IDENTITY_REQUIRED"},
		{"required, and a visitor", comesBack("x"), strict, "EMBED_IDENTITY_REQUIRED"},
		{"required, and refused", w.identified(other, `{"sub": "c-1"}`), strict, "EMBED_IDENTITY_INVALID"},
		{"no secret", w.identified(open, `{"sub": "c-1"}`), bare, "EMBED_IDENTITY_UNAVAILABLE"},
		{"no secret, and nonsense", `{"user": {"token": ""}}`, bare, "EMBED_IDENTITY_UNAVAILABLE"},
	} {
		w.refused(c.name, w.send("POST", "/v1/embed/session", c.body, of(c.key)...), 401, c.code)
	}
	if got := w.send("GET", "/v1/embed/config", "", of(strict)...); got.get("identity_required") != "true" {
		t.Errorf("config: %s", got.body)
	}
	w.visit(strict, w.identified(strict, `{"sub": "c-1"}`))
	// The current secret is the one.
	old := w.identified(open, `{"sub": "c-1"}`)
	open.Secret = w.ok(w.call(w.a, "POST", "/v1/embed-keys/"+open.ID.String()+"/identity-secret", ""), 200).get("identity_secret")
	if got := w.send("POST", "/v1/embed/session", old, of(open)...); got.get("reason") != "signature" {
		t.Errorf("by the former secret: %d %s", got.status, got.body)
	}
	w.visit(open, w.identified(open, `{"sub": "c-1"}`))
	// Nothing is left of what was refused.
	w.is("1", `SELECT count(*)::text FROM end_users`)
}

// service.md, Authentication: on success the service upserts an end-user contact and
// scopes threads to it; open-parts.md, Embed: an identified visitor's threads belong to
// the end user, whichever browser; an anonymous session never reads them; threads begun
// before identify stay with the anonymous visitor.
func TestAnIdentifiedVisitorIsAnEndUser(t *testing.T) {
	w := newWorld(t)
	k, abroad := w.newKey(w.a, w.a.agent, withSecret), w.newKey(w.b, w.b.agent, withSecret)
	anonymous, before := w.talked(k)
	first := w.visit(k, w.identified(k, `{"sub": "c-1", "name": "Ann", "email": "ann@example.com", "meta": {"plan": "pro", "groups": ["staff", "eu"]}}`, "visitor", anonymous.Visitor))
	said := first.say("hello", "")
	w.end(said.Run)
	user := func() answer { return w.ok(w.call(w.a, "GET", "/v1/end-users/"+first.EndUserID, ""), 200) }
	got := user()
	for path, want := range map[string]string{"external_id": "c-1", "name": "Ann", "email": "ann@example.com", "attributes.meta.plan": "pro", "attributes.groups": `["staff","eu"]`} {
		if got.get(path) != want {
			t.Errorf("%s is %s, want %s", path, got.get(path), want)
		}
	}
	second := w.visit(k, w.identified(k, `{"sub": "c-1", "name": "Ann B", "meta": {"groups": []}}`))
	if second.EndUserID != first.EndUserID || second.VisitorID == first.VisitorID {
		t.Errorf("another browser of the same person: %+v, was %+v", second, first)
	}
	got = user()
	for path, want := range map[string]string{"name": "Ann B", "email": "ann@example.com", "attributes.groups": `[]`} {
		if got.get(path) != want {
			t.Errorf("then: %s is %s, want %s", path, got.get(path), want)
		}
	}
	if other := w.visit(abroad, w.identified(abroad, `{"sub": "c-1"}`)); other.EndUserID == first.EndUserID {
		t.Error("another tenant's person is the same end user")
	}
	mine := func(g *guest) string {
		return g.send("GET", "/v1/embed/threads", "").get("items")
	}
	for name, g := range map[string]*guest{"the browser": first, "another browser": second} {
		if all := mine(g); !strings.Contains(all, said.Thread) || strings.Contains(all, before.Thread) {
			t.Errorf("%s: threads %s", name, all)
		}
	}
	for name, g := range map[string]*guest{"before": anonymous, "logged out": w.visit(k, comesBack(first.Visitor))} {
		if all := mine(g); strings.Contains(all, said.Thread) || !strings.Contains(all, before.Thread) {
			t.Errorf("%s: threads %s", name, all)
		}
	}
	again := second.say("and more", said.Thread)
	w.end(again.Run)
	w.is("embed:eu:"+first.EndUserID, `SELECT created_by FROM threads WHERE id = $1`, said.Thread)
	w.is("embed:vid:"+anonymous.VisitorID, `SELECT created_by FROM threads WHERE id = $1`, before.Thread)
	w.is(second.VisitorID, `SELECT input->'_origin'->>'visitor_id' FROM runs WHERE id = $1`, again.Run)
}

// open-parts.md, End users: a deleted end user's sessions end.
func TestADeletedEndUserIsGoneAtOnce(t *testing.T) {
	w := newWorld(t)
	k := w.newKey(w.a, w.a.agent, withSecret)
	g := w.visit(k, w.identified(k, `{"sub": "c-1"}`))
	other := w.visit(k, w.identified(k, `{"sub": "c-2"}`))
	w.models.Hold()
	s, theirs := g.say("hello", ""), other.say("hello", "")
	e, _ := g.open(s.Run, "")
	defer e.close()
	e.until("run.started")
	w.ok(w.call(w.a, "DELETE", "/v1/end-users/"+g.EndUserID, ""), 204)
	if all := e.until(""); len(all) > 0 {
		t.Errorf("the stream goes on: %v", all)
	}
	for _, r := range tokenRoutes {
		w.refused(r.name, r.call(w, s, g.Token), 401, "EMBED_UNAUTHORIZED")
	}
	if got := other.send("GET", "/v1/embed/threads/"+theirs.Thread+"/messages", ""); got.status != 200 {
		t.Errorf("another end user: %d %s", got.status, got.body)
	}
	again := w.visit(k, w.identified(k, `{"sub": "c-1"}`))
	if again.EndUserID == g.EndUserID {
		t.Error("who comes again is the one who was deleted")
	}
	w.refused("the thread from before", again.send("GET", "/v1/embed/threads/"+s.Thread+"/messages", ""), 404, "NOT_FOUND")
}

// service.md, Embed rules: session mints are audited as embed.session; open-parts.md,
// Audit: visitors act as embed:eu:… or embed:vid:….
func TestASessionIsAuditedOnce(t *testing.T) {
	w := newWorld(t)
	k := w.newKey(w.a, w.a.agent, withSecret)
	address := stranger()
	anonymous := w.visit(k, "")
	w.ok(w.send("POST", "/v1/embed/session", comesBack(anonymous.Visitor), of(k, "X-Forwarded-For", address)...), 200)
	known := w.visit(k, w.identified(k, `{"sub": "c-1"}`))
	w.send("GET", "/v1/embed/config", "", of(k)...)
	w.refused("denied", w.send("POST", "/v1/embed/session", "", of(k, "Origin", "https://evil.example")...), 403, "EMBED_ORIGIN_DENIED")
	w.refused("invalid", w.send("POST", "/v1/embed/session", `{"user": {"token": "x"}}`, of(k)...), 401, "EMBED_IDENTITY_INVALID")
	w.is("3", `SELECT count(*)::text FROM audit_log WHERE action = 'embed.session'`)
	const one = `SELECT count(*)::text FROM audit_log WHERE action = 'embed.session' AND tenant_id = $1 AND actor = $2`
	w.is("2", one, w.a.tenant, "embed:vid:"+anonymous.VisitorID)
	w.is("1", one, w.a.tenant, "embed:eu:"+known.EndUserID)
	var all struct {
		Items []struct {
			Action, Actor, IP string
			Detail            struct {
				Visitor string `json:"visitor_id"`
				Origin  string
			}
		}
	}
	w.must(json.Unmarshal([]byte(w.ok(w.call(w.a, "GET", "/v1/audit?action=embed.session", ""), 200).body), &all))
	if len(all.Items) != 3 {
		t.Fatalf("audit: %+v", all)
	}
	for i, visitor := range []string{known.VisitorID, anonymous.VisitorID, anonymous.VisitorID} {
		if d := all.Items[i].Detail; d.Visitor != visitor || d.Origin != page {
			t.Errorf("audit: %+v, want visitor %s from %s", all.Items[i], visitor, page)
		}
	}
	used := w.ok(w.call(w.a, "GET", "/v1/embed-keys/"+k.ID.String(), ""), 200)
	if used.get("last_used_at") == "" {
		t.Errorf("the key was never used: %s", used.body)
	}
}

// A visitor sees the name and the emoji that the agent has, and the visitor's session continues when they change.
func TestARenamedAgentIsShown(t *testing.T) {
	w := newWorld(t)
	agent := w.a.agent.String()
	keys := []key{w.newKey(w.a, w.a.agent, ""), w.newKey(w.a, w.a.agent, "")}
	g := w.visit(keys[0], "")
	for _, c := range []struct{ body, name, emoji string }{
		{`{"name": "Hello", "emoji": "🦉"}`, "Hello", "🦉"},
		{`{"name": "Hi"}`, "Hi", "🦉"},
		{`{"emoji": "🐈"}`, "Hi", "🐈"},
		{`{"description": "x"}`, "Hi", "🐈"},
		{`{"name": "Hey", "node_id": null}`, "Hey", "🐈"},
	} {
		w.ok(w.call(w.a, "PATCH", "/v1/agents/"+agent, c.body), 200)
		for _, k := range keys {
			got := w.ok(w.send("GET", "/v1/embed/config", "", of(k)...), 200)
			if got.get("agent.name") != c.name || got.get("agent.emoji") != c.emoji {
				t.Errorf("after %s: %s", c.body, got.body)
			}
		}
	}
	w.ok(g.send("GET", "/v1/embed/threads", ""), 200)
}

// open-parts.md: unknown body fields are 400 VALIDATION; every POST but login and
// /v1/embed/session takes Idempotency-Key.
func TestTheBodyOfASession(t *testing.T) {
	w := newWorld(t)
	k := w.newKey(w.a, w.a.agent, withSecret)
	for _, c := range []struct {
		name, body string
		status     int
	}{
		{"none", "", 200},
		{"an empty object", "{}", 200},
		{"a visitor", comesBack("x"), 200},
		{"a long visitor", comesBack(strings.Repeat("x", 15_000)), 200},
		{"an empty visitor", comesBack(""), 200},
		{"an unknown field", `{"visitors": "x"}`, 400},
		{"an unknown field of the user", `{"user": {"token": "x", "name": "y"}}`, 400},
		{"a user without a token", `{"user": {}}`, 400},
		{"a user that is a token", `{"user": "x"}`, 400},
		{"a visitor that is a number", `{"visitor": 1}`, 400},
		{"a list", `[]`, 400},
		{"null", `null`, 400},
		{"no JSON", `{`, 400},
		{"twice", `{"visitor": "x", "visitor": "x"}`, 400},
	} {
		if got := w.send("POST", "/v1/embed/session", c.body, of(k)...); got.status != c.status || c.status == 400 && got.code() != "VALIDATION" {
			t.Errorf("%s: %d %s", c.name, got.status, got.body)
		}
	}
	w.refused("another media type", w.send("POST", "/v1/embed/session", "{}", of(k, "Content-Type", "text/plain")...), 415, "UNSUPPORTED_MEDIA_TYPE")

	first := w.ok(w.send("POST", "/v1/embed/session", "", of(k, "Idempotency-Key", "same")...), 200)
	second := w.ok(w.send("POST", "/v1/embed/session", "", of(k, "Idempotency-Key", "same")...), 200)
	if first.get("visitor_id") == second.get("visitor_id") {
		t.Error("a session was begun twice")
	}
	w.ok(w.send("POST", "/v1/embed/session", comesBack("x"), of(k, "Idempotency-Key", "same")...), 200)
	w.ok(w.send("POST", "/v1/embed/session", "", of(k, "Idempotency-Key", strings.Repeat("x", 300))...), 200)
	w.is("0", `SELECT count(*)::text FROM idempotency`)
}

// open-parts.md, Embed: the answer's members; a token lives one hour, or
// SVC_EMBED_TOKEN_TTL.
func TestWhatASessionIs(t *testing.T) {
	for _, ttl := range []time.Duration{time.Hour, 90 * time.Second} {
		w := worldWith(t, func(c *embed.Config) { c.TokenTTL = ttl })
		k := w.newKey(w.a, w.a.agent, withSecret)
		before := time.Now()
		for name, body := range map[string]string{"anonymous": "", "identified": w.identified(k, `{"sub": "c-1"}`)} {
			got := w.ok(w.send("POST", "/v1/embed/session", body, of(k)...), 200)
			var members map[string]string
			w.must(json.Unmarshal([]byte(got.body), &members))
			want := 4
			if body != "" {
				want = 5
				if _, err := id.Parse(members["end_user_id"]); err != nil {
					t.Errorf("%s: %s", name, got.body)
				}
			}
			_, err := id.Parse(members["visitor_id"])
			if len(members) != want || members["token"] == "" || members["visitor"] == "" || err != nil {
				t.Errorf("%s: %s", name, got.body)
			}
			expires, err := time.Parse(time.RFC3339, members["expires_at"])
			if err != nil || expires.Before(before.Add(ttl)) || expires.After(time.Now().Add(ttl+time.Second)) || !strings.HasSuffix(members["expires_at"], "Z") {
				t.Errorf("%s: expires_at %s, want in %v: %v", name, members["expires_at"], ttl, err)
			}
		}
		g, s := w.talked(k)
		w.clock.advance(ttl - time.Second)
		if got := g.send("GET", "/v1/embed/threads", ""); got.status != 200 {
			t.Errorf("a second before its end: %d %s", got.status, got.body)
		}
		w.clock.advance(2 * time.Second)
		for _, r := range tokenRoutes {
			w.refused("at its end: "+r.name, r.call(w, s, g.Token), 401, "EMBED_UNAUTHORIZED")
		}
		back := w.visit(k, comesBack(g.Visitor))
		if got := back.send("GET", "/v1/embed/threads/"+s.Thread+"/messages", ""); got.status != 200 {
			t.Errorf("with a new token: %d %s", got.status, got.body)
		}
	}
}

// A stream ends with its token, and the next token goes on where it ended.
func TestAStreamEndsWithItsToken(t *testing.T) {
	w := newWorld(t)
	k := w.newKey(w.a, w.a.agent, "")
	w.models.Hold()
	w.clock.advance(-w.tokenTTL) // streams end by the machine's clock, at the next full second
	var g *guest
	var s said
	var e *events
	var begun []frame
	for try := 0; len(begun) == 0; try++ { // the stream may end before its run begins: then again, with more time
		if try == 6 {
			t.Fatal("no stream has shown that its run began")
		}
		if try > 0 {
			w.clock.advance(time.Second << try)
		}
		g = w.visit(k, "")
		s = g.say("/say Hello there", "")
		e, _ = g.open(s.Run, "")
		defer e.close()
		begun = e.until("run.started")
	}
	if all := e.until(""); len(all) > 0 {
		t.Fatalf("frames of a run that was held: %v", all)
	}
	if time.Now().Before(g.ExpiresAt) {
		t.Errorf("it ended before its token: %v", g.ExpiresAt)
	}
	w.clock.advance(w.tokenTTL)
	w.refused("the token has ended, too", g.send("GET", "/v1/embed/threads", ""), 401, "EMBED_UNAUTHORIZED")
	w.models.Release()
	back := w.visit(k, comesBack(g.Visitor))
	all := back.watch(s.Run, "", "Last-Event-ID", begun[0].id)
	if len(all) == 0 || all[0].event == "run.started" || all[len(all)-1].event != "run.completed" {
		t.Errorf("resumed: %v", all)
	}
}
