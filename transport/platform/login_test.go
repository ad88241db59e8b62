package platform

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"agentsvc/persistence/pg"
	"agentsvc/persistence/store"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/password"
	"agentsvc/schemas/problem"
	"agentsvc/transport/edge"
)

func TestLogin(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	kim := w.newHuman(w.a, "Kim@example.com", lifecycle.RoleMember)
	lee := w.newHuman(w.a, "lee@example.com", lifecycle.RoleMember)
	lee2 := w.newHuman(w.b, "lee@example.com", lifecycle.RoleAdmin)
	described := newDocument(t)
	both := w.newHuman(w.a, "other@example.com", lifecycle.RoleMember)
	w.newHuman(w.b, "other@example.com", lifecycle.RoleMember)
	_, err := w.admin.Exec(t.Context(), "UPDATE users SET password_hash = $1 WHERE email = 'other@example.com' AND tenant_id = $2", password.Hash("a different password"), w.b.tenant)
	w.must(err)
	for _, c := range []struct {
		name, body   string
		status       int
		code         problem.Code
		in           *human
		failed, ok   int // audit rows in a
		failedInB    int
		okInB        int
		extraHeaders []string
	}{
		{"e-mail and password", `{"email": "kim@EXAMPLE.com", "password": "{p}"}`, 200, "", &kim, 0, 1, 0, 0, nil},
		{"with the tenant", `{"email": "kim@example.com", "password": "{p}", "tenant_id": "{a}"}`, 200, "", &kim, 0, 1, 0, 0, nil},
		{"a key beside it does not matter", `{"email": "kim@example.com", "password": "{p}"}`, 200, "", &kim, 0, 1, 0, 0, []string{"Authorization", "Bearer x"}},
		{"with another tenant", `{"email": "kim@example.com", "password": "{p}", "tenant_id": "{b}"}`, 401, "UNAUTHORIZED", nil, 0, 0, 0, 0, nil},
		{"with a tenant that nobody has", `{"email": "kim@example.com", "password": "{p}", "tenant_id": "{unknown}"}`, 401, "UNAUTHORIZED", nil, 0, 0, 0, 0, nil},
		{"a wrong password", `{"email": "kim@example.com", "password": "{p}x"}`, 401, "UNAUTHORIZED", nil, 1, 0, 0, 0, nil},
		{"a user without a password", `{"email": "o@example.com", "password": "{p}"}`, 401, "UNAUTHORIZED", nil, 0, 0, 0, 0, nil},
		{"an e-mail that nobody has", `{"email": "nobody@example.com", "password": "{p}"}`, 401, "UNAUTHORIZED", nil, 0, 0, 0, 0, nil},
		{"what is no e-mail", `{"email": "'; --", "password": "{p}"}`, 401, "UNAUTHORIZED", nil, 0, 0, 0, 0, nil},
		{"a user of two tenants", `{"email": "lee@example.com", "password": "{p}"}`, 400, "TENANT_REQUIRED", nil, 0, 0, 0, 0, nil},
		{"a user of two tenants in the one", `{"email": "lee@example.com", "password": "{p}", "tenant_id": "{a}"}`, 200, "", &lee, 0, 1, 0, 0, nil},
		{"a user of two tenants in the other", `{"email": "lee@example.com", "password": "{p}", "tenant_id": "{b}"}`, 200, "", &lee2, 0, 0, 0, 1, nil},
		{"a user of two tenants with a wrong password", `{"email": "lee@example.com", "password": "wrong"}`, 401, "UNAUTHORIZED", nil, 1, 0, 1, 0, nil},
		{"a user of two tenants with two passwords", `{"email": "other@example.com", "password": "{p}"}`, 200, "", &both, 0, 1, 1, 0, nil},
		{"without a password", `{"email": "kim@example.com"}`, 400, "VALIDATION", nil, 0, 0, 0, 0, nil},
		{"an unknown field", `{"email": "kim@example.com", "password": "{p}", "remember": true}`, 400, "VALIDATION", nil, 0, 0, 0, 0, nil},
		{"a tenant that is no id", `{"email": "kim@example.com", "password": "{p}", "tenant_id": "x"}`, 400, "VALIDATION", nil, 0, 0, 0, 0, nil},
		{"an Idempotency-Key is not taken", `{"email": "kim@example.com", "password": "{p}"}`, 200, "", &kim, 0, 1, 0, 0, []string{"Idempotency-Key", "k"}},
		{"a second time it is another session", `{"email": "kim@example.com", "password": "{p}"}`, 200, "", &kim, 0, 1, 0, 0, []string{"Idempotency-Key", "k"}},
	} {
		before, beforeB := w.audited(w.a.tenant), w.audited(w.b.tenant)
		r := strings.NewReplacer("{p}", goodPassword, "{a}", w.a.tenant.String(), "{b}", w.b.tenant.String(), "{unknown}", id.NewAnywhere().String())
		got, cookie := w.login(r.Replace(c.body), c.extraHeaders...)
		if got.status != c.status || c.code != "" && got.code() != string(c.code) {
			t.Errorf("%s: %d %s", c.name, got.status, got.body)
			continue
		}
		if err := described.conforms("POST", "/v1/auth/login", got); err != nil {
			t.Errorf("%s: the response breaks the document: %v\n%s", c.name, err, got.body)
		}
		after, afterB := w.audited(w.a.tenant), w.audited(w.b.tenant)
		if after["auth.login"]-before["auth.login"] != c.ok || after["auth.login_failed"]-before["auth.login_failed"] != c.failed ||
			afterB["auth.login"]-beforeB["auth.login"] != c.okInB || afterB["auth.login_failed"]-beforeB["auth.login_failed"] != c.failedInB {
			t.Errorf("%s: audited %v and %v, before %v and %v", c.name, after, afterB, before, beforeB)
		}
		if c.in == nil {
			if cookie != "" || got.header.Get("Set-Cookie") != "" {
				t.Errorf("%s: a refusal sets a cookie", c.name)
			}
			continue
		}
		if got.get("user.id") != c.in.id.String() || got.get("tenant.id") != c.in.tenant.String() || strings.Contains(got.body, "argon2id") {
			t.Errorf("%s: %s", c.name, got.body)
		}
		me := w.send(cookie, "GET", "/v1/auth/me", "")
		if me.get("principal") != "user:"+c.in.id.String() || me.get("user.id") != c.in.id.String() || me.get("tenant.id") != c.in.tenant.String() {
			t.Errorf("%s: %s", c.name, me.body)
		}
	}
	var ips, details int
	w.must(w.admin.QueryRow(t.Context(), `SELECT count(*) FILTER (WHERE ip = '127.0.0.1')::int, count(*) FILTER (WHERE detail::text LIKE '%horse%')::int
		FROM audit_log WHERE action LIKE 'auth.%'`).Scan(&ips, &details))
	if ips < 8 || details != 0 {
		t.Errorf("%d rows have the address, %d the password", ips, details)
	}
	if got := w.send("", "POST", "/v1/auth/login", "email=kim", "Content-Type", "application/x-www-form-urlencoded"); got.status != 415 {
		t.Errorf("a form of another site: %d", got.status)
	}
}

// open-parts.md, Login: an e-mail that a tenant has not verified counts only inside that tenant.
// The tenant learns neither what the person does elsewhere nor from where, and cannot guess the
// person's password unnoticed.
func TestALoginAcrossTenants(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.newHuman(w.a, "victim@example.com", lifecycle.RoleOwner)
	w.newHuman(w.b, "victim@example.com", lifecycle.RoleMember) // created by the tenant's admin
	guess := "the password that is guessed"
	_, err := w.admin.Exec(t.Context(), "UPDATE users SET password_hash = $1 WHERE email = 'victim@example.com' AND tenant_id = $2", password.Hash(guess), w.b.tenant)
	w.must(err)
	failures := func(p party) (out []string) {
		t.Helper()
		a := w.call(p, "GET", "/v1/audit?action=auth.login_failed", "")
		items, _ := a.get("items").([]any)
		for _, item := range items {
			out = append(out, fmt.Sprint(item.(map[string]any)["ip"]))
		}
		return out
	}
	login := func(secret, more string) int {
		t.Helper()
		got, _ := w.login(fmt.Sprintf(`{"email": "victim@example.com", "password": %q%s}`, secret, more))
		return got.status
	}
	if got := login(guess, ""); got != 200 {
		t.Fatalf("the guessed password fits the tenant's own user: %d", got)
	}
	if got := failures(w.a); len(got) != 1 || got[0] != "<nil>" {
		t.Errorf("the victim's tenant sees %v of the guess", got)
	}
	if got := login(goodPassword, ""); got != 200 {
		t.Fatalf("the victim: %d", got)
	}
	if got := failures(w.b); len(got) != 1 || got[0] != "<nil>" {
		t.Errorf("the other tenant sees %v of the victim's login", got)
	}
	if got := login("wrong", `, "tenant_id": "`+w.a.tenant.String()+`"`); got != 401 {
		t.Fatalf("a wrong password: %d", got)
	}
	if a, b := failures(w.a), failures(w.b); len(a) != 2 || a[0] != "127.0.0.1" || len(b) != 1 {
		t.Errorf("a wrong password for a named tenant: %v and %v", a, b)
	}
}

// A tenant that is overloaded, or wants to be, does not keep the people of other tenants from
// logging in by a user with their e-mail; what it does not take in time goes to the node's log.
func TestABusyTenantHoldsUpNoOtherLogin(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.pool = w.db.Pool(t, pg.Options{Role: pg.API, MaxConns: 16})
	w.serve(func(r Replays) edge.Replays { return r })
	w.newHuman(w.a, "victim@example.com", lifecycle.RoleOwner)
	w.newHuman(w.b, "victim@example.com", lifecycle.RoleMember)
	quiet := w.newParty()
	w.newHuman(quiet, "victim@example.com", lifecycle.RoleMember)
	w.exec("UPDATE users SET password_hash = $1 WHERE email = 'victim@example.com' AND tenant_id <> $2", password.Hash("another password"), w.a.tenant)
	free := make(chan struct{})
	var busy, begun sync.WaitGroup
	for range 6 { // the places of a tenant's changes
		begun.Add(1)
		busy.Go(func() {
			if err := w.Store.Change(t.Context(), store.By{Tenant: w.b.tenant, Actor: "system"}, func(context.Context, *store.Tx) ([]byte, error) {
				begun.Done()
				<-free
				return nil, nil
			}); err != nil {
				t.Error(err)
			}
		})
	}
	begun.Wait()
	type failures struct{ victims, busy, quiet, log int } // log: of the busy tenant
	count := func() failures {
		of := func(p party) int { return w.audited(p.tenant)["auth.login_failed"] }
		return failures{of(w.a), of(w.b), of(quiet), strings.Count(w.logs.String(), w.b.tenant.String())}
	}
	for try := 1; ; try++ { // a busy machine may take too long for another tenant's, too
		before := count()
		for secret, status := range map[string]int{goodPassword: 200, "wrong": 401} {
			if got, _ := w.login(fmt.Sprintf(`{"email": "victim@example.com", "password": %q}`, secret)); got.status != status {
				t.Errorf("with %s: %d %s", secret, got.status, got.body)
			}
		}
		after := count()
		got := failures{after.victims - before.victims, after.busy - before.busy, after.quiet - before.quiet, after.log - before.log}
		if got == (failures{victims: 1, quiet: 2, log: 2}) {
			break
		}
		if try == 3 || got.busy != 0 || got.log != 2 {
			t.Errorf("recorded are %+v", got)
			break
		}
	}
	close(free)
	busy.Wait()
	if got, _ := w.login(fmt.Sprintf(`{"email": "victim@example.com", "password": "wrong", "tenant_id": %q}`, w.b.tenant)); got.status != 401 || w.audited(w.b.tenant)["auth.login_failed"] != 1 {
		t.Errorf("with its places free: %d %s", got.status, got.body)
	}
}

// open-parts.md, Login: a login without a tenant compares the password with those of all users of
// its e-mail, the newest included, however many turns that takes.
func TestALoginComparesEveryUserOfItsEmail(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Sessions.fitsAtOnce = 2
	first := w.newHuman(w.a, "many@example.com", lifecycle.RoleMember)
	last := w.newHuman(w.b, "many@example.com", lifecycle.RoleMember)
	for range minFits {
		last = w.newHuman(w.newParty(), "many@example.com", lifecycle.RoleMember)
	}
	_, err := w.admin.Exec(t.Context(), "UPDATE users SET password_hash = $1 WHERE email = 'many@example.com' AND id <> $2", password.Hash("another password"), last.id)
	w.must(err)
	got, _ := w.login(fmt.Sprintf(`{"email": "many@example.com", "password": %q}`, goodPassword))
	if got.status != 200 || got.get("user.id") != last.id.String() {
		t.Errorf("the newest: %d %s", got.status, got.body)
	}
	var failed int
	w.must(w.admin.QueryRow(t.Context(), "SELECT count(*)::int FROM audit_log WHERE action = 'auth.login_failed'").Scan(&failed))
	if failed != minFits+1 {
		t.Errorf("%d comparisons failed, want %d", failed, minFits+1)
	}
	w.exec("UPDATE users SET password_hash = $1 WHERE id = $2", cheap, first.id)
	if got, _ := w.login(fmt.Sprintf(`{"email": "many@example.com", "password": %q}`, goodPassword)); got.status != 400 || got.code() != "TENANT_REQUIRED" {
		t.Errorf("the oldest and the newest: %d %s", got.status, got.body)
	}
}

// Neither the answer nor the time of a login shows whether a user exists.
func TestALoginDoesNotShowWhetherAUserExists(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.newHuman(w.a, "kim@example.com", lifecycle.RoleMember)
	wrong, _ := w.login(`{"email": "kim@example.com", "password": "wrong"}`)
	unknown, _ := w.login(`{"email": "kin@example.com", "password": "wrong"}`)
	if wrong.status != 401 || wrong.body != unknown.body || len(wrong.header) != len(unknown.header) {
		t.Errorf("%s %v\n%s %v", wrong.body, wrong.header, unknown.body, unknown.header)
	}
	if !password.Matches(decoyPassword(), "the password of nobody") {
		t.Error("the decoy for an unknown user is not a valid hash")
	}
	if of := func(hash string) string { return hash[:strings.LastIndex(hash[:strings.LastIndex(hash, "$")], "$")] }; of(decoyPassword()) != of(password.Hash("x")) {
		t.Error("the decoy hash has other costs than a new hash")
	}
	// A refusal takes a minimum time, whatever its reason.
	w.Sessions.refusal = 300 * time.Millisecond
	for _, email := range []string{"kim@example.com", "kin@example.com"} {
		began := time.Now()
		w.login(fmt.Sprintf(`{"email": %q, "password": "wrong"}`, email))
		if took := time.Since(began); took < w.Sessions.refusal {
			t.Errorf("%s is refused after %v", email, took)
		}
	}
}

// open-parts.md: own scoped bucket by IP and by e-mail.
func TestLoginBuckets(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	kim := w.newHuman(w.a, "kim@example.com", lifecycle.RoleMember)
	try := func(email, secret string) answer {
		t.Helper()
		got, _ := w.login(fmt.Sprintf(`{"email": %q, "password": %q}`, email, secret))
		return got
	}
	w.logins.mu.Lock()
	w.logins.size = 3
	w.logins.mu.Unlock()
	for range 3 {
		if got := try("KIM@example.com", "wrong"); got.status != 401 {
			t.Fatal(got)
		}
	}
	got := try("nobody@example.com", "wrong") // the address is out of tokens
	if got.status != 429 || got.code() != "RATE_LIMITED" || got.header.Get("Retry-After") != "3" || fmt.Sprint(got.get("retry_after")) != "3" || !strings.Contains(got.body, "scope login") {
		t.Errorf("%d %v %s", got.status, got.header, got.body)
	}
	reset := func() {
		w.logins.mu.Lock()
		defer w.logins.mu.Unlock()
		delete(w.logins.taken, "address 127.0.0.1")
	}
	reset()
	if got := try("kim@example.com", goodPassword); got.status != 429 {
		t.Errorf("the e-mail has tokens left: %d", got.status)
	}
	reset()
	if got := try("other@example.com", "wrong"); got.status != 401 {
		t.Errorf("another e-mail: %d", got.status)
	}
	reset()
	for range 3 { // the buckets of e-mails and of addresses do not share names
		if got := try("127.0.0.1", "wrong"); got.status != 401 {
			t.Errorf("an e-mail that looks like an address takes its tokens: %d", got.status)
		}
	}
	w.logins.mu.Lock()
	w.logins.size = 0
	w.logins.mu.Unlock()
	cookie := w.enter(kim)
	w.logins.mu.Lock()
	w.logins.size, w.logins.taken = 1, map[string]int{"email kim@example.com": 1} // strangers have emptied it
	w.logins.mu.Unlock()
	guess := `{"current": "wrong", "new": "twelve chars"}`
	if got := w.person(cookie, "POST", "/v1/auth/password", guess); got.status != 400 {
		t.Errorf("%d %s", got.status, got.body)
	}
	for _, bucket := range []string{"user " + kim.id.String(), "address 127.0.0.1"} {
		w.logins.mu.Lock()
		w.logins.taken = map[string]int{bucket: 1}
		w.logins.mu.Unlock()
		if got := w.person(cookie, "POST", "/v1/auth/password", guess); got.status != 429 {
			t.Errorf("guessing the password of a session, %s: %d", bucket, got.status)
		}
	}
	for _, c := range [][2]string{{"192.0.2.7", "192.0.2.7"}, {"::ffff:192.0.2.7", "192.0.2.7"}, {"2001:db8:1:2:3::4", "2001:db8:1:2::"}, {"fe80::1%eth0", "fe80::"}} {
		if got := clientKey(netip.MustParseAddr(c[0])); got != c[1] {
			t.Errorf("%s is counted as %s", c[0], got)
		}
	}
}

// A flood of logins waits in a short queue for one core, and the rest is refused.
func TestFewPasswordsAreHashedAtOnce(t *testing.T) {
	t.Parallel()
	g := newGate(2)
	var now, most atomic.Int64
	release := make(chan struct{})
	answers := make(chan error, 100)
	for i := range cap(answers) {
		go func() {
			answers <- g.do(t.Context(), fmt.Sprint("client ", i), func() {
				if n := now.Add(1); n > most.Load() {
					most.Store(n)
				}
				<-release
				now.Add(-1)
			})
		}()
	}
	refused := 0
	for range cap(answers) - 2 - maxHashQueue {
		if err := <-answers; !isProblem(err, problem.CodeUnavailable) {
			t.Fatal(err)
		}
		refused++
	}
	close(release)
	for range 2 + maxHashQueue {
		if err := <-answers; err != nil {
			t.Fatal(err)
		}
	}
	if refused != 66 || most.Load() > 2 {
		t.Errorf("%d refused, %d at once", refused, most.Load())
	}
	// Every wait is bounded, and no slot is lost.
	g = newGate(1)
	g.patience = time.Millisecond
	hold, held := make(chan struct{}), make(chan struct{})
	go func() { answers <- g.do(t.Context(), "holder", func() { close(held); <-hold }) }()
	<-held
	if err := g.do(t.Context(), "other", func() {}); !isProblem(err, problem.CodeUnavailable) {
		t.Error(err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	g.patience = time.Hour
	if err := g.do(gone, "other", func() {}); err == nil {
		t.Error("a caller that left was served")
	}
	close(hold)
	if err := <-answers; err != nil || len(g.queue) != 0 || len(g.slots) != 0 {
		t.Errorf("%v, %d %d", err, len(g.queue), len(g.slots))
	}
}

func isProblem(err error, code problem.Code) bool {
	p, ok := err.(*problem.Error)
	return ok && p.Code == code
}

func TestChangingTheOwnPassword(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	kim := w.newHuman(w.a, "kim@example.com", lifecycle.RoleMember)
	cookie := w.enter(kim)
	for _, c := range []struct {
		name, body, has string
		failed          int
	}{
		{"a wrong one", `{"current": "wrong", "new": "twelve chars"}`, "current: is not the password", 1},
		{"a new one of 11 chars", `{"current": "` + goodPassword + `", "new": "eleven char"}`, "new", 0},
		{"a new one of 201 chars", `{"current": "` + goodPassword + `", "new": "` + strings.Repeat("x", 201) + `"}`, "new", 0},
		{"none", `{"new": "twelve chars"}`, "current", 0},
	} {
		before := w.audited(w.a.tenant)["auth.login_failed"]
		got := w.person(cookie, "POST", "/v1/auth/password", c.body)
		if got.status != 400 || got.code() != "VALIDATION" || !strings.Contains(got.body, c.has) || w.audited(w.a.tenant)["auth.login_failed"]-before != c.failed {
			t.Errorf("%s: %d %s", c.name, got.status, got.body)
		}
		if got := w.send(cookie, "GET", "/v1/auth/me", ""); got.status != 200 {
			t.Errorf("%s ended the session", c.name)
		}
	}
}

// A login with the old password while the password changes begins no session.
func TestALoginRacingWithANewPassword(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	kim := w.newHuman(w.a, "kim@example.com", lifecycle.RoleMember)
	found, err := w.logins.Find(t.Context(), "KIM@example.com")
	w.must(err)
	if len(found) != 1 || found[0].ID != kim.id || found[0].Tenant != w.a.tenant || found[0].Role != lifecycle.RoleMember || found[0].PasswordHash != cheap {
		t.Fatalf("%+v", found)
	}
	for _, c := range [][3]string{{"another password", "PATCH", `{"password": "battery horse correct"}`}, {"removal", "DELETE", ""}} {
		if got := w.person("owner", c[1], "/v1/users/"+kim.id.String(), c[2]); got.status >= 300 {
			t.Fatal(got)
		}
		if out, err := w.begin(t.Context(), &edge.Caller{}, found[0], time.Now()); !isProblem(err, problem.CodeUnauthorized) {
			t.Errorf("%s: %+v %v", c[0], out, err)
		}
	}
	var n int
	w.must(w.admin.QueryRow(t.Context(), "SELECT count(*)::int FROM sessions").Scan(&n))
	if n != 0 {
		t.Errorf("%d sessions", n)
	}
}

// A one-time login link: opening it changes nothing, using it works once.
func TestLoginLinks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	kim := w.newHuman(w.a, "kim@example.com", lifecycle.RoleMember)
	mint := func() (k store.Token) {
		t.Helper()
		w.must(w.sys.Change(t.Context(), store.By{Tenant: w.a.tenant, Actor: "system"}, func(ctx context.Context, tx *store.Tx) (_ []byte, err error) {
			k, _, err = tx.CreateLink(ctx, "KIM@example.com")
			return nil, err
		}))
		return k
	}
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	t.Cleanup(client.CloseIdleConnections)
	visit := func(method, path string, header ...string) answer {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, w.addr+path, nil)
		w.must(err)
		for i := 0; i+1 < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		resp, err := client.Do(req)
		w.must(err)
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		w.must(err)
		return answer{resp.StatusCode, resp.Header, string(b)}
	}
	link := "/login/" + mint().Text()
	for range 3 {
		got := visit("GET", link)
		if got.status != 200 || strings.Count(got.body, "<form method=\"post\">") != 1 || strings.Contains(got.body, "<script") || strings.Contains(got.body, "kim@") {
			t.Fatalf("%d %s", got.status, got.body)
		}
		for name, want := range map[string]string{"Content-Type": "text/html; charset=utf-8", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store",
			"X-Content-Type-Options": "nosniff", "Set-Cookie": "", "X-Frame-Options": "DENY"} {
			if got.header.Get(name) != want {
				t.Errorf("%s: %q", name, got.header.Get(name))
			}
		}
		if csp := got.header.Get("Content-Security-Policy"); !strings.HasPrefix(csp, "default-src 'none'; style-src 'sha256-") ||
			!strings.Contains(csp, "form-action 'self' https://console.example;") || !strings.Contains(csp, "frame-ancestors 'none'") || strings.Contains(csp, "unsafe") {
			t.Error(csp)
		}
	}
	if got := visit("HEAD", link); got.status != 200 || got.body != "" {
		t.Errorf("HEAD: %d", got.status)
	}
	for _, site := range []string{"cross-site", "same-site"} {
		if got := visit("POST", link, "Sec-Fetch-Site", site); got.status != 403 || cookieOf(got) != "" {
			t.Errorf("from %s: %d", site, got.status)
		}
	}
	// Many clients use the link at once: one succeeds.
	var cookies []string
	var refused int
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			got := visit("POST", link, "Sec-Fetch-Site", "same-origin", "Origin", "null", "Content-Type", "application/x-www-form-urlencoded")
			mu.Lock()
			defer mu.Unlock()
			switch got.status {
			case 303:
				if to := got.header.Get("Location"); to != api.Home {
					t.Errorf("led to %s", to)
				}
				cookies = append(cookies, cookieOf(got))
			case 401:
				refused++
			default:
				t.Errorf("%d %s", got.status, got.body)
			}
		})
	}
	wg.Wait()
	if len(cookies) != 1 || refused != 7 {
		t.Fatalf("%d logged in, %d were refused", len(cookies), refused)
	}
	if me := w.send(cookies[0], "GET", "/v1/auth/me", ""); me.get("user.id") != kim.id.String() || me.get("role") != "member" {
		t.Errorf("%s", me.body)
	}
	if got := visit("GET", "/login/done", "Cookie", "a=b; svc_session="+cookies[0]); got.status != 200 || !strings.Contains(got.body, "<h1>Signed in</h1>") ||
		!strings.Contains(got.body, "kim@example.com</bdi> (member)") || !strings.Contains(got.body, "Nothing waits") || got.header.Get("Cache-Control") != "no-store" {
		t.Errorf("a logout: %d %s", got.status, got.body)
	}
	for _, cookie := range []string{"", "svc_session=", "svc_session=x", "svc_session=" + strings.Repeat("A", 86), ";;\x01"} {
		if got := visit("GET", "/login/done", "Cookie", strings.ReplaceAll(cookie, "\x01", "=")); got.status != 401 || !strings.Contains(got.body, "Not signed in") {
			t.Errorf("a logout without a session (%s): %d %s", cookie, got.status, got.body)
		}
	}
	aged, wrong, moved := mint(), mint(), mint()
	wrongText := wrong.Text()
	moved.Tenant = w.b.tenant
	_, err := w.admin.Exec(t.Context(), "UPDATE login_links SET expires_at = now() WHERE id = $1", aged.ID)
	w.must(err)
	for name, path := range map[string]string{
		"a used link":             link,
		"an old link":             "/login/" + aged.Text(),
		"a link with another end": "/login/" + wrongText[:80] + strings.Repeat("A", 6),
		"another tenant's link":   "/login/" + moved.Text(),
		"a session's token":       "/login/" + cookies[0],
		"no link":                 "/login/hello",
		"a link with a script":    "/login/" + url.PathEscape("<script>alert(1)</script>"),
	} {
		for _, method := range []string{"GET", "POST"} {
			got := visit(method, path)
			if got.status != 401 || !strings.Contains(got.body, "cannot be used") || strings.Contains(got.body, "<form") || strings.Contains(got.body, "script") || cookieOf(got) != "" {
				t.Errorf("%s %s: %d %s", method, name, got.status, got.body)
			}
		}
	}
	if got := w.send(wrongText, "GET", "/v1/auth/me", ""); got.status != 401 {
		t.Errorf("a link used as a session: %d", got.status)
	}
	// A link becomes invalid with a new password, and with the removal of its user.
	for name, c := range map[string][2]string{"password": {"PATCH", `{"password": "battery horse correct"}`}, "removal": {"DELETE", ""}} {
		path := "/login/" + mint().Text()
		if got := w.person("owner", c[0], "/v1/users/"+kim.id.String(), c[1]); got.status >= 300 {
			t.Fatal(got)
		}
		if got := visit("POST", path); got.status != 401 {
			t.Errorf("after %s: %d", name, got.status)
		}
		if name == "removal" {
			kim = w.newHuman(w.a, "kim@example.com", lifecycle.RoleMember)
		}
	}
	n := w.audited(w.a.tenant)
	if n["auth.login"] != 1 || n["login_link.create"] != 6 {
		t.Errorf("%v", n)
	}
	var actor, target, detail string
	w.must(w.admin.QueryRow(t.Context(), "SELECT actor, target_kind, detail::text FROM audit_log WHERE action = 'auth.login'").Scan(&actor, &target, &detail))
	if !strings.HasPrefix(actor, "user:") || target != "user" || !strings.Contains(detail, "link") {
		t.Errorf("%s %s %s", actor, target, detail)
	}
}
