package platform

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"agentsvc/persistence/store"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
)

const console = "https://Console.example:443"

// clock is the clock of the sessions: the real time, shifted.
type clock struct{ shift atomic.Int64 }

func (c *clock) now() time.Time { return time.Now().Add(time.Duration(c.shift.Load())) }

func (c *clock) move(d time.Duration) { c.shift.Add(int64(d)) }

// endings records the sessions whose end was announced.
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

// logins is the directory, with buckets of a given size.
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

// cheap is a hash of goodPassword with low costs, so that the tests stay fast.
const cheap = "$argon2id$v=19$m=8,t=1,p=1$AAAAAAAAAAAAAAAAAAAAAA$COasZSyMm5hc6dqbItVb+IZaGwOa3IHiB0qT62pEreo"

// human is a user with a password.
type human struct {
	party
	id    id.UserID
	email string
}

// newHuman creates a user with goodPassword.
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

// login returns the response to a login, and the cookie's value.
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

// enter logs in a user and returns the cookie.
func (w *world) enter(h human) string {
	w.t.Helper()
	got, cookie := w.login(fmt.Sprintf(`{"email": %q, "password": %q, "tenant_id": %q}`, h.email, goodPassword, h.tenant))
	if got.status != 200 || cookie == "" {
		w.t.Fatalf("%d %s", got.status, got.body)
	}
	return cookie
}

// send makes a request with a cookie and header pairs only.
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

// The routes of people, nodes, audit and usage with an API key, one row after the other.
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
		{"usage from later than to", "GET", "/v1/usage?from=2026-02-01T00:00:00Z&to=2026-01-01T00:00:00Z", "", 400, "VALIDATION", "from: must not be later than to", ""},
		{"usage from what is no time", "GET", "/v1/usage?from=2026", "", 400, "VALIDATION", "from", ""},
		{"records of nothing", "GET", "/v1/usage/records", "", 200, "", `{"items":[],"next_cursor":null}`, ""},
		{"records of an unknown kind", "GET", "/v1/usage/records?kind=x", "", 400, "VALIDATION", "kind", ""},
		{"records of what is no run", "GET", "/v1/usage/records?run_id=x", "", 400, "VALIDATION", "run_id", ""},
	}, "argon2id", "twelve chars", "another password")
}

// Roles: member < admin < owner; a key acts as admin.
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
		want                     [4]int // member, admin, owner, key; each has a new target
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
		{"the overview", "GET", "/v1/overview", "", [4]int{200, 200, 200, 200}},
		{"stats", "GET", "/v1/stats", "", [4]int{200, 200, 200, 200}},
		{"the feed", "GET", "/v1/feed", "", [4]int{200, 200, 200, 200}},
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
	// Two owners demote each other at the same time: one stays.
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
		// The owner who was demoted first may have lost the role before the second call was
		// checked.
		if owners != 1 || !slices.Contains([]string{"LAST_OWNER", "FORBIDDEN"}, codes[0]+codes[1]) {
			t.Fatalf("%d owners, answers %q", owners, codes)
		}
		_, err := w.admin.Exec(t.Context(), "UPDATE users SET role = 'owner' WHERE tenant_id = $1 AND id = $2", w.a.tenant, w.a.owner)
		w.must(err)
		_, err = w.admin.Exec(t.Context(), "DELETE FROM users WHERE tenant_id = $1 AND id = $2", w.a.tenant, second.id)
		w.must(err)
	}
}
