package trigger_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"agentsvc/actors/trigger"
	"agentsvc/persistence/journal"
	"agentsvc/persistence/store"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
)

// read returns what an activation of a trigger loads.
func (w *world) read(g id.TriggerID) *store.Schedule {
	w.t.Helper()
	s, err := w.schedules.Schedule(context.Background(), w.tenant, g)
	w.must(err)
	if s == nil {
		w.t.Fatal("there is no such trigger")
	}
	return s
}

// swaps commits the swap of an activation that loaded s, and reports whether it takes effect.
func (w *world) swaps(g id.TriggerID, s *store.Schedule, due, fired *time.Time) bool {
	w.t.Helper()
	c := &journal.Commit{Op: id.OpID{UUID: id.NewAnywhere()}, Tenant: w.tenant, Shard: g.Shard(), Rows: []journal.Row{&trigger.Update{
		ID: g, Guard: journal.Guard{Version: s.Version, Epoch: s.Epoch, SetEpoch: s.Epoch + 1}, Due: due, Fired: fired}}}
	if timer := (journal.TimerKey{Kind: msg.KindTrigger, Entity: g.UUID, Name: "due"}); due != nil {
		c.Timers = []journal.Timer{{TimerKey: timer, DueAt: *due}}
	} else {
		c.TimersDone = []journal.TimerKey{timer}
	}
	err := w.writer.Do(context.Background(), c)
	if err != nil && !errors.Is(err, journal.ErrConflict) {
		w.t.Fatal(err)
	}
	return err == nil
}

func (w *world) update(g id.TriggerID, p api.TriggerPatch) {
	w.t.Helper()
	w.change(func(ctx context.Context, tx *store.Tx) error {
		_, err := tx.UpdateTrigger(ctx, g, &p)
		return err
	})
}

func TestAScheduleMovesOnceFromEachDueTime(t *testing.T) {
	w := newWorld(t)
	due := at(t, "2026-05-06T07:00:00Z")
	g := w.schedule("0 9 * * *", "Europe/Berlin", due)
	s := w.read(g)
	next, later, fired := due.Add(24*time.Hour), due.Add(48*time.Hour), due.Add(time.Second)
	is := func(what string, next, fired time.Time) {
		t.Helper()
		row := w.row(g)
		timer, claimed := w.timer(g)
		if !row.NextFireAt.Equal(next) || !timer.Equal(next) || claimed || row.LastFiredAt == nil || !row.LastFiredAt.Equal(fired) {
			t.Errorf("%s: next %v, timer %v (claimed: %v), last %v", what, row.NextFireAt, timer, claimed, row.LastFiredAt)
		}
	}
	if !w.swaps(g, s, &next, &fired) {
		t.Fatal("it does not move")
	}
	is("moved", next, fired)
	if w.swaps(g, s, &later, &later) {
		t.Error("it moves from the same time again")
	}
	is("moved from the same time again", next, fired)
	s.Version, s.Epoch = s.Version+1, s.Epoch+1
	if !w.swaps(g, s, &later, nil) {
		t.Fatal("it does not move again")
	}
	is("passed over", later, fired)
	s.Version, s.Epoch = s.Version+1, s.Epoch+1
	if !w.swaps(g, s, &next, &due) {
		t.Fatal("it does not move a third time")
	}
	is("fired earlier than a person fired it", next, fired)
	s.Version, s.Epoch = s.Version+1, s.Epoch+1
	off := false
	w.update(g, api.TriggerPatch{Enabled: &off})
	if w.swaps(g, s, &next, &next) {
		t.Error("it moves although it was paused")
	}
	if row := w.row(g); row.NextFireAt != nil || !row.LastFiredAt.Equal(fired) {
		t.Errorf("%+v", row)
	}
	if timer, _ := w.timer(g); !timer.IsZero() {
		t.Errorf("a paused schedule has a timer at %v", timer)
	}
	if s := w.read(g); w.swaps(g, s, &next, nil) || !w.swaps(g, s, nil, nil) {
		t.Error("a paused schedule is due, or does not take a commit without a due time")
	}
}

// A change by the API makes the swap miss of an activation that loaded the row before it.
// So does a change in progress, without delay.
func TestAChangeMakesTheSwapMiss(t *testing.T) {
	w := newWorld(t)
	next, on, off, name := at(t, "2030-01-02T03:04:00Z"), true, false, "Other"
	g := w.schedule("0 9 * * *", "Europe/Berlin", next)
	for _, step := range []struct {
		what   string
		change func()
	}{
		{"renamed", func() { w.update(g, api.TriggerPatch{Name: &name}) }},
		{"paused", func() { w.update(g, api.TriggerPatch{Enabled: &off}) }},
		{"resumed", func() { w.update(g, api.TriggerPatch{Enabled: &on}) }},
		{"the agent is archived", func() {
			w.change(func(ctx context.Context, tx *store.Tx) error { _, err := tx.ArchiveAgent(ctx, w.agent); return err })
		}},
	} {
		s := w.read(g)
		step.change()
		if w.swaps(g, s, nil, nil) {
			t.Errorf("%s: the swap takes effect", step.what)
		}
	}
	s := w.read(g)
	holder, err := w.admin.Begin(t.Context())
	w.must(err)
	t.Cleanup(func() { _ = holder.Rollback(context.Background()) })
	_, err = holder.Exec(t.Context(), `SELECT FROM triggers WHERE id = $1 FOR NO KEY UPDATE`, g)
	w.must(err)
	if w.swaps(g, s, nil, nil) {
		t.Error("the swap changes a row that a transaction holds")
	}
	w.must(holder.Rollback(t.Context()))
	if !w.swaps(g, s, nil, nil) {
		t.Error("the swap misses after the transaction has ended")
	}
	s = w.read(g)
	w.change(func(ctx context.Context, tx *store.Tx) error { return tx.DeleteTrigger(ctx, g) })
	if w.swaps(g, s, &next, nil) {
		t.Error("a deleted schedule takes a commit")
	}
	if timer, _ := w.timer(g); !timer.IsZero() {
		t.Errorf("a deleted schedule has a timer at %v", timer)
	}
}

func TestATimerIsMadeToAgreeWithItsRow(t *testing.T) {
	w := newWorld(t)
	due := at(t, "2026-05-06T07:00:00Z")
	g := w.schedule("0 * * * *", "UTC", due)
	w.exec(`UPDATE timers SET due_at = now() - interval '1 hour', claimed_until = now() + interval '1 hour' WHERE entity_id = $1`, g)
	w.clock.set(due.Add(-time.Hour))
	n := w.start(trigger.Config{}, nil)
	w.tell(n, g)
	w.rests(n, g)
	w.moves(g, due)
	var hook id.TriggerID
	w.change(func(ctx context.Context, tx *store.Tx) error {
		made, err := tx.CreateTrigger(ctx, &api.TriggerCreate{Name: "H", Kind: lifecycle.TriggerHook, Target: api.TriggerTarget{AgentID: &w.agent}})
		hook = made.ID
		return err
	})
	for what, g := range map[string]id.TriggerID{"a hook": hook, "nothing": {UUID: id.NewAnywhere()}} {
		w.exec(`INSERT INTO timers (tenant_id, kind, entity_id, name, due_at) VALUES ($1, 'trigger', $2, 'due', now())`, w.tenant, g)
		w.tell(n, g)
		w.rests(n, g)
		if timer, _ := w.timer(g); !timer.IsZero() {
			t.Errorf("the timer of %s stayed", what)
		}
	}
}
