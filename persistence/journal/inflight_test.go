package journal

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"agentsvc/schemas/id"
	"agentsvc/schemas/problem"
)

// line is places in a bubble of testing/synctest, and who asks for them.
type line struct {
	t   *testing.T
	all context.Context // of who asks
	*inflight
}

// asker is one that asked for a place.
type asker struct {
	tenant id.TenantID
	leave  context.CancelFunc // it does not wait any more
	got    atomic.Pointer[answer]
}

// answer is what take answered.
type answer struct {
	release func()
	err     error
}

func (a *asker) waits() bool { return a.got.Load() == nil }
func (a *asker) in() bool    { return !a.waits() && a.err() == nil }
func (a *asker) release()    { a.got.Load().release() }

// err is why it got no place.
func (a *asker) err() error {
	if got := a.got.Load(); got != nil {
		return got.err
	}
	return nil
}

func inLine(t *testing.T, places int, test func(q *line)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		all, end := context.WithCancel(t.Context())
		defer func() {
			end()
			synctest.Wait()
		}()
		test(&line{t: t, all: all, inflight: newInflight(places, places, time.Now)})
	})
}

func newTenantID() id.TenantID { return id.TenantID{UUID: id.NewAnywhere()} }

// ask asks for a place, and comes back once it is given or the asker waits.
func (q *line) ask(tenant id.TenantID) *asker {
	ctx, cancel := context.WithCancel(q.all)
	a := &asker{tenant: tenant, leave: cancel}
	go func() {
		release, err := q.take(ctx, tenant)
		a.got.Store(&answer{release, err})
	}()
	synctest.Wait()
	return a
}

func (q *line) asks(tenant id.TenantID, n int) (all []*asker) {
	for range n {
		all = append(all, q.ask(tenant))
	}
	return all
}

// fill gives n places that do not come back by themselves.
func (q *line) fill(tenant id.TenantID, n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for range n {
		q.enter(tenant)
	}
}

// free takes one of them back.
func (q *line) free(tenant id.TenantID) {
	q.mu.Lock()
	q.leave(tenant)
	q.mu.Unlock()
	synctest.Wait()
}

func (q *line) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (q *line) wantHeld(when string, tenant id.TenantID, want int) {
	q.t.Helper()
	if got := q.heldBy(tenant); got != want {
		q.t.Errorf("%s the tenant holds %d places, want %d", when, got, want)
	}
}

func (q *line) heldBy(tenant id.TenantID) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.held[tenant]
}

// admitted says how many of all have a place, or had one.
func admitted(all []*asker) (n int) {
	for _, a := range all {
		if a.in() {
			n++
		}
	}
	return n
}

// unsound is what is wrong with the books of t, empty when nothing is.
func (t *inflight) unsound() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	sum := 0
	for _, n := range t.held {
		if n <= 0 {
			return "a tenant is remembered that holds nothing"
		}
		sum += n
	}
	if sum != t.total || sum > t.beside {
		return "places were lost or made"
	}
	seen := map[id.TenantID]bool{}
	for _, who := range t.tenants {
		if seen[who] {
			return "a tenant has two turns in one round"
		}
		seen[who] = true
	}
	for who, own := range t.waiting {
		if len(own) > 0 && !seen[who] {
			return "a tenant waits and has no turn"
		}
	}
	return ""
}

// idle is what is left over although nobody holds a place or waits for one.
func (t *inflight) idle() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.total != 0:
		return "a place is lost"
	case len(t.held) != 0:
		return "somebody is said to hold one"
	case len(t.waiting)+len(t.tenants) != 0:
		return "somebody is said to wait"
	}
	return ""
}

func TestAloneATenantGetsAllPlaces(t *testing.T) {
	inLine(t, 8, func(q *line) {
		all := q.asks(newTenantID(), 10)
		if n := admitted(all); n != 8 || all[8].in() || all[9].in() {
			t.Fatalf("%d of ten came in at once, want the first 8", n)
		}
		for i, leaver := range []int{3, 0} {
			all[leaver].release()
			synctest.Wait()
			if n := admitted(all); n != 9+i || !all[8+i].in() {
				t.Errorf("after %d places were given back %d have come in", i+1, n)
			}
		}
	})
}

func TestBesideOthersATenantHoldsHalf(t *testing.T) {
	for name, c := range map[string]struct {
		ago  time.Duration // when the other one came
		want int
	}{
		"the other came just now":                {0, 4},
		"the other is company for a moment more": {presentFor - 1, 4},
		"the other is company no more":           {presentFor, 8},
		"the other came long ago":                {time.Hour, 8},
	} {
		t.Run(name, func(t *testing.T) {
			inLine(t, 8, func(q *line) {
				a, b := newTenantID(), newTenantID()
				q.ask(a).release()
				q.ask(b).release()
				q.pass(c.ago)
				q.asks(a, 10)
				q.wantHeld("having asked for ten,", a, c.want)
			})
		})
	}
	t.Run("it had all when the other came", func(t *testing.T) {
		inLine(t, 8, func(q *line) {
			a, b := newTenantID(), newTenantID()
			q.asks(a, 30)
			guest := q.ask(b)
			if guest.in() {
				t.Fatal("there is a ninth place")
			}
			q.wantHeld("when the other comes", a, 8)
			q.pass(countedFor) // all eight come back
			if !guest.in() {
				t.Error("the other has no place")
			}
			q.wantHeld("beside the other", a, 4)
			for range 15 { // what waits gets in, at no time more than half
				q.pass(countedFor)
				if n := q.heldBy(a); n > 4 {
					t.Errorf("beside the other it holds %d", n)
				}
			}
			q.pass(presentFor)
			q.asks(a, 10)
			q.wantHeld("alone again", a, 8)
		})
	})
	t.Run("three of them", func(t *testing.T) {
		inLine(t, 9, func(q *line) {
			a, b, c := newTenantID(), newTenantID(), newTenantID()
			q.asks(a, 1)
			q.asks(b, 10)
			q.asks(c, 10)
			q.asks(a, 10)
			q.wantHeld("the first", a, 1) // none is left for its second
			q.wantHeld("the second", b, 4)
			q.wantHeld("the third", c, 4)
		})
	})
}

// order is who comes in as one place after another is taken back from holders.
func (q *line) order(askers []*asker, names map[id.TenantID]string, holders ...id.TenantID) string {
	q.t.Helper()
	var order strings.Builder
	was := map[*asker]bool{}
	for _, a := range askers {
		was[a] = a.in()
	}
	for _, h := range holders {
		q.free(h)
		for _, a := range askers {
			if a.in() && !was[a] {
				was[a] = true
				order.WriteString(names[a.tenant])
			}
		}
		if wrong := q.unsound(); wrong != "" {
			q.t.Errorf("after %s: %s", &order, wrong)
		}
	}
	return order.String()
}

func TestOneTenantAfterAnother(t *testing.T) {
	a, b, c, d, e := newTenantID(), newTenantID(), newTenantID(), newTenantID(), newTenantID()
	names := map[id.TenantID]string{a: "a", b: "b", c: "c"}
	full := []id.TenantID{d, e, d, e, d, e, d, e}
	for name, row := range map[string]struct {
		wait []id.TenantID
		want string
	}{
		"each has one turn in a round":                 {[]id.TenantID{a, b, c, a, b, c, a, b}, "abcabcab"},
		"however many of a tenant wait before":         {append(slices.Repeat([]id.TenantID{a}, 50), b, b), "abab" + "aa"},
		"who has the last one in line waits no longer": {append(append(slices.Repeat([]id.TenantID{a}, 20), slices.Repeat([]id.TenantID{b}, 20)...), c), "abcababa"},
		"who holds what it may is passed over":         {slices.Repeat([]id.TenantID{a}, 9), "aaaa"},
	} {
		t.Run(name, func(t *testing.T) {
			inLine(t, 8, func(q *line) {
				q.fill(d, 4)
				q.fill(e, 4)
				var all []*asker
				for _, who := range row.wait {
					all = append(all, q.ask(who))
				}
				q.ask(newTenantID()).leave() // somebody else came: nobody is alone
				synctest.Wait()
				if got := q.order(all, names, full...); got != row.want {
					t.Errorf("%q came in, want %q", got, row.want)
				}
			})
		})
	}
	t.Run("beside one that has all and fifty waiting", func(t *testing.T) {
		inLine(t, 8, func(q *line) {
			own := q.asks(a, 58)
			guest := q.ask(b)
			if guest.in() || admitted(own) != 8 {
				t.Fatalf("%d of the tenant's came in", admitted(own))
			}
			for n := 0; !guest.in(); n++ {
				if n == 2 {
					t.Fatal("the other tenant was neither the next nor the next but one")
				}
				own[n].release()
				synctest.Wait()
			}
		})
	})
}

// TestATurnEachRound: a tenant that came again and again, each time just after its
// last turn, has one turn in a round as everybody.
func TestATurnEachRound(t *testing.T) {
	inLine(t, 16, func(q *line) {
		a, b, d, e := newTenantID(), newTenantID(), newTenantID(), newTenantID()
		q.fill(d, 8)
		q.fill(e, 8)
		for range 5 {
			next := q.ask(a)
			if q.free(d); !next.in() {
				t.Fatal("the only one that waits did not come in")
			}
		}
		all := append(q.asks(a, 3), q.asks(b, 2)...)
		if got := q.order(all, map[id.TenantID]string{a: "a", b: "b"}, e, e, e, e, e); got != "ababa" {
			t.Errorf("%q came in, want ababa", got)
		}
	})
}

func TestInATenantTheFirstIsFirst(t *testing.T) {
	inLine(t, 2, func(q *line) {
		a, d := newTenantID(), newTenantID()
		q.fill(d, 2)
		all := q.asks(a, 20)
		for n := range 20 {
			if n < 2 {
				q.free(d)
			} else {
				all[n-2].release()
				synctest.Wait()
			}
			if admitted(all) != n+1 || !all[n].in() {
				t.Fatalf("the %d. place did not go to the %d. that asked", n+1, n+1)
			}
		}
	})
}

func TestWhoDoesNotWaitAnyMoreLeavesTheLine(t *testing.T) {
	inLine(t, 2, func(q *line) {
		a, d := newTenantID(), newTenantID()
		q.fill(d, 2)
		all := q.asks(a, 5)
		for _, i := range []int{0, 2, 4} { // the first, one between, the last
			all[i].leave()
			synctest.Wait()
			if !errors.Is(all[i].err(), context.Canceled) {
				t.Errorf("the %d. still waits: %v", i, all[i].err())
			}
		}
		q.free(d)
		q.free(d)
		if !all[1].in() || !all[3].in() {
			t.Error("who stayed did not come in")
		}
		q.pass(countedFor)
		if left := q.idle(); left != "" {
			t.Error(left)
		}
	})
}

// TestAPlaceForWhoIsLeaving: the place comes between the end of its waiting and its
// leaving.
func TestAPlaceForWhoIsLeaving(t *testing.T) {
	inLine(t, 2, func(q *line) {
		a, b, d := newTenantID(), newTenantID(), newTenantID()
		q.fill(d, 2)
		leaver, next := q.ask(a), q.ask(b)
		q.mu.Lock()
		leaver.leave() // it wakes, and waits for the lock
		q.leave(d)
		given := q.held[a]
		q.mu.Unlock()
		synctest.Wait()
		if given != 1 || !errors.Is(leaver.err(), context.Canceled) {
			t.Fatalf("%d places were given to who was leaving: %v", given, leaver.err())
		}
		if !next.in() {
			t.Error("the place of who left was not given to the next one")
		}
		q.free(d)
		q.pass(countedFor)
		if left := q.idle(); left != "" {
			t.Error(left)
		}
	})
}

func TestAPlaceComesBackByItself(t *testing.T) {
	inLine(t, 4, func(q *line) {
		a := newTenantID()
		first := q.ask(a)
		q.pass(countedFor - 1)
		q.wantHeld("a moment before its time", a, 1)
		q.pass(1)
		q.wantHeld("at its time", a, 0)
		q.asks(a, 2)
		first.release()
		q.wantHeld("after the release of a place that had come back", a, 2)
		q.pass(countedFor)
		released := q.ask(a)
		released.release()
		released.release()
		q.asks(a, 1)
		q.wantHeld("after two releases of one place", a, 1)
		q.pass(countedFor - 1) // the time of the released place passes meanwhile
		q.wantHeld("before its own time", a, 1)
		q.pass(1)
		if left := q.idle(); left != "" {
			t.Error(left)
		}
	})
}

func TestATurnComesInTimeOrNotAtAll(t *testing.T) {
	inLine(t, 2, func(q *line) {
		a, d := newTenantID(), newTenantID()
		q.fill(d, 2)
		late := q.ask(a)
		q.pass(enterWithin - 1)
		if !late.waits() {
			t.Fatalf("it does not wait: %v", late.err())
		}
		q.pass(1)
		if !errors.Is(late.err(), context.DeadlineExceeded) {
			t.Errorf("after its time: %v", late.err())
		}
	})
}

// guests is what the laws' model knows: who came when, and who holds or waits.
type guests struct {
	came map[id.TenantID]time.Time
	all  []*asker
}

// share is how many places tenant may hold now.
func (g *guests) share(q *line, tenant id.TenantID) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	for who, at := range g.came {
		waits := slices.ContainsFunc(g.all, func(a *asker) bool { return a.tenant == who && a.waits() })
		if who != tenant && (waits || q.held[who] > 0 || time.Since(at) < presentFor) {
			return int(q.most)
		}
	}
	return q.beside
}

// TestLawsOfTurns: over random histories there are never more places than there
// are, nobody gets beyond its share, nobody waits while there is room, the first of
// a tenant is first, and nobody else has two turns while one waits who has room.
func TestLawsOfTurns(t *testing.T) {
	for seed := range uint64(20) {
		inLine(t, 4+int(seed%13), func(q *line) { lawsOfTurns(q, rand.New(rand.NewPCG(seed, 1)), seed) })
	}
}

func lawsOfTurns(q *line, r *rand.Rand, seed uint64) {
	t := q.t
	tenants := make([]id.TenantID, 1+r.IntN(5))
	for i := range tenants {
		tenants[i] = newTenantID()
	}
	g := &guests{came: map[id.TenantID]time.Time{}}
	overtaken := map[[2]id.TenantID]int{}
	for step := range 400 {
		waited, shares, held := map[id.TenantID]bool{}, map[id.TenantID]int{}, map[id.TenantID]int{}
		was := map[*asker]bool{}
		for _, a := range g.all {
			was[a] = a.in()
			waited[a.tenant] = waited[a.tenant] || a.waits()
		}
		for _, who := range tenants {
			shares[who], held[who] = g.share(q, who), q.heldBy(who)
		}

		fills := false
		switch p := r.IntN(100); {
		case p < 45:
			who := tenants[min(r.IntN(len(tenants)), r.IntN(len(tenants)))]
			g.came[who] = time.Now()
			g.all, fills = append(g.all, q.ask(who)), true
		case p < 75 && len(g.all) > 0:
			if a := g.all[r.IntN(len(g.all))]; a.in() {
				before := q.heldBy(a.tenant)
				a.release()
				synctest.Wait()
				fills = before > q.heldBy(a.tenant)
			}
		case p < 85 && len(g.all) > 0:
			g.all[r.IntN(len(g.all))].leave()
			synctest.Wait()
		case p < 90:
			q.flushed(1+r.IntN(64), time.Duration(1+r.IntN(8))*time.Millisecond)
		case p < 91:
			q.pass(presentFor)
		default:
			q.pass(time.Duration(r.IntN(10)) * time.Millisecond)
		}

		came, waits := map[id.TenantID]int{}, map[id.TenantID]bool{}
		for _, a := range g.all {
			if a.in() && !was[a] {
				came[a.tenant]++
				if waits[a.tenant] {
					t.Fatalf("seed %d, step %d: somebody came in before one of its tenant that waits longer", seed, step)
				}
			}
			waits[a.tenant] = waits[a.tenant] || a.waits()
		}
		if wrong := q.unsound(); wrong != "" {
			t.Fatalf("seed %d, step %d: %s", seed, step, wrong)
		}
		for _, who := range tenants {
			share, holds := g.share(q, who), q.heldBy(who)
			if most := max(share, shares[who]); came[who] > 0 && holds > most {
				t.Fatalf("seed %d, step %d: a tenant got a place and holds %d, its share is %d", seed, step, holds, most)
			}
			q.mu.Lock()
			full := q.total == q.beside
			q.mu.Unlock()
			if fills && waits[who] && !full && holds < share {
				t.Fatalf("seed %d, step %d: somebody waits while there is room", seed, step)
			}
			hadRoom := waited[who] && waits[who] && came[who] == 0 && held[who] < min(share, shares[who])
			for _, other := range tenants {
				if pair := [2]id.TenantID{who, other}; !hadRoom {
					delete(overtaken, pair)
				} else if overtaken[pair] += came[other]; overtaken[pair] > 1 {
					t.Fatalf("seed %d, step %d: a tenant had %d turns while another one waited that had room", seed, step, overtaken[pair])
				}
			}
		}
		g.all = slices.DeleteFunc(g.all, func(a *asker) bool { return a.err() != nil })
	}
	q.pass(enterWithin + countedFor)
	if left := q.idle(); left != "" {
		t.Fatalf("seed %d: at the end %s", seed, left)
	}
}

// TestNoPlaceIsLost: many at once that take, leave, release once, more often or
// never, in any interleaving.
func TestNoPlaceIsLost(t *testing.T) {
	for seed := range uint64(4) {
		inLine(t, 6, func(q *line) {
			tenants := []id.TenantID{newTenantID(), newTenantID(), newTenantID(), newTenantID()}
			var wg sync.WaitGroup
			var mu sync.Mutex
			var got, left int
			for n := range uint64(50) {
				r := rand.New(rand.NewPCG(seed, n))
				wg.Go(func() {
					for range 20 {
						ctx, cancel := context.WithCancel(q.all)
						if r.IntN(2) == 0 {
							ctx, cancel = context.WithTimeout(ctx, time.Duration(r.IntN(40))*time.Millisecond)
						}
						release, err := q.take(ctx, tenants[r.IntN(len(tenants))])
						cancel()
						mu.Lock()
						if err == nil {
							got++
						} else {
							left++
						}
						mu.Unlock()
						if wrong := q.unsound(); wrong == "places were lost or made" {
							t.Error(wrong)
						}
						if err != nil || r.IntN(5) == 0 {
							continue // it never releases
						}
						time.Sleep(time.Duration(r.IntN(60)) * time.Millisecond)
						if r.IntN(3) == 0 {
							wg.Go(release)
						}
						release()
					}
				})
			}
			wg.Wait()
			q.pass(countedFor)
			if left := q.idle(); left != "" {
				t.Errorf("seed %d: at the end %s", seed, left)
			}
			if got < 100 || left < 100 {
				t.Errorf("seed %d: %d got a place and %d did not: the test does not show much", seed, got, left)
			}
		})
	}
}

func TestWhatIsASlowFlush(t *testing.T) {
	for name, c := range map[string]struct {
		quickest time.Duration
		n        int
		took     time.Duration
		slow     bool
	}{
		"3 ms": {200 * time.Microsecond, 1, slowFlush, true},
		"less than 3 ms, however quick others were": {200 * time.Microsecond, 1, slowFlush - 1, false},
		"3 ms for 30 commits":                       {200 * time.Microsecond, 30, slowFlush, true},
		"3 ms for 31":                               {200 * time.Microsecond, 31, slowFlush, false},
		"0.1 ms for each of 60":                     {200 * time.Microsecond, 60, 60 * slowCommit, true},
		"less than that":                            {200 * time.Microsecond, 60, 60*slowCommit - 1, false},
		"five times the quickest":                   {2 * time.Millisecond, 1, 10 * time.Millisecond, true},
		"less than five times the quickest":         {2 * time.Millisecond, 1, 10*time.Millisecond - 1, false},
		"five times the quickest, with 101 commits": {2 * time.Millisecond, 101, 10 * time.Millisecond, false},
		"as usual where the database is far":        {8 * time.Millisecond, 1, 8 * time.Millisecond, false},
		"five times that":                           {8 * time.Millisecond, 1, 40 * time.Millisecond, true},
	} {
		t.Run(name, func(t *testing.T) {
			q := newInflight(32, 32, func() time.Time { return noon })
			q.flushed(1, c.quickest)
			q.most = 8
			q.flushed(c.n, c.took)
			if slow := q.most < 8; slow != c.slow || q.most == 8 {
				t.Errorf("the share went from 8 to %v", q.most)
			}
		})
	}
}

// TestSlowFlushesLeaveLessToATenant: beside others it holds less and less, down to
// one place; alone it has all the same; and half comes back with quick flushes.
func TestSlowFlushesLeaveLessToATenant(t *testing.T) {
	const quick = slowFlush / slowTimes
	inLine(t, 32, func(q *line) {
		a, b := newTenantID(), newTenantID()
		holds := func(alone bool) int {
			t.Helper()
			if alone {
				q.pass(presentFor)
			} else {
				q.ask(b).release()
			}
			all := q.asks(a, 40)
			n := q.heldBy(a)
			for _, one := range all {
				one.leave()
			}
			q.pass(countedFor)
			return n
		}
		flush := func(n int, took time.Duration) {
			for range n {
				q.flushed(1, took)
			}
		}
		flush(1, quick)
		if n := holds(false); n != 16 {
			t.Errorf("before, %d, want 16", n)
		}
		last := 16
		for range 4 {
			flush(2, slowFlush)
			n := holds(false)
			if n >= last || n < leastInFlight {
				t.Errorf("after two slow flushes %d, and %d before", n, last)
			}
			last = n
		}
		flush(1000, slowFlush)
		if n := holds(false); n != leastInFlight {
			t.Errorf("after many slow flushes %d, want %d", n, leastInFlight)
		}
		if n := holds(true); n != 32 {
			t.Errorf("alone %d, want all 32", n)
		}
		last = leastInFlight
		for range 3 {
			flush(8, quick)
			n := holds(false)
			if n <= last || n > 16 {
				t.Errorf("after eight quick flushes %d, and %d before", n, last)
			}
			last = n
		}
		flush(1000, quick)
		if n := holds(false); n != 16 {
			t.Errorf("after many quick flushes %d, want 16", n)
		}
	})
}

// TestTheQuickestFlushIsForgotten: a database that has become slower for good is
// slow for ten to twenty seconds; one that always was is at no time.
func TestTheQuickestFlushIsForgotten(t *testing.T) {
	now := noon
	q := newInflight(32, 32, func() time.Time { return now })
	flushes := func(until time.Duration, took time.Duration) {
		for now.Sub(noon) < until {
			now = now.Add(100 * time.Millisecond)
			q.flushed(1, took)
		}
	}
	q.flushed(1, time.Millisecond)
	flushes(quickestFor, 8*time.Millisecond)
	if q.most != leastInFlight {
		t.Errorf("ten seconds of slow flushes leave %v places to a tenant", q.most)
	}
	flushes(2*quickestFor-100*time.Millisecond, 8*time.Millisecond)
	if q.most != leastInFlight {
		t.Errorf("after less than twenty seconds slow flushes leave %v places", q.most)
	}
	flushes(3*quickestFor, 8*time.Millisecond)
	if q.most != 16 {
		t.Errorf("after thirty seconds what is usual leaves %v places, want 16", q.most)
	}

	now = noon
	q = newInflight(32, 32, func() time.Time { return now })
	for now.Sub(noon) < time.Minute {
		now = now.Add(100 * time.Millisecond)
		if q.flushed(1, 8*time.Millisecond); q.most != 16 {
			t.Fatalf("where each flush takes 8 ms a tenant has %v places, want 16", q.most)
		}
	}
}

// counted is the value of one series.
func counted(t *testing.T, reg *prometheus.Registry, name string, labels ...string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var have []string
			for _, l := range m.GetLabel() {
				have = append(have, l.GetValue())
			}
			if f.GetName() == name && slices.Equal(have, labels) {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return 0
}

// TestAdmitWaitsForATurn has a writer that runs, with no lane at work.
func TestAdmitWaitsForATurn(t *testing.T) {
	for name, c := range map[string]struct {
		patience time.Duration // of the caller
		freed    time.Duration // when a place comes
		after    time.Duration // when Admit answers
		refused  bool
		late     float64 // so many are counted
	}{
		"no turn in time":            {time.Hour, time.Hour, enterWithin, true, 1},
		"the caller waits no longer": {300 * time.Millisecond, time.Hour, 300 * time.Millisecond, true, 0},
		"a turn in time":             {time.Hour, time.Second, time.Second, false, 0},
		"a turn at the last moment":  {time.Hour, enterWithin - 1, enterWithin - 1, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				reg := prometheus.NewRegistry()
				w := New(Config{Now: time.Now, Metrics: NewMetrics(reg)})
				defer w.cut()
				w.running.Store(true)
				loud := newTenantID()
				q := &line{t: t, inflight: w.inflight}
				q.fill(loud, q.alone)
				ctx, cancel := context.WithTimeout(t.Context(), c.patience)
				defer cancel()
				freed := time.AfterFunc(c.freed, func() {
					q.mu.Lock()
					defer q.mu.Unlock()
					q.leave(loud)
				})
				defer freed.Stop()
				start := time.Now()
				release, err := w.Admit(ctx, newTenantID())
				if took := time.Since(start); took != c.after {
					t.Errorf("it took %v, want %v", took, c.after)
				}
				if late := counted(t, reg, "svc_journal_turned_away_total", "late"); late != c.late {
					t.Errorf("%v were counted as late, want %v", late, c.late)
				}
				if !c.refused {
					if err != nil {
						t.Fatal(err)
					}
					if n := counted(t, reg, "svc_journal_tickets_count"); n != 1 {
						t.Errorf("%v tickets are held", n)
					}
					release()
					release()
				} else {
					var p *problem.Error
					if !errors.As(err, &p) || p.Code != problem.CodeUnavailable || p.RetryAfterSeconds() < 1 || release != nil {
						t.Errorf("the answer is %v", err)
					}
				}
				if n := counted(t, reg, "svc_journal_tickets_count"); n != 0 || w.tickets.free != w.cfg.Queue {
					t.Errorf("%v tickets are held at the end, %d of %d are free", n, w.tickets.free, w.cfg.Queue)
				}
				if n := q.heldBy(loud); q.total != n {
					t.Errorf("%d places are taken, %d by who was there before", q.total, n)
				}
			})
		})
	}
}

// TestAloneThereAreMorePlaces: who has all of them when somebody comes keeps what it
// has and gets no more until it holds its share.
func TestAloneThereAreMorePlaces(t *testing.T) { synctest.Test(t, aloneThereAreMorePlaces) }

func aloneThereAreMorePlaces(t *testing.T) {
	q := newInflight(64, 8, time.Now)
	loud, quiet := newTenantID(), newTenantID()
	var releases []func()
	for range 64 {
		release, err := q.take(t.Context(), loud)
		if err != nil {
			t.Fatal(err)
		}
		releases = append(releases, release)
	}
	come := make(chan struct{})
	go func() {
		if release, err := q.take(context.Background(), quiet); err == nil {
			release()
		}
		close(come)
	}()
	synctest.Wait()
	held := func() (taken, loudly int) {
		q.mu.Lock()
		defer q.mu.Unlock()
		return q.total, q.held[loud]
	}
	for i, release := range releases {
		release()
		if taken, loudly := held(); taken > 64 || loudly > 63-i {
			t.Fatalf("after %d releases %d are taken, %d by the loud tenant", i+1, taken, loudly)
		}
	}
	<-come
	if taken, _ := held(); taken != 0 {
		t.Errorf("%d are taken in the end", taken)
	}
	var beside []func()
	for range 4 {
		release, err := q.take(t.Context(), loud)
		if err != nil {
			t.Fatal(err)
		}
		beside = append(beside, release)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := q.take(ctx, loud); err == nil {
		t.Error("beside another tenant it got more than half of the places")
	}
	for _, release := range beside {
		release()
	}
}
