package store

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"agentsvc/schemas/id"
)

// notes records the calls of Note.
type notes struct {
	calls [][]Firing
	err   error
	held  id.TriggerID // note skips this trigger
}

func (n *notes) note(_ context.Context, fired []Firing) (skipped []Firing, err error) {
	if n.err != nil {
		return nil, n.err
	}
	var noted []Firing
	for _, f := range fired {
		if f.Trigger == n.held {
			skipped = append(skipped, f)
		} else {
			noted = append(noted, f)
		}
	}
	n.calls = append(n.calls, noted)
	return skipped, nil
}

func TestOnlyTheLastTimeOfATriggerIsWritten(t *testing.T) {
	now := time.Date(2026, 5, 6, 7, 0, 0, 0, time.UTC)
	n := &notes{}
	counted := map[string]int{}
	f := NewFired(FiredConfig{Count: func(by string) { counted[by]++ }, Note: n.note, Now: func() time.Time { return now }, Log: zerolog.Nop()})
	tenant, g := id.TenantID{UUID: id.NewAnywhere()}, id.TriggerID{UUID: id.NewAnywhere()}
	for range 100 {
		now = now.Add(time.Millisecond)
		f.Fired(tenant, g, "hook")
	}
	if told, err := f.runOnce(t.Context()); told != 1 || err != nil {
		t.Fatal(told, err)
	}
	if counted["hook"] != 100 {
		t.Errorf("counted %v", counted)
	}
	if len(n.calls) != 1 || n.calls[0][0] != (Firing{Tenant: tenant, Trigger: g, At: now}) {
		t.Errorf("%+v", n.calls)
	}
	if told, err := f.runOnce(t.Context()); told != 0 || err != nil || len(n.calls) != 1 {
		t.Errorf("without a new time %d were written, %v", told, err)
	}
}

func TestTimesThatCannotBeWrittenAreKept(t *testing.T) {
	now := time.Date(2026, 5, 6, 7, 0, 0, 0, time.UTC)
	n := &notes{err: errors.New("down")}
	f := NewFired(FiredConfig{Count: func(string) {}, Note: n.note, Now: func() time.Time { return now }, Log: zerolog.Nop()})
	tenant, g := id.TenantID{UUID: id.NewAnywhere()}, id.TriggerID{UUID: id.NewAnywhere()}
	f.Fired(tenant, g, "hook")
	if _, err := f.runOnce(t.Context()); err == nil {
		t.Fatal("it was written")
	}
	if err := f.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.err = nil
	if err := f.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(n.calls) != 1 || !n.calls[0][0].At.Equal(now) {
		t.Errorf("%+v", n.calls)
	}
}

func TestSkippedTriggersAreWrittenNextTime(t *testing.T) {
	now := time.Date(2026, 5, 6, 7, 0, 0, 0, time.UTC)
	tenant, held, free := id.TenantID{UUID: id.NewAnywhere()}, id.TriggerID{UUID: id.NewAnywhere()}, id.TriggerID{UUID: id.NewAnywhere()}
	n := &notes{held: held}
	f := NewFired(FiredConfig{Count: func(string) {}, Note: n.note, Now: func() time.Time { return now }, Log: zerolog.Nop()})
	f.Fired(tenant, held, "hook")
	f.Fired(tenant, free, "hook")
	if told, err := f.runOnce(t.Context()); told != 1 || err != nil {
		t.Fatal(told, err)
	}
	n.held = id.TriggerID{}
	if told, err := f.runOnce(t.Context()); told != 1 || err != nil {
		t.Fatal(told, err)
	}
	if len(n.calls) != 2 || len(n.calls[1]) != 1 || n.calls[1][0] != (Firing{Tenant: tenant, Trigger: held, At: now}) {
		t.Errorf("%+v", n.calls)
	}
}

func TestTheNumberOfNotedTriggersIsBounded(t *testing.T) {
	n := &notes{}
	f := NewFired(FiredConfig{Count: func(string) {}, Note: n.note, Log: zerolog.Nop()})
	tenant := id.TenantID{UUID: id.NewAnywhere()}
	first := id.TriggerID{UUID: id.NewAnywhere()}
	f.Fired(tenant, first, "hook")
	for range mostNoted {
		f.Fired(tenant, id.TriggerID{UUID: id.NewAnywhere()}, "hook")
	}
	f.Fired(tenant, first, "hook") // is noted already
	if told, err := f.runOnce(t.Context()); told != mostNoted || err != nil {
		t.Errorf("%d, %v", told, err)
	}
}
