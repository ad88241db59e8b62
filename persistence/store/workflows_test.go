package store

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"agentsvc/schemas/api"
	"agentsvc/schemas/flow"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/problem"
)

// oneDelay is the smallest definition; its white space must be kept.
var oneDelay = json.RawMessage(`{ "nodes": [{"id":"rest", "type":"delay", "seconds":1}] }`)

// workflow creates a workflow with a version for each definition.
func (w *world) workflow(t testing.TB, tenant id.TenantID, definitions ...json.RawMessage) (made id.WorkflowID) {
	t.Helper()
	w.change(t, tenant, func(ctx context.Context, tx *Tx) error {
		wf, err := tx.CreateWorkflow(ctx, &api.WorkflowCreate{Name: "Flow"})
		if err != nil {
			return err
		}
		made = wf.ID
		for _, doc := range definitions {
			if err := tx.addDefinition(ctx, made, doc); err != nil {
				return err
			}
		}
		return nil
	})
	return made
}

// addDefinition adds a version as the route does.
func (t *Tx) addDefinition(ctx context.Context, w id.WorkflowID, doc json.RawMessage) error {
	p, _, err := flow.Parse(ctx, "definition", doc)
	if err != nil {
		return err
	}
	_, v, err := t.CreateWorkflowVersion(ctx, w, doc, p.Definition())
	if err == nil && v.Status != lifecycle.VersionDraft {
		err = fmt.Errorf("%+v", v)
	}
	return err
}

func (w *world) publishes(t testing.TB, wf id.WorkflowID, version int) {
	t.Helper()
	w.change(t, w.a, func(ctx context.Context, tx *Tx) error { return third(tx.PublishWorkflow(ctx, wf, version)) })
}

func TestPublishAndRollBackAWorkflow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	wf := w.workflow(t, w.a, oneDelay, oneDelay, oneDelay)
	publish := func(version int) func(context.Context, *Tx) error {
		return func(ctx context.Context, tx *Tx) error {
			row, v, err := tx.PublishWorkflow(ctx, wf, version)
			if err == nil && (*row.PublishedVersion != version || v.Status != lifecycle.VersionPublished || v.PublishedAt == nil || row.LatestVersion != 3) {
				err = fmt.Errorf("%+v %+v", row, v)
			}
			return err
		}
	}
	for _, version := range []int{1, 3, 1, 1} {
		w.change(t, w.a, publish(version))
		if got, err := w.View(w.a).StartWorkflow(t.Context(), wf, false); err != nil || got.Version != version || string(got.Definition) != string(oneDelay) {
			t.Fatalf("published %d, started %+v %v", version, got, err)
		}
	}
	versions, err := w.View(w.a).WorkflowVersions(t.Context(), wf, 0, 25)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, v := range versions {
		got = append(got, fmt.Sprint(v.Version, " ", v.Status))
		if string(v.Definition) != string(oneDelay) || v.WorkflowID != wf {
			t.Errorf("version %d is returned as %s", v.Version, v.Definition)
		}
	}
	if want := "3 superseded,2 draft,1 published"; strings.Join(got, ",") != want {
		t.Errorf("got %v", got)
	}
	if n := w.count(t, "SELECT count(*)::int FROM audit_log WHERE action = 'workflow.publish'"); n != 3 {
		t.Errorf("%d publications are audited; publishing the published version changes nothing", n)
	}
	for _, version := range []int{0, -1, 4, 1 << 40} {
		if err := w.try(t, w.a, publish(version)); !isCode(err, problem.CodeNotFound) {
			t.Errorf("version %d: %v", version, err)
		}
	}
	w.change(t, w.a, func(ctx context.Context, tx *Tx) error { return tx.ArchiveWorkflow(ctx, wf) })
	if v, err := w.View(w.a).WorkflowVersion(t.Context(), wf, 1); err != nil || v.Status != lifecycle.VersionPublished {
		t.Errorf("an open run can no longer read its version: %v", err)
	}
	for what, err := range map[string]error{
		"read":    second(w.View(w.a).Workflow(t.Context(), wf)),
		"start":   second(w.View(w.a).StartWorkflow(t.Context(), wf, false)),
		"archive": w.try(t, w.a, func(ctx context.Context, tx *Tx) error { return tx.ArchiveWorkflow(ctx, wf) }),
		"publish": w.try(t, w.a, publish(1)),
		"add":     w.try(t, w.a, func(ctx context.Context, tx *Tx) error { return tx.addDefinition(ctx, wf, oneDelay) }),
		"update": w.try(t, w.a, func(ctx context.Context, tx *Tx) error {
			return second(tx.UpdateWorkflow(ctx, wf, &api.WorkflowPatch{}))
		}),
	} {
		if !isCode(err, problem.CodeNotFound) {
			t.Errorf("%s an archived workflow: %v", what, err)
		}
	}
}

// open-parts.md, Changes, Workflows: the version that a new run uses, and the error if there is
// none.
func TestTheVersionOfANewWorkflowRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	v := w.View(w.a)
	wf := w.workflow(t, w.a)
	for _, newest := range []bool{false, true} {
		if _, err := v.StartWorkflow(t.Context(), wf, newest); !isCode(err, problem.CodeWorkflowNotPublished) {
			t.Errorf("without a version, newest %v: %v", newest, err)
		}
	}
	w.change(t, w.a, func(ctx context.Context, tx *Tx) error { return tx.addDefinition(ctx, wf, oneDelay) })
	if _, err := v.StartWorkflow(t.Context(), wf, false); !isCode(err, problem.CodeWorkflowNotPublished) {
		t.Errorf("a draft alone: %v", err)
	}
	if got, err := v.StartWorkflow(t.Context(), wf, true); err != nil || got.Version != 1 {
		t.Errorf("the newest one: %+v %v", got, err)
	}
	w.publishes(t, wf, 1)
	var node *api.OrgNode
	w.change(t, w.a, func(ctx context.Context, tx *Tx) (err error) {
		if node, err = tx.CreateNode(ctx, &api.OrgNodeCreate{Name: "Sales"}); err != nil {
			return err
		}
		if _, err := tx.UpdateWorkflow(ctx, wf, &api.WorkflowPatch{NodeID: api.Some(node.ID)}); err != nil {
			return err
		}
		return tx.addDefinition(ctx, wf, json.RawMessage(`{"nodes":[{"id":"b","type":"delay","seconds":0}]}`))
	})
	for newest, want := range map[bool]int{false: 1, true: 2} {
		if got, err := v.StartWorkflow(t.Context(), wf, newest); err != nil || got.Version != want || got.NodeID == nil || *got.NodeID != node.ID {
			t.Errorf("newest %v: %+v %v, want version %d", newest, got, err, want)
		}
	}
	if err := w.try(t, w.a, func(ctx context.Context, tx *Tx) error { return tx.DeleteNode(ctx, node.ID) }); !isCode(err, problem.CodeInUse) {
		t.Errorf("its org node is deleted: %v", err)
	}
}

// The agents of a definition must be the tenant's and not archived.
func TestTheAgentsOfADefinitionExist(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	agent := func(tenant id.TenantID) (a id.AgentID) {
		w.change(t, tenant, func(ctx context.Context, tx *Tx) (err error) { a, err = tx.agent(ctx, nil); return err })
		return a
	}
	mine, archived, foreign := agent(w.a), agent(w.a), agent(w.b)
	w.change(t, w.a, func(ctx context.Context, tx *Tx) error { return second(tx.ArchiveAgent(ctx, archived)) })
	nodes := func(agents ...id.AgentID) json.RawMessage {
		list := []string{`{"id":"first","type":"delay","seconds":0}`}
		for i, a := range agents {
			list = append(list, fmt.Sprintf(`{"id":"n%d","type":"agent","agent_id":"%s","input":"x"}`, i, a))
		}
		return json.RawMessage(`{"nodes":[` + strings.Join(list, ",") + `]}`)
	}
	wf := w.workflow(t, w.a, nodes(mine, mine))
	err := w.try(t, w.a, func(ctx context.Context, tx *Tx) error {
		return tx.addDefinition(ctx, wf, nodes(mine, archived, foreign, id.AgentID{UUID: id.NewAnywhere()}))
	})
	want := "definition.nodes[2].agent_id: there is no such agent; definition.nodes[3].agent_id: there is no such agent; definition.nodes[4].agent_id: there is no such agent"
	if !isCode(err, problem.CodeValidation) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "nodes[1]") {
		t.Errorf("%v", err)
	}
	if row, err := w.View(w.a).Workflow(t.Context(), wf); err != nil || row.LatestVersion != 1 {
		t.Errorf("a refused version counts: %+v %v", row, err)
	}
}

func TestSlugsOfWorkflows(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	create := func(tenant id.TenantID, name string, slug *string) (got string, err error) {
		err = w.try(t, tenant, func(ctx context.Context, tx *Tx) error {
			wf, err := tx.CreateWorkflow(ctx, &api.WorkflowCreate{Name: name, Slug: slug})
			if err == nil {
				got = wf.Slug
			}
			return err
		})
		return got, err
	}
	for _, c := range []struct{ name, want string }{{"Refunds", "refunds"}, {"refunds!", "refunds-2"}, {"日本語", "workflow"}, {"???", "workflow-2"}} {
		if got, err := create(w.a, c.name, nil); err != nil || got != c.want {
			t.Errorf("%q: %q, %v; want %q", c.name, got, err, c.want)
		}
	}
	if _, err := create(w.a, "Other", ptr("refunds")); !isCode(err, problem.CodeSlugTaken) {
		t.Errorf("a taken slug: %v", err)
	}
	if got, err := create(w.b, "Other", ptr("refunds")); err != nil || got != "refunds" {
		t.Errorf("another tenant's slug: %q, %v", got, err)
	}
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			if _, err := create(w.a, "Crowd", nil); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := w.count(t, "SELECT count(DISTINCT slug)::int FROM workflows WHERE tenant_id = $1 AND slug LIKE 'crowd%'", w.a); n != 6 {
		t.Errorf("%d slugs of 6 workflows", n)
	}
}

// Concurrent changes number versions without a gap and leave one published.
func TestVersionsAndPublicationsMeet(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	wf := w.workflow(t, w.a, oneDelay, oneDelay)
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Go(func() {
			if err := w.try(t, w.a, func(ctx context.Context, tx *Tx) error {
				if i%3 == 0 {
					return tx.addDefinition(ctx, wf, oneDelay)
				}
				return third(tx.PublishWorkflow(ctx, wf, i%3))
			}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	versions, err := w.View(w.a).WorkflowVersions(t.Context(), wf, 0, All)
	if err != nil {
		t.Fatal(err)
	}
	row, err := w.View(w.a).Workflow(t.Context(), wf)
	if err != nil || row.LatestVersion != 6 || len(versions) != 6 || row.PublishedVersion == nil {
		t.Fatalf("%+v, %d versions, %v", row, len(versions), err)
	}
	for i, v := range versions {
		if v.Version != 6-i || (v.Status == lifecycle.VersionPublished) != (v.Version == *row.PublishedVersion) {
			t.Errorf("%d. version %d is %s, published %d", i, v.Version, v.Status, *row.PublishedVersion)
		}
	}
}

// The role of the API can change only the status of a version.
func TestADefinitionNeverChanges(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.workflow(t, w.a, oneDelay)
	for _, sql := range []string{
		`UPDATE workflow_versions SET definition = '{}'`, `UPDATE workflow_versions SET version = 7`, `UPDATE workflow_versions SET created_at = now()`,
		`DELETE FROM workflow_versions`,
	} {
		err := w.try(t, w.a, func(ctx context.Context, tx *Tx) error {
			_, err := tx.tx.Exec(ctx, sql)
			return err
		})
		if err == nil || !strings.Contains(err.Error(), "42501") {
			t.Errorf("%s: %v", sql, err)
		}
	}
}

func TestForeignWorkflowsAreNoRows(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	wf := w.workflow(t, w.a, oneDelay)
	w.publishes(t, wf, 1)
	v := w.View(w.b)
	for what, err := range map[string]error{
		"workflow": second(v.Workflow(t.Context(), wf)),
		"version":  second(v.WorkflowVersion(t.Context(), wf, 1)),
		"start":    second(v.StartWorkflow(t.Context(), wf, false)),
		"update": w.try(t, w.b, func(ctx context.Context, tx *Tx) error {
			return second(tx.UpdateWorkflow(ctx, wf, &api.WorkflowPatch{Name: ptr("x")}))
		}),
		"add a version": w.try(t, w.b, func(ctx context.Context, tx *Tx) error { return tx.addDefinition(ctx, wf, oneDelay) }),
		"publish":       w.try(t, w.b, func(ctx context.Context, tx *Tx) error { return third(tx.PublishWorkflow(ctx, wf, 1)) }),
		"archive":       w.try(t, w.b, func(ctx context.Context, tx *Tx) error { return tx.ArchiveWorkflow(ctx, wf) }),
	} {
		if !isCode(err, problem.CodeNotFound) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for what, n := range map[string]int{
		"workflows": len(must(v.Workflows(t.Context(), id.WorkflowID{}, 25))),
		"versions":  len(must(v.WorkflowVersions(t.Context(), wf, 0, 25))),
	} {
		if n != 0 {
			t.Errorf("%d foreign %s are listed", n, what)
		}
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestChangesOfWorkflowsAreAudited(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	wf := w.workflow(t, w.a, oneDelay)
	w.publishes(t, wf, 1)
	w.change(t, w.a, func(ctx context.Context, tx *Tx) error {
		_, err := tx.UpdateWorkflow(ctx, wf, &api.WorkflowPatch{Name: ptr("x")})
		return err
	})
	w.change(t, w.a, func(ctx context.Context, tx *Tx) error { return tx.ArchiveWorkflow(ctx, wf) })
	rows, err := w.db.Admin(t).Query(t.Context(), `SELECT action || coalesce(' ' || detail::text, '') FROM audit_log WHERE target_kind = 'workflow' AND target_id = $1 AND actor = 'apikey:test' ORDER BY id`, wf)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for rows.Next() {
		var one string
		if err := rows.Scan(&one); err != nil {
			t.Fatal(err)
		}
		got = append(got, one)
	}
	want := []string{"workflow.create", `workflow.version.create {"version":1}`, `workflow.publish {"version":1}`, "workflow.update", "workflow.delete"}
	if err := rows.Err(); err != nil || !slices.Equal(got, want) {
		t.Errorf("%q %v", got, err)
	}
}

// open-parts.md, Changes, Workflows: archiving a workflow pauses its triggers. A trigger
// targets a workflow of the tenant that is not archived, as it does an agent.
func TestArchivingAWorkflowPausesItsTriggers(t *testing.T) {
	t.Parallel()
	w := newTriggers(t)
	wf, foreign := w.workflow(t, w.a, oneDelay), w.workflow(t, w.b, oneDelay)
	target := func(of id.WorkflowID) *api.TriggerTarget { return &api.TriggerTarget{WorkflowID: &of} }
	create := func(in api.TriggerCreate, of id.WorkflowID) (out *api.TriggerCreated, err error) {
		err = w.try(t, w.a, func(ctx context.Context, tx *Tx) (err error) {
			in.Name, in.Target = "T", *target(of)
			out, err = tx.CreateTrigger(ctx, &in)
			return err
		})
		return out, err
	}
	daily := &api.Schedule{Cron: "0 9 * * *"}
	hook, err := create(api.TriggerCreate{Kind: lifecycle.TriggerHook}, wf)
	if err != nil || hook.Target.WorkflowID == nil || *hook.Target.WorkflowID != wf || hook.Target.AgentID != nil {
		t.Fatalf("%+v %v", hook, err)
	}
	began := time.Now().Add(-time.Second)
	schedule, err := create(api.TriggerCreate{Kind: lifecycle.TriggerSchedule, Schedule: daily}, wf)
	if err != nil {
		t.Fatal(err)
	}
	w.awaits("made", schedule.ID, daily.Cron, "UTC", began)
	if _, err := create(api.TriggerCreate{Kind: lifecycle.TriggerHook}, foreign); !isCode(err, problem.CodeValidation) || !strings.Contains(err.Error(), "target.workflow_id: there is no such workflow") {
		t.Errorf("another tenant's workflow: %v", err)
	}
	moved := w.update(w.schedule.ID, api.TriggerPatch{Target: target(wf)})
	back := w.update(w.hook.ID, api.TriggerPatch{Target: target(wf)})
	if moved.Target.AgentID != nil || *moved.Target.WorkflowID != wf || back.Target.AgentID != nil {
		t.Errorf("%+v %+v", moved.Target, back.Target)
	}
	if back = w.update(w.hook.ID, api.TriggerPatch{Target: &api.TriggerTarget{AgentID: &w.agent}}); back.Target.WorkflowID != nil || *back.Target.AgentID != w.agent {
		t.Errorf("%+v", back.Target)
	}
	w.change(t, w.a, func(ctx context.Context, tx *Tx) error { return tx.ArchiveWorkflow(ctx, wf) })
	for what, g := range map[string]id.TriggerID{"its hook": hook.ID, "its schedule": schedule.ID, "the schedule that was moved to it": moved.ID} {
		w.rests(what, g)
		if row, err := w.View(w.a).Trigger(t.Context(), g); err != nil || row.Enabled {
			t.Errorf("%s is enabled, %v", what, err)
		}
		for change, patch := range map[string]api.TriggerPatch{"resumed": {Enabled: ptr(true)}, "retargeted": {Target: target(wf)}} {
			err := w.try(t, w.a, func(ctx context.Context, tx *Tx) error { return second(tx.UpdateTrigger(ctx, g, &patch)) })
			if !isCode(err, problem.CodeValidation) || !strings.Contains(err.Error(), "target.workflow_id: there is no such workflow") {
				t.Errorf("%s, %s: %v", what, change, err)
			}
		}
	}
	if row, err := w.View(w.a).Trigger(t.Context(), w.hook.ID); err != nil || !row.Enabled {
		t.Errorf("the hook of the agent is paused, %v", err)
	}
}

// Changes of triggers run while their workflow is archived: afterwards none of them is enabled.
func TestNoTriggerEscapesTheArchivingOfItsWorkflow(t *testing.T) {
	t.Parallel()
	w := newTriggers(t)
	for range 10 {
		wf := w.workflow(t, w.a, oneDelay)
		target := api.TriggerTarget{WorkflowID: &wf}
		daily := &api.Schedule{Cron: "0 9 * * *"}
		var paused, moved *api.TriggerCreated
		w.change(t, w.a, func(ctx context.Context, tx *Tx) (err error) {
			if paused, err = tx.CreateTrigger(ctx, &api.TriggerCreate{Name: "P", Kind: "schedule", Target: target, Schedule: daily, Enabled: ptr(false)}); err != nil {
				return err
			}
			moved, err = tx.CreateTrigger(ctx, &api.TriggerCreate{Name: "M", Kind: "schedule", Target: api.TriggerTarget{AgentID: &w.agent}, Schedule: daily})
			return err
		})
		var meet sync.WaitGroup
		for _, do := range []func(ctx context.Context, tx *Tx) error{
			func(ctx context.Context, tx *Tx) error { return tx.ArchiveWorkflow(ctx, wf) },
			func(ctx context.Context, tx *Tx) error {
				return second(tx.UpdateTrigger(ctx, paused.ID, &api.TriggerPatch{Enabled: ptr(true)}))
			},
			func(ctx context.Context, tx *Tx) error {
				return second(tx.UpdateTrigger(ctx, moved.ID, &api.TriggerPatch{Target: &target}))
			},
			func(ctx context.Context, tx *Tx) error {
				return second(tx.CreateTrigger(ctx, &api.TriggerCreate{Name: "C", Kind: "hook", Target: target}))
			},
		} {
			meet.Go(func() {
				if err := w.try(t, w.a, do); err != nil && !isCode(err, problem.CodeValidation) {
					t.Error(err)
				}
			})
		}
		meet.Wait()
		if n := w.count(t, `SELECT count(*)::int FROM triggers WHERE workflow_id = $1 AND enabled`, wf); n != 0 {
			t.Fatalf("%d triggers of an archived workflow are enabled", n)
		}
		if n := w.count(t, `SELECT count(*)::int FROM timers t WHERE kind = 'trigger' AND NOT EXISTS (SELECT FROM triggers g WHERE g.id = t.entity_id AND g.next_fire_at = t.due_at)`); n != 0 {
			t.Fatalf("%d timers differ from their rows", n)
		}
	}
}

// The list of a workflow's runs, or a trigger's, does not read those of the tenant's other runs.
func TestTheRunsOfAWorkflowOrTriggerAreFoundByThemselves(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	admin := w.db.Admin(t)
	wf, trigger := id.WorkflowID{UUID: id.NewAnywhere()}, id.TriggerID{UUID: id.NewAnywhere()}
	const insert = `INSERT INTO runs (tenant_id, id, status, workflow_id, agent_id, origin_kind, origin_id, created_at, finished_at) SELECT $1, gen_random_uuid(), 'succeeded', `
	for _, q := range []struct {
		columns string
		of      id.UUID
		n       int
	}{
		{`NULL, $2, 'api_key', $2`, id.NewAnywhere(), 3000},
		{`NULL, $2, 'trigger', $2`, id.NewAnywhere(), 3000}, // of another trigger
		{`NULL, $2, 'trigger', $2`, trigger.UUID, 3},
		{`$2, NULL, 'api_key', $2`, wf.UUID, 3},
	} {
		if _, err := admin.Exec(t.Context(), insert+q.columns+`, now(), now() FROM generate_series(1, $3)`, w.a, q.of, q.n); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := admin.Exec(t.Context(), "ANALYZE runs"); err != nil {
		t.Fatal(err)
	}
	for index, f := range map[string]RunFilter{"runs_workflow": {Workflow: &wf}, "runs_trigger": {Trigger: &trigger}} {
		rows, err := admin.Query(t.Context(), "EXPLAIN "+queries.Get("runs"), append([]any{pgx.QueryExecModeExec}, f.args(w.a, id.RunID{}, 25)...)...)
		if err != nil {
			t.Fatal(err)
		}
		plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		if text := strings.Join(plan, "\n"); !strings.Contains(text, index) {
			t.Errorf("it reads all runs, not %s:\n%s", index, text)
		}
		if got, err := w.View(w.a).Runs(t.Context(), f, id.RunID{}, 25); err != nil || len(got) != 3 {
			t.Errorf("%s: %d runs, %v", index, len(got), err)
		}
	}
}
