package platform

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"agentsvc/persistence/store"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
	"agentsvc/transport/edge"
)

// teller is a Revoker that records its calls and can refuse to confirm.
type teller struct {
	p         *Platform
	mu        sync.Mutex // guards the fields below
	revoked   []msg.Revoked
	suspected []msg.Revoked
	refuse    error
}

func (f *teller) Revoke(ctx context.Context, r msg.Revoked) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.revoked = append(f.revoked, r)
	if err := f.p.Forget(ctx, r); err != nil {
		return err
	}
	return f.refuse
}

func (f *teller) Suspect(_ context.Context, r msg.Revoked) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.suspected = append(f.suspected, r)
}

func (f *teller) with(set func(f *teller)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	set(f)
}

// take empties the lists.
func (f *teller) take() (revoked, suspected []msg.Revoked) {
	f.mu.Lock()
	defer f.mu.Unlock()
	revoked, suspected = f.revoked, f.suspected
	f.revoked, f.suspected = nil, nil
	return revoked, suspected
}

func (w *world) withTeller() *teller {
	f := &teller{p: w.Platform}
	w.Revoker = f
	return f
}

var errUnconfirmed = problem.Unavailable("The change was made. Repeat the request.", time.Second)

// Each change that can make another node's cache stale is broadcast before the response; each
// row is one route.
func TestChangesAreBroadcast(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.withTeller()
	a := w.a
	kim := w.newHuman(a, "kim@example.com", lifecycle.RoleMember)
	lee := w.newHuman(a, "lee@example.com", lifecycle.RoleMember)
	cookie := w.enter(lee)
	token, _ := store.ParseToken(cookie)
	f.take()
	fill := a.fill()
	tenant := a.tenant
	user := func(what msg.RevokedWhat) *msg.Revoked { return &msg.Revoked{What: what, Tenant: tenant, User: kim.id} }
	agent := &msg.Revoked{What: msg.ChangedAgent, Tenant: tenant, Agent: a.agent}
	archived := &msg.Revoked{What: msg.ChangedAgent, Tenant: tenant, Agent: a.agent, EmbedKeys: []id.EmbedKeyID{a.embedKey}}
	renamed := &msg.Revoked{What: msg.ChangedEmbedKey, Tenant: tenant, EmbedKeys: []id.EmbedKeyID{a.embedKey}}
	embed := func(what msg.RevokedWhat) *msg.Revoked {
		return &msg.Revoked{What: what, Tenant: tenant, EmbedKey: a.embedKey}
	}
	endUser := &msg.Revoked{What: msg.RevokedEndUser, Tenant: tenant, EndUser: a.endUser}
	server := &msg.Revoked{What: msg.ChangedServer, Tenant: tenant, Server: a.server}
	access := &msg.Revoked{What: msg.ChangedAccess, Tenant: tenant}
	hook := &msg.Revoked{What: msg.ChangedWebhook, Tenant: tenant, Webhook: a.webhook}
	newHook := &msg.Revoked{What: msg.ChangedWebhook, Tenant: tenant}
	listener := &msg.Revoked{What: msg.ChangedWebhook, Tenant: tenant, Webhook: a.listener}
	trigger := func(g id.TriggerID) *msg.Revoked {
		return &msg.Revoked{What: msg.ChangedTrigger, Tenant: tenant, Trigger: g}
	}
	who := "/v1/users/" + kim.id.String()
	for _, c := range []struct {
		as, method, path, body string
		status                 int
		told                   *msg.Revoked // nil: no broadcast
	}{
		{"", "POST", "/v1/api-keys", `{"name": "x"}`, 201, nil},
		{"owner", "PATCH", who, `{"name": "Kim"}`, 200, nil},
		{"owner", "PATCH", who, `{"role": "admin"}`, 200, user(msg.ChangedUser)},
		{"owner", "PATCH", who, `{"role": "member", "password": "battery horse correct"}`, 200, user(msg.RevokedUser)},
		{"owner", "PATCH", who, `{"role": "nonsense"}`, 400, nil},
		{"owner", "DELETE", who, "", 204, user(msg.RevokedUser)},
		{"owner", "DELETE", who, "", 404, user(msg.RevokedUser)}, // the first response may have been lost
		{"owner", "DELETE", "/v1/users/" + a.owner.String(), "", 409, nil},
		{cookie, "POST", "/v1/auth/password", `{"current": "wrong wrong wrong", "new": "battery horse correct"}`, 400, nil},
		{cookie, "POST", "/v1/auth/logout", "", 204, &msg.Revoked{What: msg.RevokedSession, Tenant: tenant, User: lee.id, Session: id.SessionID{UUID: token.ID}}},
		{"", "PATCH", "/v1/agents/{agent}", `{"name": "y"}`, 200, renamed},
		{"", "PATCH", "/v1/agents/{agent}", `{"description": "y"}`, 200, nil},
		{"", "PATCH", "/v1/agents/{agent}", `{"node_id": null}`, 200, access},
		{"", "POST", "/v1/agents/{agent}/versions", `{"manifest": ` + manifest + `}`, 201, nil},
		{"", "POST", "/v1/agents/{agent}/versions/2/publish", "", 200, agent},
		{"", "POST", "/v1/agents/{agent}/versions/9/publish", "", 404, nil},
		{"", "PATCH", "/v1/org-nodes/{node}", `{"name": "y"}`, 200, nil},
		{"", "PATCH", "/v1/org-nodes/{node}", `{"parent_id": null}`, 200, access},
		{"", "PATCH", "/v1/mcp-servers/{server}", `{"name": "x"}`, 200, server},
		{"", "POST", "/v1/connections", `{"mcp_server_id": "{server}", "name": "x", "credentials": {"token": "t"}}`, 201, server},
		{"", "PATCH", "/v1/connections/{connection}", `{"credentials": {"token": "t"}}`, 200, server},
		{"", "POST", "/v1/tool-grants", `{"source": "mcp", "mcp_server_id": "{server}", "tool_pattern": "x", "effect": "deny"}`, 201, access},
		{"", "PATCH", "/v1/tool-grants/{grant}", `{"connection_id": null}`, 200, access},
		{"", "DELETE", "/v1/tool-grants/{grant}", "", 204, access},
		{"", "POST", "/v1/approval-policies", `{"name": "x", "tool_pattern": "*"}`, 201, access},
		{"", "PATCH", "/v1/approval-policies/{policy}", `{"required_approvals": 2}`, 200, access},
		{"", "DELETE", "/v1/approval-policies/{policy}", "", 204, access},
		{"", "DELETE", "/v1/connections/{connection}", "", 204, server},
		{"", "DELETE", "/v1/mcp-servers/{server}", "", 204, server},
		{"", "POST", "/v1/triggers", `{"name": "x", "kind": "hook", "target": {"agent_id": "{agent}"}}`, 201, nil},
		{"", "POST", "/v1/triggers/{hook}/fire", "", 202, nil},
		{"", "PATCH", "/v1/triggers/{hook}", `{"enabled": false}`, 200, trigger(a.hook)},
		{"", "PATCH", "/v1/triggers/{hook}", `{"kind": "schedule"}`, 400, nil},
		{"", "PATCH", "/v1/triggers/{schedule}", `{"enabled": false}`, 200, trigger(a.schedule)},
		{"", "POST", "/v1/triggers/{hook}/rotate-secret", "", 200, trigger(a.hook)},
		{"", "POST", "/v1/triggers/{unknown}/rotate-secret", "", 404, nil},
		{"", "DELETE", "/v1/triggers/{hook}", "", 204, trigger(a.hook)},
		{"", "DELETE", "/v1/triggers/{hook}", "", 404, trigger(a.hook)},
		{"", "POST", "/v1/embed-keys", `{"agent_id": "{draft}", "name": "x", "allowed_origins": []}`, 201, nil},
		{"", "PATCH", "/v1/embed-keys/{embed_key}", `{"name": "y"}`, 200, embed(msg.ChangedEmbedKey)},
		{"", "PATCH", "/v1/embed-keys/{embed_key}", `{"theme": {"accent": "red"}}`, 400, nil},
		{"", "PATCH", "/v1/embed-keys/{embed_key}", `{"allowed_origins": ["https://a.example"]}`, 200, embed(msg.RevokedEmbedKey)},
		{"", "PATCH", "/v1/embed-keys/{embed_key}", `{"enabled": true}`, 200, embed(msg.ChangedEmbedKey)},
		{"", "PATCH", "/v1/embed-keys/{embed_key}", `{"enabled": false}`, 200, embed(msg.RevokedEmbedKey)},
		{"", "PATCH", "/v1/embed-keys/{embed_key}", `{"enabled": false}`, 200, embed(msg.RevokedEmbedKey)}, // the first broadcast may not have been confirmed
		{"", "POST", "/v1/embed-keys/{embed_key}/rotate", "", 200, embed(msg.RevokedEmbedKey)},
		{"", "POST", "/v1/embed-keys/{unknown}/rotate", "", 404, nil},
		{"", "POST", "/v1/embed-keys/{embed_key}/identity-secret", "", 200, embed(msg.ChangedEmbedKey)},
		{"", "POST", "/v1/embed-keys/{unknown}/identity-secret", "", 404, nil},
		{"", "DELETE", "/v1/embed-keys/{unknown}", "", 404, nil},
		{"", "PATCH", "/v1/end-users/{end_user}", `{"tags": ["x"]}`, 200, nil},
		{"", "DELETE", "/v1/end-users/{end_user}", "", 204, endUser},
		{"", "DELETE", "/v1/end-users/{end_user}", "", 404, endUser},
		{"", "DELETE", "/v1/agents/{agent}", "", 204, archived},
		{"", "DELETE", "/v1/agents/{agent}", "", 404, archived},
		{"", "DELETE", "/v1/embed-keys/{embed_key}", "", 204, embed(msg.RevokedEmbedKey)},
		{"", "POST", "/v1/webhooks", `{"url": "https://o.example", "events": "*"}`, 201, newHook},
		{"", "POST", "/v1/webhooks", `{"url": "https://localhost", "events": "*"}`, 422, nil},
		{"", "PATCH", "/v1/webhooks/{webhook}", `{"enabled": false}`, 200, hook},
		{"", "PATCH", "/v1/webhooks/{webhook}", `{"url": "https://o.example", "enabled": true}`, 200, hook},
		{"", "POST", "/v1/webhooks/{webhook}/rotate-secret", "", 200, hook},
		{"", "POST", "/v1/webhooks/{unknown}/rotate-secret", "", 404, nil},
		{"", "POST", "/v1/webhooks/{webhook}/test", "", 202, nil},
		{"", "POST", "/v1/webhooks/{webhook}/deliveries/{delivery}/redeliver", "", 202, nil},
		{"", "POST", "/v1/webhooks/{webhook}/recover", `{"since": "2026-01-02T03:04:05Z"}`, 202, nil},
		{"", "DELETE", "/v1/webhooks/{webhook}", "", 204, hook},
		{"", "DELETE", "/v1/webhooks/{webhook}", "", 404, hook},
		{"", "POST", "/v1/webhooks/listeners", "", 201, newHook},
		{"", "DELETE", "/v1/webhooks/listeners/{listener}", "", 204, listener},
		{"", "DELETE", "/v1/webhooks/listeners/{listener}", "", 404, listener},
		{"", "DELETE", "/v1/api-keys/" + a.key.String(), "", 204, &msg.Revoked{What: msg.RevokedKey, Tenant: tenant, Key: a.key}},
	} {
		path, body := fill.Replace(c.path), fill.Replace(c.body)
		var got answer
		switch c.as {
		case "":
			got = w.call(a, c.method, path, body)
		case cookie:
			got = w.send(cookie, c.method, path, body, "X-Svc-CSRF", "1")
		default:
			got = w.person(c.as, c.method, path, body)
		}
		told, suspected := f.take()
		var want []msg.Revoked
		if c.told != nil {
			want = []msg.Revoked{*c.told}
		}
		if got.status != c.status || !reflect.DeepEqual(told, want) || len(suspected) > 0 {
			t.Errorf("%s %s: %d %s, told %+v, suspected %+v", c.method, c.path, got.status, got.body, told, suspected)
		}
	}
}

// The embed keys that an archiving revoked are known from its transaction. Here no later read
// could find them.
func TestRevokedEmbedKeysAreKnownFromTheCommit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.withTeller()
	for _, sql := range []string{
		`CREATE FUNCTION hide() RETURNS trigger SECURITY DEFINER LANGUAGE plpgsql AS 'BEGIN ALTER TABLE embed_keys RENAME revoked_at TO hidden; RETURN NULL; END'`,
		`CREATE CONSTRAINT TRIGGER hide AFTER UPDATE ON agents DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION hide()`,
	} {
		if _, err := w.db.Admin(t).Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	f.take()
	got := w.call(w.a, "DELETE", "/v1/agents/"+w.a.agent.String(), "")
	told, suspected := f.take()
	want := []msg.Revoked{{What: msg.ChangedAgent, Tenant: w.a.tenant, Agent: w.a.agent, EmbedKeys: []id.EmbedKeyID{w.a.embedKey}}}
	if got.status != 204 || !reflect.DeepEqual(told, want) || len(suspected) > 0 {
		t.Errorf("%d %s, told %+v, suspected %+v", got.status, got.body, told, suspected)
	}
	if _, err := w.admin.Exec(t.Context(), "SELECT hidden FROM embed_keys"); err != nil {
		t.Fatal("the test proves nothing: ", err)
	}
}

// A change that not every node has confirmed is committed, but the response is 503. A repeat is
// harmless and broadcasts again, also if it gets a kept response.
func TestAnUnconfirmedChange(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.withTeller()
	key := func() string {
		got := w.call(w.a, "POST", "/v1/api-keys", `{"name": "x"}`)
		return fmt.Sprint(got.get("id"))
	}()
	agent := "/v1/agents/" + w.a.agent.String()
	if got := w.call(w.a, "POST", agent+"/versions", `{"manifest": `+manifest+`}`); got.status != 201 {
		t.Fatal(got)
	}
	f.take()
	for name, c := range map[string]struct {
		method, path string
		header       []string
		status       int // of the repeat
		replayed     bool
	}{
		"a revocation":       {"DELETE", "/v1/api-keys/" + key, nil, 204, false},
		"a removal":          {"DELETE", "/v1/tool-grants/" + w.a.grant.String(), nil, 404, false},
		"one that was kept":  {"POST", agent + "/versions/2/publish", []string{"Idempotency-Key", "k"}, 200, true},
		"one that was not":   {"POST", agent + "/versions/2/publish", nil, 200, false},
		"a rotation":         {"POST", "/v1/webhooks/" + w.a.webhook.String() + "/rotate-secret", []string{"Idempotency-Key", "k"}, 200, true},
		"another one's kept": {"POST", agent + "/versions/1/publish", []string{"Idempotency-Key", "l"}, 200, true},
	} {
		f.with(func(f *teller) { f.refuse = errUnconfirmed })
		for range 2 {
			got := w.call(w.a, c.method, c.path, "", c.header...)
			if got.status != 503 || got.code() != "UNAVAILABLE" || got.header.Get("Retry-After") == "" || !strings.Contains(got.body, "Repeat the request") {
				t.Errorf("%s: %d %s", name, got.status, got.body)
			}
			if told, _ := f.take(); len(told) != 1 {
				t.Errorf("%s: told %+v", name, told)
			}
		}
		f.with(func(f *teller) { f.refuse = nil })
		got := w.call(w.a, c.method, c.path, "", c.header...)
		if got.status != c.status || (got.header.Get("Idempotency-Replayed") == "true") != c.replayed {
			t.Errorf("%s, repeated: %d %s", name, got.status, got.body)
		}
		if told, _ := f.take(); len(told) == 0 {
			t.Errorf("%s, repeated: no broadcast", name)
		}
	}
}

// Whether a change is broadcast depends on the outcome of its commit.
func TestBroadcastsByOutcome(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.withTeller()
	r := msg.Revoked{What: msg.ChangedAccess, Tenant: w.a.tenant}
	for _, c := range []struct {
		err                       error
		told, suspected, whenGone int
	}{
		{nil, 1, 0, 1},
		{problem.NotFound("grant"), 0, 0, 1},
		{problem.Invalid("x", "y"), 0, 0, 0},
		{problem.New(problem.CodeForbidden, ""), 0, 0, 0},
		{fmt.Errorf("behind it: %w", edge.ErrReplay), 0, 0, 0},
		{store.ErrUnavailable, 0, 1, 0},
		{context.DeadlineExceeded, 0, 1, 0},
		{errors.New("anything"), 0, 1, 0},
	} {
		_, err := told(t.Context(), w.Platform, r, &edge.Empty{}, c.err)
		was, suspected := f.take()
		if !errors.Is(err, c.err) || len(was) != c.told || len(suspected) != c.suspected {
			t.Errorf("%v: %v, told %v, suspected %v", c.err, err, was, suspected)
		}
		_, err = removed(t.Context(), w.Platform, r, &edge.Empty{}, c.err)
		if was, suspected = f.take(); !errors.Is(err, c.err) || len(was) != c.whenGone || len(suspected) != c.suspected {
			t.Errorf("a removal with %v: %v, told %v, suspected %v", c.err, err, was, suspected)
		}
	}
	w.Revoker = nil
	before := w.tools.anew
	if _, err := told(t.Context(), w.Platform, r, &edge.Empty{}, store.ErrUnavailable); !errors.Is(err, store.ErrUnavailable) || w.tools.anew != before+1 {
		t.Error("without a cluster the node keeps caches that may be stale")
	}
}

// Forget drops exactly what its message is about.
func TestForget(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.a
	var cut []string
	w.Revoked = func(_ context.Context, t id.TenantID, k id.KeyID) error {
		cut = append(cut, "key "+k.String())
		return nil
	}
	kim := w.newHuman(a, "kim@example.com", lifecycle.RoleAdmin)
	cookie := w.enter(kim)
	token, _ := store.ParseToken(cookie)
	session := id.SessionID{UUID: token.ID}
	keyCreds := edge.Credentials{Bearer: a.secret, Tenant: a.tenant.String()}
	sessionCreds := edge.Credentials{Cookie: cookie, Method: "GET"}
	for _, c := range []struct {
		r                               msg.Revoked
		key, session, agent             bool // whether the message drops it
		server, access                  bool
		keysStreamsCut, sessionsEndings string
	}{
		{msg.Revoked{What: msg.RevokedKey, Key: a.key}, true, false, false, false, false, "key " + a.key.String(), ""},
		{msg.Revoked{What: msg.RevokedKey, Key: w.b.key}, false, false, false, false, false, "key " + w.b.key.String(), ""},
		{msg.Revoked{What: msg.RevokedSession, User: kim.id, Session: session}, false, true, false, false, false, "", "one of " + kim.id.String()},
		{msg.Revoked{What: msg.RevokedUser, User: kim.id}, false, true, false, false, false, "", "all of " + kim.id.String()},
		{msg.Revoked{What: msg.ChangedUser, User: kim.id}, false, true, false, false, false, "", "all of " + kim.id.String()},
		{msg.Revoked{What: msg.ChangedAgent, Agent: a.agent}, false, false, true, false, true, "", ""},
		{msg.Revoked{What: msg.ChangedServer, Server: a.server}, false, false, false, true, true, "", ""},
		{msg.Revoked{What: msg.ChangedAccess}, false, false, false, false, true, "", ""},
	} {
		c.r.Tenant = a.tenant
		for _, creds := range []edge.Credentials{keyCreds, sessionCreds} {
			if _, err := w.Auth.Authenticate(t.Context(), creds); err != nil {
				t.Fatal(err)
			}
		}
		if _, _, err := w.version(t.Context(), a.tenant, a.agent); err != nil {
			t.Fatal(err)
		}
		cut = nil
		w.ended.take()
		w.tools.forgot()
		anew := w.tools.anew
		if err := w.Forget(t.Context(), c.r); err != nil {
			t.Fatal(err)
		}
		_, remembered := w.Versions.cache.Get(agentKey{a.tenant, a.agent})
		if w.Auth.Cached(keyCreds) == c.key || w.Sessions.Cached(sessionCreds) == c.session || remembered == c.agent ||
			(len(w.tools.forgot()) == 1) != c.server || (w.tools.anew > anew) != c.access ||
			strings.Join(cut, ", ") != c.keysStreamsCut || w.ended.take() != c.sessionsEndings {
			t.Errorf("%+v: wrong entries dropped or streams closed: %v", c.r, cut)
		}
	}
	// Only the changed endpoint is dropped.
	w.sent.take()
	if err := w.Forget(t.Context(), msg.Revoked{What: msg.ChangedWebhook, Tenant: a.tenant, Webhook: a.webhook}); err != nil {
		t.Fatal(err)
	}
	if _, forgot := w.sent.take(); !slices.Equal(forgot, []id.WebhookID{a.webhook}) || w.sent.anew != 0 {
		t.Errorf("a changed endpoint drops %v, and %d times all", forgot, w.sent.anew)
	}
	if err := w.Forget(t.Context(), msg.Revoked{What: "tomorrow", Tenant: a.tenant}); err == nil {
		t.Error("an unknown message of a newer node is confirmed")
	}
	for _, creds := range []edge.Credentials{keyCreds, sessionCreds} {
		if _, err := w.Auth.Authenticate(t.Context(), creds); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := w.version(t.Context(), a.tenant, a.agent); err != nil {
		t.Fatal(err)
	}
	w.ForgetAll()
	if w.sent.anew != 1 {
		t.Error("endpoints are still cached")
	}
	if _, remembered := w.Versions.cache.Get(agentKey{a.tenant, a.agent}); remembered || w.Auth.Cached(keyCreds) || w.Sessions.Cached(sessionCreds) {
		t.Error("something is still cached")
	}
}

// nodes is a Revoker over two nodes in one process.
type nodes []*Platform

func (n nodes) Revoke(ctx context.Context, r msg.Revoked) error {
	var errs []error
	for _, p := range n {
		errs = append(errs, p.Forget(ctx, r))
	}
	return errors.Join(errs...)
}

func (n nodes) Suspect(context.Context, msg.Revoked) {
	for _, p := range n {
		p.ForgetAll()
	}
}

// A published version is used by the next run on any node, and only a node with its lease
// uses its cache.
func TestAPublishedVersionIsUsedByEveryNode(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	live := true
	cfg := w.Config
	cfg.Live, cfg.Versions = func() bool { return live }, nil // without Versions the platform uses its own cache
	other := New(cfg)
	w.Revoker = nodes{w.Platform, other}
	version := func() int {
		t.Helper()
		v, ok, err := other.version(t.Context(), w.a.tenant, w.a.agent)
		if err != nil || !ok {
			t.Fatal(v, ok, err)
		}
		return v
	}
	agent := "/v1/agents/" + w.a.agent.String()
	for n := 2; n < 6; n++ {
		if got := w.call(w.a, "POST", agent+"/versions", `{"manifest": `+manifest+`}`); got.status != 201 {
			t.Fatal(got)
		}
		if before := version(); before != n-1 {
			t.Fatalf("version %d before %d", before, n)
		}
		if got := w.call(w.a, "POST", fmt.Sprintf("%s/versions/%d/publish", agent, n), ""); got.status != 200 {
			t.Fatal(got)
		}
		if now := version(); now != n {
			t.Fatalf("version %d after the response to publishing %d", now, n)
		}
	}
	if _, err := w.admin.Exec(t.Context(), "UPDATE agents SET published_version = 1 WHERE tenant_id = $1 AND id = $2", w.a.tenant, w.a.agent); err != nil {
		t.Fatal(err)
	}
	live = false
	if v := version(); v != 1 {
		t.Errorf("without the lease it uses the cached version %d", v)
	}
}
