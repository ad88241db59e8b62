package store

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/schedule"
	"agentsvc/schemas/testkit"
)

// triggers is a tenant's agent with a schedule and a hook.
type triggers struct {
	*world
	t         *testing.T
	agent     id.AgentID
	schedule  *api.Trigger
	hook      *api.TriggerCreated
	schedules *Schedules
	hooks     *Hooks
}

func newTriggers(t *testing.T) *triggers {
	t.Helper()
	w := &triggers{world: newWorld(t), t: t}
	w.schedules, w.hooks = NewSchedules(w.db.System(t)), NewHooks(w.db.System(t), w.vault)
	w.change(t, w.a, func(ctx context.Context, tx *Tx) (err error) {
		w.agent, err = tx.agent(ctx, nil)
		return err
	})
	w.schedule = &w.create(api.TriggerCreate{Kind: lifecycle.TriggerSchedule, Schedule: &api.Schedule{Cron: "0 9 * * *", Timezone: "Europe/Berlin"}, Input: api.Value(`["x"]`)}).Trigger
	w.hook = w.create(api.TriggerCreate{Kind: lifecycle.TriggerHook, Input: api.Value(`{"a":1}`)})
	return w
}

// create makes a trigger of the agent.
func (w *triggers) create(in api.TriggerCreate) (out *api.TriggerCreated) {
	w.t.Helper()
	w.change(w.t, w.a, func(ctx context.Context, tx *Tx) (err error) {
		in.Name, in.Target.AgentID = "T", &w.agent
		out, err = tx.CreateTrigger(ctx, &in)
		return err
	})
	return out
}

func (w *triggers) update(g id.TriggerID, p api.TriggerPatch) (out *api.Trigger) {
	w.t.Helper()
	w.change(w.t, w.a, func(ctx context.Context, tx *Tx) (err error) {
		out, err = tx.UpdateTrigger(ctx, g, &p)
		return err
	})
	return out
}

// due returns when the timer of a trigger is due, nil if there is none.
func (w *triggers) due(g id.TriggerID) *time.Time {
	w.t.Helper()
	var at []time.Time
	if err := w.db.Admin(w.t).QueryRow(w.t.Context(), `SELECT coalesce(array_agg(due_at), '{}') FROM timers
		WHERE tenant_id = $1 AND kind = 'trigger' AND entity_id = $2 AND name = 'due' AND claimed_until IS NULL`, w.a, g).Scan(&at); err != nil {
		w.t.Fatal(err)
	}
	if len(at) == 0 {
		return nil
	}
	return &at[0]
}

// awaits checks that a schedule and its timer both have the first time after since.
func (w *triggers) awaits(what string, g id.TriggerID, cron, zone string, since time.Time) {
	w.t.Helper()
	row, err := w.View(w.a).Trigger(w.t.Context(), g)
	if err != nil {
		w.t.Fatal(err)
	}
	times, err := schedule.Parse(cron, zone)
	if err != nil {
		w.t.Fatal(err)
	}
	// The minute may have turned between the two calls.
	early, late, timer := times.Next(since), times.Next(time.Now()), w.due(g)
	if row.NextFireAt == nil || timer == nil || !row.NextFireAt.Equal(*timer) || row.NextFireAt.Before(early) || row.NextFireAt.After(late) {
		w.t.Errorf("%s: next %v, timer %v, want %v", what, row.NextFireAt, timer, early)
	}
}

// rests checks that a trigger has neither a next time nor a timer.
func (w *triggers) rests(what string, g id.TriggerID) {
	w.t.Helper()
	row, err := w.View(w.a).Trigger(w.t.Context(), g)
	if err != nil {
		w.t.Fatal(err)
	}
	if timer := w.due(g); row.NextFireAt != nil || timer != nil {
		w.t.Errorf("%s: next %v, timer %v", what, row.NextFireAt, timer)
	}
}

// open-parts.md, triggers: which requests are refused, and for which field.
func TestRefusedTriggers(t *testing.T) {
	t.Parallel()
	w := newTriggers(t)
	yes := api.TriggerTarget{AgentID: &w.agent}
	daily := &api.Schedule{Cron: "0 9 * * *"}
	var foreign id.AgentID
	w.change(t, w.b, func(ctx context.Context, tx *Tx) (err error) {
		foreign, err = tx.agent(ctx, nil)
		return err
	})
	large := api.Value(`{"x":"` + strings.Repeat("x", api.MaxTriggerInput-8) + `"}`)
	for _, row := range []struct {
		name string
		in   api.TriggerCreate
		want string // "": it is created
	}{
		{"a hook", api.TriggerCreate{Kind: "hook", Target: yes}, ""},
		{"a schedule", api.TriggerCreate{Kind: "schedule", Target: yes, Schedule: daily}, ""},
		{"a schedule's input is any JSON", api.TriggerCreate{Kind: "schedule", Target: yes, Schedule: daily, Input: api.Value(`"text"`)}, ""},
		{"an input as large as it may be", api.TriggerCreate{Kind: "hook", Target: yes, Input: large}, ""},
		{"one byte more", api.TriggerCreate{Kind: "hook", Target: yes, Input: append(large[:len(large):len(large)], ' ')}, "input: must have at most"},
		{"a hook's input is an object", api.TriggerCreate{Kind: "hook", Target: yes, Input: api.Value(`"text"`)}, "input: must be a JSON object"},
		{"no input may be written as null", api.TriggerCreate{Kind: "hook", Target: yes, Input: api.Value(`null`)}, ""},
		{"no target", api.TriggerCreate{Kind: "hook"}, "target.agent_id: is required"},
		{"a workflow", api.TriggerCreate{Kind: "hook", Target: api.TriggerTarget{WorkflowID: &id.WorkflowID{UUID: id.NewAnywhere()}}}, "target.workflow_id: there is no such workflow"},
		{"a workflow and an agent", api.TriggerCreate{Kind: "hook", Target: api.TriggerTarget{AgentID: &w.agent, WorkflowID: &id.WorkflowID{UUID: id.NewAnywhere()}}}, "target.workflow_id: cannot be given together with agent_id"},
		{"an unknown agent", api.TriggerCreate{Kind: "hook", Target: api.TriggerTarget{AgentID: &id.AgentID{UUID: id.NewAnywhere()}}}, "target.agent_id: there is no such agent"},
		{"another tenant's agent", api.TriggerCreate{Kind: "hook", Target: api.TriggerTarget{AgentID: &foreign}}, "target.agent_id: there is no such agent"},
		{"a schedule without times", api.TriggerCreate{Kind: "schedule", Target: yes}, "schedule: is required"},
		{"a hook with times", api.TriggerCreate{Kind: "hook", Target: yes, Schedule: daily}, "schedule: belongs to the kind schedule only"},
		{"an expression that is none", api.TriggerCreate{Kind: "schedule", Target: yes, Schedule: &api.Schedule{Cron: "every day"}}, "schedule.cron: expected five fields (minute, hour, day of month, month, day of week), got 2"},
		{"one that never comes due", api.TriggerCreate{Kind: "schedule", Target: yes, Schedule: &api.Schedule{Cron: "0 0 31 2 *"}}, "schedule.cron: it never comes due: no month named has the day named"},
		{"a zone that is none", api.TriggerCreate{Kind: "schedule", Target: yes, Schedule: &api.Schedule{Cron: "0 9 * * *", Timezone: "Mars/Base"}}, `schedule.timezone: unknown time zone "Mars/Base"`},
	} {
		row.in.Name = row.name
		err := w.try(t, w.a, func(ctx context.Context, tx *Tx) error {
			_, err := tx.CreateTrigger(ctx, &row.in)
			return err
		})
		switch {
		case row.want == "" && err != nil:
			t.Errorf("%s: %v", row.name, err)
		case row.want != "" && (!isCode(err, problem.CodeValidation) || !strings.Contains(err.Error(), row.want)):
			t.Errorf("%s: %v, want %q", row.name, err, row.want)
		}
	}
	for _, row := range []struct {
		name string
		of   id.TriggerID
		in   api.TriggerPatch
		want string
	}{
		{"another kind", w.hook.ID, api.TriggerPatch{Kind: ptr(lifecycle.TriggerSchedule)}, "kind: cannot be changed"},
		{"the same kind", w.hook.ID, api.TriggerPatch{Kind: ptr(lifecycle.TriggerHook)}, ""},
		{"a target of another kind", w.hook.ID, api.TriggerPatch{Target: &api.TriggerTarget{WorkflowID: &id.WorkflowID{UUID: id.NewAnywhere()}}}, "target.workflow_id: there is no such workflow"},
		{"a target that is none", w.hook.ID, api.TriggerPatch{Target: &api.TriggerTarget{}}, "target.agent_id: is required"},
		{"another tenant's agent", w.hook.ID, api.TriggerPatch{Target: &api.TriggerTarget{AgentID: &foreign}}, "target.agent_id: there is no such agent"},
		{"times for a hook", w.hook.ID, api.TriggerPatch{Schedule: &api.SchedulePatch{Cron: ptr("* * * * *")}}, "schedule: belongs to the kind schedule only"},
		{"a text for a hook", w.hook.ID, api.TriggerPatch{Input: api.Some(api.Value(`"text"`))}, "input: must be a JSON object"},
		{"an expression that is none", w.schedule.ID, api.TriggerPatch{Schedule: &api.SchedulePatch{Cron: ptr("")}}, "schedule.cron:"},
		{"a zone that is none", w.schedule.ID, api.TriggerPatch{Schedule: &api.SchedulePatch{Timezone: ptr("Local")}}, "schedule.timezone:"},
	} {
		err := w.try(t, w.a, func(ctx context.Context, tx *Tx) error {
			_, err := tx.UpdateTrigger(ctx, row.of, &row.in)
			return err
		})
		switch {
		case row.want == "" && err != nil:
			t.Errorf("%s: %v", row.name, err)
		case row.want != "" && (!isCode(err, problem.CodeValidation) || !strings.Contains(err.Error(), row.want)):
			t.Errorf("%s: %v, want %q", row.name, err, row.want)
		}
	}
}

func TestAScheduleAndItsTimerAgree(t *testing.T) {
	t.Parallel()
	w := newTriggers(t)
	began := time.Now().Add(-time.Second)
	g := w.schedule.ID
	w.awaits("made", g, "0 9 * * *", "Europe/Berlin", began)
	if w.schedule.Schedule == nil || *w.schedule.Schedule != (api.Schedule{Cron: "0 9 * * *", Timezone: "Europe/Berlin"}) || string(w.schedule.Input) != `["x"]` {
		t.Errorf("%+v", w.schedule)
	}
	paused := w.update(g, api.TriggerPatch{Enabled: ptr(false)})
	if paused.Enabled {
		t.Error("it is not paused")
	}
	w.rests("paused", g)
	w.update(g, api.TriggerPatch{Schedule: &api.SchedulePatch{Cron: ptr("*/5 * * * *")}})
	w.rests("changed while paused", g)
	w.update(g, api.TriggerPatch{Enabled: ptr(true)})
	w.awaits("goes on", g, "*/5 * * * *", "Europe/Berlin", began)
	w.update(g, api.TriggerPatch{Schedule: &api.SchedulePatch{Cron: ptr("0 9 * * *"), Timezone: ptr("Asia/Tokyo")}})
	w.awaits("other times", g, "0 9 * * *", "Asia/Tokyo", began)
	if row := w.update(g, api.TriggerPatch{Schedule: &api.SchedulePatch{Cron: ptr("0 10 * * *")}}); *row.Schedule != (api.Schedule{Cron: "0 10 * * *", Timezone: "Asia/Tokyo"}) {
		t.Errorf("an omitted field changed: %+v", row.Schedule)
	}
	// A due time that has not fired yet stays due, whatever else changes.
	past := time.Date(2026, 1, 2, 3, 4, 0, 0, time.UTC)
	if _, err := w.db.Admin(t).Exec(t.Context(), `UPDATE triggers SET next_fire_at = $1 WHERE id = $2`, past, g); err != nil {
		t.Fatal(err)
	}
	if row := w.update(g, api.TriggerPatch{Name: ptr("Other"), Enabled: ptr(true), Input: api.None[api.Value]()}); !row.NextFireAt.Equal(past) || row.Name != "Other" || row.Input != nil {
		t.Errorf("%+v", row)
	}
	made := w.create(api.TriggerCreate{Kind: lifecycle.TriggerSchedule, Schedule: &api.Schedule{Cron: "0 9 * * *"}, Enabled: ptr(false)})
	w.rests("made paused", made.ID)
	if made.Schedule.Timezone != "UTC" || made.Secret != "" {
		t.Errorf("%+v", made)
	}
	w.change(t, w.a, func(ctx context.Context, tx *Tx) error { return tx.DeleteTrigger(ctx, g) })
	if w.due(g) != nil {
		t.Error("a deleted schedule has a timer")
	}
}

func TestAHookIsFoundByItsIDAlone(t *testing.T) {
	t.Parallel()
	w := newTriggers(t)
	if len(w.hook.Secret) < 40 {
		t.Fatalf("the secret is %q", w.hook.Secret)
	}
	find := func(g id.TriggerID) *Hook {
		t.Helper()
		h, err := w.hooks.Find(t.Context(), g)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	h := find(w.hook.ID)
	if h == nil || h.Tenant != w.a || h.Target.AgentID == nil || *h.Target.AgentID != w.agent || h.Target.WorkflowID != nil || string(h.Secret.Reveal()) != w.hook.Secret || string(h.Input) != `{"a":1}` {
		t.Fatalf("%+v", h)
	}
	var stored []byte
	if err := w.db.Admin(t).QueryRow(t.Context(), `SELECT secret FROM triggers WHERE id = $1`, w.hook.ID).Scan(&stored); err != nil || strings.Contains(string(stored), w.hook.Secret) {
		t.Errorf("the secret is not sealed: %v", err)
	}
	for what, g := range map[string]id.TriggerID{"a schedule": w.schedule.ID, "an unknown id": {UUID: id.NewAnywhere()}} {
		if find(g) != nil {
			t.Errorf("%s is a hook", what)
		}
	}
	var rotated *api.TriggerCreated
	w.change(t, w.a, func(ctx context.Context, tx *Tx) (err error) {
		rotated, err = tx.RotateTrigger(ctx, w.hook.ID)
		return err
	})
	if rotated.Secret == w.hook.Secret || string(find(w.hook.ID).Secret.Reveal()) != rotated.Secret {
		t.Error("the secret is the old one")
	}
	w.update(w.hook.ID, api.TriggerPatch{Enabled: ptr(false)})
	if find(w.hook.ID) != nil {
		t.Error("a paused hook is found")
	}
	err := w.try(t, w.a, func(ctx context.Context, tx *Tx) error {
		_, err := tx.RotateTrigger(ctx, w.schedule.ID)
		return err
	})
	if !isCode(err, problem.CodeValidation) {
		t.Errorf("the secret of a schedule: %v", err)
	}
}

// open-parts.md, Audit: each change names its actor.
func TestChangesOfTriggersAreAudited(t *testing.T) {
	t.Parallel()
	w := newTriggers(t)
	w.update(w.hook.ID, api.TriggerPatch{Name: ptr("N")})
	w.change(t, w.a, func(ctx context.Context, tx *Tx) error {
		_, err := tx.RotateTrigger(ctx, w.hook.ID)
		return errors.Join(err, tx.DeleteTrigger(ctx, w.hook.ID))
	})
	for _, verb := range []string{"create", "update", "rotate", "delete"} {
		if n := w.count(t, `SELECT count(*)::int FROM audit_log WHERE tenant_id = $1 AND action = $2 AND target_kind = 'trigger' AND target_id = $3 AND actor = 'apikey:test'`,
			w.a, "trigger."+verb, w.hook.ID); n != 1 {
			t.Errorf("%s: %d rows", verb, n)
		}
	}
}

func TestAnotherTenantsTriggerIsNotFound(t *testing.T) {
	t.Parallel()
	w := newTriggers(t)
	g := w.hook.ID
	for what, do := range map[string]func(ctx context.Context, tx *Tx) error{
		"read": func(ctx context.Context, tx *Tx) error { _, err := tx.Trigger(ctx, g); return err },
		"update": func(ctx context.Context, tx *Tx) error {
			_, err := tx.UpdateTrigger(ctx, g, &api.TriggerPatch{})
			return err
		},
		"rotate": func(ctx context.Context, tx *Tx) error { _, err := tx.RotateTrigger(ctx, g); return err },
		"delete": func(ctx context.Context, tx *Tx) error { return tx.DeleteTrigger(ctx, g) },
	} {
		if err := w.try(t, w.b, do); !isCode(err, problem.CodeNotFound) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if rows, err := w.View(w.b).Triggers(t.Context(), id.TriggerID{}, All); err != nil || len(rows) != 0 {
		t.Errorf("listed %v, %v", rows, err)
	}
	if rows, err := w.View(w.a).Triggers(t.Context(), id.TriggerID{}, All); err != nil || len(rows) != 2 || rows[0].ID != w.hook.ID {
		t.Errorf("its own: %v, %v", rows, err)
	}
	if s, err := w.schedules.Schedule(t.Context(), w.b, w.schedule.ID); err != nil || s != nil {
		t.Errorf("its times: %v, %v", s, err)
	}
}

// open-parts.md, Tools: archiving an agent pauses its triggers.
func TestArchivingAnAgentPausesItsTriggers(t *testing.T) {
	t.Parallel()
	w := newTriggers(t)
	var other id.AgentID
	w.change(t, w.a, func(ctx context.Context, tx *Tx) (err error) {
		other, err = tx.agent(ctx, nil)
		return err
	})
	kept := w.create(api.TriggerCreate{Kind: lifecycle.TriggerSchedule, Schedule: &api.Schedule{Cron: "0 9 * * *"}})
	w.update(kept.ID, api.TriggerPatch{Target: &api.TriggerTarget{AgentID: &other}})
	w.change(t, w.a, func(ctx context.Context, tx *Tx) error { return second(tx.ArchiveAgent(ctx, w.agent)) })
	w.rests("of the archived one", w.schedule.ID)
	if h, err := w.hooks.Find(t.Context(), w.hook.ID); err != nil || h != nil {
		t.Errorf("its hook is found: %v", err)
	}
	w.awaits("of the other one", kept.ID, "0 9 * * *", "UTC", time.Now().Add(-time.Second))
	for what, patch := range map[string]api.TriggerPatch{
		"resumed":    {Enabled: ptr(true)},
		"retargeted": {Target: &api.TriggerTarget{AgentID: &w.agent}},
	} {
		err := w.try(t, w.a, func(ctx context.Context, tx *Tx) error {
			_, err := tx.UpdateTrigger(ctx, w.hook.ID, &patch)
			return err
		})
		if !isCode(err, problem.CodeValidation) || !strings.Contains(err.Error(), "target.agent_id: there is no such agent") {
			t.Errorf("%s: %v", what, err)
		}
	}
	w.update(w.hook.ID, api.TriggerPatch{Name: ptr("renamed all the same")})
}

// Triggers that the archiving of their agent or workflow pauses are reported as changed, to feeds and
// in the audit log; those that were paused before are not.
func TestTriggersThatAnArchivingPausesAreTold(t *testing.T) {
	t.Parallel()
	w := newTriggers(t)
	asleep := w.create(api.TriggerCreate{Kind: lifecycle.TriggerHook})
	w.update(asleep.ID, api.TriggerPatch{Enabled: ptr(false)})
	audited := func() int {
		return w.count(t, "SELECT count(*)::int FROM audit_log WHERE action = 'trigger.update' AND target_kind = 'trigger' AND target_id = ANY ($1) AND actor = 'apikey:test' AND ip = '192.0.2.1'",
			[]id.TriggerID{w.schedule.ID, w.hook.ID})
	}
	before := audited()
	all := noted(w.Store, func() {
		w.change(t, w.a, func(ctx context.Context, tx *Tx) error { return second(tx.ArchiveAgent(ctx, w.agent)) })
	})
	if got, want := only(all, "trigger", w.schedule.ID, w.hook.ID); !slices.Equal(got, want) {
		t.Errorf("told %v, want %v", got, want)
	}
	if n := audited() - before; n != 2 {
		t.Errorf("%d are audited", n)
	}
	again := noted(w.Store, func() {
		w.change(t, w.a, func(ctx context.Context, tx *Tx) error { return tx.pauseTriggers(ctx, w.agent.UUID) })
	})
	if len(again) != 0 {
		t.Errorf("told again: %v", again)
	}
}

// Changes of triggers run while their agent is archived: afterwards none of them is enabled, and
// no transaction waited for ever.
func TestNoTriggerEscapesTheArchivingOfItsAgent(t *testing.T) {
	t.Parallel()
	w := newTriggers(t)
	for range 25 {
		var old id.AgentID
		var paused, moved *api.TriggerCreated
		w.change(t, w.a, func(ctx context.Context, tx *Tx) (err error) {
			if old, err = tx.agent(ctx, nil); err != nil {
				return err
			}
			daily := &api.Schedule{Cron: "0 9 * * *"}
			if paused, err = tx.CreateTrigger(ctx, &api.TriggerCreate{Name: "P", Kind: "schedule", Target: api.TriggerTarget{AgentID: &old}, Schedule: daily, Enabled: ptr(false)}); err != nil {
				return err
			}
			moved, err = tx.CreateTrigger(ctx, &api.TriggerCreate{Name: "M", Kind: "schedule", Target: api.TriggerTarget{AgentID: &w.agent}, Schedule: daily})
			return err
		})
		var meet sync.WaitGroup
		for _, do := range []func(ctx context.Context, tx *Tx) error{
			func(ctx context.Context, tx *Tx) error { return second(tx.ArchiveAgent(ctx, old)) },
			func(ctx context.Context, tx *Tx) error {
				_, err := tx.UpdateTrigger(ctx, paused.ID, &api.TriggerPatch{Enabled: ptr(true)})
				return err
			},
			func(ctx context.Context, tx *Tx) error {
				_, err := tx.UpdateTrigger(ctx, moved.ID, &api.TriggerPatch{Target: &api.TriggerTarget{AgentID: &old}})
				return err
			},
			func(ctx context.Context, tx *Tx) error {
				_, err := tx.CreateTrigger(ctx, &api.TriggerCreate{Name: "C", Kind: "hook", Target: api.TriggerTarget{AgentID: &old}})
				return err
			},
		} {
			meet.Go(func() {
				if err := w.try(t, w.a, do); err != nil && !isCode(err, problem.CodeValidation) {
					t.Error(err)
				}
			})
		}
		meet.Wait()
		if n := w.count(t, `SELECT count(*)::int FROM triggers WHERE agent_id = $1 AND enabled`, old); n != 0 {
			t.Fatalf("%d triggers of an archived agent are enabled", n)
		}
		if n := w.count(t, `SELECT count(*)::int FROM timers t WHERE kind = 'trigger' AND NOT EXISTS (SELECT FROM triggers g WHERE g.id = t.entity_id AND g.next_fire_at = t.due_at)`); n != 0 {
			t.Fatalf("%d timers differ from their rows", n)
		}
	}
}

// The row that the actor of a schedule reads. Each change that matters to the actor raises the
// version.
func TestTheRowThatAScheduleActorReads(t *testing.T) {
	t.Parallel()
	w := newTriggers(t)
	g := w.schedule.ID
	read := func(g id.TriggerID) *Schedule {
		t.Helper()
		s, err := w.schedules.Schedule(t.Context(), w.a, g)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := read(g)
	if *s.Agent != w.agent || *s.Cron != "0 9 * * *" || *s.Timezone != "Europe/Berlin" || string(s.Input) != `["x"]` || !s.Due.Equal(*w.schedule.NextFireAt) {
		t.Fatalf("%+v", s)
	}
	if s.Version != 1 || s.Epoch != 0 {
		t.Errorf("version %d, epoch %d", s.Version, s.Epoch)
	}
	if hook := read(w.hook.ID); hook.Due != nil || hook.Cron != nil || hook.Timezone != nil {
		t.Errorf("a hook: %+v", hook)
	}
	for _, step := range []struct {
		what   string
		due    bool
		change func(ctx context.Context, tx *Tx) error
	}{
		{"renamed", true, func(ctx context.Context, tx *Tx) error {
			_, err := tx.UpdateTrigger(ctx, g, &api.TriggerPatch{Name: ptr("Other")})
			return err
		}},
		{"the agent is archived", false, func(ctx context.Context, tx *Tx) error { return tx.pauseTriggers(ctx, w.agent.UUID) }},
		{"resumed", true, func(ctx context.Context, tx *Tx) error {
			_, err := tx.UpdateTrigger(ctx, g, &api.TriggerPatch{Enabled: ptr(true)})
			return err
		}},
		{"paused", false, func(ctx context.Context, tx *Tx) error {
			_, err := tx.UpdateTrigger(ctx, g, &api.TriggerPatch{Enabled: ptr(false)})
			return err
		}},
	} {
		before := read(g)
		w.change(t, w.a, step.change)
		if s := read(g); s.Version != before.Version+1 || (s.Due != nil) != step.due {
			t.Errorf("%s: version %d after %d, due at %v", step.what, s.Version, before.Version, s.Due)
		}
	}
	w.change(t, w.a, func(ctx context.Context, tx *Tx) error { return tx.DeleteTrigger(ctx, g) })
	if s := read(g); s != nil || w.due(g) != nil {
		t.Errorf("a deleted schedule: %+v", s)
	}
}

func TestLastFiredAtNeverGoesBack(t *testing.T) {
	t.Parallel()
	w := newTriggers(t)
	at := time.Date(2026, 5, 6, 7, 8, 9, 0, time.UTC)
	for _, when := range []time.Time{at, at.Add(-time.Hour)} {
		skipped, err := w.schedules.NoteFired(t.Context(), []Firing{{w.a, w.hook.ID, when}, {w.b, w.schedule.ID, when}, {w.a, id.TriggerID{UUID: id.NewAnywhere()}, when}})
		if err != nil || len(skipped) > 0 {
			t.Fatal(skipped, err)
		}
	}
	for g, want := range map[id.TriggerID]*time.Time{w.hook.ID: &at, w.schedule.ID: nil} {
		row, err := w.View(w.a).Trigger(t.Context(), g)
		if err != nil || (row.LastFiredAt == nil) != (want == nil) || want != nil && !row.LastFiredAt.Equal(*want) {
			t.Errorf("%s: %v, %v", g, row.LastFiredAt, err)
		}
	}
}

// NoteFired does not wait for a transaction that changes a trigger: that transaction may wait
// for a row that NoteFired has locked.
func TestNoteFiredWaitsForNoLock(t *testing.T) {
	t.Parallel()
	w := newTriggers(t)
	at := time.Date(2026, 5, 6, 7, 8, 9, 0, time.UTC)
	held, free := Firing{w.a, w.hook.ID, at}, Firing{w.a, w.schedule.ID, at}
	holder, err := w.db.Admin(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = holder.Rollback(context.Background()) })
	if _, err := holder.Exec(t.Context(), `SELECT FROM triggers WHERE id = $1 FOR NO KEY UPDATE`, held.Trigger); err != nil {
		t.Fatal(err)
	}
	note := func(fired ...Firing) []Firing {
		t.Helper()
		skipped, err := w.schedules.NoteFired(t.Context(), fired)
		if err != nil {
			t.Fatal(err)
		}
		return skipped
	}
	if skipped := note(held, free); len(skipped) != 1 || skipped[0].Tenant != held.Tenant || skipped[0].Trigger != held.Trigger || !skipped[0].At.Equal(at) {
		t.Errorf("skipped %+v", skipped)
	}
	noted := func(f Firing) bool {
		t.Helper()
		row, err := w.View(w.a).Trigger(t.Context(), f.Trigger)
		if err != nil {
			t.Fatal(err)
		}
		return row.LastFiredAt != nil && row.LastFiredAt.Equal(at)
	}
	if noted(held) || !noted(free) {
		t.Errorf("noted: the locked trigger %t, the other %t", noted(held), noted(free))
	}
	if err := holder.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if skipped := note(held); len(skipped) > 0 || !noted(held) {
		t.Errorf("after the lock: skipped %+v, noted %t", skipped, noted(held))
	}
}

// Archiving an agent locks its triggers and their timers in the order of their ids, in every
// query plan: while it waits for a row it holds no later one.
func TestTriggersArePausedInTheOrderOfTheirIDs(t *testing.T) {
	t.Parallel()
	for table, key := range map[string]string{"triggers": "id", "timers": "entity_id"} {
		w := newTriggers(t)
		ctx, admin := t.Context(), w.db.Admin(t)
		first := w.schedule.ID
		last := w.create(api.TriggerCreate{Kind: lifecycle.TriggerSchedule, Schedule: &api.Schedule{Cron: "0 9 * * *"}}).ID
		if bytes.Compare(first.UUID[:], last.UUID[:]) > 0 {
			first, last = last, first
		}
		// Update it again, so that the first row lies after the last one in the table.
		if _, err := admin.Exec(ctx, `UPDATE triggers SET name = 'moved' WHERE id = $1`, first); err != nil {
			t.Fatal(err)
		}
		if _, err := admin.Exec(ctx, `UPDATE timers SET due_at = due_at + interval '1 s' WHERE entity_id = $1`, first); err != nil {
			t.Fatal(err)
		}
		holder, err := admin.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = holder.Rollback(context.Background()) })
		var pid int
		if err := holder.QueryRow(ctx, `SELECT pg_backend_pid() FROM `+table+` WHERE `+key+` = $1 FOR NO KEY UPDATE`, first).Scan(&pid); err != nil {
			t.Fatal(err)
		}
		archived := make(chan error, 1)
		go func() {
			archived <- w.Change(ctx, By{Tenant: w.a, Actor: "system"}, func(ctx context.Context, tx *Tx) ([]byte, error) {
				for _, way := range []string{"indexscan", "indexonlyscan", "bitmapscan", "mergejoin"} { // plans that return rows in order
					if _, err := tx.tx.Exec(ctx, "SET LOCAL enable_"+way+" = off"); err != nil {
						return nil, err
					}
				}
				return nil, tx.pauseTriggers(ctx, w.agent.UUID)
			})
		}()
		testkit.Eventually(t, table+": a session waits for the holder", func() (waits bool) {
			if err := admin.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid)))`, pid).Scan(&waits); err != nil {
				t.Fatal(err)
			}
			return waits
		})
		if _, err := admin.Exec(ctx, `SELECT FROM `+table+` WHERE `+key+` = $1 FOR NO KEY UPDATE NOWAIT`, last); err != nil {
			t.Errorf("%s: the last row is locked before the first: %v", table, err)
		}
		if err := holder.Rollback(ctx); err != nil {
			t.Fatal(err)
		}
		if err := <-archived; err != nil {
			t.Fatal(err)
		}
		w.rests(table, first)
		w.rests(table, last)
	}
}
