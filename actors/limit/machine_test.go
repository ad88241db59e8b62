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

func TestABucketAdmitsItsCapacityAndThenItsRefill(t *testing.T) {
	b := newBucket(PerSecond(120, 20), epoch)
	n := memberID(1)
	for i := range 120 {
		if a := b.lease(epoch, n, 1, 0); a.granted != 1 {
			t.Fatalf("request %d is refused", i)
		}
	}
	a := b.lease(epoch, n, 1, 0)
	if a.granted != 0 || a.retry != time.Second {
		t.Fatalf("%+v", a)
	}
	if a := b.lease(epoch.Add(a.retry), n, 100, 0); a.granted != 20 {
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
		n := memberID(1)
		b.lease(epoch, n, 1, 0)
		now := epoch.Add(c.wait)
		a := b.lease(now, n, 1, 0)
		if a.granted != 0 || a.retry != c.want {
			t.Errorf("every %v after %v: %+v, want %v", c.every, c.wait, a, c.want)
		}
		if a := b.lease(now.Add(a.retry), n, 1, 0); a.granted != 1 {
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

// Over every window of any history no more is admitted than capacity + refill ×
// time, though nodes hold leases, spend them late, give back and fall silent.
func TestLawOfTheBucket(t *testing.T) {
	type node struct{ held int64 }
	refused := 0
	for seed := range uint64(600) {
		r := rand.New(rand.NewPCG(seed, 3))
		rate := Rate{1 + r.Int64N(20), time.Duration(1+r.IntN(1000)) * time.Millisecond}
		b := newBucket(rate, epoch)
		nodes := []node{{}, {}, {}}
		now := epoch
		var spent []time.Time
		for range 200 {
			now = now.Add(time.Duration(r.Int64N(int64(rate.Every))))
			i := r.IntN(len(nodes))
			n, m := &nodes[i], memberID(byte(i))
			switch {
			case n.held > 0 && r.IntN(3) > 0:
				n.held--
				spent = append(spent, now)
			case n.held > 0:
				b.giveBack(now, m, n.held)
				n.held = 0
			default:
				lately := r.Int64N(5)
				a := b.lease(now, m, 1+lately, lately)
				if n.held = a.granted; n.held > 0 {
					n.held--
					spent = append(spent, now)
				}
				for _, to := range a.recall { // every node answers, some late
					if k := to.UUID[15]; r.IntN(4) > 0 {
						b.giveBack(now, to, nodes[k].held)
						nodes[k].held = 0
					}
				}
				if a.granted == 0 && !a.wait {
					refused++
					for k := range nodes {
						if l := b.leased[memberID(byte(k))]; l != nil && now.Sub(l.recalled) < recallWait {
							t.Fatalf("seed %d: refused while node %d was not heard", seed, k)
						}
					}
					if len(b.leased) == 0 {
						probe := b
						probe.leased = map[id.MemberID]*lease{}
						if p := probe.lease(now.Add(a.retry), m, 1, 0); p.granted == 0 {
							t.Fatalf("seed %d: refused after Retry-After", seed)
						}
					}
				}
			}
		}
		for i := range spent {
			for j := i; j < len(spent); j++ {
				if most := rate.Capacity + int64(spent[j].Sub(spent[i])/rate.Every) + 1; int64(j-i+1) > most {
					t.Fatalf("seed %d: %d in %v, rate %+v", seed, j-i+1, spent[j].Sub(spent[i]), rate)
				}
			}
		}
	}
	if refused < 300 {
		t.Errorf("%d refusals: void", refused)
	}
}

func TestASilentNodeIsWaitedForOnce(t *testing.T) {
	b := newBucket(Rate{4, time.Hour}, epoch)
	a, c := memberID(1), memberID(2)
	b.lease(epoch, a, 4, 4)
	first := b.lease(epoch, c, 1, 0)
	if !first.wait || !slices.Equal(first.recall, []id.MemberID{a}) {
		t.Fatalf("%+v", first)
	}
	if again := b.lease(epoch.Add(recallWait-1), c, 1, 0); !again.wait || again.recall != nil {
		t.Errorf("%+v", again)
	}
	if last := b.lease(epoch.Add(recallWait), c, 1, 0); last.wait || last.granted != 0 || last.retry != time.Hour {
		t.Errorf("%+v", last)
	}
	b.giveBack(epoch.Add(recallWait), a, 3)
	if got := b.lease(epoch.Add(recallWait), c, 9, 0); got.granted != 3 {
		t.Errorf("%+v", got)
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
