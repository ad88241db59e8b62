package feed

import (
	"maps"
	"testing"

	"agentsvc/persistence/pgtest"
	"agentsvc/schemas/id"
)

// flowing is a workflow run that waits for a person, an hour, an event and a child run, with the child.
func (r *rows) flowing() (run, child id.RunID) {
	run, child = r.run("waiting_approval", nil, 0), r.run("running", nil, 0)
	r.exec("UPDATE runs SET agent_id = NULL, agent_version = NULL, workflow_id = $2, steps = 5 WHERE id = $1", run, r.tenant)
	r.exec("INSERT INTO workflow_runs (tenant_id, id, workflow_version, test, owes) VALUES ($1, $2, 1, false, false)", r.tenant, run)
	for idx, s := range [][3]string{{"approval", "gate", "waiting"}, {"node", "delay", "waiting"}, {"node", "wait_event", "waiting"}, {"agent", "agent", "running"}, {"tool", "tool", "succeeded"}} {
		r.exec("INSERT INTO run_steps (tenant_id, run_id, idx, kind, name, status, began_seq, started_at) VALUES ($1, $2, $3, $4, $5, $6, $7, now())", r.tenant, run, idx, s[0], s[1], s[2], 2+2*idx)
		r.exec("INSERT INTO run_marks (tenant_id, run_id, seq, type, data) VALUES ($1, $2, $3, 'node.started', json_build_object('node_id', $4::text, 'node_type', $4::text))", r.tenant, run, 3+2*idx, s[1])
	}
	r.exec(`INSERT INTO approvals (tenant_id, id, run_id, step_idx, risk, assignee_role, required_approvals, tool, args, frozen, digest, policy, on_timeout, expires_at, created_at, updated_at)
		VALUES ($1, $2, $2, 0, 'low', 'admin', 1, 'workflow:gate', '{}', '\x00', sha256('x'), '{}', 'reject', now() + interval '1 hour', now(), now())`, r.tenant, run)
	r.exec("INSERT INTO timers (tenant_id, kind, entity_id, name, due_at) VALUES ($1, 'approval', $2, 'expire', now() + interval '1 hour'), ($1, 'workflow', $2, 'node/1', now() + interval '1 hour')", r.tenant, run)
	r.exec("UPDATE runs SET parent_run_id = $2, origin_kind = 'workflow', steps = 1 WHERE id = $1", child, run)
	r.exec("INSERT INTO run_steps (tenant_id, run_id, idx, kind, name, status, began_seq, started_at) VALUES ($1, $2, 0, 'llm', 'm', 'running', 2, now())", r.tenant, child)
	return run, child
}

func TestDiagnoseWorkflows(t *testing.T) {
	const idle, step, agent, orphan = "workflow runs that owe nothing and wait for nothing", "steps of workflow runs that nothing ends",
		"agents of workflow runs without a child run", "child runs without a parent that waits for them"
	ends := func(r *rows, run id.RunID) {
		r.exec("UPDATE run_steps SET status = 'failed', finished_at = now() WHERE run_id = $1 AND status IN ('running', 'waiting')", run)
		r.exec("UPDATE approvals SET status = 'cancelled', decision = 'cancel', decided_at = now() WHERE run_id = $1", run)
		r.exec("UPDATE runs SET status = 'failed', error_code = 'INTERNAL', error_message = 'm', finished_at = now() WHERE id = $1", run)
		r.exec("DELETE FROM timers WHERE entity_id = $1", run)
	}
	childEnds := func(r *rows, child id.RunID) {
		r.exec("UPDATE run_steps SET status = 'succeeded', finished_at = now() WHERE run_id = $1", child)
		r.exec(`UPDATE runs SET status = 'succeeded', output = '{"text":"hi"}', finished_at = now() WHERE id = $1`, child)
	}
	for name, c := range map[string]struct {
		spoil func(r *rows, run, child id.RunID) (example id.RunID)
		check string // empty: nothing is wrong
	}{
		"it waits": {func(*rows, id.RunID, id.RunID) id.RunID { return id.RunID{} }, ""},
		"it is queued and owes its slot": {func(r *rows, _, _ id.RunID) id.RunID {
			queued := r.run("queued", nil, 0)
			r.exec("UPDATE runs SET agent_id = NULL, agent_version = NULL, workflow_id = $2 WHERE id = $1", queued, r.tenant)
			r.exec("INSERT INTO workflow_runs (tenant_id, id, workflow_version, test, owes) VALUES ($1, $2, 1, false, true)", r.tenant, queued)
			return id.RunID{}
		}, ""},
		"it is queued and owes nothing": {func(r *rows, _, _ id.RunID) id.RunID {
			queued := r.run("queued", nil, 0)
			r.exec("UPDATE runs SET agent_id = NULL, agent_version = NULL, workflow_id = $2 WHERE id = $1", queued, r.tenant)
			r.exec("INSERT INTO workflow_runs (tenant_id, id, workflow_version, test, owes) VALUES ($1, $2, 1, false, false)", r.tenant, queued)
			return queued
		}, idle},
		"nothing is open": {func(r *rows, run, child id.RunID) id.RunID {
			r.exec("UPDATE run_steps SET status = 'succeeded', finished_at = now() WHERE run_id = $1", run)
			r.exec("UPDATE approvals SET status = 'cancelled', decision = 'cancel', decided_at = now() WHERE run_id = $1", run)
			r.exec("UPDATE runs SET status = 'running' WHERE id = $1", run)
			childEnds(r, child)
			return run
		}, idle},
		"the delay lost its timer": {func(r *rows, run, _ id.RunID) id.RunID {
			r.exec("DELETE FROM timers WHERE kind = 'workflow' AND entity_id = $1", run)
			return run
		}, step},
		"the delay lost its timer, and the run is at work": {func(r *rows, run, _ id.RunID) id.RunID {
			r.exec("DELETE FROM timers WHERE kind = 'workflow' AND entity_id = $1", run)
			r.exec("UPDATE workflow_runs SET owes = true WHERE id = $1", run)
			return id.RunID{}
		}, ""},
		"a call is under way that it does not owe": {func(r *rows, run, _ id.RunID) id.RunID {
			r.exec("UPDATE run_steps SET status = 'running' WHERE run_id = $1 AND kind = 'tool'", run)
			return run
		}, step},
		"the child has ended": {func(r *rows, run, child id.RunID) id.RunID {
			childEnds(r, child)
			r.exec("INSERT INTO timers (tenant_id, kind, entity_id, name, due_at) VALUES ($1, 'workflow', $2, 'child/' || $3::uuid, now())", r.tenant, run, child)
			return id.RunID{}
		}, ""},
		"the child has ended and its timer is lost": {func(r *rows, run, child id.RunID) id.RunID {
			childEnds(r, child)
			return run
		}, agent},
		"it has ended and cancels its child": {func(r *rows, run, _ id.RunID) id.RunID {
			ends(r, run)
			r.exec("UPDATE workflow_runs SET owes = true WHERE id = $1", run)
			return id.RunID{}
		}, ""},
		"it has ended and leaves its child": {func(r *rows, run, child id.RunID) id.RunID {
			ends(r, run)
			return child
		}, orphan},
		"a child without a parent": {func(r *rows, _, child id.RunID) id.RunID {
			lost := r.run("succeeded", nil, 0)
			r.exec("UPDATE runs SET parent_run_id = $2 WHERE id = $1", lost, id.NewAnywhere())
			return lost
		}, orphan},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.New(t).System(t)
			r := setUp(t, pool)
			run, child := r.flowing()
			r.flowing() // a sound one beside it
			example := c.spoil(r, run, child)
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
			if !maps.Equal(got, want) {
				t.Errorf("found %v, want %v", got, want)
			}
		})
	}
}
