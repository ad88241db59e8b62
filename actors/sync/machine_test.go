package sync

import (
	"testing"
	"time"

	"agentsvc/actors/durable"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/schedule"
)

func times(t *testing.T) *schedule.Schedule {
	t.Helper()
	s, err := schedule.Parse("0 * * * *", "UTC")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestMachine is the drawing in doc.go, an arrow a row.
func TestMachine(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 5, 6, 7, 30, 0, 0, time.UTC)
	at := func(status lifecycle.SourceStatus) State { return State{Enabled: true, Status: status, Sync: 3} }
	scheduled := func(status lifecycle.SourceStatus, due time.Time) State {
		s := at(status)
		s.Due, s.Times = due, times(t)
		return s
	}
	off := at(lifecycle.SourceQueued)
	off.Enabled = false
	for _, c := range []struct {
		name   string
		from   State
		msg    any
		status lifecycle.SourceStatus
		fact   any  // nil: none
		owes   bool // afterwards
		sync   int64
	}{
		{"a queued source is claimed", at(lifecycle.SourceQueued), durable.Activated{Epoch: 1}, lifecycle.SourceQueued, Claimed{}, true, 3},
		{"one that was syncing goes on", at(lifecycle.SourceSyncing), durable.Activated{Epoch: 1}, lifecycle.SourceSyncing, Claimed{}, true, 3},
		{"an idle one owes nothing", at(lifecycle.SourceIdle), durable.Activated{Epoch: 1}, lifecycle.SourceIdle, nil, false, 3},
		{"a disabled one owes nothing", off, durable.Activated{Epoch: 1}, lifecycle.SourceQueued, nil, false, 3},
		{"a deleted one owes nothing", State{Missing: true}, durable.Activated{Epoch: 1}, "", nil, false, 0},
		{"a wake during a walk shows whether the row has changed", at(lifecycle.SourceSyncing), durable.Wake{}, lifecycle.SourceSyncing, Claimed{}, true, 3},
		{"a due time queues", scheduled(lifecycle.SourceOK, now), durable.TimerDue{Name: "due"}, lifecycle.SourceQueued, Queued{}, true, 4},
		{"after a failure too", scheduled(lifecycle.SourceFailed, now), durable.TimerDue{Name: "due"}, lifecycle.SourceQueued, Queued{}, true, 4},
		{"a due time during a sync passes", scheduled(lifecycle.SourceSyncing, now), durable.TimerDue{Name: "due"}, lifecycle.SourceSyncing, Moved{}, true, 3},
		{"a timer that is early", scheduled(lifecycle.SourceOK, now.Add(time.Second)), durable.TimerDue{Name: "due"}, lifecycle.SourceOK, Aligned{}, false, 3},
		{"a timer without a schedule", at(lifecycle.SourceOK), durable.TimerDue{Name: "due"}, lifecycle.SourceOK, Aligned{}, false, 3},
		{"a timer without a row", State{Missing: true}, durable.TimerDue{Name: "due"}, "", Aligned{}, false, 0},
		{"a sync that succeeds", at(lifecycle.SourceQueued), Ended{OK: true, Documents: 2, Delta: "d"}, lifecycle.SourceOK, Finished{Ended{OK: true, Documents: 2, Delta: "d"}, now}, false, 3},
		{"a sync that fails", at(lifecycle.SourceSyncing), Ended{Error: "no"}, lifecycle.SourceFailed, Finished{Ended{Error: "no"}, now}, false, 3},
		{"a walk that lost its row", at(lifecycle.SourceSyncing), Lost{}, lifecycle.SourceSyncing, Claimed{}, true, 3},
		{"a walk that was interrupted", at(lifecycle.SourceSyncing), Again{}, lifecycle.SourceSyncing, nil, true, 3},
		{"a walk that panicked", at(lifecycle.SourceSyncing), durable.EffectFailed{}, lifecycle.SourceFailed, Finished{Ended{Error: internal}, now}, false, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			d, err := Machine{}.Decide(c.from, c.msg, now)
			if err != nil {
				t.Fatal(err)
			}
			var fact any
			if len(d.Facts) > 0 {
				fact = d.Facts[0]
			}
			owed := Machine{}.Owed(d.Next)
			if d.Next.Status != c.status || fact != c.fact || (len(owed) == 1) != c.owes || d.Next.Sync != c.sync || c.fact != nil && !d.Changed {
				t.Errorf("%+v, owed %v", d, owed)
			}
		})
	}
}

// TestATryIsAnotherWalk: an interrupted walk is performed again, and one that goes on is not.
func TestATryIsAnotherWalk(t *testing.T) {
	t.Parallel()
	s := State{Enabled: true, Status: lifecycle.SourceSyncing}
	key := func(s State) string { return Machine{}.Owed(s)[0].Key() }
	for m, again := range map[any]bool{Again{}: true, Lost{}: true, durable.Wake{}: false, durable.TimerDue{}: false} {
		d, err := Machine{}.Decide(s, m, time.Now())
		if err != nil || (key(d.Next) != key(s)) != again {
			t.Errorf("%T: %v %v", m, key(d.Next), err)
		}
	}
}

// TestAWakeAfterADueTime during a fresh walk is about another change of the row, as other credentials.
func TestAWakeAfterADueTime(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 5, 6, 7, 30, 0, 0, time.UTC)
	s := State{Enabled: true, Status: lifecycle.SourceSyncing, Due: now, Times: times(t)}
	for i, m := range []any{durable.Activated{Epoch: 1}, durable.TimerDue{Name: "due"}, durable.Wake{}} {
		d, err := Machine{}.Decide(s, m, now)
		if err != nil || len(d.Facts) != 1 {
			t.Fatalf("message %d: %+v %v", i, d, err)
		}
		s = d.Next
	}
}

// TestDueTimesThatPassed lead to one sync, and the next one is in the future.
func TestDueTimesThatPassed(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 5, 6, 7, 30, 0, 0, time.UTC)
	d, err := Machine{}.Decide(State{Enabled: true, Status: lifecycle.SourceOK, Due: now.Add(-72 * time.Hour), Times: times(t)}, durable.TimerDue{Name: "due"}, now)
	if err != nil || !d.Next.Due.Equal(now.Add(30*time.Minute)) || d.Next.Status != lifecycle.SourceQueued {
		t.Errorf("%+v %v", d.Next, err)
	}
}
