package slot

import (
	"cmp"
	"slices"
	"time"

	"agentsvc/schemas/id"
)

// slots are the slots of one tenant.
type slots struct {
	limit   int // 0: as many as ask
	running map[id.RunID]place
	waiting []waiter // the oldest first
	unknown bool     // which runs are running, until reconcile: nothing is granted
}

// place is a slot that is taken.
type place struct {
	since time.Time
	seen  bool // Postgres has said that the run is running
}

type waiter struct {
	run     id.RunID
	created time.Time
}

func (w waiter) compare(o waiter) int {
	return cmp.Or(w.created.Compare(o.created), slices.Compare(w.run.UUID[:], o.run.UUID[:]))
}

func newSlots(limit int) slots { return slots{limit: limit, running: map[id.RunID]place{}} }

// acquire adds a run to the waiting ones and returns the runs that may run now. A run that
// has a slot is returned again, unless it is known to be running: that it asks again shows that
// it still starts, as a workflow's run does whose first walk waits.
func (s *slots) acquire(now time.Time, run id.RunID, created time.Time) []id.RunID {
	if p, ok := s.running[run]; ok {
		if p.seen || s.unknown {
			return nil
		}
		p.since = now
		s.running[run] = p
		return []id.RunID{run}
	}
	w := waiter{run, created}
	if i, found := slices.BinarySearchFunc(s.waiting, w, waiter.compare); !found {
		s.waiting = slices.Insert(s.waiting, i, w)
	}
	return s.grant(now)
}

// runs reports whether a run is known to be running.
func (s *slots) runs(run id.RunID) bool { return s.running[run].seen }

// starting reports whether a run has a slot and is not known to be running.
func (s *slots) starting() bool {
	for _, p := range s.running {
		if !p.seen {
			return true
		}
	}
	return false
}

// release frees the slot of a run, or ends its waiting, and returns the runs that may run
// now.
func (s *slots) release(now time.Time, run id.RunID) []id.RunID {
	delete(s.running, run)
	s.withdraw(run)
	return s.grant(now)
}

// take gives a slot to a run that continues after an approval, even beyond the limit: it
// has waited long enough.
func (s *slots) take(now time.Time, run id.RunID) {
	s.running[run] = place{since: now}
	s.withdraw(run)
}

// withdraw ends the waiting of a run.
func (s *slots) withdraw(run id.RunID) {
	s.waiting = slices.DeleteFunc(s.waiting, func(w waiter) bool { return w.run == run })
}

// grant gives free slots to the oldest waiting runs, and returns these.
func (s *slots) grant(now time.Time) []id.RunID {
	var granted []id.RunID
	for !s.unknown && len(s.waiting) > 0 && len(s.running) < s.limit {
		run := s.waiting[0].run
		s.waiting = s.waiting[1:]
		s.running[run] = place{since: now}
		granted = append(granted, run)
	}
	return granted
}

// reconcile takes the running runs from a read of Postgres that began at asked, and returns
// the runs that may run now. A run that was running and is not any more loses its slot. So
// does a run that last asked for its slot more than grace before and is not running yet,
// because nothing would release it.
func (s *slots) reconcile(asked time.Time, running []id.RunID, grace time.Duration) []id.RunID {
	for run, p := range s.running {
		if held := asked.Sub(p.since); (held > grace || p.seen && held > 0) && !slices.Contains(running, run) {
			delete(s.running, run)
		}
	}
	for _, run := range running {
		p, ok := s.running[run]
		if !ok {
			p.since = asked
			s.withdraw(run)
		}
		p.seen = true
		s.running[run] = p
	}
	s.unknown = false
	return s.grant(asked)
}

// idle reports whether no run has or waits for a slot.
func (s *slots) idle() bool { return len(s.running) == 0 && len(s.waiting) == 0 }
