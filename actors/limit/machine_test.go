package limit

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"agentsvc/schemas/id"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func memberID(n byte) id.MemberID { return id.MemberID{UUID: id.UUID{15: n}} }

// edge asks a bucket as a Ledger does.
type edge struct {
	node id.MemberID
	Lease
}

func newEdge(n byte) *edge { return &edge{node: memberID(n)} }

// lease is a Lease of an edge that has spent what it had, idle ago.
func (e *edge) lease(b *bucket, now time.Time, want int64, idle time.Duration) answer {
	e.Lease = Lease{Node: e.node, Seq: e.Seq + 1, Want: want, Returned: e.Returned, Idle: idle, PerMinute: e.PerMinute}
	return b.lease(now, e.Lease, all)
}

func (e *edge) giveBack(b *bucket, now time.Time, n int64, idle time.Duration) {
	e.Returned += n
	b.giveBack(now, GiveBack{Node: e.node, Seq: e.Seq, Returned: e.Returned, Idle: idle}, all)
}

var all = others{living: func(id.MemberID) bool { return true }, lapse: 6 * time.Second}

func TestABucketAdmitsItsCapacityAndThenItsRefill(t *testing.T) {
	b, e := newBucket(PerSecond(120, 20), epoch), newEdge(1)
	for i := range 120 {
		if a := e.lease(b, epoch, 1, 0); a.granted != 1 {
			t.Fatalf("request %d is refused", i)
		}
	}
	a := e.lease(b, epoch, 1, 0)
	if a.granted != 0 || a.retry != time.Second {
		t.Fatalf("%+v", a)
	}
	if a := e.lease(b, epoch.Add(a.retry), 100, 0); a.granted != 20 {
		t.Errorf("a second later %d", a.granted)
	}
}

func TestRetryAfterIsRoundedUpAndKept(t *testing.T) {
	for _, c := range []struct {
		every time.Duration
		wait  time.Duration
		want  time.Duration
	}{
		{50 * time.Millisecond, 0, time.Second},
		{10 * time.Second, 0, 10 * time.Second},
		{10 * time.Second, 1, 10 * time.Second},
		{10 * time.Second, time.Second, 9 * time.Second},
		{10 * time.Second, 9*time.Second + 1, time.Second},
		{1500 * time.Millisecond, 0, 2 * time.Second},
	} {
		b := newBucket(Rate{1, c.every}, epoch)
		e := newEdge(1)
		e.lease(b, epoch, 1, 0)
		now := epoch.Add(c.wait)
		a := e.lease(b, now, 1, c.wait)
		if a.granted != 0 || a.retry != c.want {
			t.Errorf("every %v after %v: %+v, want %v", c.every, c.wait, a, c.want)
		}
		if a := e.lease(b, now.Add(a.retry), 1, 0); a.granted != 1 {
			t.Errorf("every %v: refused after Retry-After", c.every)
		}
	}
}

func TestPerSecondNeverRunsFast(t *testing.T) {
	for _, refill := range []float64{0.1, 1, 3, 7, 20, 60, 999, 1e6} {
		r := PerSecond(10, refill)
		if float64(r.Every)*refill < 1e9 {
			t.Errorf("%v a second becomes one each %v", refill, r.Every)
		}
	}
}

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

// A run that goes on after an approval is counted at once and waits for nobody.
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
