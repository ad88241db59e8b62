package sweep

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"agentsvc/actors/delivery"
	"agentsvc/actors/durable"
	"agentsvc/actors/run"
	"agentsvc/actors/thread"
	"agentsvc/cluster"
	"agentsvc/persistence/feed"
	"agentsvc/persistence/pgtest"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// fake is the rows and the node of a test.
type fake struct {
	mu     sync.Mutex
	timers []feed.Timer
	open   []feed.Found
	err    error
	pages  int
	active map[cluster.Address]bool
	shards []id.Shard // of the node; nil: all
	lost   map[id.Shard]bool
	told   []string
	// claimed are timers that a process told of that is not there any more.
	claimed  []feed.Timer
	released [][]id.Shard
	returned []feed.Timer

	endpoints     []feed.Found // in the order of their ids
	endpointPages int
	retentions    []feed.Retention

	people      []feed.Person // deleted ones, in the order of their ids
	lostThreads []feed.Entity
	gone        [3]int // runs, threads and people to be erased
	looks       []int  // at how many people
	afters      []feed.Person
	most        int // runs that are erased in time
	slow        func(ctx context.Context) error
}

func (f *fake) DeletedPeople(_ context.Context, after feed.Person, limit int) ([]feed.Person, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.afters = append(f.afters, after)
	i, found := slices.BinarySearchFunc(f.people, after, func(p, q feed.Person) int {
		return cmp.Or(p.DeletedAt.Compare(q.DeletedAt), slices.Compare(p.ID.UUID[:], q.ID.UUID[:]))
	})
	if found {
		i++
	}
	return f.people[i:min(i+limit, len(f.people))], nil
}

// kinds are three of the service's: what is found and erased of them is the fake's.
func (f *fake) kinds() []durable.Traits {
	return []durable.Traits{
		{Name: msg.KindRun, Work: &feed.Work{Find: f.openRuns, Through: msg.KindThread}, Erase: &feed.Erasure{Erase: f.eraseRuns}},
		{Name: msg.KindThread, Erase: &feed.Erasure{Lost: f.lostOf, Erase: f.eraseThreads}, End: thread.Traits.End},
		{Name: msg.KindDelivery, Work: &feed.Work{Find: f.dueEndpoints, Every: time.Second, Page: endpointsPage, Pages: endpointsPages, Wakes: endpointsPage * endpointsPages}},
	}
}

// The bounds of the works: of runs the defaults, of endpoints those of their kind.
const (
	runsPage       = 2000
	runsPages      = 8
	wakes          = 1000
	endpointsPage  = 1000
	endpointsPages = 4
)

func (f *fake) Find(ctx context.Context, w *feed.Work, shards []id.Shard, after id.UUID, limit int) (feed.Page, error) {
	return w.Find(ctx, nil, shards, after, limit)
}

func (f *fake) Retain(ctx context.Context, r *feed.Retention, from feed.Mark, limit int) (int, feed.Mark, error) {
	return r.Pass(ctx, nil, from, limit)
}

func (f *fake) Lost(ctx context.Context, e *feed.Erasure, people []feed.Person, shards []id.Shard, limit int) ([]feed.Entity, error) {
	return e.Lost(ctx, nil, people, shards, limit)
}

func (f *fake) Erase(ctx context.Context, e *feed.Erasure, people []feed.Person, limit int, settled time.Duration) (int, error) {
	return e.Erase(ctx, nil, people, limit, settled)
}

func (f *fake) lostOf(_ context.Context, _ *pgxpool.Pool, people []feed.Person, shards []id.Shard, limit int) ([]feed.Entity, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.looks = append(f.looks, len(people))
	var lost []feed.Entity
	for _, l := range f.lostThreads {
		if slices.Contains(shards, l.ID.Shard()) {
			lost = append(lost, l)
		}
	}
	return lost[:min(limit, len(lost))], f.err
}

func (f *fake) eraseRuns(ctx context.Context, _ *pgxpool.Pool, _ []feed.Person, limit int, settled time.Duration) (int, error) {
	if f.slow != nil {
		return 0, f.slow(ctx)
	}
	if f.most > 0 && limit > f.most {
		return 0, context.DeadlineExceeded
	}
	if settled != 5*time.Second {
		return 0, errors.New("not 5 s")
	}
	return f.drop(&f.gone[0], limit)
}

func (f *fake) eraseThreads(_ context.Context, _ *pgxpool.Pool, _ []feed.Person, limit int, settled time.Duration) (int, error) {
	if settled != 5*time.Second {
		return 0, errors.New("not 5 s")
	}
	return f.drop(&f.gone[1], limit)
}

func (f *fake) ErasePeople(_ context.Context, all []*feed.Erasure, people []feed.Person, age time.Duration) (int, error) {
	if age != time.Hour {
		return 0, errors.New("not an hour")
	}
	if len(all) != 2 {
		return 0, errors.New("not of all kinds")
	}
	return f.drop(&f.gone[2], len(people))
}

func (f *fake) ReleaseTimers(_ context.Context, shards []id.Shard) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.timers, f.claimed = append(f.timers, f.claimed...), nil
		f.released = append(f.released, shards)
	}
	return f.err
}

func (f *fake) ClaimTimers(_ context.Context, c feed.Claim) ([]feed.Timer, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil || c.Hold != 10*time.Second {
		return nil, f.err
	}
	var due []feed.Timer
	f.timers = slices.DeleteFunc(f.timers, func(t feed.Timer) bool {
		claimed := len(due) < c.Limit && !slices.Contains(c.Without, t.Tenant)
		if claimed {
			due = append(due, t)
		}
		return claimed
	})
	return due, nil
}

func (f *fake) ReturnTimers(_ context.Context, timers []feed.Timer) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.returned = append(f.returned, timers...)
	return f.err
}

// openRuns goes by the ids alone.
func (f *fake) openRuns(_ context.Context, _ *pgxpool.Pool, shards []id.Shard, after id.UUID, limit int) (feed.Page, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(shards) == 0 {
		return feed.Page{}, nil
	}
	f.pages++
	return pageOf(f.open, after, limit, f.err)
}

// dueEndpoints goes by the ids alone.
func (f *fake) dueEndpoints(_ context.Context, _ *pgxpool.Pool, shards []id.Shard, after id.UUID, limit int) (feed.Page, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(shards) == 0 {
		return feed.Page{}, nil
	}
	f.endpointPages++
	return pageOf(f.endpoints, after, limit, f.err)
}

func pageOf(all []feed.Found, after id.UUID, limit int, err error) (feed.Page, error) {
	if err != nil {
		return feed.Page{}, err
	}
	i, found := slices.BinarySearchFunc(all, after, func(f feed.Found, u id.UUID) int { return slices.Compare(f.ID[:], u[:]) })
	if found {
		i++
	}
	p := feed.Page{Found: all[i:min(i+limit, len(all))]}
	if p.More = len(p.Found) == limit; p.More {
		p.Next = p.Found[limit-1].ID
	}
	return p, nil
}

func (f *fake) drop(of *int, limit int) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := min(limit, *of)
	*of -= n
	return n, nil
}

func (f *fake) Shards() []id.Shard {
	if f.shards == nil {
		return everywhere
	}
	return f.shards
}
func (f *fake) Owns(s id.Shard) bool          { return slices.Contains(f.Shards(), s) && !f.lost[s] }
func (f *fake) Active(a cluster.Address) bool { return f.active[a] }
func (f *fake) Tell(a cluster.Address, m any) {
	f.mu.Lock()
	f.told = append(f.told, fmt.Sprintf("%s %x %+v", a.Kind, a.ID[15], m))
	f.mu.Unlock()
}

// result says what one round of the loops found.
type result struct {
	timers, woken, endpoints int
}

// runOnce is one round of the loops that tell others.
func (s *Sweep) runOnce(ctx context.Context) (r result, err error) {
	var errs [3]error
	r.timers, errs[0] = s.timers(ctx)
	r.woken, errs[1] = s.searchOf(msg.KindRun).once(ctx)
	r.endpoints, errs[2] = s.searchOf(msg.KindDelivery).once(ctx)
	return r, errors.Join(errs[:]...)
}

func (s *Sweep) searchOf(kind string) *search {
	return s.searches[slices.IndexFunc(s.searches, func(w *search) bool { return w.kind == kind })]
}

var everywhere = func() []id.Shard {
	all := make([]id.Shard, id.Shards)
	for i := range all {
		all[i] = id.Shard(i)
	}
	return all
}()

func runN(n int) id.RunID {
	return id.RunID{UUID: id.UUID{6: 0x70, 13: byte(n >> 16), 14: byte(n >> 8), 15: byte(n)}}
}

func TestDueTimersReachTheirOwners(t *testing.T) {
	f := &fake{timers: []feed.Timer{{Kind: "run", Entity: id.UUID{15: 1}, Name: "deadline"}, {Kind: "approval", Entity: id.UUID{15: 2}, Name: "expire"}}}
	s := New(Config{Rows: f, Kinds: f.kinds(), Retentions: f.retentions, Node: f, Log: zerolog.Nop(), Now: func() time.Time { return noon }})
	r, err := s.runOnce(t.Context())
	if err != nil || r.timers != 2 || !slices.Equal(f.told, []string{"run 1 {Name:deadline}", "approval 2 {Name:expire}"}) {
		t.Errorf("%+v %v %v", r, err, f.told)
	}
	for range claimBatch*2 + 7 {
		f.timers = append(f.timers, feed.Timer{Kind: "run", Name: "x"})
	}
	if r, _ := s.runOnce(t.Context()); r.timers != claimBatch*2+7 {
		t.Errorf("%d of a crowd in one tick", r.timers)
	}
}

// A tenant with more due timers than a tick can tell delays those of the others by one round.
func TestDueTimersOfOneTenantDelayNoOthers(t *testing.T) {
	loud, second := id.TenantID{UUID: id.UUID{15: 1}}, id.TenantID{UUID: id.UUID{15: 2}}
	f := &fake{}
	for i := range 3 * claimRounds * claimBatch { // two loud tenants, one behind the other
		of := loud
		if i >= 2*claimRounds*claimBatch {
			of = second
		}
		f.timers = append(f.timers, feed.Timer{Tenant: of, Kind: "run", Name: "loud"})
	}
	quiet := func(n int) {
		for i := range n {
			f.timers = append(f.timers, feed.Timer{Tenant: id.TenantID{UUID: id.UUID{14: 1, 15: byte(i)}}, Kind: "approval", Entity: id.UUID{15: byte(i)}, Name: "expire"})
		}
	}
	s := New(Config{Rows: f, Kinds: f.kinds(), Retentions: f.retentions, Node: f, Log: zerolog.Nop(), Now: func() time.Time { return noon }})
	for tick := range 3 {
		f.told = nil
		quiet(50)
		r, err := s.runOnce(t.Context())
		if err != nil || r.timers < (claimRounds-2)*claimBatch {
			t.Fatalf("tick %d: %+v %v", tick, r, err)
		}
		last, n := 0, 0
		for i, told := range f.told {
			if strings.HasPrefix(told, "approval") {
				last, n = i, n+1
			}
		}
		if n != 50 || last >= 3*claimBatch {
			t.Errorf("tick %d: %d of 50 timers of quiet tenants were told, the last one behind %d others", tick, n, last)
		}
	}
	for len(f.timers) > 0 {
		if _, err := s.runOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if len(s.turns) > 0 {
		t.Errorf("nothing is due, and %d tenants have had their turn", len(s.turns))
	}
}

// What a process that died was told of is told again at once by who owns it next,
// and only then: a claim of this process is one that its owner has heard.
func TestClaimsOfGainedShardsAreReleased(t *testing.T) {
	f := &fake{claimed: []feed.Timer{{Kind: "approval", Entity: id.UUID{15: 1}, Name: "expire"}}, err: errors.New("not yet"), shards: []id.Shard{2, 5, id.UUID{15: 1}.Shard(), id.UUID{15: 2}.Shard()}}
	s := New(Config{Rows: f, Kinds: f.kinds(), Retentions: f.retentions, Node: f, Log: zerolog.Nop(), Now: func() time.Time { return noon }})
	if r, err := s.runOnce(t.Context()); err == nil || r.timers != 0 {
		t.Errorf("while the database is away: %+v %v", r, err)
	}
	f.err = nil
	if r, err := s.runOnce(t.Context()); err != nil || r.timers != 1 || !slices.Equal(f.released[0], f.shards) {
		t.Errorf("in the first tick: %+v %v, released %v", r, err, f.released)
	}
	f.claimed = []feed.Timer{{Kind: "approval", Entity: id.UUID{15: 2}, Name: "expire"}}
	if r, err := s.runOnce(t.Context()); err != nil || r.timers != 0 {
		t.Errorf("in a later one: %+v %v", r, err)
	}
	s.Gained([]id.Shard{5, 9})
	if r, err := s.runOnce(t.Context()); err != nil || r.timers != 1 || len(f.released) != 2 || !slices.Equal(f.released[1], []id.Shard{5}) {
		t.Errorf("after a gain: %+v %v, released %v", r, err, f.released)
	}
}

// moving is a node whose member list changes while a tick begins.
type moving struct {
	*fake
	change func() // once, right behind what Shards reads
}

func (m *moving) Shards() []id.Shard {
	own := m.fake.Shards()
	if change := m.change; change != nil {
		m.change = nil
		change()
	}
	return own
}

// A gain is taken up with a list of shards that has it: by an older one nothing of
// it would be done, and nobody would look again.
func TestAGainWhileATickBegins(t *testing.T) {
	run := runN(1)
	at := run.Shard()
	f := &fake{shards: []id.Shard{5}}
	n := &moving{fake: f}
	s := New(Config{Rows: f, Kinds: f.kinds(), Retentions: f.retentions, Node: n, Log: zerolog.Nop(), Now: func() time.Time { return noon }})
	if _, err := s.runOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.change = func() {
		f.shards, f.released = []id.Shard{at, 5}, nil
		f.open = []feed.Found{{ID: run.UUID}}
		s.Gained([]id.Shard{at})
	}
	woken := 0
	for range 2 {
		r, err := s.runOnce(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		woken += r.woken
	}
	if woken != 1 || len(f.released) != 1 || !slices.Equal(f.released[0], []id.Shard{at}) {
		t.Errorf("woken %d, claims ended %v", woken, f.released)
	}
}

func TestOpenRunsAreWoken(t *testing.T) {
	thread := id.UUID{15: 0xaa}
	for _, c := range []struct {
		name   string
		run    feed.Found
		active bool
		owned  bool
		want   []string
	}{
		{"a running run", feed.Found{ID: runN(1).UUID}, false, true, []string{"run 1 {}"}},
		{"a queued run of a thread, or of a deleted one, through it", feed.Found{ID: runN(1).UUID, Through: &thread}, false, true, []string{"thread aa {}"}},
		{"one that lives is left alone", feed.Found{ID: runN(1).UUID, Through: &thread}, true, true, nil},
		{"one of another node is left alone", feed.Found{ID: runN(1).UUID}, false, false, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := &fake{open: []feed.Found{c.run}, lost: map[id.Shard]bool{c.run.ID.Shard(): !c.owned},
				active: map[cluster.Address]bool{{Kind: msg.KindRun, ID: c.run.ID}: c.active}}
			s := New(Config{Rows: f, Kinds: f.kinds(), Retentions: f.retentions, Node: f, Log: zerolog.Nop(), Now: func() time.Time { return noon }})
			if r, err := s.runOnce(t.Context()); err != nil || r.woken != len(c.want) || !slices.Equal(f.told, c.want) {
				t.Errorf("%+v %v %v", r, err, f.told)
			}
		})
	}
}

// runsOf are n open runs of a tenant.
func runsOf(tenant byte, from, n int) []feed.Found {
	out := make([]feed.Found, n)
	for i := range out {
		out[i] = feed.Found{Tenant: id.TenantID{UUID: id.UUID{15: tenant}}, ID: runN(from + i).UUID}
	}
	return out
}

// What the node has at its start and what it gains later is looked at at once;
// the rest has a pass of its own, by fewer pages.
func TestWhatWasGainedIsLookedAtAtOnce(t *testing.T) {
	f := &fake{open: runsOf(1, 1, runsPage*(runsPages+2)+3), active: map[cluster.Address]bool{}}
	for _, o := range f.open {
		f.active[cluster.Address{Kind: msg.KindRun, Tenant: o.Tenant, ID: o.ID}] = true
	}
	now := noon
	s := New(Config{Rows: f, Kinds: f.kinds(), Retentions: f.retentions, Node: f, Log: zerolog.Nop(), Now: func() time.Time { return now }})
	tick := func() int {
		t.Helper()
		f.pages = 0
		if _, err := s.runOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
		return f.pages
	}
	for _, c := range []struct {
		name  string
		do    func()
		pages int
	}{
		{"at the start everything", nil, runsPages + 3},
		{"nothing before its time", nil, 0},
		{"a second later once more", func() { now = now.Add(time.Second) }, runsPages + 3},
		{"and no more", func() { now = now.Add(time.Second) }, 0},
		{"a later pass by fewer pages", func() { now = now.Add(3 * time.Second) }, runsPages},
		{"until it is through", nil, 3},
		{"a gain, before its time", func() { s.Gained([]id.Shard{3, 4}) }, runsPages + 3},
		{"a gain of nothing", func() { s.Gained(nil) }, 0},
		{"the gain once more", func() { now = now.Add(time.Second) }, runsPages + 3},
		{"a gain of what is lost again", func() {
			s.Gained([]id.Shard{3})
			f.shards = []id.Shard{5}
		}, 0},
		{"a gain in the middle of a pass", func() {
			now = now.Add(5 * time.Second)
			tick()
			s.Gained([]id.Shard{5})
		}, runsPages + 3 /* and then anew, as far as a tick goes */},
		{"and the pass anew", func() { now = now.Add(250 * time.Millisecond) }, runsPages},
	} {
		if c.do != nil {
			c.do()
		}
		if got := tick(); got != c.pages {
			t.Errorf("%s: %d pages, want %d", c.name, got, c.pages)
		}
	}
}

// A tenant with tens of thousands of runs holds up nobody: the few of the others
// are woken in the first tick, and of all as many as a tick may.
func TestTenantsAreServedInTurn(t *testing.T) {
	f := &fake{}
	const crowd, few = 30_000, 5
	f.open = append(f.open, runsOf(1, 1, crowd)...)
	for tenant := byte(2); tenant < 52; tenant++ { // behind all of the first
		f.open = append(f.open, runsOf(tenant, crowd+int(tenant)*few, few)...)
	}
	s := New(Config{Rows: f, Kinds: f.kinds(), Retentions: f.retentions, Node: f, Log: zerolog.Nop(), Now: func() time.Time { return noon }})
	left := crowd + 50*few
	for ticks := 1; left > 0; ticks++ {
		r, err := s.runOnce(t.Context())
		if err != nil || r.woken != min(wakes, left) {
			t.Fatalf("tick %d: woken %d of %d, %v", ticks, r.woken, left, err)
		}
		left -= r.woken
		if ticks > 1 {
			continue
		}
		// What has not been woken is the first one's alone.
		if len(s.searchOf(msg.KindRun).queue.tenants) != 1 || s.searchOf(msg.KindRun).queue.n != left {
			t.Errorf("after the first tick %d tenants wait with %d runs", len(s.searchOf(msg.KindRun).queue.tenants), s.searchOf(msg.KindRun).queue.n)
		}
	}
	if len(f.told) != crowd+50*few {
		t.Errorf("told %d", len(f.told))
	}
}

// What finds no room is found again: nobody is forgotten, and memory is bounded.
func TestWhatHasNoRoomIsFoundAgain(t *testing.T) {
	f := &fake{active: map[cluster.Address]bool{}}
	f.open = append(f.open, runsOf(1, 1, 5000)...)
	f.open = append(f.open, runsOf(2, 5001, 300)...)
	s := New(Config{Rows: f, Kinds: f.kinds(), Node: wakes2{f}, Log: zerolog.Nop(), Now: func() time.Time { return noon }})
	s.searchOf(msg.KindRun).queue = newQueue(2000)
	sum := 0
	for ticks := 0; sum < 5300; ticks++ {
		r, err := s.runOnce(t.Context())
		if err != nil || ticks > 20 {
			t.Fatal(sum, err)
		}
		if s.searchOf(msg.KindRun).queue.n > 4000 {
			t.Fatalf("%d wait", s.searchOf(msg.KindRun).queue.n)
		}
		if sum += r.woken; ticks == 0 && len(s.searchOf(msg.KindRun).queue.found[id.TenantID{UUID: id.UUID{15: 2}}]) != 0 {
			t.Error("the few were not all served in the first tick")
		}
	}
	if len(f.told) != 5300 || len(f.active) != 5300 || s.searchOf(msg.KindRun).queue.n != 0 {
		t.Errorf("told %d, of them %d once", len(f.told), len(f.active))
	}
}

// wakes2 is a node on which whoever was told lives.
type wakes2 struct{ *fake }

func (w wakes2) Tell(a cluster.Address, m any) {
	w.active[a] = true
	w.fake.Tell(a, m)
}

func TestATimerThatMovedIsGivenBack(t *testing.T) {
	here, there := id.New(3), id.New(4)
	f := &fake{timers: []feed.Timer{{Kind: "run", Entity: here, Name: "here"}, {Kind: "run", Entity: there, Name: "there"}}, lost: map[id.Shard]bool{4: true}}
	s := New(Config{Rows: f, Kinds: f.kinds(), Retentions: f.retentions, Node: f, Log: zerolog.Nop(), Now: func() time.Time { return noon }})
	if r, err := s.runOnce(t.Context()); err != nil || r.timers != 1 || len(f.told) != 1 || len(f.returned) != 1 || f.returned[0].Name != "there" {
		t.Errorf("%+v %v told %v, returned %v", r, err, f.told, f.returned)
	}
}

func TestASuspendedNodeBeginsNothing(t *testing.T) {
	live := false
	f := &fake{timers: []feed.Timer{{Kind: "run", Name: "x"}}, open: runsOf(1, 1, 3), endpoints: []feed.Found{{ID: webhookN(1).UUID}}}
	s := New(Config{Rows: f, Kinds: f.kinds(), Retentions: f.retentions, Node: f, Log: zerolog.Nop(), Live: func() bool { return live }, Now: func() time.Time { return noon }})
	if r, err := s.runOnce(t.Context()); err != nil || r != (result{}) || len(f.told) != 0 {
		t.Errorf("%+v %v", r, err)
	}
	live = true
	if r, err := s.runOnce(t.Context()); err != nil || r != (result{timers: 1, woken: 3, endpoints: 1}) {
		t.Errorf("afterwards %+v %v", r, err)
	}
}

func TestAPartThatFailsKeepsNoOtherFromItsWork(t *testing.T) {
	f := &fake{err: errors.New("away"), open: []feed.Found{{ID: runN(1).UUID}}}
	s := New(Config{Rows: f, Kinds: f.kinds(), Retentions: f.retentions, Node: f, Log: zerolog.Nop(), Now: func() time.Time { return noon }})
	if _, err := s.runOnce(t.Context()); err == nil {
		t.Error("no error")
	}
	f.err = nil
	if r, err := s.runOnce(t.Context()); err != nil || r.woken != 1 {
		t.Errorf("a pass that failed is not made good at the next tick: %+v %v", r, err)
	}
}

func webhookN(n int) id.WebhookID { return id.WebhookID(runN(n)) }

func TestEndpointsThatAreDueAreTold(t *testing.T) {
	for _, c := range []struct {
		name    string
		overdue time.Duration
		active  bool
		owned   bool
		want    []string
	}{
		{"one that nobody sends for", 0, false, true, []string{"delivery 1 {}"}},
		{"one that lives is left alone", lateAfter - time.Nanosecond, true, true, nil},
		{"one that lives and is late", lateAfter, true, true, []string{"delivery 1 {}"}},
		{"one of another node is left alone", time.Hour, false, false, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := feed.Found{Tenant: id.TenantID{UUID: id.UUID{15: 9}}, ID: webhookN(1).UUID, Overdue: c.overdue}
			f := &fake{endpoints: []feed.Found{e}, lost: map[id.Shard]bool{e.ID.Shard(): !c.owned},
				active: map[cluster.Address]bool{{Kind: msg.KindDelivery, Tenant: e.Tenant, ID: e.ID}: c.active}}
			s := New(Config{Rows: f, Kinds: f.kinds(), Retentions: f.retentions, Node: f, Log: zerolog.Nop(), Now: func() time.Time { return noon }})
			if r, err := s.runOnce(t.Context()); err != nil || r.endpoints != len(c.want) || !slices.Equal(f.told, c.want) {
				t.Errorf("%+v %v %v", r, err, f.told)
			}
		})
	}
}

// A pass each second, in portions, and one at once where something was gained; a second
// later what was gained is looked at once more.
func TestPassesOverTheEndpoints(t *testing.T) {
	f := &fake{}
	const most = endpointsPage * endpointsPages
	const n = most + endpointsPage + 7
	for i := range n {
		f.endpoints = append(f.endpoints, feed.Found{ID: webhookN(i + 1).UUID})
	}
	now := noon
	s := New(Config{Rows: f, Kinds: f.kinds(), Retentions: f.retentions, Node: f, Log: zerolog.Nop(), Now: func() time.Time { return now }})
	for _, c := range []struct {
		name        string
		do          func()
		pages, told int
		err         bool
	}{
		{"at the start", nil, endpointsPages + 2, most, false},
		{"the rest", nil, 0, n - most, false},
		{"nothing before its time", func() { now = now.Add(time.Second - 1) }, 0, 0, false},
		{"a second later what was gained once more", func() { now = now.Add(1) }, endpointsPages + 2, most, false},
		{"its rest", nil, 0, n - most, false},
		{"and the pass", nil, endpointsPages, most, false},
		{"while the database is away", func() { f.err = errors.New("away") }, 1, 0, true},
		{"where it stopped", func() { f.err = nil }, 2, n - most, false},
		{"a gain", func() { s.Gained([]id.Shard{3}) }, endpointsPages + 2, most, false},
		{"a gain before the rest was told", func() { s.Gained([]id.Shard{4}) }, endpointsPages + 2, most, false},
		{"and the rest", nil, 0, 2*n - 2*most, false},
		{"and no more", nil, 0, 0, false},
	} {
		if c.do != nil {
			c.do()
		}
		f.endpointPages = 0
		r, err := s.runOnce(t.Context())
		if (err != nil) != c.err || r.endpoints != c.told || f.endpointPages != c.pages {
			t.Errorf("%s: %d told, %d pages, %v; want %d and %d", c.name, r.endpoints, f.endpointPages, err, c.told, c.pages)
		}
	}
}

// told is an actor that says what it hears.
type told struct {
	kind string
	out  chan string
}

func (a *told) Receive(_ cluster.Context, m any) {
	switch m := m.(type) {
	case durable.TimerDue:
		a.out <- a.kind + " timer " + m.Name
	case durable.Wake:
		a.out <- a.kind + " wake"
	}
}
func (a *told) Stopped() {}

// The first sweep finds everything: no later tick is waited for.
func TestAfterARestartEverythingGoesOnAtOnce(t *testing.T) {
	db := pgtest.New(t)
	pool := db.System(t)
	tenant := fill(t, pool)
	n := cluster.New(cluster.Config{Member: id.MemberID{UUID: id.NewAnywhere()}, Log: zerolog.Nop()})
	out := make(chan string, 100)
	for _, kind := range []string{msg.KindRun, msg.KindThread, msg.KindDelivery} {
		n.Register(kind, func(cluster.Address) cluster.Behavior { return &told{kind, out} })
	}
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	s := New(Config{Rows: feed.NewSweep(pool), Kinds: rarely, Node: n, Log: zerolog.Nop(), Every: time.Hour})
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	var got []string
	for range 4 {
		select {
		case m := <-out:
			got = append(got, m)
		case <-time.After(time.Minute):
			t.Fatalf("only %v", got)
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, []string{"delivery wake", "run timer deadline", "run wake", "thread wake"}) {
		t.Errorf("%v", got)
	}
	s.Stop()
	s.cfg.Every = 50 * time.Millisecond
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	// A timer that comes due later is told then, once.
	if _, err := pool.Exec(t.Context(), "INSERT INTO timers (tenant_id, kind, entity_id, name, due_at) VALUES ($1, 'thread', $2, 'soon', now() + interval '300 ms')", tenant, id.NewAnywhere()); err != nil {
		t.Fatal(err)
	}
	select {
	case m := <-out:
		if m != "thread timer soon" {
			t.Error(m)
		}
	case <-time.After(time.Minute):
		t.Error("the timer is not told")
	}
	s.Stop()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := n.Stop(ctx); err != nil {
		t.Error(err)
	}
	if len(out) != 0 {
		t.Errorf("told more: %s", <-out)
	}
}

// rarely are kinds of the service whose passes are an hour apart.
var rarely = func() []durable.Traits {
	kinds := []durable.Traits{run.Traits, thread.Traits, delivery.Traits}
	for i := range kinds {
		if w := kinds[i].Work; w != nil {
			w := *w
			w.Every = time.Hour
			kinds[i].Work = &w
		}
	}
	return kinds
}()

// fill writes a running run, a queued run of a thread with another behind it,
// one that waits for an approval, a due timer, and an endpoint with a due delivery.
func fill(t *testing.T, pool *pgxpool.Pool) id.TenantID {
	t.Helper()
	tenant, agent, thread, webhook := id.TenantID{UUID: id.NewAnywhere()}, id.NewAnywhere(), id.NewAnywhere(), id.NewAnywhere()
	for _, q := range []struct {
		sql  string
		args []any
	}{
		{"INSERT INTO tenants (id, name) VALUES ($1, 't')", []any{tenant}},
		{"INSERT INTO agents (tenant_id, id, slug, name) VALUES ($1, $2, 'a', 'a')", []any{tenant, agent}},
		{"INSERT INTO threads (tenant_id, id, agent_id, created_by) VALUES ($1, $2, $3, 'x')", []any{tenant, thread, agent}},
		{"INSERT INTO timers (tenant_id, kind, entity_id, name, due_at) VALUES ($1, 'run', $2, 'deadline', now())", []any{tenant, id.NewAnywhere()}},
		{`INSERT INTO webhooks (tenant_id, id, url, events, secret) VALUES ($1, $2, 'https://example.org', '{*}', '\x00')`, []any{tenant, webhook}},
		{"INSERT INTO webhook_deliveries (tenant_id, id, webhook_id, event_id, type, body, next_attempt_at, created_at) VALUES ($1, $2, $2, $2, 'run.failed', '{}', now(), now())", []any{tenant, webhook}},
	} {
		if _, err := pool.Exec(t.Context(), q.sql, q.args...); err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range []struct {
		status string
		seq    int
	}{{"running", 0}, {"waiting_approval", 0}, {"queued", 1}, {"queued", 3}} {
		var th *id.UUID
		var seq *int
		if r.seq > 0 {
			th, seq = &thread, &r.seq
		}
		if _, err := pool.Exec(t.Context(), `INSERT INTO runs (tenant_id, id, status, agent_id, thread_id, thread_seq, origin_kind, origin_id, created_at)
			VALUES ($1, $2, $3, $4, $5, $6, 'api_key', $1, now())`, tenant, id.NewAnywhere(), r.status, agent, th, seq); err != nil {
			t.Fatal(err)
		}
	}
	return tenant
}
