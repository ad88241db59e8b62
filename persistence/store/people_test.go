package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"agentsvc/persistence/pgtest"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/tool"
)

// human creates a user whose password has that hash.
func (w *world) human(t *testing.T, tenant id.TenantID, email string, role lifecycle.Role, hash string) (u id.UserID) {
	t.Helper()
	w.change(t, tenant, func(ctx context.Context, tx *Tx) error {
		made, err := tx.CreateUser(ctx, NewUser{Email: email, Name: "x", Role: role, PasswordHash: &hash})
		if err == nil {
			u = made.ID
		}
		return err
	})
	return u
}

func (w *world) orgNode(t *testing.T, tenant id.TenantID, parent *id.NodeID) (n id.NodeID) {
	t.Helper()
	w.change(t, tenant, func(ctx context.Context, tx *Tx) error {
		made, err := tx.CreateNode(ctx, &api.OrgNodeCreate{Name: "n", ParentID: parent})
		if err == nil {
			n = made.ID
		}
		return err
	})
	return n
}

// The managers of a node are those listed on it or on a node above it.
func TestManagers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	top := w.orgNode(t, w.a, nil)
	left, right := w.orgNode(t, w.a, &top), w.orgNode(t, w.a, &top)
	leaf := w.orgNode(t, w.a, &left)
	alone := w.orgNode(t, w.a, nil)
	names := map[id.NodeID]string{top: "top", left: "left", right: "right", leaf: "leaf", alone: "alone"}
	chief := w.human(t, w.a, "chief@example.com", lifecycle.RoleMember, "h")
	lead := w.human(t, w.a, "lead@example.com", lifecycle.RoleMember, "h")
	both := w.human(t, w.a, "both@example.com", lifecycle.RoleMember, "h")
	none := w.human(t, w.a, "none@example.com", lifecycle.RoleMember, "h")
	for u, nodes := range map[id.UserID][]id.NodeID{chief: {top}, lead: {left}, both: {leaf, alone, left}} {
		for _, n := range nodes {
			w.change(t, w.a, func(ctx context.Context, tx *Tx) error { return tx.AddManager(ctx, n, u) })
		}
	}
	for _, c := range []struct {
		who  string
		user id.UserID
		want string
	}{
		{"of the top", chief, "leaf left right top"},
		{"of a node in the middle", lead, "leaf left"},
		{"of several nodes, one below another", both, "alone leaf left"},
		{"of nothing", none, ""},
		{"nobody", id.UserID{UUID: id.NewAnywhere()}, ""},
	} {
		managed, err := w.View(w.a).ManagedNodes(t.Context(), c.user)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, n := range managed {
			got = append(got, names[n])
		}
		slices.Sort(got)
		if strings.Join(got, " ") != c.want {
			t.Errorf("a manager %s manages %v, want %s", c.who, got, c.want)
		}
		for n, name := range names {
			manages, err := w.View(w.a).Manages(t.Context(), c.user, n)
			if err != nil || manages != slices.Contains(got, name) {
				t.Errorf("a manager %s: %s: %v %v", c.who, name, manages, err)
			}
			// Another tenant sees none of it.
			if manages, err := w.View(w.b).Manages(t.Context(), c.user, n); manages || err != nil {
				t.Errorf("from another tenant: %v %v", manages, err)
			}
		}
		if managed, err := w.View(w.b).ManagedNodes(t.Context(), c.user); len(managed) != 0 || err != nil {
			t.Errorf("from another tenant: %v %v", managed, err)
		}
	}
	if manages, err := w.View(w.a).Manages(t.Context(), chief, id.NodeID{UUID: id.NewAnywhere()}); manages || err != nil {
		t.Errorf("an unknown node: %v %v", manages, err)
	}
	// A moved node has the managers of its new place.
	w.change(t, w.a, func(ctx context.Context, tx *Tx) error {
		_, err := tx.UpdateNode(ctx, leaf, &api.OrgNodePatch{ParentID: api.Some(right)})
		return err
	})
	if manages, err := w.View(w.a).Manages(t.Context(), lead, leaf); manages || err != nil {
		t.Errorf("the manager of the old place: %v %v", manages, err)
	}
	// A removed user manages nothing.
	w.change(t, w.a, func(ctx context.Context, tx *Tx) error { return tx.DeleteUser(ctx, chief, lifecycle.RoleAdmin) })
	if managed, err := w.View(w.a).ManagedNodes(t.Context(), chief); len(managed) != 0 || err != nil {
		t.Errorf("a removed user: %v %v", managed, err)
	}
}

// Two moves that are valid alone but a cycle together: one fails.
func TestTwoMovesMakeNoCycle(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for range 10 {
		one, two := w.orgNode(t, w.a, nil), w.orgNode(t, w.a, nil)
		var errs [2]error
		var wg sync.WaitGroup
		for i, move := range [][2]id.NodeID{{one, two}, {two, one}} {
			wg.Go(func() {
				errs[i] = w.try(t, w.a, func(ctx context.Context, tx *Tx) error {
					_, err := tx.UpdateNode(ctx, move[0], &api.OrgNodePatch{ParentID: api.Some(move[1])})
					return err
				})
			})
		}
		wg.Wait()
		if (errs[0] == nil) == (errs[1] == nil) || !isCode(errors.Join(errs[:]...), problem.CodeValidation) {
			t.Fatal(errs)
		}
	}
}

// A grant on the highest of 100 nodes counts for an agent on the lowest, and no node is deeper.
func TestNodesAreNoDeeperThanGrantsReach(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var line, pair []id.NodeID // each below the one before
	grow := func(nodes *[]id.NodeID, n int) {
		t.Helper()
		w.change(t, w.a, func(ctx context.Context, tx *Tx) error {
			for range n {
				var parent *id.NodeID
				if len(*nodes) > 0 {
					parent = &(*nodes)[len(*nodes)-1]
				}
				made, err := tx.CreateNode(ctx, &api.OrgNodeCreate{Name: "n", ParentID: parent})
				if err != nil {
					return err
				}
				*nodes = append(*nodes, made.ID)
			}
			return nil
		})
	}
	grow(&line, maxLevels)
	grow(&pair, 2)
	low := line[maxLevels-1]
	w.change(t, w.a, func(ctx context.Context, tx *Tx) error {
		s, err := tx.server(ctx, "orders")
		if err != nil {
			return err
		}
		_, err = tx.CreateGrant(ctx, &api.ToolGrantCreate{Source: api.ToolSource(tool.MCP), MCPServerID: &s, ToolPattern: "*", Effect: tool.Deny, NodeID: &line[0]})
		return err
	})
	a := pgtest.Agent(t, w.db.Admin(t), w.a)
	if _, err := w.db.Admin(t).Exec(t.Context(), `UPDATE agents SET node_id = $2 WHERE id = $1`, a, low); err != nil {
		t.Fatal(err)
	}
	access, err := w.View(w.a).Access(t.Context(), a)
	if err != nil || len(access.Chain) != maxLevels || len(access.Grants) != 1 || access.Grants[0].Effect != tool.Deny {
		t.Errorf("%+v, %v", access, err)
	}
	move := func(n, under id.NodeID) error {
		return w.try(t, w.a, func(ctx context.Context, tx *Tx) error {
			return second(tx.UpdateNode(ctx, n, &api.OrgNodePatch{ParentID: api.Some(under)}))
		})
	}
	for what, err := range map[string]error{
		"a node below the lowest": w.try(t, w.a, func(ctx context.Context, tx *Tx) error {
			return second(tx.CreateNode(ctx, &api.OrgNodeCreate{Name: "n", ParentID: &low}))
		}),
		"a node that is moved there":        move(pair[1], low),
		"a node with one below it":          move(pair[0], line[maxLevels-2]),
		"the whole line below another node": move(line[0], pair[1]),
	} {
		if !isCode(err, problem.CodeValidation) || !strings.Contains(err.Error(), "parent_id: ") || !strings.Contains(err.Error(), "100") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := move(pair[0], line[maxLevels-3]); err != nil {
		t.Errorf("the deepest place of two: %v", err)
	}
	// Nodes that are too deep already can be changed, and moved up.
	if _, err := w.db.Admin(t).Exec(t.Context(), `UPDATE org_nodes SET parent_id = $2 WHERE id = $1`, pair[0], low); err != nil {
		t.Fatal(err)
	}
	if err := w.try(t, w.a, func(ctx context.Context, tx *Tx) error {
		return second(tx.UpdateNode(ctx, pair[1], &api.OrgNodePatch{Name: ptr("New")}))
	}); err != nil {
		t.Errorf("a rename: %v", err)
	}
	if err := move(pair[1], line[0]); err != nil {
		t.Errorf("a move up: %v", err)
	}
}

// A node cannot be deleted while something refers to it.
func TestANodeInUse(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.orgNode(t, w.a, nil)
	remove := func() error {
		return w.try(t, w.a, func(ctx context.Context, tx *Tx) error { return tx.DeleteNode(ctx, n) })
	}
	sys := w.db.System(t)
	server := id.NewAnywhere()
	if _, err := sys.Exec(t.Context(), "INSERT INTO mcp_servers (tenant_id, id, slug, name, transport, endpoint, auth_kind) VALUES ($1, $2, 's', 's', 'http', 'https://x.example', 'none')", w.a, server); err != nil {
		t.Fatal(err)
	}
	for what, sql := range map[string][2]string{
		"a child":      {"INSERT INTO org_nodes (tenant_id, id, name, parent_id) VALUES ($1, $3, 'x', $2)", "DELETE FROM org_nodes WHERE tenant_id = $1 AND id = $2"},
		"an agent":     {"INSERT INTO agents (tenant_id, id, slug, name, node_id) VALUES ($1, $3, 'x', 'x', $2)", "DELETE FROM agents WHERE tenant_id = $1 AND id = $2"},
		"a connection": {"INSERT INTO connections (tenant_id, id, mcp_server_id, name, credentials, node_id) SELECT $1, $3, id, 'x', '', $2 FROM mcp_servers", "DELETE FROM connections WHERE tenant_id = $1 AND id = $2"},
		"a grant":      {"INSERT INTO tool_grants (tenant_id, id, source, tool_pattern, effect, node_id) VALUES ($1, $3, 'builtin', '*', 'allow', $2)", "DELETE FROM tool_grants WHERE tenant_id = $1 AND id = $2"},
	} {
		x := id.NewAnywhere()
		if _, err := sys.Exec(t.Context(), sql[0], w.a, n, x); err != nil {
			t.Fatal(what, err)
		}
		if err := remove(); !isCode(err, problem.CodeInUse) {
			t.Errorf("%s: %v", what, err)
		}
		if _, err := sys.Exec(t.Context(), sql[1], w.a, x); err != nil {
			t.Fatal(what, err)
		}
	}
	u := w.human(t, w.a, "m@example.com", lifecycle.RoleMember, "h")
	w.change(t, w.a, func(ctx context.Context, tx *Tx) error { return tx.AddManager(ctx, n, u) })
	if err := remove(); err != nil {
		t.Errorf("managers keep it: %v", err)
	}
}

// A node cannot be deleted while its managers, or those above it, may still have to decide, wherever the agent or the workflow has moved.
func TestANodeWhoseManagersDecide(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	pool := w.db.Admin(t)
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := pool.Exec(t.Context(), sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	top := w.orgNode(t, w.a, nil)
	remove := func(n id.NodeID) error {
		return w.try(t, w.a, func(ctx context.Context, tx *Tx) error { return tx.DeleteNode(ctx, n) })
	}
	var agent id.AgentID
	var flow id.WorkflowID
	w.change(t, w.a, func(ctx context.Context, tx *Tx) error {
		a, err := tx.CreateAgent(ctx, &api.AgentCreate{Name: "A"})
		if err != nil {
			return err
		}
		f, err := tx.CreateWorkflow(ctx, &api.WorkflowCreate{Name: "F"})
		if err != nil {
			return err
		}
		agent, flow = a.ID, f.ID
		return nil
	})

	low, beside := w.orgNode(t, w.a, &top), w.orgNode(t, w.a, &top)
	a := openApproval(t, pool, w.a, opened{run: id.RunID{UUID: id.NewAnywhere()}, agent: agent, assignee: lifecycle.RoleManager, risk: lifecycle.RiskHigh, node: &low})
	if err := remove(low); !isCode(err, problem.CodeInUse) {
		t.Errorf("a pending approval was opened under it: %v", err)
	}
	if err := remove(beside); err != nil {
		t.Errorf("no approval was opened under it: %v", err)
	}
	exec(`UPDATE approvals SET status = 'rejected', decision = 'reject', decided_at = now() WHERE id = $1`, a)
	if err := remove(low); err != nil {
		t.Errorf("the approval is decided: %v", err)
	}

	low, beside = w.orgNode(t, w.a, &top), w.orgNode(t, w.a, &top)
	run := id.NewAnywhere()
	exec(`INSERT INTO runs (tenant_id, id, status, workflow_id, origin_kind, origin_id, created_at) VALUES ($1, $2, 'running', $3, 'user', $1, now())`, w.a, run, flow)
	exec(`INSERT INTO workflow_runs (tenant_id, id, workflow_version, test, node_id, owes) VALUES ($1, $2, 1, false, $3, false)`, w.a, run, low)
	if err := remove(low); !isCode(err, problem.CodeInUse) {
		t.Errorf("a run of a workflow that has not ended began under it: %v", err)
	}
	if err := remove(beside); err != nil {
		t.Errorf("no run began under it: %v", err)
	}
	exec(`UPDATE runs SET status = 'succeeded', finished_at = now() WHERE id = $1`, run)
	if err := remove(low); err != nil {
		t.Errorf("the run has ended: %v", err)
	}
}

// Archived agents and workflows, which no route shows, do not keep their org node or those above it.
func TestANodeOfWhatIsArchived(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	top := w.orgNode(t, w.a, nil)
	low := w.orgNode(t, w.a, &top)
	var agent id.AgentID
	var flow id.WorkflowID
	w.change(t, w.a, func(ctx context.Context, tx *Tx) error {
		a, err := tx.CreateAgent(ctx, &api.AgentCreate{Name: "A", NodeID: &low})
		if err != nil {
			return err
		}
		f, err := tx.CreateWorkflow(ctx, &api.WorkflowCreate{Name: "F", NodeID: &low})
		if err != nil {
			return err
		}
		agent, flow = a.ID, f.ID
		return nil
	})
	remove := func(n id.NodeID) error {
		return w.try(t, w.a, func(ctx context.Context, tx *Tx) error { return tx.DeleteNode(ctx, n) })
	}
	on := func() (nodes []*id.NodeID) {
		t.Helper()
		rows, err := w.db.System(t).Query(t.Context(), "SELECT node_id FROM agents WHERE id = $1 UNION ALL SELECT node_id FROM workflows WHERE id = $2", agent, flow)
		if err != nil {
			t.Fatal(err)
		}
		if nodes, err = pgx.CollectRows(rows, pgx.RowTo[*id.NodeID]); err != nil {
			t.Fatal(err)
		}
		return nodes
	}
	for _, archive := range []func(ctx context.Context, tx *Tx) error{
		func(ctx context.Context, tx *Tx) error { return second(tx.ArchiveAgent(ctx, agent)) },
		func(ctx context.Context, tx *Tx) error { return tx.ArchiveWorkflow(ctx, flow) },
	} {
		if err := remove(low); !isCode(err, problem.CodeInUse) {
			t.Errorf("what is not archived stands on it: %v", err)
		}
		for _, n := range on() {
			if n == nil || *n != low {
				t.Fatalf("after a refusal it is on %v", n)
			}
		}
		w.change(t, w.a, archive)
	}
	if err := remove(low); err != nil {
		t.Fatal(err)
	}
	for _, n := range on() {
		if n == nil || *n != top {
			t.Errorf("it is on %v, not on the node above", n)
		}
	}
	if err := remove(top); err != nil {
		t.Fatal(err)
	}
	for _, n := range on() {
		if n != nil {
			t.Errorf("it is on %v after all are gone", n)
		}
	}
}

// The directory reads every tenant; all other queries read their own.
func TestPeopleOfOtherTenants(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	u := w.human(t, w.a, "Kim@Example.com", lifecycle.RoleMember, "hash a")
	w.human(t, w.b, "kim@example.COM", lifecycle.RoleAdmin, "hash b")
	w.change(t, w.b, func(ctx context.Context, tx *Tx) error { // cannot log in with a password
		_, err := tx.CreateUser(ctx, NewUser{Email: "lee@example.com", Role: lifecycle.RoleMember})
		return err
	})
	d := NewDirectory(w.db.System(t))
	for email, want := range map[string]string{"KIM@example.com": "hash a hash b", "lee@example.com": "", "kim@example.co": "", "%": ""} {
		found, err := d.Find(t.Context(), email)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, f := range found {
			got = append(got, f.PasswordHash)
		}
		slices.Sort(got)
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %v", email, got)
		}
	}
	n := w.orgNode(t, w.a, nil)
	for what, err := range map[string]error{
		"change a user": w.try(t, w.b, func(ctx context.Context, tx *Tx) error {
			_, err := tx.UpdateUser(ctx, u, lifecycle.RoleOwner, UserChange{})
			return err
		}),
		"remove a user": w.try(t, w.b, func(ctx context.Context, tx *Tx) error { return tx.DeleteUser(ctx, u, lifecycle.RoleOwner) }),
		"change a node": w.try(t, w.b, func(ctx context.Context, tx *Tx) error {
			_, err := tx.UpdateNode(ctx, n, &api.OrgNodePatch{})
			return err
		}),
		"remove a node": w.try(t, w.b, func(ctx context.Context, tx *Tx) error { return tx.DeleteNode(ctx, n) }),
		"manage a node": w.try(t, w.b, func(ctx context.Context, tx *Tx) error { return tx.AddManager(ctx, n, u) }),
		"unmanage it":   w.try(t, w.b, func(ctx context.Context, tx *Tx) error { return tx.RemoveManager(ctx, n, u) }),
		"a link to Kim": w.try(t, w.a, func(ctx context.Context, tx *Tx) error {
			_, _, err := tx.CreateLink(ctx, "nobody@example.com")
			return err
		}),
		"a user's fields": func() error {
			_, err := w.View(w.b).User(t.Context(), u)
			return err
		}(),
	} {
		if !isCode(err, problem.CodeNotFound) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if hash, err := w.View(w.b).PasswordHash(t.Context(), u); hash != nil || err != nil {
		t.Errorf("another tenant's hash: %v %v", hash, err)
	}
	if s, err := w.View(w.b).Session(t.Context(), id.SessionID{UUID: id.NewAnywhere()}); s != nil || err != nil {
		t.Errorf("%v %v", s, err)
	}
}

// A session begins while its user's password changes: the change ends it, or it sees the new
// password, whichever commits first.
func TestASessionAndANewPasswordAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	now := time.Now()
	sessions := func() int { return w.count(t, "SELECT count(*)::int FROM sessions") }
	for _, first := range []string{"password", "session", "removal"} {
		u := w.human(t, w.a, first+"@example.com", lifecycle.RoleMember, "old")
		old := "old"
		begin := func(ctx context.Context, tx *Tx) (ok bool, err error) {
			_, ok, err = tx.CreateSession(ctx, u, &old, "password", now)
			return ok, err
		}
		end := func(ctx context.Context, tx *Tx) error {
			if first == "removal" {
				return tx.DeleteUser(ctx, u, lifecycle.RoleAdmin)
			}
			hash := "new"
			_, err := tx.UpdateUser(ctx, u, lifecycle.RoleAdmin, UserChange{PasswordHash: &hash})
			return err
		}
		done := make(chan error, 1)
		begun := false
		w.change(t, w.a, func(ctx context.Context, tx *Tx) error {
			if first == "session" {
				if ok, err := begin(ctx, tx); !ok {
					return fmt.Errorf("no session: %w", err)
				}
			} else if err := end(ctx, tx); err != nil {
				return err
			}
			go func() {
				done <- w.try(t, w.a, func(ctx context.Context, tx *Tx) (err error) {
					if first == "session" {
						return end(ctx, tx)
					}
					begun, err = begin(ctx, tx)
					return err
				})
			}()
			// The other one waits for this one's lock.
			pgtest.Blocked(t, w.db.Admin(t))
			return nil
		})
		if err := <-done; err != nil || begun || sessions() != 0 {
			t.Errorf("%s first: %v, began %v, %d sessions", first, err, begun, sessions())
		}
	}
}

// A token is parsed only from exactly the output of Text.
func FuzzToken(f *testing.F) {
	f.Add(mintToken(id.TenantID{UUID: id.NewAnywhere()}).Text())
	f.Add("")
	f.Add(strings.Repeat("A", tokenText+1))
	f.Add(strings.Repeat("A", tokenText) + "B") // unused bits are set
	f.Add(strings.Repeat("A", tokenText) + "\n")
	f.Fuzz(func(t *testing.T, text string) {
		k, ok := ParseToken(text)
		if ok && k.Text() != text {
			t.Errorf("%q is parsed as %q", text, k.Text())
		}
		if !ok && k != (Token{}) {
			t.Errorf("a refused %q returns a token", text)
		}
	})
}

func TestTokens(t *testing.T) {
	t.Parallel()
	one, two := mintToken(id.TenantID{UUID: id.NewAnywhere()}), mintToken(id.TenantID{UUID: id.NewAnywhere()})
	hash, other := one.Hash(), two.Hash()
	read, ok := ParseToken(one.Text())
	if !ok || read != one || !read.Fits(hash[:]) || read.Fits(other[:]) || read.Fits(nil) || one.secret == two.secret {
		t.Error("the parsed token differs from the written one")
	}
	if text := fmt.Sprintf("%v %+v %s", one, one, one); text != "[redacted] [redacted] [redacted]" {
		t.Error(text)
	}
}
