package slot

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"agentsvc/schemas/id"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func runID(n byte) id.RunID { return id.RunID{UUID: id.UUID{15: n}} }

func TestSlotsServeTheOldestFirst(t *testing.T) {
	s := newSlots(2)
	at := func(n int) time.Time { return epoch.Add(time.Duration(n) * time.Second) }
	check := func(name string, got []id.RunID, want ...byte) {
		t.Helper()
		var ids []id.RunID
		for _, w := range want {
			ids = append(ids, runID(w))
		}
		if !slices.Equal(got, ids) {
			t.Errorf("%s: granted %v, want %v", name, got, ids)
		}
	}
	check("free", s.acquire(epoch, runID(1), at(1)), 1)
	check("free", s.acquire(epoch, runID(5), at(5)), 5)
	check("full", s.acquire(epoch, runID(4), at(4)))
	check("full", s.acquire(epoch, runID(2), at(2)))
	check("full", s.acquire(epoch, runID(3), at(3)))
	check("asked twice", s.acquire(epoch, runID(3), at(3)))
	check("held already", s.acquire(epoch, runID(1), at(1)), 1)
	check("oldest", s.release(epoch, runID(5)), 2)
	check("released twice", s.release(epoch, runID(5)))
	check("withdrawn", s.release(epoch, runID(3)))
	check("next", s.release(epoch, runID(1)), 4)
	check("none waits", s.release(epoch, runID(2)))
	s.release(epoch, runID(4))
	if !s.idle() {
		t.Errorf("%+v", s)
	}
}

func TestSlotsBelievePostgres(t *testing.T) {
	s := newSlots(2)
	if got := s.reconcile(epoch, []id.RunID{runID(1), runID(2), runID(3)}, grace); got != nil {
		t.Errorf("granted %v", got)
	}
	if got := s.acquire(epoch, runID(4), epoch); got != nil {
		t.Errorf("three run already, granted %v", got)
	}
	s.release(epoch, runID(1))
	if got := s.release(epoch, runID(2)); !slices.Equal(got, []id.RunID{runID(4)}) {
		t.Errorf("granted %v", got)
	}
	s.acquire(epoch, runID(5), epoch)
	later := epoch.Add(grace)
	if got := s.reconcile(later, []id.RunID{runID(3)}, grace); got != nil {
		t.Errorf("a run may take its time to start, granted %v", got)
	}
	if got := s.reconcile(later.Add(1), []id.RunID{runID(3)}, grace); !slices.Equal(got, []id.RunID{runID(5)}) {
		t.Errorf("a place nobody gives back is free again, granted %v", got)
	}
}

// A run that begins slowly keeps its slot as long as it asks for it, and loses it once its node is gone.
func TestSlotsAreKeptWhileTheirRunsBegin(t *testing.T) {
	s := newSlots(1)
	s.acquire(epoch, runID(1), epoch)
	s.acquire(epoch, runID(2), epoch.Add(1))
	now := epoch
	for range 10 {
		now = now.Add(grace / 2)
		if got := s.acquire(now, runID(1), epoch); !slices.Equal(got, []id.RunID{runID(1)}) {
			t.Errorf("granted %v", got)
		}
		if got := s.reconcile(now.Add(grace/4), nil, grace); got != nil {
			t.Errorf("a run that begins has its slot, granted %v", got)
		}
	}
	if got := s.reconcile(now.Add(grace+1), nil, grace); !slices.Equal(got, []id.RunID{runID(2)}) {
		t.Errorf("the slot of a run that asks no more is free, granted %v", got)
	}
}

// A run that continues after an approval is counted at once and does not wait.
func TestSlotsAreTakenBackAfterAnApproval(t *testing.T) {
	s := newSlots(1)
	s.acquire(epoch, runID(1), epoch)
	s.release(epoch, runID(1)) // it waits for an approval
	if got := s.acquire(epoch, runID(2), epoch); !slices.Equal(got, []id.RunID{runID(2)}) {
		t.Fatalf("granted %v", got)
	}
	s.take(epoch, runID(1))
	s.take(epoch, runID(1)) // told twice
	s.acquire(epoch, runID(3), epoch)
	if got := s.release(epoch, runID(2)); got != nil {
		t.Errorf("one runs already, granted %v", got)
	}
	if got := s.release(epoch, runID(1)); !slices.Equal(got, []id.RunID{runID(3)}) {
		t.Errorf("granted %v", got)
	}
}

func TestLawOfSlots(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 4))
		s := newSlots(1 + r.IntN(3))
		held := map[id.RunID]bool{}
		for range 200 {
			run := runID(byte(r.IntN(12)))
			var granted []id.RunID
			if r.IntN(2) == 0 {
				granted = s.acquire(epoch, run, epoch.Add(time.Duration(run.UUID[15])))
			} else {
				granted = s.release(epoch, run)
				delete(held, run)
			}
			for _, g := range granted {
				held[g] = true
			}
			if len(held) > s.limit {
				t.Fatalf("seed %d: %d run", seed, len(held))
			}
			if len(s.waiting) > 0 && len(held) < s.limit {
				t.Fatalf("seed %d: somebody waits for a free place", seed)
			}
			if !slices.IsSortedFunc(s.waiting, waiter.compare) {
				t.Fatalf("seed %d: %v", seed, s.waiting)
			}
		}
	}
}
