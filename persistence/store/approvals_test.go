package store

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/problem"
)

// opened is an approval as the tests write it.
type opened struct {
	run      id.RunID
	agent    id.AgentID
	assignee lifecycle.Role
	risk     lifecycle.Risk
	node     *id.NodeID
	rejected bool
}

func openApproval(t *testing.T, pool *pgxpool.Pool, tenant id.TenantID, o opened) id.ApprovalID {
	t.Helper()
	a := id.ApprovalID{UUID: id.NewAnywhere()}
	for _, q := range []struct {
		sql  string
		args []any
	}{
		{`INSERT INTO runs (tenant_id, id, status, agent_id, agent_version, origin_kind, origin_id, created_at) VALUES ($1, $2, 'waiting_approval', $3, 1, 'user', $1, now())`,
			[]any{tenant, o.run, o.agent}},
		{`INSERT INTO run_steps (tenant_id, run_id, idx, kind, name, status, began_seq, started_at) VALUES ($1, $2, 3, 'tool', 'a.b', 'waiting', 2, now())`, []any{tenant, o.run}},
		{`INSERT INTO approvals (tenant_id, id, run_id, step_idx, agent_id, node_id, risk, assignee_role, required_approvals, tool, args, schema, frozen, digest, policy,
			on_timeout, expires_at, created_at, updated_at)
			VALUES ($1, $2, $3, 3, $4, $5, $6, $7, 2, 'a.b', '{"z":1, "a":2}', '{}', '\x00', sha256('x'), '{"id":null,"name":"n","kind":"manifest"}', 'reject', now(), now(), now())`,
			[]any{tenant, a, o.run, o.agent, o.node, o.risk, o.assignee}},
	} {
		if _, err := pool.Exec(t.Context(), q.sql, q.args...); err != nil {
			t.Fatal(err)
		}
	}
	if o.rejected {
		if _, err := pool.Exec(t.Context(), `UPDATE approvals SET status = 'rejected', decision = 'reject', decided_at = now(), feedback = 'no', approvals_so_far = 1,
			decisions = '[{"principal":"user:x","action":"edit","feedback":null,"edited_args":{"b":1,"a":2},"at":"2026-01-02T03:04:05Z"},
				{"principal":"user:y","action":"reject","feedback":"no","edited_args":null,"at":"2026-01-02T03:04:06Z"}]' WHERE id = $1`, a); err != nil {
			t.Fatal(err)
		}
	}
	return a
}

func TestApprovals(t *testing.T) {
	w := newWorld(t)
	pool := w.db.Admin(t)
	var agents [2]id.AgentID
	var node, beside id.NodeID
	w.change(t, w.a, func(ctx context.Context, tx *Tx) error {
		for i := range agents {
			a, err := tx.CreateAgent(ctx, &api.AgentCreate{Name: "A"})
			if err != nil {
				return err
			}
			agents[i] = a.ID
		}
		return nil
	})
	for _, n := range []*id.NodeID{&node, &beside} {
		*n = id.NodeID{UUID: id.NewAnywhere()}
		if _, err := pool.Exec(t.Context(), `INSERT INTO org_nodes (tenant_id, id, name) VALUES ($1, $2, 'N')`, w.a, *n); err != nil {
			t.Fatal(err)
		}
	}
	names := []string{"member", "manager", "manager of no node", "admin", "owner", "decided"}
	opens := []opened{
		{assignee: lifecycle.RoleMember, risk: lifecycle.RiskLow, agent: agents[1]}, {assignee: lifecycle.RoleManager, risk: lifecycle.RiskMedium, node: &node},
		{assignee: lifecycle.RoleManager, risk: lifecycle.RiskHigh}, {assignee: lifecycle.RoleAdmin, risk: lifecycle.RiskHigh},
		{assignee: lifecycle.RoleOwner, risk: lifecycle.RiskCritical}, {assignee: lifecycle.RoleAdmin, risk: lifecycle.RiskHigh, rejected: true, node: &node},
	}
	ids := map[id.ApprovalID]string{}
	var all []id.ApprovalID
	for i := range opens {
		o := &opens[i]
		if o.run = (id.RunID{UUID: id.NewAnywhere()}); o.agent.IsZero() {
			o.agent = agents[0]
		}
		a := openApproval(t, pool, w.a, *o)
		ids[a] = names[i]
		all = append(all, a)
	}
	v := w.View(w.a)
	key := Approver{Role: lifecycle.RoleAdmin}
	for name, c := range map[string]struct {
		who    Approver
		filter ApprovalFilter
		want   []string // newest first
	}{
		"a member":                   {Approver{Role: lifecycle.RoleMember}, ApprovalFilter{}, []string{"member"}},
		"a manager":                  {Approver{Role: lifecycle.RoleMember, Nodes: []id.NodeID{node}}, ApprovalFilter{}, []string{"manager", "member"}},
		"a manager of a node beside": {Approver{Role: lifecycle.RoleMember, Nodes: []id.NodeID{beside}}, ApprovalFilter{}, []string{"member"}},
		"an admin, or a key":         {key, ApprovalFilter{}, []string{"decided", "admin", "manager of no node", "manager", "member"}},
		"an owner":                   {Approver{Role: lifecycle.RoleOwner}, ApprovalFilter{}, []string{"decided", "owner", "admin", "manager of no node", "manager", "member"}},
		"of a status":                {key, ApprovalFilter{Statuses: []lifecycle.ApprovalStatus{lifecycle.ApprovalRejected}}, []string{"decided"}},
		"of a run":                   {key, ApprovalFilter{Run: &opens[1].run}, []string{"manager"}},
		"of an agent":                {key, ApprovalFilter{Agent: &agents[1]}, []string{"member"}},
		"of a risk":                  {key, ApprovalFilter{Risk: ptr(lifecycle.RiskHigh)}, []string{"decided", "admin", "manager of no node"}},
		"of a risk and a status":     {key, ApprovalFilter{Risk: ptr(lifecycle.RiskHigh), Statuses: []lifecycle.ApprovalStatus{lifecycle.ApprovalPending}}, []string{"admin", "manager of no node"}},
		"of two statuses":            {key, ApprovalFilter{Statuses: []lifecycle.ApprovalStatus{lifecycle.ApprovalRejected, lifecycle.ApprovalPending}, Risk: ptr(lifecycle.RiskMedium)}, []string{"manager"}},
		"of a tool":                  {key, ApprovalFilter{Tool: ptr("a.b"), Risk: ptr(lifecycle.RiskLow)}, []string{"member"}},
		"of another tool":            {key, ApprovalFilter{Tool: ptr("a.c")}, nil},
		"a filter widens no view":    {key, ApprovalFilter{Risk: ptr(lifecycle.RiskCritical)}, nil},
	} {
		rows, err := v.Approvals(t.Context(), c.who, c.filter, ApprovalAt{}, All)
		var got []string
		for _, a := range rows {
			got = append(got, ids[a.ID])
			if one, err := v.Approval(t.Context(), a.ID); err != nil || !c.who.Decides(one.AssigneeRole, one.Node) {
				t.Errorf("%s: the list shows an approval that the approver may not read: %s", name, ids[a.ID])
			}
		}
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, %v; want %v", name, got, err, c.want)
		}
	}
	page, err := v.Approvals(t.Context(), key, ApprovalFilter{}, ApprovalAt{ID: all[3]}, 1)
	if err != nil || len(page) != 2 || page[0].ID != all[2] || page[1].ID != all[1] {
		t.Errorf("%v, %v", page, err)
	}

	one, err := v.Approval(t.Context(), all[5])
	if err != nil {
		t.Fatal(err)
	}
	if one.RunID != opens[5].run || *one.AgentID != agents[0] || one.StepIdx != 3 || one.Status != lifecycle.ApprovalRejected || one.RequiredApprovals != 2 || one.ApprovalsSoFar != 1 ||
		one.RequestedAction.Tool != "a.b" || string(one.RequestedAction.Args) != `{"z":1, "a":2}` || string(one.RequestedAction.Schema) != `{}` ||
		one.Policy != (api.MatchedPolicy{Name: "n", Kind: "manifest"}) || one.DecidedAt == nil || one.EscalatedAt != nil || *one.Node != node {
		t.Errorf("%+v", one)
	}
	if d := one.Decisions; len(d) != 2 || d[0].Principal != "user:x" || d[0].Action != lifecycle.ActionEdit || d[0].Feedback != nil || string(d[0].EditedArgs) != `{"b":1,"a":2}` ||
		!d[0].At.Equal(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)) || *d[1].Feedback != "no" || len(d[1].EditedArgs) > 0 && string(d[1].EditedArgs) != "null" {
		t.Errorf("%+v", one.Decisions)
	}

	got, err := v.ApprovalsOf(t.Context(), []id.NodeID{node, beside}, all)
	if err != nil || len(got) != 2 || !slices.Contains(got, all[1]) || !slices.Contains(got, all[5]) {
		t.Errorf("%v, %v", got, err)
	}
	// An approval of another tenant is not found.
	for name, v := range map[string]View{"another tenant": w.View(w.b), "an unknown tenant": w.View(id.TenantID{UUID: id.NewAnywhere()})} {
		if _, err := v.Approval(t.Context(), all[0]); !isCode(err, problem.CodeNotFound) {
			t.Errorf("%s: %v", name, err)
		}
		if rows, err := v.Approvals(t.Context(), Approver{Role: lifecycle.RoleOwner}, ApprovalFilter{Run: &opens[0].run}, ApprovalAt{}, All); err != nil || len(rows) != 0 {
			t.Errorf("%s: %v, %v", name, rows, err)
		}
		if rows, err := v.ApprovalsOf(t.Context(), []id.NodeID{node}, all); err != nil || len(rows) != 0 {
			t.Errorf("%s: %v, %v", name, rows, err)
		}
	}
}
