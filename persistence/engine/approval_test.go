package engine

import (
	"testing"

	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
)

func TestApproval(t *testing.T) {
	w := newWorld(t)
	run := w.run(w.thread(), 1, "waiting_approval")
	w.step(run, 0, "waiting", nil)
	a := id.ApprovalID{UUID: id.New(run.Shard())}
	w.exec(`INSERT INTO approvals (tenant_id, id, run_id, step_idx, agent_id, risk, assignee_role, required_approvals, tool, args, schema, frozen, digest, policy,
		on_timeout, expires_at, created_at, updated_at, version, owner_epoch)
		VALUES ($1, $2, $3, 0, $4, 'low', 'admin', 2, 'a.b', '{"z":1, "a":2}', '{"type" : "object"}', '\x01', sha256('x'), '{}', 'reject', '2026-01-02T00:00:00Z', now(), now(), 5, 3)`,
		w.tenant, a, run, w.agent)
	got, err := w.store.Approval(t.Context(), w.tenant, a)
	if err != nil || got == nil {
		t.Fatal(got, err)
	}
	if got.Run != run || got.RunStatus != lifecycle.RunWaitingApproval || got.Tool != "a.b" || got.Risk != lifecycle.RiskLow || got.Status != lifecycle.ApprovalPending || got.Assignee != lifecycle.RoleAdmin || got.Escalate != "" ||
		got.Required != 2 || got.SoFar != 0 || string(got.Shown) != `{"z":1, "a":2}` || string(got.Schema) != `{"type" : "object"}` || string(got.Frozen) != "\x01" ||
		got.Digest[0] != 0x2d || string(got.Decisions) != "[]" || got.Decision != "" || got.Feedback != nil || got.EscalatedAt != nil || got.EscalateAt != nil ||
		got.ExpiresAt.Year() != 2026 || got.DecidedAt != nil || got.Version != 5 || got.Epoch != 3 {
		t.Errorf("%+v", got)
	}
	if its, err := w.store.Run(t.Context(), w.tenant, run); err != nil || len(its.Open) != 1 || its.Open[0].Asked == nil ||
		its.Open[0].Asked.ID != a {
		t.Errorf("its run: %+v, %v", its, err)
	}
	for _, name := range []string{"expire", "escalate"} {
		w.exec(`INSERT INTO timers (tenant_id, kind, entity_id, name, due_at) VALUES ($1, 'approval', $2, $3, '2027-01-02T00:00:00Z')`, w.tenant, a, name)
	}
	w.exec(`UPDATE approvals SET status = 'rejected', decision = 'reject', feedback = 'no', decided_at = now(), escalate_to_role = 'owner', escalated_at = now(), schema = NULL,
		decisions = '[{"principal":"x"}]', approvals_so_far = 1`)
	w.exec(`UPDATE runs SET status = 'running'`)
	got, err = w.store.Approval(t.Context(), w.tenant, a)
	if err != nil || got.RunStatus != lifecycle.RunRunning || got.Status != lifecycle.ApprovalRejected || got.Decision != lifecycle.ActionReject || *got.Feedback != "no" ||
		got.DecidedAt == nil || got.Escalate != lifecycle.RoleOwner || got.EscalatedAt == nil || got.EscalateAt == nil || got.EscalateAt.Year() != 2027 ||
		got.Schema != nil || string(got.Decisions) != `[{"principal":"x"}]` || got.SoFar != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	// The edits of the run's other approvals count, whether decided or not, by the larger of what is called and what is shown.
	for i, sets := range []string{`edited = repeat('x', 1000)::bytea`, `edited = '\x01', decisions = json_build_array(repeat('x', 1996))`, `decisions = json_build_array(repeat('x', 5000))`} {
		idx := i + 1
		w.step(run, idx, "waiting", nil)
		w.exec(`INSERT INTO approvals (tenant_id, id, run_id, step_idx, risk, assignee_role, required_approvals, tool, args, frozen, digest, policy, on_timeout, expires_at, created_at, updated_at)
			VALUES ($1, $2, $3, $4, 'low', 'admin', 2, 't', '{}', '\x03', sha256('x'), '{}', 'reject', now(), now(), now())`, w.tenant, id.NewAnywhere(), run, idx)
		w.exec(`UPDATE approvals SET `+sets+` WHERE run_id = $1 AND step_idx = $2`, run, idx)
	}
	w.exec(`UPDATE approvals SET edited = repeat('x', 9000)::bytea WHERE id = $1`, a)
	if got, err = w.store.Approval(t.Context(), w.tenant, a); err != nil || got.OtherEdits != 3000 {
		t.Errorf("the other edits have %d bytes, %v", got.OtherEdits, err)
	}
	for room, missed := range map[int64]bool{3000: false, 2999: true} {
		s := BoundEdits(w.tenant, run, a, room)
		if _, err := w.pool.Exec(t.Context(), s.SQL, s.Args...); (err != nil) != missed {
			t.Errorf("with room for %d: %v", room, err)
		}
	}
	for name, c := range map[string]struct {
		tenant   id.TenantID
		approval id.ApprovalID
	}{"another tenant's": {w.other, a}, "nobody's": {w.tenant, id.ApprovalID{UUID: id.NewAnywhere()}}} {
		if got, err := w.store.Approval(t.Context(), c.tenant, c.approval); got != nil || err != nil {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}
