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

// A schedule whose target is a workflow starts a run of its published version, under the id of
// the due time. One without a published version is passed over.
func TestAScheduleOfAWorkflow(t *testing.T) {
	w := newWorld(t)
	const definition = `{"nodes": [{"id": "d", "type": "delay", "seconds": 1}]}`
	plan, err := flow.Load(json.RawMessage(definition))
	w.must(err)
	var of id.WorkflowID
	w.change(func(ctx context.Context, tx *store.Tx) error {
		made, err := tx.CreateWorkflow(ctx, &api.WorkflowCreate{Name: "W"})
		if err != nil {
			return err
		}
		of = made.ID
		_, _, err = tx.CreateWorkflowVersion(ctx, of, json.RawMessage(definition), plan.Definition())
		return err
	})
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
