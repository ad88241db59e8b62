package browser

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"agentsvc/schemas/skill"
	"agentsvc/transport/browser/site"
)

// withCookies is cancelOrder with cookies in place of the steps that sign in.
func withCookies(t testing.TB, start string) string {
	t.Helper()
	from, to := strings.Index(cancelOrder, `  {"id":"user"`), strings.Index(cancelOrder, `  {"id":"open"`)
	out := strings.NewReplacer(`"URL/login"`, `"URL`+start+`"`, `{"kind": "credentials", "secret_refs": ["user", "password"]}`, `{"kind": "cookies", "secret_refs": ["jar"]}`).
		Replace(cancelOrder[:from] + cancelOrder[to:])
	if strings.Contains(out, "password") || strings.Contains(out, "/login") {
		t.Fatal(out)
	}
	return out
}

// jar is the secret of a skill that signs in by cookies: the session's, one of another site, and one
// that pages can read.
func jar(session, domain string) string {
	return fmt.Sprintf(`[{"name":"session","value":%q,"domain":%q,"path":"/","httpOnly":true,"secure":false,"sameSite":"Lax","expires":-1,"hostOnly":true},
		{"name":"foreign","value":"of-another-site","domain":"elsewhere.example","path":"/"},
		{"name":"visible","value":"pages-read-this","domain":%q}]`, session, domain, domain)
}

// A skill signs in with the cookies of its secret: it commits once and compensates, its secret is opened
// once for each session, and no cookie is in a report. Cookies of other sites are not given to the
// browser, and those of one session are in no other.
func TestSignInByCookies(t *testing.T) {
	t.Parallel()
	b, w := quickly(t), newWorld(t)
	token := w.Session()
	secret := jar(token, "127.0.0.1")
	job := func(definition, args string) *skill.Job {
		j := w.job(t, definition, args)
		j.Open = func(ref string) (string, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.opened = append(w.opened, ref)
			return secret, nil
		}
		return j
	}
	s, r, err := b.Prepare(context.Background(), job(withCookies(t, "/orders"), values))
	if err != nil || s == nil {
		t.Fatal(err, show(t, r))
	}
	all := show(t, r)
	if r = s.Commit(context.Background()); r.Event != skill.Clicked {
		t.Fatal(show(t, r))
	}
	all += show(t, r)
	if r = s.Verify(context.Background()); r.Event != skill.Verified {
		t.Fatal(show(t, r))
	}
	s.Close()
	all += show(t, r)
	if w.Effects("1001") != 1 || w.Hits("GET /login") != 0 || fmt.Sprint(w.opened) != "[jar]" || strings.Contains(all, token) {
		t.Errorf("%d effects, %d visits of the login page, opened %v: %s", w.Effects("1001"), w.Hits("GET /login"), w.opened, all)
	}
	if r, err = b.Compensate(context.Background(), job(withCookies(t, "/orders"), values)); err != nil || r.Event != skill.Compensated || w.Restores("1001") != 1 {
		t.Errorf("compensation: %v %s, %d restores", err, show(t, r), w.Restores("1001"))
	}
	// What pages can read of the cookies is redacted.
	seen := strings.Replace(page("/lab/jar", false), `{"kind":"none"}`, `{"kind":"cookies","secret_refs":["jar"]}`, 1)
	seen = strings.Replace(seen, `"URL/login"`, `"URL/orders"`, 1)
	if r, err = b.Read(context.Background(), job(seen, `{}`)); err != nil || string(r.Result) != `{"said":"visible=`+mark+`"}` {
		t.Errorf("%v %s %s", err, show(t, r), r.Result)
	}
	// A session of another skill has none of them.
	if r, err = b.Read(context.Background(), w.job(t, page("/lab/jar", false), `{}`)); err != nil || string(r.Result) != `{"said":"no cookies"}` {
		t.Errorf("%v %s %s", err, show(t, r), r.Result)
	}
}

// Cookies that do not sign in any more are session_expired before anything is filled in.
func TestCookiesThatDoNotSignIn(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, domain, says string
		knobs              site.Knobs
		change             func(string) string
	}{
		{name: "of an ended session", domain: "127.0.0.1", says: "asks to sign in", knobs: site.Knobs{Expired: true}},
		{name: "of another site", domain: "elsewhere.example", says: "for a host of the skill"},
		{name: "that Chromium refuses", domain: "127.0.0.1", says: "does not take", change: func(s string) string { return strings.Replace(s, `"session"`, `"__Host-session"`, 1) }},
		{name: "that are none", says: "cannot be read", change: func(string) string { return "session=x" }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b, w := quickly(t), newWorld(t)
			w.Set(c.knobs)
			secret := jar(w.Session(), c.domain)
			if c.change != nil {
				secret = c.change(secret)
			}
			j := w.job(t, withCookies(t, "/orders"), values)
			j.Open = func(string) (string, error) { return secret, nil }
			s, r, err := b.Prepare(context.Background(), j)
			if err != nil || s != nil || code(r) != skill.CodeSessionExpired || !strings.Contains(r.Fault.Message, c.says) || strings.Contains(show(t, r), "elsewhere.example") {
				t.Errorf("%v %s", err, show(t, r))
			}
			if w.Effects("1001") != 0 || w.Hits("GET /orders/1001") != 0 {
				t.Error("it went on without a session")
			}
		})
	}
}
