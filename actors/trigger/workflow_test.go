package trigger_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"agentsvc/actors/trigger"
	"agentsvc/persistence/store"
	"agentsvc/schemas/api"
	"agentsvc/schemas/flow"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/testkit"
)

// workflow makes a workflow with a draft.
func (w *world) workflow(definition string) (of id.WorkflowID) {
	w.t.Helper()
	plan, err := flow.Load(json.RawMessage(definition))
	w.must(err)
	w.change(func(ctx context.Context, tx *store.Tx) error {
		made, err := tx.CreateWorkflow(ctx, &api.WorkflowCreate{Name: "W"})
		if err != nil {
			return err
		}
		of = made.ID
		_, _, err = tx.CreateWorkflowVersion(ctx, of, json.RawMessage(definition), plan.Definition())
		return err
	})
	return of
}

// A schedule whose target is a workflow starts a run of its published version, under the id of
// the due time. One without a published version is passed over.
func TestAScheduleOfAWorkflow(t *testing.T) {
	w := newWorld(t)
	of := w.workflow(`{"nodes": [{"id": "d", "type": "delay", "seconds": 1}]}`)
	started := make(chan msg.StartWorkflow, 1)
	n := w.start(trigger.Config{}, func(_ context.Context, m any) error {
		started <- m.(msg.StartWorkflow)
		return problem.New(problem.CodeNotFound, "This node has no runs of workflows.")
	})
	due := time.Now().Add(-time.Minute).UTC().Truncate(time.Microsecond)
	g := w.schedule("* * * * *", "UTC", due)
	moves := func() {
		t.Helper()
		w.change(func(ctx context.Context, tx *store.Tx) error {
			_, err := tx.UpdateTrigger(ctx, g, &api.TriggerPatch{Target: &api.TriggerTarget{WorkflowID: &of}})
			return err
		})
		w.dueAt(g, due)
		w.tell(n, g)
		testkit.Eventually(t, "the schedule moves", func() bool { next := w.row(g).NextFireAt; return next != nil && next.After(due) })
	}
	moves()
	select {
	case m := <-started:
		t.Fatalf("a draft was started: %+v", m)
	default:
	}
	w.change(func(ctx context.Context, tx *store.Tx) error { _, _, err := tx.PublishWorkflow(ctx, of, 1); return err })
	moves()
	m := <-started
	if m.Run != trigger.RunAt(g, due) || m.Workflow != of || m.Version != 1 || string(m.Input) != `{"text": "hi"}` && string(m.Input) != `{"text":"hi"}` ||
		m.Origin != (msg.Origin{Kind: lifecycle.OriginTrigger, ID: g.UUID}) || m.By.Actor != "trigger:"+g.String() || m.Test {
		t.Errorf("%+v", m)
	}
}

// A due time whose run an agent began is over, although the target is a workflow by the time the
// schedule moves on. The next due time starts the workflow.
func TestATargetThatChangesDuringAFiring(t *testing.T) {
	w := newWorld(t)
	of := w.workflow(`{"nodes": [{"id": "z", "type": "set", "values": {"z": 1}}]}`)
	w.change(func(ctx context.Context, tx *store.Tx) error { _, _, err := tx.PublishWorkflow(ctx, of, 1); return err })
	due := at(t, "2026-05-06T07:00:00Z")
	g := w.schedule("* * * * *", "UTC", due)
	w.clock.set(due)
	dead := &lossy{Writer: w.writer}
	first := w.startWith(dead, trigger.Config{}, nil)
	w.tell(first, g)
	testkit.Eventually(t, "the agent's run has begun, and the schedule has not moved", func() bool { return dead.lost.Load() > 0 })
	testkit.Stop(t, first.Stop)
	w.change(func(ctx context.Context, tx *store.Tx) error {
		_, err := tx.UpdateTrigger(ctx, g, &api.TriggerPatch{Target: &api.TriggerTarget{WorkflowID: &of}})
		return err
	})
	w.dueAt(g, due)
	second := w.start(trigger.Config{}, nil)
	for i, want := range []string{"0", "1"} {
		w.tell(second, g)
		due := due.Add(time.Duration(i) * time.Minute)
		w.moves(g, due.Add(time.Minute))
		var n string
		w.must(w.admin.QueryRow(t.Context(), `SELECT count(*)::text FROM runs WHERE workflow_id = $1`, of).Scan(&n))
		if n != want {
			t.Errorf("after %v there are %s runs of the workflow, want %s", due, n, want)
		}
		w.clock.set(due.Add(time.Minute))
	}
	w.runs(g, due, due.Add(time.Minute))
}
