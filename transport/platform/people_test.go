package platform

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"agentsvc/persistence/store"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/password"
	"agentsvc/schemas/problem"
	"agentsvc/transport/edge"
)

const console = "https://Console.example:443"

// clock is the time of the sessions: the real one, shifted.
type clock struct{ shift atomic.Int64 }

func (c *clock) now() time.Time { return time.Now().Add(time.Duration(c.shift.Load())) }

func (c *clock) move(d time.Duration) { c.shift.Add(int64(d)) }

// endings are the sessions of which it was told that they have ended.
type endings struct {
	mu  sync.Mutex // guards the field below
	all []string
}

func (e *endings) note(_ context.Context, _ id.TenantID, u id.UserID, s id.SessionID) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s.IsZero() {
		e.all = append(e.all, "all of "+u.String())
	} else {
		e.all = append(e.all, "one of "+u.String())
	}
	return nil
}

func (e *endings) take() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := strings.Join(e.all, ", ")
	e.all = nil
	return all
}

// logins is the directory, with buckets of a size.
type logins struct {
	*store.Directory
	mu    sync.Mutex // guards the fields below
	size  int        // 0: no limit
	taken map[string]int
}

func (l *logins) Allow(_ context.Context, key string) (time.Duration, bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.taken == nil {
		l.taken = map[string]int{}
	}
	if l.taken[key]++; l.size > 0 && l.taken[key] > l.size {
		return 2500 * time.Millisecond, false, nil
	}
	return 0, true, nil
}

const goodPassword = "correct horse battery"

// cheap is the password above hashed with little work, so that the tests do not
// wait for each other.
const cheap = "$argon2id$v=19$m=8,t=1,p=1$AAAAAAAAAAAAAAAAAAAAAA$COasZSyMm5hc6dqbItVb+IZaGwOa3IHiB0qT62pEreo"

// human is a user who can log in.
type human struct {
	party
	id    id.UserID
	email string
}

// newHuman makes a user with the password above.
func (w *world) newHuman(p party, email string, role lifecycle.Role) human {
	w.t.Helper()
	h := human{party: p, email: email}
	w.must(w.Store.Change(w.t.Context(), store.By{Tenant: p.tenant, Actor: "system"}, func(ctx context.Context, tx *store.Tx) ([]byte, error) {
		hash := cheap
		u, err := tx.CreateUser(ctx, store.NewUser{Email: email, Name: "Human", Role: role, PasswordHash: &hash})
		if err == nil {
			h.id = u.ID
		}
		return nil, err
	}))
	return h
}

// login answers what the login answers, and the cookie's value.
func (w *world) login(body string, header ...string) (answer, string) {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), "POST", w.addr+"/v1/auth/login", strings.NewReader(body))
	w.must(err)
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	got := w.do(req)
	return got, cookieOf(got)
}

func cookieOf(a answer) string {
	for _, c := range (&http.Response{Header: a.header}).Cookies() {
		if c.Name == "svc_session" {
			return c.Value
		}
	}
	return ""
}

// enter logs a human in and answers his cookie.
func (w *world) enter(h human) string {
	w.t.Helper()
	got, cookie := w.login(fmt.Sprintf(`{"email": %q, "password": %q, "tenant_id": %q}`, h.email, goodPassword, h.tenant))
	if got.status != 200 || cookie == "" {
		w.t.Fatalf("%d %s", got.status, got.body)
	}
	return cookie
}

// send makes a request with a cookie and header pairs, and nothing else.
func (w *world) send(cookie, method, path, body string, header ...string) answer {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), method, w.addr+path, strings.NewReader(body))
	w.must(err)
	if cookie != "" {
		req.Header.Set("Cookie", "svc_session="+cookie)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	return w.do(req)
}

// The routes of people, nodes, audit and usage with an API key, row by row.
func TestPeopleRoutes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	member := w.newHuman(w.a, "m@example.com", lifecycle.RoleMember)
	var top, leaf id.NodeID
	for _, n := range []*id.NodeID{&top, &leaf} {
		body := `{"name": "Top"}`
		if n == &leaf {
			body = `{"name": "Leaf", "parent_id": "` + top.String() + `"}`
		}
		made := w.call(w.a, "POST", "/v1/org-nodes", body)
		w.must(n.UnmarshalText([]byte(fmt.Sprint(made.get("id")))))
	}
	fill := strings.NewReplacer("{owner}", w.a.owner.String(), "{member}", member.id.String(), "{top}", top.String(), "{leaf}", leaf.String(),
		"{agent}", w.a.agent.String(), "{unknown}", id.NewAnywhere().String(), "{foreign}", w.b.node.String(), "{foreign_user}", w.b.owner.String())
	long := strings.Repeat("x", 121)
	w.routes(fill, []route{
		{"list users, newest first", "GET", "/v1/users", "", 200, "", `{"items":[{"id":"{member}","email":"m@example.com","name":"Human","role":"member",`, ""},
		{"a page of users", "GET", "/v1/users?limit=1", "", 200, "", `"next_cursor":"`, ""},
		{"a cursor that is not ours", "GET", "/v1/users?cursor=abc", "", 400, "VALIDATION", "cursor", ""},
		{"read a user", "GET", "/v1/users/{owner}", "", 200, "", `"email":"o@example.com","name":"","role":"owner"`, ""},
		{"read an unknown user", "GET", "/v1/users/{unknown}", "", 404, "NOT_FOUND", "", ""},
		{"add a user", "POST", "/v1/users", `{"email": "New@example.com", "name": "New", "role": "admin"}`, 201, "", `"email":"New@example.com","name":"New","role":"admin"`, "user.create"},
		{"add a user with a password", "POST", "/v1/users", `{"email": "p@example.com", "name": "P", "role": "member", "password": "twelve chars"}`, 201, "", `"role":"member"`, "user.create"},
		{"e-mails are unique whatever the case", "POST", "/v1/users", `{"email": "nEw@EXAMPLE.com", "name": "x", "role": "member"}`, 409, "EMAIL_TAKEN", "", ""},
		{"an e-mail is required", "POST", "/v1/users", `{"name": "x", "role": "member"}`, 400, "VALIDATION", "email: is required", ""},
		{"a name is required", "POST", "/v1/users", `{"email": "x@example.com", "role": "member"}`, 400, "VALIDATION", "name: is required", ""},
		{"a name has 1 to 120 chars", "POST", "/v1/users", `{"email": "x@example.com", "name": "` + long + `", "role": "member"}`, 400, "VALIDATION", "name", ""},
		{"a role is required", "POST", "/v1/users", `{"email": "x@example.com", "name": "x"}`, 400, "VALIDATION", "role: is required", ""},
		{"manager is no role of a user", "POST", "/v1/users", `{"email": "x@example.com", "name": "x", "role": "manager"}`, 400, "VALIDATION", "role", ""},
		{"what is no e-mail", "POST", "/v1/users", `{"email": "x example.com", "name": "x", "role": "member"}`, 400, "VALIDATION", "email: must be an e-mail address", ""},
		{"a password of 11 chars", "POST", "/v1/users", `{"email": "x@example.com", "name": "x", "role": "member", "password": "eleven char"}`, 400, "VALIDATION", "password", ""},
		{"a password of 200 chars", "POST", "/v1/users", `{"email": "l@example.com", "name": "x", "role": "member", "password": "` + strings.Repeat("ü", 200) + `"}`, 201, "", "", "user.create"},
		{"a password of 201 chars", "POST", "/v1/users", `{"email": "x@example.com", "name": "x", "role": "member", "password": "` + strings.Repeat("x", 201) + `"}`, 400, "VALIDATION", "password", ""},
		{"unknown body fields are refused", "POST", "/v1/users", `{"email": "x@example.com", "name": "x", "role": "member", "password_hash": "x"}`, 400, "VALIDATION", "password_hash", ""},
		{"a key makes no owner", "POST", "/v1/users", `{"email": "x@example.com", "name": "x", "role": "owner"}`, 403, "FORBIDDEN", "owner", ""},
		{"change a user", "PATCH", "/v1/users/{member}", `{"email": "m2@example.com", "name": "M"}`, 200, "", `"email":"m2@example.com","name":"M","role":"member"`, "user.update"},
		{"change the case of an own e-mail", "PATCH", "/v1/users/{member}", `{"email": "M2@example.com"}`, 200, "", `"email":"M2@example.com"`, "user.update"},
		{"change a user to a taken e-mail", "PATCH", "/v1/users/{member}", `{"email": "NEW@example.com"}`, 409, "EMAIL_TAKEN", "", ""},
		{"change a user to what is no e-mail", "PATCH", "/v1/users/{member}", `{"email": "a@b c"}`, 400, "VALIDATION", "email", ""},
		{"change a user to a manager", "PATCH", "/v1/users/{member}", `{"role": "manager"}`, 400, "VALIDATION", "role", ""},
		{"change a password", "PATCH", "/v1/users/{member}", `{"password": "another password"}`, 200, "", `"role":"member"`, "user.update"},
		{"a key promotes to admin", "PATCH", "/v1/users/{member}", `{"role": "admin"}`, 200, "", `"role":"admin"`, "user.update"},
		{"a key promotes nobody to owner", "PATCH", "/v1/users/{member}", `{"role": "owner"}`, 403, "FORBIDDEN", "", ""},
		{"a key changes no owner", "PATCH", "/v1/users/{owner}", `{"name": "x"}`, 403, "FORBIDDEN", "", ""},
		{"a key removes no owner", "DELETE", "/v1/users/{owner}", "", 403, "FORBIDDEN", "", ""},
		{"change an unknown user", "PATCH", "/v1/users/{unknown}", `{"name": "x"}`, 404, "NOT_FOUND", "", ""},
		{"remove an unknown user", "DELETE", "/v1/users/{unknown}", "", 404, "NOT_FOUND", "", ""},

		{"list org nodes, newest first", "GET", "/v1/org-nodes", "", 200, "", `{"items":[{"id":"{leaf}","name":"Leaf","parent_id":"{top}","manager_ids":[],"created_at":"`, ""},
		{"read an org node", "GET", "/v1/org-nodes/{top}", "", 200, "", `{"id":"{top}","name":"Top","parent_id":null,"manager_ids":[]`, ""},
		{"read an unknown org node", "GET", "/v1/org-nodes/{unknown}", "", 404, "NOT_FOUND", "", ""},
		{"add an org node", "POST", "/v1/org-nodes", `{"name": "Side"}`, 201, "", `"name":"Side","parent_id":null`, "org_node.create"},
		{"an org node needs a name", "POST", "/v1/org-nodes", `{}`, 400, "VALIDATION", "name: is required", ""},
		{"a parent that is not there", "POST", "/v1/org-nodes", `{"name": "x", "parent_id": "{unknown}"}`, 400, "VALIDATION", "parent_id: there is no such org node", ""},
		{"a parent of another tenant", "POST", "/v1/org-nodes", `{"name": "x", "parent_id": "{foreign}"}`, 400, "VALIDATION", "parent_id: there is no such org node", ""},
		{"rename an org node", "PATCH", "/v1/org-nodes/{leaf}", `{"name": "Leaf 2"}`, 200, "", `"name":"Leaf 2","parent_id":"{top}"`, "org_node.update"},
		{"an org node above itself", "PATCH", "/v1/org-nodes/{top}", `{"parent_id": "{top}"}`, 400, "VALIDATION", "parent_id: is this org node or one below it", ""},
		{"a cycle", "PATCH", "/v1/org-nodes/{top}", `{"parent_id": "{leaf}"}`, 400, "VALIDATION", "parent_id: is this org node or one below it", ""},
		{"move to a parent that is not there", "PATCH", "/v1/org-nodes/{top}", `{"parent_id": "{unknown}"}`, 400, "VALIDATION", "parent_id: there is no such org node", ""},
		{"move to a parent of another tenant", "PATCH", "/v1/org-nodes/{top}", `{"parent_id": "{foreign}"}`, 400, "VALIDATION", "parent_id: there is no such org node", ""},
		{"change an unknown org node", "PATCH", "/v1/org-nodes/{unknown}", `{"name": "x"}`, 404, "NOT_FOUND", "", ""},
		{"remove a node with children", "DELETE", "/v1/org-nodes/{top}", "", 409, "IN_USE", "", ""},
		{"take a node from its parent", "PATCH", "/v1/org-nodes/{leaf}", `{"parent_id": null}`, 200, "", `"parent_id":null`, "org_node.update"},
		{"put it back", "PATCH", "/v1/org-nodes/{leaf}", `{"parent_id": "{top}"}`, 200, "", `"parent_id":"{top}"`, "org_node.update"},
		{"make a manager", "PUT", "/v1/org-nodes/{leaf}/managers/{member}", "", 204, "", "", "org_node.manager.create"},
		{"make a manager twice", "PUT", "/v1/org-nodes/{leaf}/managers/{member}", "", 204, "", "", ""},
		{"managers are shown", "GET", "/v1/org-nodes/{leaf}", "", 200, "", `"manager_ids":["{member}"]`, ""},
		{"an unknown user as manager", "PUT", "/v1/org-nodes/{leaf}/managers/{unknown}", "", 404, "NOT_FOUND", "user", ""},
		{"a user of another tenant as manager", "PUT", "/v1/org-nodes/{leaf}/managers/{foreign_user}", "", 404, "NOT_FOUND", "user", ""},
		{"a manager of an unknown node", "PUT", "/v1/org-nodes/{unknown}/managers/{member}", "", 404, "NOT_FOUND", "org node", ""},
		{"take the role from a manager", "DELETE", "/v1/org-nodes/{leaf}/managers/{member}", "", 204, "", "", "org_node.manager.delete"},
		{"take it twice", "DELETE", "/v1/org-nodes/{leaf}/managers/{member}", "", 204, "", "", ""},
		{"take it from a manager of an unknown node", "DELETE", "/v1/org-nodes/{unknown}/managers/{member}", "", 404, "NOT_FOUND", "org node", ""},
		{"put an agent under a node", "PATCH", "/v1/agents/{agent}", `{"node_id": "{leaf}"}`, 200, "", `"node_id":"{leaf}"`, "agent.update"},
		{"remove a node with an agent", "DELETE", "/v1/org-nodes/{leaf}", "", 409, "IN_USE", "", ""},
		{"take the agent away", "PATCH", "/v1/agents/{agent}", `{"node_id": null}`, 200, "", "", "agent.update"},
		{"grant a node", "POST", "/v1/tool-grants", `{"source": "builtin", "tool_pattern": "kb.search", "effect": "allow", "node_id": "{top}"}`, 201, "", "", "tool_grant.create"},
		{"make a manager again", "PUT", "/v1/org-nodes/{leaf}/managers/{member}", "", 204, "", "", "org_node.manager.create"},
		{"remove a node with its managers", "DELETE", "/v1/org-nodes/{leaf}", "", 204, "", "", "org_node.delete"},
		{"remove it twice", "DELETE", "/v1/org-nodes/{leaf}", "", 404, "NOT_FOUND", "", ""},
		{"remove a node with a grant", "DELETE", "/v1/org-nodes/{top}", "", 409, "IN_USE", "", ""},

		{"remove a user", "DELETE", "/v1/users/{member}", "", 204, "", "", "user.delete"},
		{"remove him twice", "DELETE", "/v1/users/{member}", "", 404, "NOT_FOUND", "", ""},

		{"a key has no session to end", "POST", "/v1/auth/logout", "", 401, "UNAUTHORIZED", "", ""},
		{"a key has no password", "POST", "/v1/auth/password", `{"current": "x", "new": "twelve chars"}`, 401, "UNAUTHORIZED", "", ""},

		{"the audit log, newest first", "GET", "/v1/audit?limit=1", "", 200, "", `"action":"user.delete","target":{"kind":"user","id":"{member}"},"ip":"127.0.0.1","detail":null}],"next_cursor":"`, ""},
		{"the audit log by action", "GET", "/v1/audit?action=org_node.manager.create", "", 200, "", `"detail":{"user_id":"{member}"}`, ""},
		{"by an action that never was", "GET", "/v1/audit?action=x", "", 200, "", `{"items":[],"next_cursor":null}`, ""},
		{"by target", "GET", "/v1/audit?target={owner}", "", 200, "", `"actor":"system","action":"user.create","target":{"kind":"user","id":"{owner}"}`, ""},
		{"by kind and target", "GET", "/v1/audit?target=user:{owner}", "", 200, "", `"action":"user.create"`, ""},
		{"by another kind and the same target", "GET", "/v1/audit?target=agent:{owner}", "", 200, "", `"items":[]`, ""},
		{"by a target that is none", "GET", "/v1/audit?target=user", "", 400, "VALIDATION", "target: must be an id, or kind:id", ""},
		{"by a target without its kind", "GET", "/v1/audit?target=:{owner}", "", 400, "VALIDATION", "target: must be an id, or kind:id", ""},
		{"since the far future", "GET", "/v1/audit?since=2999-01-01T00:00:00Z", "", 200, "", `"items":[]`, ""},
		{"until the far past", "GET", "/v1/audit?until=1999-01-01T00:00:00Z", "", 200, "", `"items":[]`, ""},
		{"since what is no time", "GET", "/v1/audit?since=yesterday", "", 400, "VALIDATION", "since", ""},
		{"a cursor of another list", "GET", "/v1/audit?cursor=abc", "", 400, "VALIDATION", "cursor", ""},

		{"usage of nothing", "GET", "/v1/usage", "", 200, "", `{"items":[]}`, ""},
		{"usage by something else", "GET", "/v1/usage?group_by=run", "", 400, "VALIDATION", "group_by", ""},
		{"usage from behind to", "GET", "/v1/usage?from=2026-02-01T00:00:00Z&to=2026-01-01T00:00:00Z", "", 400, "VALIDATION", "from: must not be behind to", ""},
		{"usage from what is no time", "GET", "/v1/usage?from=2026", "", 400, "VALIDATION", "from", ""},
		{"records of nothing", "GET", "/v1/usage/records", "", 200, "", `{"items":[],"next_cursor":null}`, ""},
		{"records of an unknown kind", "GET", "/v1/usage/records?kind=x", "", 400, "VALIDATION", "kind", ""},
		{"records of what is no run", "GET", "/v1/usage/records?run_id=x", "", 400, "VALIDATION", "run_id", ""},
	}, "argon2id", "twelve chars", "another password")
}

// Who may call what: member < admin < owner, a key acts as admin.
func TestPeopleRoles(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var people [3]string
	for i, role := range lifecycle.UserRoles {
		people[i] = w.enter(w.newHuman(w.a, string(role)+"@example.com", role))
	}
	node := w.a.node.String()
	for _, c := range []struct {
		name, method, path, body string
		want                     [4]int // member, admin, owner, key; the target is made anew for each
	}{
		{"list users", "GET", "/v1/users", "", [4]int{403, 200, 200, 200}},
		{"add a member", "POST", "/v1/users", `{"email": "{n}@x.example", "name": "x", "role": "member"}`, [4]int{403, 201, 201, 201}},
		{"add an admin", "POST", "/v1/users", `{"email": "{n}@x.example", "name": "x", "role": "admin"}`, [4]int{403, 201, 201, 201}},
		{"add an owner", "POST", "/v1/users", `{"email": "{n}@x.example", "name": "x", "role": "owner"}`, [4]int{403, 403, 201, 403}},
		{"read a user", "GET", "/v1/users/{member}", "", [4]int{403, 200, 200, 200}},
		{"change a member", "PATCH", "/v1/users/{member}", `{"name": "y"}`, [4]int{403, 200, 200, 200}},
		{"change an admin", "PATCH", "/v1/users/{admin}", `{"name": "y"}`, [4]int{403, 200, 200, 200}},
		{"change an owner", "PATCH", "/v1/users/{owner}", `{"name": "y"}`, [4]int{403, 403, 200, 403}},
		{"an owner's password", "PATCH", "/v1/users/{owner}", `{"password": "taken over!!"}`, [4]int{403, 403, 200, 403}},
		{"make a member an owner", "PATCH", "/v1/users/{member}", `{"role": "owner"}`, [4]int{403, 403, 200, 403}},
		{"make an owner a member", "PATCH", "/v1/users/{owner}", `{"role": "member"}`, [4]int{403, 403, 200, 403}},
		{"remove a member", "DELETE", "/v1/users/{member}", "", [4]int{403, 204, 204, 204}},
		{"remove an admin", "DELETE", "/v1/users/{admin}", "", [4]int{403, 204, 204, 204}},
		{"remove an owner", "DELETE", "/v1/users/{owner}", "", [4]int{403, 403, 204, 403}},
		{"list nodes", "GET", "/v1/org-nodes", "", [4]int{403, 200, 200, 200}},
		{"read a node", "GET", "/v1/org-nodes/" + node, "", [4]int{403, 200, 200, 200}},
		{"add a node", "POST", "/v1/org-nodes", `{"name": "x"}`, [4]int{403, 201, 201, 201}},
		{"change a node", "PATCH", "/v1/org-nodes/" + node, `{"name": "y"}`, [4]int{403, 200, 200, 200}},
		{"remove a node", "DELETE", "/v1/org-nodes/{node}", "", [4]int{403, 204, 204, 204}},
		{"make a manager", "PUT", "/v1/org-nodes/" + node + "/managers/{member}", "", [4]int{403, 204, 204, 204}},
		{"take the role", "DELETE", "/v1/org-nodes/" + node + "/managers/{member}", "", [4]int{403, 204, 204, 204}},
		{"the audit log", "GET", "/v1/audit", "", [4]int{403, 200, 200, 200}},
		{"usage", "GET", "/v1/usage", "", [4]int{200, 200, 200, 200}},
		{"usage records", "GET", "/v1/usage/records", "", [4]int{200, 200, 200, 200}},
		{"who calls", "GET", "/v1/auth/me", "", [4]int{200, 200, 200, 200}},
	} {
		for i, want := range c.want {
			n := id.NewAnywhere().String()
			fill := []string{"{n}", n}
			for _, role := range lifecycle.UserRoles {
				if target := "{" + string(role) + "}"; strings.Contains(c.path, target) {
					fill = append(fill, target, w.newHuman(w.a, n+string(role)+"@example.com", role).id.String())
				}
			}
			if strings.Contains(c.path, "{node}") {
				fill = append(fill, "{node}", fmt.Sprint(w.call(w.a, "POST", "/v1/org-nodes", `{"name": "x"}`).get("id")))
			}
			r := strings.NewReplacer(fill...)
			var got answer
			if i == 3 {
				got = w.call(w.a, c.method, r.Replace(c.path), r.Replace(c.body))
			} else {
				got = w.person(people[i], c.method, r.Replace(c.path), r.Replace(c.body))
			}
			if got.status != want || want == 403 && got.code() != "FORBIDDEN" {
				t.Errorf("%s as %s: %d %s, want %d", c.name, []string{"member", "admin", "owner", "key"}[i], got.status, got.body, want)
			}
		}
	}
}

// open-parts.md: removing or demoting the last owner is LAST_OWNER.
func TestTheLastOwnerStays(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := "/v1/users/" + w.a.owner.String()
	for _, c := range [][2]string{{"PATCH", `{"role": "admin"}`}, {"DELETE", ""}} {
		if got := w.person("owner", c[0], first, c[1]); got.status != 409 || got.code() != "LAST_OWNER" {
			t.Errorf("%s: %d %s", c[0], got.status, got.body)
		}
	}
	if got := w.person("owner", "PATCH", first, `{"role": "owner", "name": "Still"}`); got.status != 200 {
		t.Errorf("%d %s", got.status, got.body)
	}
	// Two owners demote each other: one of them stays.
	for round := range 8 {
		second := w.newHuman(w.a, fmt.Sprint("second", round, "@example.com"), lifecycle.RoleOwner)
		cookie := w.enter(second)
		method, body := "PATCH", `{"role": "member"}`
		var codes [2]string
		var wg sync.WaitGroup
		wg.Go(func() { codes[0] = w.person("owner", method, "/v1/users/"+second.id.String(), body).code() })
		wg.Go(func() { codes[1] = w.person(cookie, method, first, body).code() })
		wg.Wait()
		var owners int
		w.must(w.admin.QueryRow(t.Context(), "SELECT count(*)::int FROM users WHERE tenant_id = $1 AND role = 'owner'", w.a.tenant).Scan(&owners))
		// The one who was demoted first may also have lost his role before his own
		// call was looked at.
		if owners != 1 || !slices.Contains([]string{"LAST_OWNER", "FORBIDDEN"}, codes[0]+codes[1]) {
			t.Fatalf("%d owners, answers %q", owners, codes)
		}
		_, err := w.admin.Exec(t.Context(), "UPDATE users SET role = 'owner' WHERE tenant_id = $1 AND id = $2", w.a.tenant, w.a.owner)
		w.must(err)
		_, err = w.admin.Exec(t.Context(), "DELETE FROM users WHERE tenant_id = $1 AND id = $2", w.a.tenant, second.id)
		w.must(err)
	}
}

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
		{"a user of two tenants with two passwords", `{"email": "other@example.com", "password": "{p}"}`, 200, "", &both, 0, 1, 0, 0, nil},
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
			t.Errorf("%s: the document says otherwise: %v\n%s", c.name, err, got.body)
		}
		after, afterB := w.audited(w.a.tenant), w.audited(w.b.tenant)
		if after["auth.login"]-before["auth.login"] != c.ok || after["auth.login_failed"]-before["auth.login_failed"] != c.failed ||
			afterB["auth.login"]-beforeB["auth.login"] != c.okInB || afterB["auth.login_failed"]-beforeB["auth.login_failed"] != c.failedInB {
			t.Errorf("%s: audited %v and %v, before %v and %v", c.name, after, afterB, before, beforeB)
		}
		if c.in == nil {
			if cookie != "" || got.header.Get("Set-Cookie") != "" {
				t.Errorf("%s: a cookie came with it", c.name)
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
	if ips < 10 || details != 0 {
		t.Errorf("%d rows have the address, %d the password", ips, details)
	}
	if got := w.send("", "POST", "/v1/auth/login", "email=kim", "Content-Type", "application/x-www-form-urlencoded"); got.status != 415 {
		t.Errorf("a form of another site: %d", got.status)
	}
}

// Whether a user exists shows neither in the answer nor in the work.
func TestALoginSaysNothingAboutUsers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.newHuman(w.a, "kim@example.com", lifecycle.RoleMember)
	wrong, _ := w.login(`{"email": "kim@example.com", "password": "wrong"}`)
	nobody, _ := w.login(`{"email": "kin@example.com", "password": "wrong"}`)
	if wrong.status != 401 || wrong.body != nobody.body || len(wrong.header) != len(nobody.header) {
		t.Errorf("%s %v\n%s %v", wrong.body, wrong.header, nobody.body, nobody.header)
	}
	if !password.Matches(nobodys(), "the password of nobody") {
		t.Error("what is compared with for nobody is no hash")
	}
	if of := func(hash string) string { return hash[:strings.LastIndex(hash[:strings.LastIndex(hash, "$")], "$")] }; of(nobodys()) != of(password.Hash("x")) {
		t.Error("nobody's hash is other work than a new one")
	}
	// A refusal takes its time, whatever was done.
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
		delete(w.logins.taken, "127.0.0.1")
	}
	reset()
	if got := try("kim@example.com", goodPassword); got.status != 429 {
		t.Errorf("the e-mail has tokens left: %d", got.status)
	}
	reset()
	if got := try("other@example.com", "wrong"); got.status != 401 {
		t.Errorf("another e-mail: %d", got.status)
	}
	w.logins.mu.Lock()
	w.logins.size = 0
	w.logins.mu.Unlock()
	cookie := w.enter(kim)
	w.logins.mu.Lock()
	w.logins.size, w.logins.taken = 1, nil
	w.logins.mu.Unlock()
	guess := `{"current": "wrong", "new": "twelve chars"}`
	if got := w.person(cookie, "POST", "/v1/auth/password", guess); got.status != 400 {
		t.Errorf("%d %s", got.status, got.body)
	}
	if got := w.person(cookie, "POST", "/v1/auth/password", guess); got.status != 429 {
		t.Errorf("guessing the password of a session: %d", got.status)
	}
	for _, c := range [][2]string{{"192.0.2.7", "192.0.2.7"}, {"::ffff:192.0.2.7", "192.0.2.7"}, {"2001:db8:1:2:3::4", "2001:db8:1:2::"}, {"fe80::1%eth0", "fe80::"}} {
		if got := clientKey(netip.MustParseAddr(c[0])); got != c[1] {
			t.Errorf("%s is counted as %s", c[0], got)
		}
	}
}

// A flood of logins waits in a short line for one core, and the rest is refused.
func TestFewPasswordsAreHashedAtOnce(t *testing.T) {
	t.Parallel()
	g := newGate(2)
	var now, most atomic.Int64
	release := make(chan struct{})
	answers := make(chan error, 100)
	for range cap(answers) {
		go func() {
			answers <- g.do(t.Context(), func() {
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
	// Nobody waits for ever, and no place is lost.
	g = newGate(1)
	g.patience = time.Millisecond
	hold, held := make(chan struct{}), make(chan struct{})
	go func() { answers <- g.do(t.Context(), func() { close(held); <-hold }) }()
	<-held
	if err := g.do(t.Context(), func() {}); !isProblem(err, problem.CodeUnavailable) {
		t.Error(err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	g.patience = time.Hour
	if err := g.do(gone, func() {}); err == nil {
		t.Error("a caller who left was served")
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

// open-parts.md: a cookie call that changes something must carry X-Svc-CSRF: 1
// or an Origin equal to SVC_PUBLIC_URL.
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
		t.Error("without a public address every Origin is ours")
	}
}

// A session needs no X-Tenant-Id; one that differs is 401.
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
		for range 2 { // looked up, and remembered
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
func TestASessionEndsByItself(t *testing.T) {
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
		t.Error("its use was not noted")
	}
	w.clock.move(store.SessionIdle + time.Second)
	if alive(cookie) {
		t.Error("lives after 12 hours without use")
	}
	cookie = w.enter(kim)
	for range 13 {
		w.clock.move(store.SessionIdle - time.Minute)
		if !alive(cookie) {
			t.Fatal("ended while it was used")
		}
	}
	w.clock.move(11 * time.Hour)
	if !alive(cookie) {
		t.Error("ended before 7 days")
	}
	w.clock.move(2 * time.Hour)
	if alive(cookie) {
		t.Error("lives after 7 days")
	}
	// A remembered one ends as well: the clock is asked each time.
	cookie = w.enter(kim)
	token, _ := store.ParseToken(cookie)
	_, err := w.admin.Exec(t.Context(), "UPDATE sessions SET used_at = $2 WHERE id = $1", token.ID, w.clock.now().Add(10*time.Second-store.SessionIdle))
	w.must(err)
	row, err := w.Store.View(w.a.tenant).Session(t.Context(), id.SessionID{UUID: token.ID})
	w.must(err)
	if left := row.Until().Sub(w.clock.now()); left <= 0 || left > 10*time.Second {
		t.Errorf("ends in %v", left)
	}
	// What ended is deleted by a later login.
	w.clock.move(8 * 24 * time.Hour)
	w.enter(kim)
	var n int
	w.must(w.admin.QueryRow(t.Context(), "SELECT count(*)::int FROM sessions").Scan(&n))
	if n != 1 {
		t.Errorf("%d sessions are left", n)
	}
}

// The use of a session is written once a minute, and read once in a while.
func TestASessionsUseIsWrittenSeldom(t *testing.T) {
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

// What ends a session ends it at once: no request is accepted after the answer.
func TestSessionsEndAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, c := range map[string]struct {
		method, path, body string // by the human himself where the path has no id
		others             bool   // his other session ends, too
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
			t.Errorf("%s: remembered again", name)
		}
		if alive := w.send(second, "GET", "/v1/tenant", "").status == 200; alive == c.others {
			t.Errorf("%s: the other session lives: %v", name, alive)
		}
		if got := w.send(neighbour, "GET", "/v1/tenant", ""); got.status != 200 {
			t.Errorf("%s: a neighbour's session ended", name)
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

// A role change acts at once, both ways, on sessions that stay.
func TestARoleChangeActsAtOnce(t *testing.T) {
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
	if told := w.ended.take(); told != "" {
		t.Errorf("a role change ended sessions: %s", told)
	}
}

// A look-up that a change overtakes does not put the old role back, nor a
// session that ended.
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
		// The row was read; now it changes, before it is remembered.
		live, ok, err := w.Sessions.live.Load(t.Context(), at, func(ctx context.Context) (liveSession, bool, error) {
			live, ok, err := w.Sessions.read(ctx, &token)
			if first := w.Sessions.at(&token) == at; first && live.role == lifecycle.RoleAdmin {
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

// While the node's lease has run out, nothing that is remembered counts.
func TestSessionsWithoutALease(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cookie := w.enter(w.newHuman(w.a, "kim@example.com", lifecycle.RoleMember))
	valid := true
	s := NewSessions(SessionsConfig{Store: w.Store, PublicURL: console, Valid: func() bool { return valid }})
	creds := edge.Credentials{Cookie: cookie, Method: "GET"}
	who, err := s.Authenticate(t.Context(), creds)
	if err != nil || !s.Cached(creds) || who.Session.IsZero() || who.Until.IsZero() || !who.Key.IsZero() {
		t.Fatal(who, err)
	}
	if valid = false; s.Cached(creds) {
		t.Error("remembered without a lease")
	}
	if valid = true; !s.Cached(creds) {
		t.Error("forgotten with a lease")
	}
	if s.ForgetAll(); s.Cached(creds) {
		t.Error("not forgotten")
	}
}

func TestTheOwnPassword(t *testing.T) {
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

// A login with the old password that a change of it overtakes begins no session.
func TestALoginRacingWithANewPassword(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	kim := w.newHuman(w.a, "kim@example.com", lifecycle.RoleMember)
	found, err := w.logins.Find(t.Context(), "KIM@example.com")
	w.must(err)
	if len(found) != 1 || found[0].ID != kim.id || found[0].Tenant != w.a.tenant || found[0].Role != lifecycle.RoleMember || found[0].PasswordHash != cheap {
		t.Fatalf("%+v", found)
	}
	for name, change := range map[string][2]string{"another password": {"PATCH", `{"password": "battery horse correct"}`}, "removal": {"DELETE", ""}} {
		if got := w.person("owner", change[0], "/v1/users/"+kim.id.String(), change[1]); got.status >= 300 {
			t.Fatal(got)
		}
		if out, err := w.begin(t.Context(), &edge.Caller{}, found[0], time.Now()); !isProblem(err, problem.CodeUnauthorized) {
			t.Errorf("%s: %+v %v", name, out, err)
		}
	}
	var n int
	w.must(w.admin.QueryRow(t.Context(), "SELECT count(*)::int FROM sessions").Scan(&n))
	if n != 0 {
		t.Errorf("%d sessions", n)
	}
}

// A one-time login link: looking at it changes nothing, using it works once.
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
	// Many press the button at once: one gets in.
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
				if to := got.header.Get("Location"); to != console+"/" {
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
		t.Fatalf("%d got in, %d were refused", len(cookies), refused)
	}
	if me := w.send(cookies[0], "GET", "/v1/auth/me", ""); me.get("user.id") != kim.id.String() || me.get("role") != "member" {
		t.Errorf("%s", me.body)
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
		t.Errorf("a link as a session: %d", got.status)
	}
	// A link dies with a change of the password, and with its user.
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

// What a session does is audited as user:<id>, and owned by it.
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
	// A kept answer is the principal's.
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

// The audit log and usage, with what lies in them.
func TestAuditAndUsage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	run := id.NewAnywhere()
	insert := func(p party, at, kind string, run *id.UUID, agent *id.AgentID, model string, in, out int, cost float64, detail *string) {
		t.Helper()
		_, err := w.admin.Exec(t.Context(), `INSERT INTO usage_records (tenant_id, id, at, kind, run_id, agent_id, model, tokens_in, tokens_out, cost_usd, detail)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)`, p.tenant, id.NewAnywhere(), at, kind, run, agent, model, in, out, cost, detail)
		w.must(err)
	}
	skill := `{"mode": "run", "status": "committed", "steps": 4, "screenshots": 2}`
	insert(w.a, "2026-01-01T23:59:59Z", "llm", &run, &w.a.agent, "large", 100, 10, 0.5, nil)
	insert(w.a, "2026-01-02T00:00:00Z", "llm", &run, &w.a.agent, "large", 200, 20, 0.25, nil)
	insert(w.a, "2026-01-02T12:00:00+02:00", "llm", ptr(id.NewAnywhere()), &w.a.draft, "small", 1, 2, 2, nil)
	insert(w.a, "2026-01-02T13:00:00Z", "browser_skill_run", &run, &w.a.agent, "", 0, 0, 0, &skill)
	insert(w.a, "2026-01-03T00:00:00Z", "embedding", nil, nil, "embed", 7, 0, 0.125, nil)
	insert(w.b, "2026-01-02T00:00:00Z", "llm", ptr(id.NewAnywhere()), &w.b.agent, "theirs", 9000, 9000, 90, nil)
	described := newDocument(t)
	for _, c := range []struct{ query, want string }{
		{"?from=2026-01-01T00:00:00Z&to=2026-02-01T00:00:00Z", `{"items":[` +
			`{"day":"2026-01-03","runs":0,"tokens_in":7,"tokens_out":0,"cost_usd":0.125,"browser_skill_runs":0},` +
			`{"day":"2026-01-02","runs":2,"tokens_in":201,"tokens_out":22,"cost_usd":2.25,"browser_skill_runs":1},` +
			`{"day":"2026-01-01","runs":1,"tokens_in":100,"tokens_out":10,"cost_usd":0.5,"browser_skill_runs":0}]}`},
		{"?from=2026-01-02T00:00:00Z&to=2026-01-03T00:00:00Z&group_by=day", `{"items":[{"day":"2026-01-02","runs":2,"tokens_in":201,"tokens_out":22,"cost_usd":2.25,"browser_skill_runs":1}]}`},
		{"?from=2026-01-01T00:00:00Z&to=2026-02-01T00:00:00Z&group_by=agent", `{"items":[` +
			`{"agent_id":"{draft}","runs":1,"tokens_in":1,"tokens_out":2,"cost_usd":2,"browser_skill_runs":0},` +
			`{"agent_id":"{agent}","runs":1,"tokens_in":300,"tokens_out":30,"cost_usd":0.75,"browser_skill_runs":1},` +
			`{"agent_id":null,"runs":0,"tokens_in":7,"tokens_out":0,"cost_usd":0.125,"browser_skill_runs":0}]}`},
		{"?from=2026-01-01T00:00:00Z&to=2026-02-01T00:00:00Z&group_by=model", `{"items":[` +
			`{"model":"small","runs":1,"tokens_in":1,"tokens_out":2,"cost_usd":2,"browser_skill_runs":0},` +
			`{"model":"large","runs":1,"tokens_in":300,"tokens_out":30,"cost_usd":0.75,"browser_skill_runs":0},` +
			`{"model":"embed","runs":0,"tokens_in":7,"tokens_out":0,"cost_usd":0.125,"browser_skill_runs":0},` +
			`{"model":"","runs":1,"tokens_in":0,"tokens_out":0,"cost_usd":0,"browser_skill_runs":1}]}`},
		{"?from=2026-01-01T00:00:00Z&to=2026-02-01T00:00:00Z&group_by=kind", `{"items":[` +
			`{"kind":"llm","runs":2,"tokens_in":301,"tokens_out":32,"cost_usd":2.75,"browser_skill_runs":0},` +
			`{"kind":"embedding","runs":0,"tokens_in":7,"tokens_out":0,"cost_usd":0.125,"browser_skill_runs":0},` +
			`{"kind":"browser_skill_run","runs":1,"tokens_in":0,"tokens_out":0,"cost_usd":0,"browser_skill_runs":1}]}`},
		{"?to=2026-01-31T23:59:59Z", `{"items":[` + // 30 days back from to
			`{"day":"2026-01-03","runs":0,"tokens_in":7,"tokens_out":0,"cost_usd":0.125,"browser_skill_runs":0},` +
			`{"day":"2026-01-02","runs":2,"tokens_in":201,"tokens_out":22,"cost_usd":2.25,"browser_skill_runs":1},` +
			`{"day":"2026-01-01","runs":1,"tokens_in":100,"tokens_out":10,"cost_usd":0.5,"browser_skill_runs":0}]}`},
		{"?to=2026-02-02T00:00:01Z", `{"items":[]}`},
	} {
		want := strings.NewReplacer("{agent}", w.a.agent.String(), "{draft}", w.a.draft.String()).Replace(c.want)
		got := w.call(w.a, "GET", "/v1/usage"+c.query, "")
		if got.status != 200 || got.body != want {
			t.Errorf("%s: %d %s\nwant %s", c.query, got.status, got.body, want)
		}
		if err := described.conforms("GET", "/v1/usage", got); err != nil {
			t.Errorf("%s: the document says otherwise: %v", c.query, err)
		}
	}
	for query, want := range map[string][]string{
		"":                                     {"embedding", "browser_skill_run", "llm", "llm", "llm"},
		"?kind=llm":                            {"llm", "llm", "llm"},
		"?run_id=" + run.String():              {"browser_skill_run", "llm", "llm"},
		"?kind=llm&run_id=" + run.String():     {"llm", "llm"},
		"?run_id=" + id.NewAnywhere().String(): nil,
	} {
		var kinds []string
		cursor := ""
		for range 9 {
			sep := "?"
			if query != "" {
				sep = "&"
			}
			got := w.call(w.a, "GET", "/v1/usage/records"+query+sep+"limit=2&cursor="+cursor, "")
			if err := described.conforms("GET", "/v1/usage/records", got); err != nil {
				t.Errorf("%s: the document says otherwise: %v\n%s", query, err, got.body)
			}
			items, _ := got.get("items").([]any)
			for _, it := range items {
				kinds = append(kinds, it.(map[string]any)["kind"].(string))
			}
			next, more := got.get("next_cursor").(string)
			if !more {
				break
			}
			cursor = next
		}
		if !slices.Equal(kinds, want) {
			t.Errorf("%s: %v, want %v", query, kinds, want)
		}
	}
	got := w.call(w.a, "GET", "/v1/usage/records?kind=browser_skill_run", "")
	if fmt.Sprint(got.get("items.0.detail.screenshots")) != "2" || got.get("items.0.run_id") != run.String() || got.get("items.0.at") != "2026-01-02T13:00:00Z" {
		t.Errorf("%s", got.body)
	}

	// The audit log by time: since is inclusive, until is not.
	for i := range 4 {
		_, err := w.admin.Exec(t.Context(), `INSERT INTO audit_log (tenant_id, id, at, actor, action, target_kind, target_id) VALUES ($1, $2, $3, 'system', $4, 'thing', $5)`,
			w.a.tenant, id.NewAnywhere(), time.Date(2026, 1, 1, i, 0, 0, 0, time.UTC), fmt.Sprint("thing.", i), id.NewAnywhere())
		w.must(err)
	}
	for query, want := range map[string]string{
		"since=2026-01-01T01:00:00Z&until=2026-01-01T03:00:00Z":        "thing.2 thing.1",
		"until=2026-01-01T01:00:00Z":                                   "thing.0",
		"actor=system&action=thing.3":                                  "thing.3",
		"actor=nobody&action=thing.3":                                  "",
		"since=2026-01-01T05:00:00%2B02:00&until=2026-02-01T00:00:00Z": "thing.3",
	} {
		got := w.call(w.a, "GET", "/v1/audit?"+query, "")
		items, _ := got.get("items").([]any)
		var actions []string
		for _, it := range items {
			actions = append(actions, it.(map[string]any)["action"].(string))
		}
		if strings.Join(actions, " ") != want {
			t.Errorf("%s: %v, want %s", query, actions, want)
		}
	}
	if got := w.call(w.b, "GET", "/v1/audit?action=thing.1", ""); got.get("next_cursor") != nil || len(got.get("items").([]any)) != 0 {
		t.Errorf("another tenant's log is shown: %s", got.body)
	}
}
