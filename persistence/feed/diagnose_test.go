package feed

import (
	"maps"
	"slices"
	"testing"

	"agentsvc/persistence/pgtest"
	"agentsvc/schemas/id"
)

// checks are those of all kinds.
var checks = slices.Concat(RunChecks, TimerChecks, ApprovalChecks, WorkflowChecks)

// waiting is a run with one step that waits for an approval.
func (r *rows) waiting() (run id.RunID, approval id.ApprovalID) {
	run, approval = r.run("waiting_approval", nil, 0), id.ApprovalID{UUID: id.NewAnywhere()}
	r.exec("UPDATE runs SET steps = 1 WHERE id = $1", run)
	r.exec(`INSERT INTO run_steps (tenant_id, run_id, idx, kind, name, status, began_seq, started_at) VALUES ($1, $2, 0, 'tool', 'a.b', 'waiting', 2, now())`, r.tenant, run)
	r.exec(`INSERT INTO approvals (tenant_id, id, run_id, step_idx, risk, assignee_role, required_approvals, tool, args, frozen, digest, policy, on_timeout, expires_at, created_at, updated_at)
		VALUES ($1, $2, $3, 0, 'low', 'admin', 1, 'a.b', '{}', '\x00', sha256('x'), '{}', 'reject', now() + interval '1 hour', now(), now())`, r.tenant, approval, run)
	r.exec("INSERT INTO timers (tenant_id, kind, entity_id, name, due_at) VALUES ($1, 'approval', $2, 'expire', now() + interval '1 hour')", r.tenant, approval)
	return run, approval
}

// decided is what an approval's deciding commit leaves.
func (r *rows) decided(run id.RunID, approval id.ApprovalID) {
	r.exec("UPDATE approvals SET status = 'rejected', decision = 'reject', decided_at = now() WHERE id = $1", approval)
	r.exec("DELETE FROM timers WHERE entity_id = $1", approval)
	r.exec("INSERT INTO timers (tenant_id, kind, entity_id, name, due_at) VALUES ($1, 'run', $2, $3::uuid::text, now())", r.tenant, run, approval)
}

func TestDiagnoseApprovals(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(r *rows, run id.RunID, approval id.ApprovalID) (example id.UUID)
		check string // empty: nothing is wrong
	}{
		"an approval is pending": {func(*rows, id.RunID, id.ApprovalID) id.UUID { return id.UUID{} }, ""},
		"all is decided, and the run's timer is set": {func(r *rows, run id.RunID, a id.ApprovalID) id.UUID {
			r.decided(run, a)
			return id.UUID{}
		}, ""},
		"all is decided, and the run's timer is lost": {func(r *rows, run id.RunID, a id.ApprovalID) id.UUID {
			r.decided(run, a)
			r.exec("DELETE FROM timers WHERE kind = 'run'")
			return run.UUID
		}, "waiting runs that nothing wakes"},
		"all is decided, and the timer is another run's": {func(r *rows, run id.RunID, a id.ApprovalID) id.UUID {
			r.decided(run, a)
			r.exec("UPDATE timers SET entity_id = $1 WHERE kind = 'run'", id.NewAnywhere())
			return run.UUID
		}, "waiting runs that nothing wakes"},
		"a step waits for no approval": {func(r *rows, run id.RunID, _ id.ApprovalID) id.UUID {
			r.exec("UPDATE runs SET steps = 2 WHERE id = $1", run)
			r.exec(`INSERT INTO run_steps (tenant_id, run_id, idx, kind, name, status, began_seq, started_at) VALUES ($1, $2, 1, 'tool', 'a.b', 'waiting', 3, now())`, r.tenant, run)
			return run.UUID
		}, "waiting steps without an approval"},
		"the run goes on while an approval is pending": {func(r *rows, run id.RunID, a id.ApprovalID) id.UUID {
			r.exec("UPDATE runs SET status = 'running' WHERE id = $1", run)
			return a.UUID
		}, "pending approvals whose run does not wait"},
		"a pending approval lost its timer": {func(r *rows, _ id.RunID, a id.ApprovalID) id.UUID {
			r.exec("UPDATE timers SET name = 'escalate' WHERE entity_id = $1", a)
			return a.UUID
		}, "pending approvals that do not expire"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.New(t).System(t)
			r := setUp(t, pool)
			run, approval := r.waiting()
			r.waiting() // a sound one beside it
			example := c.spoil(r, run, approval)
			found, err := NewSweep(pool).Diagnose(t.Context(), checks)
			if err != nil {
				t.Fatal(err)
			}
			got, want := map[string]string{}, map[string]string{}
			for _, a := range found {
				if a.Count > 0 {
					got[a.Check] = a.Example
				}
			}
			if c.check != "" {
				want[c.check] = example.String()
			}
			if len(found) != len(checks) || !maps.Equal(got, want) {
				t.Errorf("%d checks, found %v, want %v", len(found), got, want)
			}
		})
	}
}
