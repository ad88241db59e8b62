package platform

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"agentsvc/actors/approval"
	"agentsvc/actors/durable"
	"agentsvc/cluster"
	"agentsvc/cluster/clustertest"
	"agentsvc/persistence/engine"
	"agentsvc/persistence/journal"
	"agentsvc/persistence/journal/journaltest"
	"agentsvc/persistence/vault"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/testkit"
	"agentsvc/schemas/tool"
	"agentsvc/transport/edge"
)

// opened is the approval of a run that waits for nothing else.
type opened struct {
	assignee lifecycle.Role
	required int
	risk     lifecycle.Risk
	agent    id.AgentID
	node     *id.NodeID
	run      id.RunID
	expires  time.Time
}

const (
	frozenArgs = `{"order":7,"amount":30,"card_token":"hidden-card-77","note":"hidden-note-77"}`
	shownArgs  = `{"order":7,"amount":30,"card_token":"[redacted]","note":"[redacted]"}`
	argsSchema = `{"type":"object","required":["order"],"properties":{"order":{"type":"integer"},"amount":{"type":"number","maximum":50}}}`
)

// newApproval creates an approval of p; change may alter it first.
func (w *world) newApproval(p party, change func(o *opened)) id.ApprovalID {
	w.t.Helper()
	o := opened{assignee: lifecycle.RoleAdmin, required: 1, risk: lifecycle.RiskMedium, agent: p.agent, run: id.RunID{UUID: id.New(5)}, expires: time.Now().Add(time.Hour)}
	if change != nil {
		change(&o)
	}
	a := id.ApprovalID{UUID: id.New(o.run.Shard())}
	frozen, err := vault.New(vault.NewSecret32([32]byte{1})).Seal(engine.FrozenAt(p.tenant, a), []byte(frozenArgs))
	w.must(err)
	digest := tool.Digest([]byte(frozenArgs))
	for _, q := range []struct {
		sql  string
		args []any
	}{
		{`INSERT INTO runs (tenant_id, id, status, agent_id, agent_version, input, origin_kind, origin_id, created_at, started_at, steps)
			VALUES ($1, $2, 'waiting_approval', $3, 1, '"hi"', 'api_key', $4, now(), now(), 1)`, []any{p.tenant, o.run, o.agent, p.key}},
		{`INSERT INTO run_steps (tenant_id, run_id, idx, kind, name, status, began_seq, started_at) VALUES ($1, $2, 0, 'tool', 'orders.refund', 'waiting', 2, now())`, []any{p.tenant, o.run}},
		{`INSERT INTO approvals (tenant_id, id, run_id, step_idx, agent_id, node_id, risk, assignee_role, required_approvals, tool, args, schema, frozen, digest,
			reasoning_summary, policy, on_timeout, expires_at, created_at, updated_at)
			VALUES ($1, $2, $3, 0, $4, $5, $6, $7, $8, 'orders.refund', $9, $10, $11, $12, 'because', '{"id":null,"name":"autonomy","kind":"option"}', 'reject', $13, now(), now())`,
			[]any{p.tenant, a, o.run, o.agent, o.node, o.risk, o.assignee, o.required, shownArgs, argsSchema, []byte(frozen), digest[:], o.expires}},
		{`INSERT INTO timers (tenant_id, kind, entity_id, name, due_at) VALUES ($1, 'approval', $2, 'expire', $3)`, []any{p.tenant, a, o.expires}},
	} {
		_, err := w.admin.Exec(w.t.Context(), q.sql, q.args...)
		w.must(err)
	}
	return a
}

// desk sends the approval routes' messages to the real approval actors.
type desk struct {
	*actors
	node *cluster.Node
	mu   sync.Mutex                  // guards fail
	fail func(a id.ApprovalID) error // the error for a message before it is sent
}

func (d *desk) Ask(ctx context.Context, kind string, t id.TenantID, to id.UUID, order any) (any, error) {
	if kind != msg.KindApproval {
		return d.actors.Ask(ctx, kind, t, to, order)
	}
	d.mu.Lock()
	fail := d.fail
	d.mu.Unlock()
	if fail != nil {
		if err := fail(id.ApprovalID{UUID: to}); err != nil {
			return nil, err
		}
	}
	return d.node.Ask(ctx, cluster.Address{Kind: kind, Tenant: t, ID: to}, order)
}

func (d *desk) failing(f func(a id.ApprovalID) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fail = f
}

// silentRuns drops the messages to runs.
type silentRuns struct{}

func (silentRuns) Tell(cluster.Address, any) {}

func (w *world) withDesk() *desk {
	w.t.Helper()
	writer := journaltest.Writer(w.t, w.db, journal.Config{Tables: engine.Tables})
	d := &desk{actors: w.actors, node: clustertest.Node()}
	durable.Register(d.node, writer, approval.New(approval.Config{Store: engine.New(w.actors.pool), Vault: vault.New(vault.NewSecret32([32]byte{1})), Tell: silentRuns{},
		Seal: w.Store.SealAnswer, Log: zerolog.Nop()}), durable.Config{})
	testkit.Start(w.t, d.node)
	w.Actors = d
	return d
}

// someone creates a person of a, with a session.
func (w *world) someone(role lifecycle.Role) (cookie string, user id.UserID) {
	w.t.Helper()
	user = id.UserID{UUID: id.NewAnywhere()}
	_, err := w.admin.Exec(w.t.Context(), `INSERT INTO users (tenant_id, id, email, name, role) VALUES ($1, $2, $3, 'N', $4)`, w.a.tenant, user, user.String()+"@example.com", role)
	w.must(err)
	return string(role) + "/" + user.String(), user
}

// newNode creates an org node of a.
func (w *world) newNode(parent *id.NodeID, managers ...id.UserID) id.NodeID {
	w.t.Helper()
	n := id.NodeID{UUID: id.NewAnywhere()}
	_, err := w.admin.Exec(w.t.Context(), `INSERT INTO org_nodes (tenant_id, id, name, parent_id) VALUES ($1, $2, 'N', $3)`, w.a.tenant, n, parent)
	w.must(err)
	for _, m := range managers {
		_, err := w.admin.Exec(w.t.Context(), `INSERT INTO org_node_managers (tenant_id, node_id, user_id) VALUES ($1, $2, $3)`, w.a.tenant, n, m)
		w.must(err)
	}
	return n
}

func assigned(role lifecycle.Role) func(o *opened) { return func(o *opened) { o.assignee = role } }

// The routes of service.md, Approvals, with the real actors: each row is one case, and the cases
// run in order on one tenant.
func TestApprovalRoutes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.withDesk()
	owners, high := w.newApproval(w.a, assigned(lifecycle.RoleOwner)), w.newApproval(w.a, func(o *opened) { o.risk, o.agent = lifecycle.RiskHigh, w.a.draft })
	two, args := w.newApproval(w.a, func(o *opened) { o.required = 2 }), w.newApproval(w.a, nil)
	late := w.newApproval(w.a, func(o *opened) { o.expires = time.Now().Add(-time.Second) })
	var run string
	w.must(w.admin.QueryRow(t.Context(), "SELECT run_id::text FROM approvals WHERE id = $1", w.a.approval).Scan(&run))
	fill := strings.NewReplacer("{approval}", w.a.approval.String(), "{owners}", owners.String(), "{high}", high.String(), "{two}", two.String(), "{args}", args.String(),
		"{late}", late.String(), "{run}", run, "{agent}", w.a.agent.String(), "{draft}", w.a.draft.String(), "{key}", w.a.key.String(), "{unknown}", id.NewAnywhere().String())
	long := strings.Repeat("é", 4001)
	decision := "/v1/approvals/{approval}/decision"
	w.routes(fill, []route{
		{"read one", "GET", "/v1/approvals/{approval}", "", 200, "", `{"id":"{approval}","run_id":"{run}","agent_id":"{agent}","step_idx":0,"status":"pending","risk":"medium",` +
			`"assignee_role":"admin","required_approvals":1,"approvals_so_far":0,"requested_action":{"tool":"orders.refund","args":` + shownArgs + `,"schema":` + argsSchema +
			`},"reasoning_summary":"because","policy":{"id":null,"name":"autonomy","kind":"option"},"decisions":[],"escalated_at":null,"expires_at":"`, ""},
		{"read an unknown one", "GET", "/v1/approvals/{unknown}", "", 404, "NOT_FOUND", "", ""},
		{"an id that is no UUID", "GET", "/v1/approvals/nonsense", "", 404, "NOT_FOUND", "", ""},
		{"a key reads an owner-assigned one", "GET", "/v1/approvals/{owners}", "", 403, "FORBIDDEN", "", ""},
		{"list", "GET", "/v1/approvals", "", 200, "", `{"items":[{"id":"{late}",`, ""},
		{"list of a run", "GET", "/v1/approvals?run_id={run}", "", 200, "", `{"items":[{"id":"{approval}",`, ""},
		{"list of an agent", "GET", "/v1/approvals?agent_id={draft}", "", 200, "", `{"items":[{"id":"{high}",`, ""},
		{"list of a risk", "GET", "/v1/approvals?risk=high", "", 200, "", `{"items":[{"id":"{high}",`, ""},
		{"list of a status that none has", "GET", "/v1/approvals?status=approved", "", 200, "", `{"items":[]}`, ""},
		{"list of an unknown status", "GET", "/v1/approvals?status=done", "", 400, "VALIDATION", "status", ""},
		{"list of an unknown risk", "GET", "/v1/approvals?risk=some", "", 400, "VALIDATION", "risk", ""},
		{"list of a run that is no UUID", "GET", "/v1/approvals?run_id=x", "", 400, "VALIDATION", "run_id", ""},
		{"list from a cursor that is not ours", "GET", "/v1/approvals?cursor=abc", "", 400, "VALIDATION", "cursor", ""},

		{"no action", "POST", decision, `{}`, 400, "VALIDATION", "action: is required", ""},
		{"an unknown action", "POST", decision, `{"action": "expire"}`, 400, "VALIDATION", "action", ""},
		{"an unknown field", "POST", decision, `{"action": "approve", "force": true}`, 400, "VALIDATION", "force", ""},
		{"edit without edited_args", "POST", decision, `{"action": "edit"}`, 400, "VALIDATION", "edited_args", ""},
		{"edit with edited_args that are no object", "POST", decision, `{"action": "edit", "edited_args": []}`, 400, "VALIDATION", "edited_args", ""},
		{"edit with edited_args null", "POST", decision, `{"action": "edit", "edited_args": null}`, 400, "VALIDATION", "edited_args", ""},
		{"approve with edited_args null", "POST", decision, `{"action": "approve", "edited_args": null}`, 400, "VALIDATION", "edited_args: must not be null", ""},
		{"approve with edited_args", "POST", decision, `{"action": "approve", "edited_args": {}}`, 400, "VALIDATION", "edited_args", ""},
		{"feedback of 4,001 characters", "POST", decision, `{"action": "reject", "feedback": "` + long + `"}`, 400, "VALIDATION", "feedback", ""},
		{"edited_args that break the schema", "POST", decision, `{"action": "edit", "edited_args": {"order": 7, "amount": 51}}`, 422, "INVALID_ARGS", "amount", ""},
		{"edited_args with [redacted] where nothing was", "POST", decision, `{"action": "edit", "edited_args": {"order": 7, "amount": "[redacted]"}}`, 422, "INVALID_ARGS", "amount", ""},
		{"a key decides an owner-assigned one", "POST", "/v1/approvals/{owners}/decision", `{"action": "approve"}`, 403, "FORBIDDEN", "", ""},
		{"decide an unknown one", "POST", "/v1/approvals/{unknown}/decision", `{"action": "approve"}`, 404, "NOT_FOUND", "", ""},
		{"approve", "POST", decision, `{"action": "approve", "feedback": "` + long[:8000] + `"}`, 200, "", `{"status":"approved","approvals_so_far":1}`, "approval.decide"},
		{"approve again", "POST", decision, `{"action": "approve"}`, 409, "ALREADY_DECIDED", "approved", ""},
		{"what was decided", "GET", "/v1/approvals/{approval}", "", 200, "", `"decisions":[{"principal":"apikey:{key}","action":"approve","feedback":"é`, ""},
		{"one of two", "POST", "/v1/approvals/{two}/decision", `{"action": "approve"}`, 200, "", `{"status":"pending","approvals_so_far":1}`, "approval.decide"},
		{"the same principal again", "POST", "/v1/approvals/{two}/decision", `{"action": "reject"}`, 409, "ALREADY_DECIDED", "before", ""},
		{"edit", "POST", "/v1/approvals/{args}/decision", `{"action": "edit", "edited_args": {"order": 7, "amount": 5, "card_token": "[redacted]", "note": "[redacted]"}}`, 200, "",
			`{"status":"edited","approvals_so_far":1}`, "approval.decide"},
		{"what was edited is shown redacted", "GET", "/v1/approvals/{args}", "", 200, "", `"action":"edit","feedback":null,"edited_args":{"order":7,"amount":5,"card_token":"[redacted]","note":"[redacted]"}`, ""},
		{"approve after the SLA has elapsed", "POST", "/v1/approvals/{late}/decision", `{"action": "approve"}`, 409, "ALREADY_DECIDED", "expired", "approval.expired"},
		{"respond", "POST", "/v1/approvals/{high}/decision", `{"action": "respond", "feedback": "not now"}`, 200, "", `{"status":"responded","approvals_so_far":0}`, "approval.decide"},
		{"list of a status", "GET", "/v1/approvals?status=responded", "", 200, "", `{"items":[{"id":"{high}",`, ""},

		{"bulk without ids", "POST", "/v1/approvals/bulk-decision", `{"ids": [], "action": "approve"}`, 400, "VALIDATION", "ids", ""},
		{"bulk edit", "POST", "/v1/approvals/bulk-decision", `{"ids": ["{two}"], "action": "edit"}`, 400, "VALIDATION", "action", ""},
		{"bulk with an id that is no UUID", "POST", "/v1/approvals/bulk-decision", `{"ids": ["x"], "action": "approve"}`, 400, "VALIDATION", "ids", ""},
		{"bulk: each for itself", "POST", "/v1/approvals/bulk-decision", `{"ids": ["{unknown}", "{owners}", "{approval}"], "action": "reject", "feedback": "no"}`, 200, "",
			`{"results":[{"id":"{unknown}","ok":false,"error":{"code":"NOT_FOUND","detail":"There is no such approval in this tenant."}},` +
				`{"id":"{owners}","ok":false,"error":{"code":"FORBIDDEN","detail":"This approval is decided by the role owner."}},` +
				`{"id":"{approval}","ok":false,"error":{"code":"ALREADY_DECIDED","detail":"This approval is approved."}}]}`, ""},
	}, "hidden-card-77", "hidden-note-77")
	if body := w.call(w.a, "GET", "/v1/approvals", "").body; strings.Contains(body, owners.String()) || strings.Contains(body, "next_cursor") {
		t.Errorf("a key sees %s", body)
	}
	if body := w.call(w.b, "GET", "/v1/approvals", "").body; strings.Contains(body, w.a.approval.String()) {
		t.Errorf("another tenant sees %s", body)
	}
}

// open-parts.md, Approvals: a session lists the approvals whose assignee_role it satisfies;
// the others are 403 by id and for a decision.
func TestApprovalVisibility(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.withDesk()
	member, _ := w.someone(lifecycle.RoleMember)
	manager, managerID := w.someone(lifecycle.RoleMember)
	elsewhere, elsewhereID := w.someone(lifecycle.RoleMember)
	admin, _ := w.someone(lifecycle.RoleAdmin)
	top := w.newNode(nil, managerID)
	leaf := w.newNode(&top)
	w.newNode(&top, elsewhereID)
	under := func(node *id.NodeID) func(o *opened) {
		return func(o *opened) { o.assignee, o.node = lifecycle.RoleManager, node }
	}
	kinds := map[string]func(o *opened){"member's": assigned(lifecycle.RoleMember), "manager's": under(&leaf), "manager's of no node": under(nil),
		"admin's": assigned(lifecycle.RoleAdmin), "owner's": assigned(lifecycle.RoleOwner)}
	ask := func(who, method, path, body string) answer {
		if who == "key" {
			return w.call(w.a, method, path, body)
		}
		return w.person(who, method, path, body)
	}
	for name, c := range map[string]struct{ who, sees string }{
		"a member":                      {member, "member's"},
		"a manager of a chain":          {manager, "member's,manager's"},
		"a manager of a node beside it": {elsewhere, "member's"},
		"an admin":                      {admin, "admin's,manager's,manager's of no node,member's"},
		"an owner":                      {"owner", "admin's,manager's,manager's of no node,member's,owner's"},
		"a key":                         {"key", "admin's,manager's,manager's of no node,member's"},
	} {
		for kind, change := range kinds {
			a := w.newApproval(w.a, change)
			sees := slices.Contains(strings.Split(c.sees, ","), kind)
			want, code := 403, "FORBIDDEN"
			if sees {
				want, code = 200, ""
			}
			if listed := strings.Contains(ask(c.who, "GET", "/v1/approvals", "").body, a.String()); listed != sees {
				t.Errorf("%s: the %s is in the list: %v", name, kind, listed)
			}
			path := "/v1/approvals/" + a.String()
			for _, got := range []answer{ask(c.who, "GET", path, ""), ask(c.who, "POST", path+"/decision", `{"action": "approve"}`)} {
				if got.status != want || got.code() != code {
					t.Errorf("%s: the %s: %d %s", name, kind, got.status, got.body)
				}
			}
			other := w.newApproval(w.a, change)
			bulk := ask(c.who, "POST", "/v1/approvals/bulk-decision", `{"ids": ["`+other.String()+`"], "action": "approve"}`)
			if bulk.get("results.0.ok") != sees || bulk.get("results.0.terminal") != map[bool]any{true: "approved"}[sees] {
				t.Errorf("%s: the %s in bulk: %s", name, kind, bulk.body)
			}
		}
	}
}

func TestApprovalsOfDistinctPeople(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.withDesk()
	a := w.newApproval(w.a, func(o *opened) { o.required = 3 })
	path := "/v1/approvals/" + a.String() + "/decision"
	first, _ := w.someone(lifecycle.RoleAdmin)
	for i, c := range []struct{ who, body, status string }{
		{first, `{"action": "approve"}`, "pending"}, {"key", `{"action": "edit", "edited_args": {"order": 8}}`, "pending"}, {"owner", `{"action": "approve"}`, "edited"},
	} {
		var got answer
		if c.who == "key" {
			got = w.call(w.a, "POST", path, c.body)
		} else {
			got = w.person(c.who, "POST", path, c.body)
			if again := w.person(c.who, "POST", path, c.body); again.code() != "ALREADY_DECIDED" {
				t.Errorf("again: %s", again.body)
			}
		}
		if want := fmt.Sprintf(`{"status":%q,"approvals_so_far":%d}`, c.status, i+1); got.status != 200 || got.body != want {
			t.Errorf("%d %s, want %s", got.status, got.body, want)
		}
	}
}

// open-parts.md, Approvals: all API keys of a tenant are one approver: in sequence, concurrently
// and in bulk.
func TestKeysAreOneApprover(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.withDesk()
	colleague := w.a
	made := w.call(w.a, "POST", "/v1/api-keys", `{"name": "second"}`)
	colleague.secret, _ = made.get("secret").(string)
	for range 5 {
		a := w.newApproval(w.a, func(o *opened) { o.required = 2 })
		path := "/v1/approvals/" + a.String() + "/decision"
		var got [2]answer
		var wg sync.WaitGroup
		for i, key := range []party{w.a, colleague} {
			wg.Go(func() { got[i] = w.call(key, "POST", path, `{"action": "approve"}`) })
		}
		wg.Wait()
		if got[0].status == 200 {
			got[0], got[1] = got[1], got[0]
		}
		if got[0].status != 409 || got[0].code() != "ALREADY_DECIDED" || !strings.Contains(got[0].body, "all API keys of a tenant count as one approver") || got[1].body != `{"status":"pending","approvals_so_far":1}` {
			t.Fatalf("two keys at once: %s and %s", got[0].body, got[1].body)
		}
		bulk := w.call(colleague, "POST", "/v1/approvals/bulk-decision", `{"ids": ["`+a.String()+`"], "action": "approve"}`)
		if code := bulk.get("results.0.error.code"); code != "ALREADY_DECIDED" {
			t.Errorf("in bulk: %s", bulk.body)
		}
		if edit := w.call(colleague, "POST", path, `{"action": "edit", "edited_args": {"order": 8}}`); edit.code() != "ALREADY_DECIDED" {
			t.Errorf("an edit: %s", edit.body)
		}
		person, _ := w.someone(lifecycle.RoleAdmin)
		if last := w.person(person, "POST", path, `{"action": "approve"}`); last.body != `{"status":"approved","approvals_so_far":2}` {
			t.Errorf("a person: %s", last.body)
		}
	}
}

// The whole list, and pages of it, newest first.
func TestPagesOfApprovals(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	want := []string{w.a.approval.String()}
	for range 4 {
		want = append(want, w.newApproval(w.a, nil).String())
	}
	slices.Reverse(want)
	ids := func(a answer) (out []string) {
		for i := range 10 {
			if v, ok := a.get(fmt.Sprintf("items.%d.id", i)).(string); ok {
				out = append(out, v)
			}
		}
		return out
	}
	if got := ids(w.call(w.a, "GET", "/v1/approvals", "")); !slices.Equal(got, want) {
		t.Errorf("whole %v\nwant %v", got, want)
	}
	var got []string
	path := "/v1/approvals?limit=2"
	for range 3 {
		page := w.call(w.a, "GET", path, "")
		got = append(got, ids(page)...)
		next, _ := page.get("next_cursor").(string)
		path = "/v1/approvals?limit=2&cursor=" + next
		if more := len(got) < 5; more != (next != "") {
			t.Errorf("after %d: next_cursor %q", len(got), next)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("pages %v\nwant %v", got, want)
	}
}

// The fields of the messages sent to an approval.
func TestMessagesToApprovals(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	path := "/v1/approvals/" + w.a.approval.String() + "/decision"
	if got := w.call(w.a, "POST", path, `{"action": "edit", "edited_args": {"b": 1.0,  "a": []}, "feedback": "so"}`, "Idempotency-Key", "k"); got.status != 200 {
		t.Fatal(got)
	}
	m, ok := w.actors.orders()[0].(msg.Decide)
	if !ok || m.Principal != "apikey:"+w.a.key.String() || m.Role != lifecycle.RoleAdmin || m.Manages || m.Action != lifecycle.ActionEdit || m.Feedback != "so" ||
		string(m.EditedArgs) != `{"b": 1.0,  "a": []}` || m.By != (msg.By{Actor: m.Principal, IP: "127.0.0.1"}) {
		t.Fatalf("%+v", m)
	}
	if i := m.Idempotency; i == nil || i.Status != 200 || i.Response != nil {
		t.Errorf("%+v", i)
	}
	w.call(w.a, "POST", "/v1/approvals/bulk-decision", `{"ids": ["`+w.a.approval.String()+`", "`+id.NewAnywhere().String()+`"], "action": "approve"}`)
	ops := map[id.OpID]bool{{}: true}
	for _, order := range w.actors.orders() {
		if op := order.(msg.Decide).Op; ops[op] {
			t.Errorf("the operation %s is not unique", op)
		} else {
			ops[op] = true
		}
	}
	if len(ops) != 4 {
		t.Errorf("%d operations", len(ops)-1)
	}
}

// open-parts.md: a repeat gets the first response, byte for byte.
func TestRepeatedDecisions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.withDesk()
	two := w.newApproval(w.a, func(o *opened) { o.required = 2 })
	ids, err := json.Marshal([]id.ApprovalID{w.newApproval(w.a, nil), two, w.newApproval(w.a, nil)})
	w.must(err)
	for name, c := range map[string]struct{ path, body, other string }{
		"one":  {"/v1/approvals/" + w.a.approval.String() + "/decision", `{"action": "reject", "feedback": "<no>"}`, `{"action": "approve"}`},
		"bulk": {"/v1/approvals/bulk-decision", `{"ids": ` + string(ids) + `, "action": "approve"}`, `{"ids": ` + string(ids) + `, "action": "reject"}`},
	} {
		before := w.audited(w.a.tenant)["approval.decide"]
		first := w.call(w.a, "POST", c.path, c.body, "Idempotency-Key", "k")
		decided := w.audited(w.a.tenant)["approval.decide"]
		again := w.call(w.a, "POST", c.path, c.body, "Idempotency-Key", "k")
		if first.status != 200 || first.body != again.body || again.header.Get("Idempotency-Replayed") != "true" || decided == before {
			t.Errorf("%s: %d %s\nagain %d %s", name, first.status, first.body, again.status, again.body)
		}
		if n := w.audited(w.a.tenant)["approval.decide"]; n != decided {
			t.Errorf("%s: the repeat decided", name)
		}
		if got := w.call(w.a, "POST", c.path, c.other, "Idempotency-Key", "k"); got.code() != "IDEMPOTENCY_CONFLICT" {
			t.Errorf("%s: with another body: %s", name, got.body)
		}
		if got := w.call(w.a, "POST", c.path, c.body, "Idempotency-Key", "l"); strings.Contains(got.body, `"ok":true`) || name == "one" && got.code() != "ALREADY_DECIDED" {
			t.Errorf("%s: under another key: %s", name, got.body)
		}
	}
	got := w.call(w.a, "GET", "/v1/approvals/"+w.a.approval.String(), "")
	var known bool // the approval records the operation of each decision, but does not show it
	w.must(w.admin.QueryRow(t.Context(), `SELECT decisions -> 0 ->> 'op' IS NOT NULL FROM approvals WHERE id = $1`, w.a.approval).Scan(&known))
	if !known || got.status != 200 || strings.Contains(got.body, `"op"`) {
		t.Errorf("known %t, shown as %s", known, got.body)
	}
}

// overtaken runs the first request with a key just after its repeat has looked for a kept
// response and found none.
type overtaken struct {
	Replays
	mu    sync.Mutex // guards first
	first func()     // runs after the next Find, once
}

func (o *overtaken) next(first func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.first = first
}

func (o *overtaken) Find(ctx context.Context, k edge.IdemKey) (*edge.Stored, error) {
	kept, err := o.Replays.Find(ctx, k)
	o.mu.Lock()
	first := o.first
	o.first = nil
	o.mu.Unlock()
	if first != nil {
		first()
	}
	return kept, err
}

// open-parts.md: a repeat gets the first response, byte for byte, and does nothing, also on
// another node and if the first request commits between the repeat's look-up of a kept response
// and its message to the actor.
func TestRepeatsOvertakenByTheFirstRequest(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.withDesk()
	late := &overtaken{}
	other := w.beside(func(r Replays) edge.Replays {
		late.Replays = r
		return late
	})
	other.withDesk()
	ids, err := json.Marshal([]id.ApprovalID{w.newApproval(w.a, nil), w.newApproval(w.a, nil)})
	w.must(err)
	two := w.newApproval(w.a, func(o *opened) { o.required = 2 })
	edited := w.newApproval(w.a, nil)
	for name, c := range map[string]struct {
		path, body string
		under      string // the code of the same request under another key; empty: it succeeds again
	}{
		"a decision":             {"/v1/approvals/" + w.a.approval.String() + "/decision", `{"action": "approve"}`, "ALREADY_DECIDED"},
		"a decision of two":      {"/v1/approvals/" + two.String() + "/decision", `{"action": "approve"}`, "ALREADY_DECIDED"},
		"an edit":                {"/v1/approvals/" + edited.String() + "/decision", `{"action": "edit", "edited_args": {"order": 8}}`, "ALREADY_DECIDED"},
		"a bulk decision":        {"/v1/approvals/bulk-decision", `{"ids": ` + string(ids) + `, "action": "approve"}`, ""},
		"a run's cancellation":   {"/v1/runs/" + w.a.run.String() + "/cancel", ``, ""},
		"a message":              {"/v1/threads/" + w.a.thread.String() + "/messages", `{"content": "x"}`, ""},
		"a run":                  {"/v1/agents/" + w.a.agent.String() + "/runs", `{"input": "x"}`, ""},
		"an agent's slug":        {"/v1/agents", `{"name": "A", "slug": "raced"}`, "SLUG_TAKEN"},
		"a provider's slug":      {"/v1/model-providers", `{"slug": "raced", "kind": "openai", "base_url": "https://x.example", "credentials": {"api_key": "k"}}`, "SLUG_TAKEN"},
		"a tool server's slug":   {"/v1/mcp-servers", `{"slug": "raced", "name": "R", "transport": "http", "endpoint": "https://r.example", "auth_kind": "none"}`, "SLUG_TAKEN"},
		"a user's e-mail":        {"/v1/users", `{"email": "raced@example.com", "name": "R", "role": "member"}`, "EMAIL_TAKEN"},
		"a key":                  {"/v1/api-keys", `{"name": "raced"}`, ""},
		"a version's publishing": {"/v1/agents/" + w.a.draft.String() + "/versions/1/publish", ``, ""},
	} {
		var first answer
		var audited map[string]int
		late.next(func() {
			first = w.call(w.a, "POST", c.path, c.body, "Idempotency-Key", "k")
			audited = w.audited(w.a.tenant)
		})
		got := other.call(w.a, "POST", c.path, c.body, "Idempotency-Key", "k")
		if first.status < 200 || first.status > 299 || first.header.Get("Idempotency-Replayed") != "" {
			t.Errorf("%s: the first: %d %s", name, first.status, first.body)
		}
		if got.status != first.status || got.body != first.body || got.header.Get("Idempotency-Replayed") != "true" {
			t.Errorf("%s: %d %s\nrepeated %d %s", name, first.status, first.body, got.status, got.body)
		}
		if now := w.audited(w.a.tenant); !maps.Equal(now, audited) {
			t.Errorf("%s: the repeat has audit rows of its own: %v, %v", name, audited, now)
		}
		if got := other.call(w.a, "POST", c.path, c.body, "Idempotency-Key", "l"); got.code() != c.under {
			t.Errorf("%s: under another key: %d %s", name, got.status, got.body)
		}
	}
	// The first request with the key had another body.
	approval := "/v1/approvals/" + w.newApproval(w.a, nil).String() + "/decision"
	late.next(func() { w.call(w.a, "POST", approval, `{"action": "approve"}`, "Idempotency-Key", "k") })
	if got := other.call(w.a, "POST", approval, `{"action": "reject"}`, "Idempotency-Key", "k"); got.code() != "IDEMPOTENCY_CONFLICT" {
		t.Errorf("another request: %d %s", got.status, got.body)
	}
	// If its own first request is not the cause, a refusal stands.
	late.next(nil)
	if got := other.call(w.a, "POST", approval, `{"action": "approve"}`, "Idempotency-Key", "m"); got.code() != "ALREADY_DECIDED" {
		t.Errorf("decided by another request: %d %s", got.status, got.body)
	}
}

// A bulk decision that was interrupted is repeated after the approval that it decided has
// moved to a higher role: the decision is reported as it was then.
func TestAnInterruptedBulkDecisionIsRepeatedAfterAnEscalation(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.withDesk()
	list := []id.ApprovalID{w.newApproval(w.a, func(o *opened) { o.required = 2 }), w.newApproval(w.a, nil)}
	ids, err := json.Marshal(list)
	w.must(err)
	body := `{"ids": ` + string(ids) + `, "action": "approve"}`
	d.failing(func(a id.ApprovalID) error {
		if a == list[1] {
			return problem.Unavailable("Not now.", time.Second)
		}
		return nil
	})
	if first := w.call(w.a, "POST", "/v1/approvals/bulk-decision", body, "Idempotency-Key", "k"); first.get("results.0.ok") != true || first.get("results.1.ok") != false {
		t.Fatal(first.body)
	}
	d.failing(nil)
	_, err = w.admin.Exec(t.Context(), "UPDATE approvals SET assignee_role = 'owner', escalated_at = now() WHERE id = $1", list[0])
	w.must(err)
	if got := w.call(w.a, "POST", "/v1/approvals/bulk-decision", body, "Idempotency-Key", "k"); got.get("results.0.ok") != true || got.get("results.1.terminal") != "approved" {
		t.Error(got.body)
	}
	if got := w.call(w.a, "POST", "/v1/approvals/bulk-decision", body, "Idempotency-Key", "l"); got.get("results.0.error.code") != "FORBIDDEN" {
		t.Errorf("under another key: %s", got.body)
	}
}

// An interrupted bulk decision, repeated under its key, reports the decisions already made as
// made.
func TestAnInterruptedBulkDecisionIsRepeated(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.withDesk()
	list := []id.ApprovalID{w.newApproval(w.a, nil), w.newApproval(w.a, nil), w.newApproval(w.a, nil)}
	ids, err := json.Marshal(list)
	w.must(err)
	d.failing(func(a id.ApprovalID) error {
		if a == list[1] {
			return problem.Unavailable("Not now.", time.Second)
		}
		return nil
	})
	body := `{"ids": ` + string(ids) + `, "action": "approve"}`
	first := w.call(w.a, "POST", "/v1/approvals/bulk-decision", body, "Idempotency-Key", "k")
	if first.get("results.0.terminal") != "approved" || first.get("results.1.error.code") != "UNAVAILABLE" || first.get("results.2.ok") != true {
		t.Fatal(first)
	}
	d.failing(nil)
	// The edge kept no first response.
	again := w.call(w.a, "POST", "/v1/approvals/bulk-decision", body, "Idempotency-Key", "k")
	for i := range list {
		if again.get(fmt.Sprintf("results.%d.ok", i)) != true || again.get(fmt.Sprintf("results.%d.terminal", i)) != "approved" {
			t.Errorf("%d: %s", i, again.body)
		}
	}
	if n := w.audited(w.a.tenant)["approval.decide"]; n != 3 {
		t.Errorf("%d decisions", n)
	}
	if last := w.call(w.a, "POST", "/v1/approvals/bulk-decision", body, "Idempotency-Key", "k"); last.body != again.body || last.header.Get("Idempotency-Replayed") != "true" {
		t.Errorf("%s", last.body)
	}
}

// service.md, Limits: up to 200 ids; an id that is listed twice is decided once.
func TestABulkDecisionOf200(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.withDesk()
	var list []id.ApprovalID
	for range 199 {
		list = append(list, w.newApproval(w.a, nil))
	}
	list = append(list, list[7])
	ids, err := json.Marshal(list)
	w.must(err)
	got := w.call(w.a, "POST", "/v1/approvals/bulk-decision", `{"ids": `+string(ids)+`, "action": "approve"}`)
	for i, a := range list {
		at := fmt.Sprintf("results.%d.", i)
		if got.get(at+"id") != a.String() || got.get(at+"ok") != true || got.get(at+"terminal") != "approved" || got.get(at+"error") != nil {
			t.Fatalf("%d: %s", i, got.body)
		}
	}
	if n := w.audited(w.a.tenant)["approval.decide"]; n != 199 {
		t.Errorf("%d decisions", n)
	}
	ids, err = json.Marshal(append(list, list[0]))
	w.must(err)
	if got := w.call(w.a, "POST", "/v1/approvals/bulk-decision", `{"ids": `+string(ids)+`, "action": "approve"}`); got.code() != "VALIDATION" {
		t.Errorf("201 ids: %d %s", got.status, got.body)
	}
}
