package journal

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"agentsvc/persistence/pgtest"
	"agentsvc/schemas/id"
	"agentsvc/schemas/testkit"
)

// way is a commit on its way in the laws' model.
type way struct {
	c *draft
	l *lane
}

// ways is the model: what is on its way, in the order of the calls, and which lanes
// rest after a flush that who has filled.
type ways struct {
	*routes
	all     []way
	resting map[*lane]map[id.TenantID]int
}

func newWays() *ways {
	return &ways{routes: newRoutes([]*lane{{n: 0}, {n: 1}}, &lane{n: 2}), resting: map[*lane]map[id.TenantID]int{}}
}

func (w *ways) rest(l *lane, filled map[id.TenantID]int) {
	w.rests(l, filled)
	w.resting[l] = filled
}

func (w *ways) work(l *lane) {
	w.rested(l)
	delete(w.resting, l)
}

func (w *ways) send(c *draft) *lane {
	l := w.of(c.commit())
	w.all = append(w.all, way{c, l})
	return l
}

// end answers the commit at place i.
func (w *ways) end(i int) {
	w.ended(w.all[i].c.commit(), w.all[i].l)
	w.all = slices.Delete(w.all, i, i+1)
}

func (w *ways) count(which func(way) bool) (n int) {
	for _, one := range w.all {
		if which(one) {
			n++
		}
	}
	return n
}

func (w *ways) own(c *draft) *lane { return w.lanes[int(c.Shard)%len(w.lanes)] }

func (w *ways) in(l *lane) int { return w.count(func(one way) bool { return one.l == l }) }

// crowded reports whether the lane of c's shard is worth avoiding now.
func (w *ways) crowded(c *draft) bool {
	if filled := w.resting[w.own(c)]; filled != nil {
		return filled[c.Tenant] < fewCommits
	}
	own := w.in(w.own(c))
	return own >= crowd && 2*w.in(w.side) < own
}

// histories makes random commits of tenants.
type histories struct {
	r       *rand.Rand
	threads map[id.TenantID][]id.ThreadID
	runs    map[id.TenantID][]id.RunID
}

// next is a commit as actors make them: each swaps its own row, a thread begins new
// runs, and an approval is decided beside its run or by it.
func (h *histories) next(tenant id.TenantID) *draft {
	one := func(n int) int { return h.r.IntN(n) }
	c := &draft{Op: newOp(), Tenant: tenant}
	switch what := one(7); what {
	case 0:
		run := id.RunID{UUID: id.New(id.Shard(one(4)))}
		h.runs[tenant] = append(h.runs[tenant], run)
		c.Accept, c.Shard = &RunInsert{ID: run}, run.Shard()
	case 1:
		thread := h.threads[tenant][one(len(h.threads[tenant]))]
		run := id.RunID{UUID: id.New(thread.Shard())}
		h.runs[tenant] = append(h.runs[tenant], run)
		c.Thread, c.Accept, c.Shard = &ThreadUpdate{ID: thread}, &RunInsert{ID: run}, thread.Shard()
	case 2:
		thread := h.threads[tenant][one(len(h.threads[tenant]))]
		c.Thread, c.Shard = &ThreadUpdate{ID: thread}, thread.Shard()
	case 3, 4, 5:
		if runs := h.runs[tenant]; len(runs) > 0 {
			run := runs[len(runs)-1-one(min(6, len(runs)))]
			c.Shard = run.Shard()
			if what != 4 {
				c.Run = &RunUpdate{ID: run}
			}
			if what != 3 {
				c.Approval = &ApprovalUpdate{Run: run}
			}
			break
		}
		fallthrough
	default:
		c.Shard = id.Shard(one(4)) // rows of no entity
	}
	return c
}

// meet reports whether a and b lock the row of one thread or run.
func meet(a, b *draft) bool {
	rows := func(c *draft) (all []id.UUID) {
		if c.Thread != nil {
			all = append(all, c.Thread.ID.UUID)
		}
		if c.Accept != nil {
			all = append(all, c.Accept.ID.UUID)
		}
		if c.Run != nil {
			all = append(all, c.Run.ID.UUID)
		}
		if c.Approval != nil {
			all = append(all, c.Approval.Run.UUID)
		}
		return all
	}
	return a.Tenant == b.Tenant && slices.ContainsFunc(rows(a), func(u id.UUID) bool { return slices.Contains(rows(b), u) })
}

// TestLawsOfRoutes: over random histories commits that lock one entity's row are at
// no time in two lanes, whatever is answered first; and which of the two lanes a commit takes
// is what the tenant's commits on their way say.
func TestLawsOfRoutes(t *testing.T) {
	aside, back := 0, 0
	for seed := range uint64(80) {
		h := &histories{r: rand.New(rand.NewPCG(seed, 2)), threads: map[id.TenantID][]id.ThreadID{}, runs: map[id.TenantID][]id.RunID{}}
		w := newWays()
		tenants := make([]id.TenantID, 2+h.r.IntN(5))
		for i := range tenants {
			tenants[i] = newTenantID()
			for range 3 {
				h.threads[tenants[i]] = append(h.threads[tenants[i]], id.ThreadID{UUID: id.New(id.Shard(h.r.IntN(4)))})
			}
		}
		few := map[id.TenantID]bool{} // went aside, and has not had many since
		sends := 50 + h.r.IntN(10)    // of a hundred steps
		loud := 40 + h.r.IntN(50)     // of a hundred sends
		for step := range 500 {
			if h.r.IntN(100) >= sends {
				if len(w.all) > 0 {
					w.end(h.r.IntN(len(w.all)))
				}
				continue
			}
			switch l := w.lanes[h.r.IntN(2)]; h.r.IntN(20) {
			case 0:
				w.rest(l, map[id.TenantID]int{tenants[0]: 10, tenants[1]: h.r.IntN(2 * fewCommits)})
			case 1, 2:
				w.work(l)
			}
			tenant := tenants[0]
			if h.r.IntN(100) >= loud {
				tenant = tenants[1+h.r.IntN(len(tenants)-1)]
			}
			c := h.next(tenant)
			if len(w.all) > 0 && h.r.IntN(20) == 0 {
				c = w.all[h.r.IntN(len(w.all))].c // the same one is sent again
			}
			onWay := w.count(func(one way) bool { return one.c.Tenant == c.Tenant })
			switch {
			case onWay == 0:
				few[c.Tenant] = w.crowded(c)
			case onWay >= fewCommits:
				few[c.Tenant] = false
			}
			follows := w.count(func(one way) bool { return one.l == w.side && meet(one.c, c) }) > 0
			want := w.own(c)
			if few[c.Tenant] || follows {
				want = w.side
				aside++
			} else if w.count(func(one way) bool { return one.l == w.side && one.c.Tenant == c.Tenant }) > 0 {
				back++
			}
			got := w.send(c)
			if got != want {
				t.Fatalf("seed %d, step %d: with %d of the tenant on their way a commit went to lane %d, want %d", seed, step, onWay, got.n, want.n)
			}
			for _, one := range w.all {
				if meet(one.c, c) && one.l != got {
					t.Fatalf("seed %d, step %d: an entity has commits in lane %d and in lane %d", seed, step, one.l.n, got.n)
				}
			}
			for _, l := range append(slices.Clone(w.lanes), w.side) {
				if n := w.in(l); w.under[l] != n {
					t.Fatalf("seed %d, step %d: lane %d is said to have %d commits and has %d", seed, step, l.n, w.under[l], n)
				}
			}
		}
		for len(w.all) > 0 {
			w.end(h.r.IntN(len(w.all)))
		}
		if left := w.left(); left != "" {
			t.Fatalf("seed %d: at the end %s", seed, left)
		}
	}
	if aside < 300 || back < 300 {
		t.Errorf("%d commits went aside and %d no longer: the histories do not show much", aside, back)
	}
}

// left is what is still counted as on its way, empty when nothing is.
func (r *routes) left() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	for l, n := range r.under {
		if n != 0 {
			return fmt.Sprintf("%d commits are on their way in lane %d", n, l.n)
		}
	}
	if n := len(r.tenants); n != 0 {
		return fmt.Sprintf("%d tenants have commits on their way", n)
	}
	return ""
}

func TestWhoTakesTheSideLane(t *testing.T) {
	loud, quiet, other := newTenantID(), newTenantID(), newTenantID()
	plain := func(tenant id.TenantID) *draft { return &draft{Tenant: tenant} }
	run := id.RunID{UUID: id.New(0)}
	update := func() *draft { return &draft{Tenant: quiet, Run: &RunUpdate{ID: run}} }
	approval := func() *draft { return &draft{Tenant: quiet, Approval: &ApprovalUpdate{Run: run}} }
	many := func(tenant id.TenantID, n int) (cs []*draft) {
		for range n {
			cs = append(cs, plain(tenant))
		}
		return cs
	}
	elsewhere := func(n int) (cs []*draft) {
		for range n {
			cs = append(cs, &draft{Tenant: loud, Shard: 1})
		}
		return cs
	}
	aside := func(n int) (cs []*draft) { // n commits of n tenants that take the side lane
		for range n {
			cs = append(cs, plain(newTenantID()))
		}
		return cs
	}
	for name, c := range map[string]struct {
		before []*draft
		commit *draft
		side   bool
	}{
		"no crowd":                                          {many(loud, crowd-1), plain(quiet), false},
		"a crowd":                                           {many(loud, crowd), plain(quiet), true},
		"a crowd in the lane of another shard":              {elsewhere(3 * crowd), plain(quiet), false},
		"the crowd's own tenant":                            {many(loud, 3*crowd), plain(loud), false},
		"nearly half as many in the side lane":              {append(many(loud, crowd), aside(crowd/2-1)...), plain(quiet), true},
		"half as many in the side lane":                     {append(many(loud, crowd), aside(crowd/2)...), plain(quiet), false},
		"the last of few":                                   {append(many(loud, 3*crowd), many(quiet, fewCommits-1)...), plain(quiet), true},
		"the first beyond few":                              {append(many(loud, 3*crowd), many(quiet, fewCommits)...), plain(quiet), false},
		"beyond few, of an entity in the side lane":         {append(append(many(loud, 3*crowd), update()), many(quiet, 5)...), update(), true},
		"beyond few, an approval of a run in the side lane": {append(append(many(loud, 3*crowd), update()), many(quiet, 5)...), approval(), true},
		"few, but in the lane before it was crowded":        {append([]*draft{plain(quiet)}, many(loud, 3*crowd)...), plain(quiet), false},
		"the entity of another tenant": {append(append(many(loud, 3*crowd), update()), many(other, fewCommits)...),
			&draft{Tenant: other, Run: &RunUpdate{ID: run}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWays()
			for _, b := range c.before {
				w.send(b)
			}
			if l := w.send(c.commit); (l == w.side) != c.side {
				t.Errorf("it went to lane %d", l.n)
			}
			for len(w.all) > 0 {
				w.end(0)
			}
			if left := w.left(); left != "" {
				t.Error(left)
			}
		})
	}
	t.Run("while the lane rests", func(t *testing.T) {
		w := newWays()
		l := w.lanes[0]
		goes := func(tenant id.TenantID, want *lane) {
			t.Helper()
			got := w.send(plain(tenant))
			w.end(0)
			if got != want {
				t.Errorf("it went to lane %d", got.n)
			}
		}
		goes(quiet, l)
		w.rest(l, map[id.TenantID]int{loud: 30, quiet: fewCommits - 1, other: fewCommits})
		goes(quiet, w.side) // had few in the flush
		goes(newTenantID(), w.side)
		goes(other, l) // filled it too
		goes(loud, l)
		w.work(l)
		goes(quiet, l)
	})
	t.Run("many once, few again", func(t *testing.T) {
		w := newWays()
		for _, c := range append(many(loud, 3*crowd), many(quiet, fewCommits+1)...) {
			w.send(c)
		}
		for range fewCommits {
			w.end(3 * crowd) // all of the tenant's that went aside
		}
		if l := w.send(plain(quiet)); l == w.side {
			t.Error("a tenant that has had many goes aside while some are in its shard's lane")
		}
		w.end(3 * crowd)
		w.end(3 * crowd)
		if l := w.send(plain(quiet)); l != w.side {
			t.Error("a tenant that has nothing on its way any more does not go aside")
		}
	})
}

// rested waits until no commit is on its way any more.
func (x *world) rested() {
	x.t.Helper()
	var left string
	defer func() {
		if left != "" {
			x.t.Error(left)
		}
	}()
	testkit.Eventually(x.t, "nothing is on its way", func() bool { left = x.w.routes.left(); return left == "" })
}

// stop is where a lane stands still.
type stop struct {
	sync.Mutex
	arrived chan struct{} // capacity 1: it is there, with a flush
}

// besideACrowd makes the side lane of x a way that commits take, and a crowd of the
// tenant loud, in the lane of the shard 0, that stays until release. While aside is
// locked the side lane stands still too.
func (x *world) besideACrowd(loud id.TenantID) (release func(), aside *stop) {
	x.t.Helper()
	x.w.routes.mu.Lock()
	x.w.routes.crowd = crowd
	x.w.routes.mu.Unlock()
	held, side := x.w.lanes[0].conn.backend.pid, x.w.side().conn.backend.pid // the lanes rest, and keep their connections
	gate, arrived := make(chan struct{}), make(chan struct{})
	var once, opened sync.Once
	aside = &stop{arrived: make(chan struct{}, 1)}
	x.w.setBeforeFlush(func(pid uint32) {
		switch pid {
		case held:
			once.Do(func() { close(arrived) })
			<-gate
		case side:
			select {
			case aside.arrived <- struct{}{}:
			default:
			}
			aside.Lock()
			defer aside.Unlock()
		}
	})
	var wg sync.WaitGroup
	for n := range 3 * crowd {
		wg.Go(func() {
			c := x.auditOnly(0)
			c.Tenant = loud
			if err := x.do(c); err != nil {
				x.t.Errorf("a commit of the crowd: %v", err)
			}
		})
		if n == 0 {
			<-arrived
		}
	}
	testkit.Eventually(x.t, "the crowd is there", func() bool { return x.queued() == 3*crowd-1 })
	release = func() {
		opened.Do(func() {
			close(gate)
			wg.Wait()
		})
	}
	x.t.Cleanup(release) // a test that failed meanwhile
	return release, aside
}

func (w *Writer) onWay(l *lane) int {
	w.routes.mu.Lock()
	defer w.routes.mu.Unlock()
	return w.routes.under[l]
}

func (w *Writer) side() *lane { return w.routes.side }

// TestAQuietTenantIsNotBehindTheCrowd: its new work, what follows from it and what
// has no entity is answered while the lane of their shard stands still.
func TestAQuietTenantIsNotBehindTheCrowd(t *testing.T) {
	t.Parallel()
	x := newWorld(t, nil)
	loud, _ := x.newTenant()
	release, _ := x.besideACrowd(loud)
	run := x.accept(0)
	x.must(run)
	for v := range int64(3) {
		x.must(advance(run, v+1))
	}
	x.must(x.auditOnly(0))
	if n := x.w.onWay(x.w.lanes[0]); n != 3*crowd {
		t.Errorf("%d of the crowd's %d commits are on their way after the quiet tenant was answered", n, 3*crowd)
	}
	if n := x.count(`SELECT count(*) FROM audit_log WHERE tenant_id = $1`, loud); n != 0 {
		t.Errorf("%d of the crowd's commits were written", n)
	}
	release()
	x.rested()
	if n := x.count(`SELECT count(*) FROM audit_log WHERE tenant_id = $1`, loud); n != 3*crowd {
		t.Errorf("%d of the crowd's %d commits were written", n, 3*crowd)
	}
}

// TestOrderBesideTheCrowd: many commits of one run, called one after another without
// waiting, all win their swap beside a crowd; the tenant's others wait with it.
func TestOrderBesideTheCrowd(t *testing.T) {
	t.Parallel()
	x := newWorld(t, nil)
	loud, _ := x.newTenant()
	run, later := x.accept(0), x.accept(0)
	x.must(run)
	x.rested()
	release, aside := x.besideACrowd(loud)
	const many = 4 * fewCommits
	var own, rest sync.WaitGroup
	var answered atomic.Bool
	call := func(wg *sync.WaitGroup, c *draft, then func()) {
		wg.Go(func() {
			if err := x.do(c); err != nil {
				t.Errorf("%v", err)
			}
			then()
		})
	}
	aside.Lock() // until all are called
	goOn := sync.OnceFunc(aside.Unlock)
	defer goOn()
	queued := x.queued()
	for v := range int64(many) {
		call(&own, advance(run, v+1), func() {})
		if v == 0 {
			testkit.Eventually(x.t, "the side lane stands still", func() bool { return len(aside.arrived) > 0 })
			continue
		}
		queued++
		testkit.Eventually(x.t, "the commit is queued", func() bool { return x.queued() == queued })
	}
	if n := x.w.onWay(x.w.side()); n != many {
		t.Errorf("%d of the run's %d commits are in the side lane", n, many)
	}
	call(&rest, later, func() { answered.Store(true) })
	testkit.Eventually(x.t, "it went to the crowd", func() bool { return x.w.onWay(x.w.lanes[0]) == 3*crowd+1 })
	goOn()
	own.Wait()
	if answered.Load() {
		t.Error("the tenant's commit beyond few did not wait with the crowd")
	}
	release()
	rest.Wait()
	x.rested()
	if n := x.count(`SELECT version FROM runs WHERE id = $1`, run.Accept.ID); n != many+1 {
		t.Errorf("the run has version %d, want %d", n, many+1)
	}
}

// TestNothingStaysCounted: however commits end, in the lane of their shard or aside,
// nothing is counted as on its way afterwards.
func TestNothingStaysCounted(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]func(t *testing.T, x *world){
		"written": func(t *testing.T, x *world) {
			run := x.accept(0)
			x.must(run)
			x.must(advance(run, 1))
		},
		"the same again": func(t *testing.T, x *world) {
			run := x.accept(0)
			x.must(run)
			x.must(run)
		},
		"replayed": func(t *testing.T, x *world) {
			for _, want := range []error{nil, ErrReplay, ErrReplay} {
				c := x.accept(0)
				c.Idempotency = key("k")
				if err := x.do(c); !errors.Is(err, want) {
					t.Errorf("%v, want %v", err, want)
				}
			}
		},
		"a conflict": func(t *testing.T, x *world) {
			run := x.accept(0)
			x.must(run)
			if err := x.do(advance(run, 7)); !errors.Is(err, ErrConflict) {
				t.Error(err)
			}
		},
		"refused": func(t *testing.T, x *world) {
			c := x.accept(0)
			c.Accept.State = make([]byte, 4096)
			if err := x.do(c); !errors.Is(err, ErrRefused) {
				t.Error(err)
			}
			c = x.auditOnly(0)
			c.Statements = []Statement{{SQL: "SELEC 1"}}
			if err := x.do(c); !errors.Is(err, ErrRefused) {
				t.Error(err)
			}
		},
		"a locked row": func(t *testing.T, x *world) {
			run := x.accept(0)
			x.must(run)
			release := x.lock(`SELECT FROM runs WHERE id = $1 FOR UPDATE`, run.Accept.ID)
			defer release()
			if err := x.do(advance(run, 1)); !errors.Is(err, ErrUnavailable) {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newWorld(t, nil)
			test(t, x)
			x.rested()
			loud, _ := x.newTenant()
			release, _ := x.besideACrowd(loud)
			x.exec(`DELETE FROM idempotency`) // its keys are new again
			test(t, x)
			if n := x.w.onWay(x.w.lanes[0]); n != 3*crowd {
				t.Errorf("%d commits are in the crowd's lane", n)
			}
			release()
			x.rested()
		})
	}

	t.Run("withdrawn while it was queued", func(t *testing.T) {
		t.Parallel()
		x := newWorld(t, nil)
		release := x.block()
		leave := x.leaver(x.accept(0), ErrUnavailable, func() bool { return x.queued() == 1 })
		leave()
		leave = x.leaver(x.auditOnly(0), ErrUnsettled, func() bool { return x.queued() == 1 })
		leave()
		release()
		x.rested()
	})
	t.Run("left behind while it was sent", func(t *testing.T) {
		t.Parallel()
		x := newWorld(t, nil)
		gate, arrived := make(chan struct{}), make(chan struct{})
		var once sync.Once
		x.w.setBeforeFlush(func(uint32) { once.Do(func() { close(arrived); <-gate }) })
		leave := x.leaver(x.accept(0), ErrUnsettled, func() bool { <-arrived; return true })
		leave()
		close(gate)
		x.rested()
	})
	t.Run("left behind while there was no storage", func(t *testing.T) {
		t.Parallel()
		db := pgtest.New(t)
		x := worldIn(t, db, func(c *Config) { c.Lanes = 1 })
		admin := db.Admin(t)
		gate, arrived := make(chan struct{}), make(chan struct{})
		var once sync.Once
		x.w.setBeforeFlush(func(pid uint32) {
			once.Do(func() {
				close(arrived)
				<-gate
				if _, err := admin.Exec(context.Background(), "SELECT pg_terminate_backend($1, 10000)", pid); err != nil {
					t.Error(err)
				}
			})
		})
		leave := x.leaver(x.accept(0), ErrUnsettled, func() bool { <-arrived; return true })
		leave()
		close(gate)
		x.rested()
	})
	// held reports whether the only lane has failed twice: with its commit, and to connect again.
	held := func(x *world) func() bool {
		var first *error
		return func() bool {
			err := x.w.lanes[0].down.Load()
			if first == nil {
				first = err
			}
			return err != first
		}
	}
	t.Run("withdrawn while it was held for storage", func(t *testing.T) {
		t.Parallel()
		cluster := pgtest.Private(t, pgtest.PrivateOptions{Fsync: true})
		x := worldIn(t, &cluster.DB, func(c *Config) { c.Lanes = 1 })
		cluster.Crash(t)
		c := x.accept(0)
		c.Statements = []Statement{{SQL: `SELECT 2`}} // it is prepared first: nothing is sent
		leave := x.leaver(c, ErrWithdrawn, held(x))
		leave()
		cluster.Start(t)
		x.rested()
		x.must(x.accept(0))
	})
	t.Run("left behind while its outcome was looked for", func(t *testing.T) {
		t.Parallel()
		cluster := pgtest.Private(t, pgtest.PrivateOptions{Fsync: true})
		x := worldIn(t, &cluster.DB, func(c *Config) { c.Lanes = 1 })
		gate, arrived := make(chan struct{}), make(chan struct{})
		var once, crash sync.Once
		x.w.setBeforeFlush(func(uint32) { once.Do(func() { close(arrived); <-gate }) })
		fails := held(x)
		leave := x.leaver(x.accept(0), ErrUnsettled, func() bool {
			<-arrived
			crash.Do(func() { cluster.Crash(t); close(gate) })
			return fails()
		})
		leave()
		cluster.Start(t)
		x.rested()
		x.must(x.accept(0))
	})
	t.Run("fenced", func(t *testing.T) {
		t.Parallel()
		x := newWorld(t, nil)
		x.exec(`DELETE FROM members`)
		var wg sync.WaitGroup
		for n := range 20 {
			wg.Go(func() { x.fenced(x.accept(id.Shard(n))) })
		}
		wg.Wait()
		x.rested()
	})
	t.Run("the queue is full", func(t *testing.T) {
		t.Parallel()
		x := newWorld(t, func(c *Config) { c.Queue = 2 })
		release := x.block()
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				if err := x.do(x.accept(0)); err != nil {
					t.Error(err)
				}
			})
		}
		testkit.Eventually(x.t, "the queue is full", func() bool { return x.queued() == 2 })
		if err := x.do(x.accept(0)); !errors.Is(err, ErrUnavailable) {
			t.Error(err)
		}
		release()
		wg.Wait()
		x.rested()
	})
	t.Run("the writer stops", func(t *testing.T) {
		t.Parallel()
		cluster := pgtest.Private(t, pgtest.PrivateOptions{})
		x := worldIn(t, &cluster.DB, nil)
		cluster.Stop(t)
		x.noticed()
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				if err := x.do(x.auditOnly(0)); !errors.Is(err, ErrUnavailable) {
					t.Error(err)
				}
			})
		}
		testkit.Eventually(x.t, "they wait", func() bool { return x.queued() == 3 })
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := x.w.Stop(ctx); err == nil {
			t.Error("Stop did not say that its time was up")
		}
		wg.Wait()
		if err := x.do(x.accept(0)); !errors.Is(err, ErrUnavailable) {
			t.Error(err)
		}
		x.rested()
	})
}

// leaver calls the writer with c and waits for there; leave ends the caller's
// patience and sees what it is told.
func (x *world) leaver(c *draft, want error, there func() bool) (leave func()) {
	x.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	got := make(chan error, 1)
	go func() { got <- x.w.Do(ctx, c.commit()) }()
	testkit.Eventually(x.t, "the commit is on its way", there)
	return func() {
		x.t.Helper()
		cancel()
		if err := <-got; !errors.Is(err, want) {
			x.t.Errorf("who left was told %v, want %v", err, want)
		}
	}
}
