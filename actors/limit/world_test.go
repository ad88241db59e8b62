package limit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"agentsvc/cluster"
	"agentsvc/cluster/placement"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
)

// world is some nodes and what lies between them: messages take their time, and
// are lost; nodes learn of who is there one after another.
type world struct {
	t     *testing.T
	rate  Rate
	codec *msg.Codec

	mu         sync.Mutex // guards the fields below
	rand       *rand.Rand
	nodes      map[id.MemberID]*site
	living     []id.MemberID
	owners     []id.MemberID
	lossy      bool
	cut        map[[2]id.MemberID]bool
	hangs      bool // what is asked where it is cut is not answered, else it fails at once
	taken      []time.Time
	unanswered int
	mute       bool        // nothing that is told is heard
	blind      bool        // who looks gets no answer
	killed     func(*site) // when the others know
}

// site is one node of the world.
type site struct {
	w      *world
	member id.MemberID
	ledger *Ledger
	keeper *Keeper
	holds  *Holds
	wg     sync.WaitGroup

	seeing sync.Mutex // one change after another

	mu    sync.Mutex // guards the fields below
	view  *placement.Table
	lives []id.MemberID // as it last saw, or looked
	dead  bool
}

// living is the site's list: as old as its last look.
func (p *site) living() []id.MemberID {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lives
}

// look reads the list anew; the view follows later.
func (p *site) look(ctx context.Context) error {
	p.w.mu.Lock()
	blind := p.w.blind
	p.w.mu.Unlock()
	if blind {
		<-ctx.Done()
		return ctx.Err()
	}
	time.Sleep(p.w.some(5 * time.Millisecond))
	if p.w.chance(10) {
		return errors.New("no database")
	}
	members := p.w.members()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lives = members
	return nil
}

func newWorld(t *testing.T, rate Rate, seed uint64) *world {
	w := &world{t: t, rate: rate, rand: rand.New(rand.NewPCG(seed, 9)), nodes: map[id.MemberID]*site{}, codec: msg.NewCodec(), cut: map[[2]id.MemberID]bool{}}
	AddTo(w.codec)
	w.codec.AddError("moved", cluster.ErrMoved)
	return w
}

func (w *world) chance(n int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lossy && w.rand.IntN(n) == 0
}

func (w *world) some(d time.Duration) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Duration(w.rand.Int64N(int64(d)))
}

func (w *world) members() []id.MemberID {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.living)
}

// join adds a node, and tells the others soon.
func (w *world) join() *site {
	p := w.enter()
	w.spread()
	return p
}

// enter adds a node of which the others have not heard yet.
func (w *world) enter() *site {
	p := &site{w: w, member: id.MemberID{UUID: id.NewAnywhere()}}
	p.keeper = NewKeeper(KeeperConfig{Kind: msg.KindLimit, Rate: w.rate, Peers: p, Living: p.living, Look: p.look, Now: time.Now})
	p.ledger = NewLedger(LedgerConfig{Node: p, Rate: w.rate})
	p.holds = NewHolds(HoldsConfig{Node: p, Living: p.living, Look: p.look, Now: time.Now})
	w.mu.Lock()
	w.nodes[p.member] = p
	w.living = append(w.living, p.member)
	w.owners = append(w.owners, p.member)
	w.mu.Unlock()
	p.see()
	if err := p.ledger.Start(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	return p
}

// spread lets every node see who is there, at its time.
func (w *world) spread() {
	for _, m := range w.members() {
		p := w.node(m)
		p.wg.Go(func() {
			time.Sleep(w.some(250 * time.Millisecond))
			p.see()
		})
	}
}

func (w *world) node(m id.MemberID) *site {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.nodes[m]
}

// see takes the members as they are now.
func (p *site) see() {
	p.seeing.Lock()
	defer p.seeing.Unlock()
	p.w.mu.Lock()
	owners, living := slices.Clone(p.w.owners), slices.Clone(p.w.living)
	p.w.mu.Unlock()
	p.follow(owners, living)
}

// follow takes a list of members. p.seeing is held.
func (p *site) follow(owners, living []id.MemberID) {
	next, err := placement.New(owners)
	if err != nil {
		p.w.t.Error(err)
		return
	}
	p.mu.Lock()
	before := p.view
	p.view, p.lives = next, living
	p.mu.Unlock()
	c := cluster.Change{Members: owners}
	if before != nil {
		for _, s := range next.Shards(p.member) {
			if before.Owner(s) != p.member {
				c.Gained = append(c.Gained, s)
			}
		}
		for _, m := range before.Members() {
			if !next.Has(m) {
				c.Left = append(c.Left, m)
			}
		}
	}
	p.keeper.Changed(c)
	p.holds.Changed(c)
}

// leave ends a node as planned: it owns nothing, and later it is gone.
func (w *world) leave(p *site) {
	w.mu.Lock()
	w.owners = slices.DeleteFunc(w.owners, func(m id.MemberID) bool { return m == p.member })
	w.mu.Unlock()
	w.spread()
	time.Sleep(250*time.Millisecond + w.some(500*time.Millisecond))
	p.ledger.Stop()
	time.Sleep(10 * time.Millisecond) // what it says at last is sent
	if err := p.keeper.Stop(w.t.Context()); err != nil && !w.lossy {
		w.t.Error(err)
	}
	p.end()
	w.spread() // its row is gone
}

// kill ends a node at once; the others notice later.
func (w *world) kill(p *site) {
	p.mu.Lock()
	p.dead = true
	p.mu.Unlock()
	time.Sleep(time.Second + w.some(2*time.Second))
	w.mu.Lock()
	w.owners = slices.DeleteFunc(w.owners, func(m id.MemberID) bool { return m == p.member })
	w.mu.Unlock()
	if w.killed != nil {
		w.killed(p)
	}
	p.end()
	w.spread()
	p.ledger.Stop()
	_ = p.keeper.Stop(context.Background()) // of its ghost: nobody hears it
}

func (p *site) end() {
	p.mu.Lock()
	p.dead = true
	p.mu.Unlock()
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	p.w.living = slices.DeleteFunc(p.w.living, func(m id.MemberID) bool { return m == p.member })
}

// stop ends the world.
func (w *world) stop() {
	w.mu.Lock()
	w.lossy, w.blind = false, false
	clear(w.cut)
	w.mu.Unlock()
	for _, p := range w.nodes {
		p.ledger.Stop()
		p.holds.Stop()
	}
	for _, p := range w.nodes {
		p.wg.Wait()
	}
	for _, p := range w.nodes {
		_ = p.keeper.Stop(context.Background())
		p.wg.Wait()
	}
}

func (p *site) gone() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dead
}

func (p *site) Member() id.MemberID { return p.member }

func (p *site) Owner(s id.Shard) id.MemberID {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.view.Owner(s)
}

// reach is the node of a member, when a message has come there.
func (p *site) reach(to id.MemberID) (*site, error) {
	if to != p.member {
		time.Sleep(p.w.some(5 * time.Millisecond))
	}
	p.w.mu.Lock()
	o, cut := p.w.nodes[to], p.w.cut[[2]id.MemberID{p.member, to}]
	p.w.mu.Unlock()
	if o == nil || o.gone() || p.gone() || cut {
		return nil, cluster.ErrUnknownMember
	}
	return o, nil
}

// wire is what a message is on the other side.
func (w *world) wire(v any) any {
	name, body, err := w.codec.Encode(v)
	if err != nil {
		w.t.Error(err)
		return nil
	}
	out, err := w.codec.Decode(name, body)
	if err != nil {
		w.t.Error(err)
	}
	return out
}

func (p *site) Ask(ctx context.Context, a cluster.Address, m any) (any, error) {
	back := 5 * time.Millisecond
	for {
		v, err := p.attempt(ctx, a, m)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err == nil {
			return v, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(back):
		}
		back = min(2*back, 200*time.Millisecond)
	}
}

// hang waits where nothing answers, as long as the owner is thought to be there.
func (p *site) hang(ctx context.Context, a cluster.Address, to id.MemberID) {
	p.w.mu.Lock()
	hangs := p.w.hangs
	p.w.mu.Unlock()
	for hangs && ctx.Err() == nil && p.Owner(a.Shard()) == to {
		time.Sleep(time.Millisecond)
	}
}

func (p *site) attempt(ctx context.Context, a cluster.Address, m any) (any, error) {
	to := p.Owner(a.Shard())
	o, err := p.reach(to)
	if err != nil {
		p.hang(ctx, a, to)
		return nil, cluster.ErrUnknownMember
	}
	if p.w.chance(10) {
		return nil, cluster.ErrUnknownMember
	}
	if o.Owner(a.Shard()) != to {
		return nil, cluster.ErrNotOwner
	}
	var v any
	if a.Kind == msg.KindLimit {
		v = p.w.wire(o.keeper.receive(a, p.w.wire(m)))
	} else {
		v = p.w.wire(o.holds.receive(a, p.w.wire(m)))
	}
	if to != p.member {
		time.Sleep(p.w.some(5 * time.Millisecond))
	}
	if o.gone() && to != p.member || p.w.chance(10) {
		return nil, cluster.ErrLost
	}
	if e, ok := v.(error); ok {
		return nil, e
	}
	return v, nil
}

func (p *site) Tell(a cluster.Address, m any) {
	p.wg.Go(func() {
		to := p.Owner(a.Shard())
		p.w.mu.Lock()
		mute := p.w.mute
		p.w.mu.Unlock()
		if o, err := p.reach(to); err == nil && !mute && !p.w.chance(5) && o.Owner(a.Shard()) == to {
			if a.Kind == msg.KindLimit {
				o.keeper.receive(a, p.w.wire(m))
			} else {
				o.holds.receive(a, p.w.wire(m))
			}
		}
	})
}

func (p *site) Call(ctx context.Context, to id.MemberID, service string, m any) (any, error) {
	type result struct {
		v   any
		err error
	}
	out := make(chan result, 1)
	p.wg.Go(func() {
		o, err := p.reach(to)
		if err != nil || p.w.chance(10) {
			out <- result{nil, cluster.ErrUnknownMember}
			return
		}
		var v any
		switch service {
		case ServiceRecall:
			v, err = o.ledger.Served(ctx, p.member, p.w.wire(m))
		case o.keeper.Service():
			v, err = o.keeper.Served(ctx, p.member, p.w.wire(m))
		default:
			v, err = o.holds.Served(ctx, p.member, p.w.wire(m))
		}
		if err == nil {
			v = p.w.wire(v)
		}
		if to != p.member {
			time.Sleep(p.w.some(5 * time.Millisecond))
		}
		if o.gone() || p.w.chance(10) {
			v, err = nil, cluster.ErrLost
		}
		out <- result{v, err}
	})
	select {
	case r := <-out:
		return r.v, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// request takes a token at a node.
func (w *world) request(p *site, who id.TenantID) (time.Duration, bool) {
	retry, ok, err := p.ledger.Tenant(w.t.Context(), who)
	return w.note(p, retry, ok, err)
}

// take takes a token of an embed bucket at a node.
func (w *world) take(p *site, b Bucket) (time.Duration, bool) {
	_, retry, ok, err := p.ledger.Take(w.t.Context(), b)
	return w.note(p, retry, ok, err)
}

func (w *world) note(p *site, retry time.Duration, ok bool, err error) (time.Duration, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case err != nil:
		w.unanswered++
	case ok:
		if !p.gone() {
			w.taken = append(w.taken, time.Now())
		}
	}
	return retry, ok
}

// Over any time at most capacity + refill × time is admitted, and one capacity
// more for each crash, whatever is lost and wherever buckets go; and who waits
// for Retry-After gets what was promised. Where the rate of a key changes and nodes
// hear of it one after another, the highest rate counts; and what was given back was
// never admitted.
func TestLawOfBucketsOnManyNodes(t *testing.T) {
	var admitted, refused, unanswered, moved, kills, refunded int
	for seed := range uint64(120) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 5))
			rate := Rate{1 + r.Int64N(40), time.Duration(5+r.IntN(200)) * time.Millisecond}
			w := newWorld(t, rate, seed)
			defer w.stop()
			who, key := tenant(), id.EmbedKeyID{UUID: id.NewAnywhere()}
			gap := rate.Every * 8
			request := func(p *site, _ time.Time) (time.Duration, bool) { return w.request(p, who) }
			refund := func(*site, time.Time, time.Duration) {}
			if seed >= 60 {
				before, after := 1+r.IntN(300), 1+r.IntN(300)
				changed := time.Now().Add(time.Duration(1+r.IntN(8)) * time.Second)
				rate = perMinute(int64(max(before, after)))
				gap = 60 * time.Millisecond
				bucket := func(heard time.Time) Bucket {
					if heard.After(changed) {
						return EmbedKeyMessages(who, key, after)
					}
					return EmbedKeyMessages(who, key, before)
				}
				request = func(p *site, heard time.Time) (time.Duration, bool) { return w.take(p, bucket(heard)) }
				refund = func(p *site, heard time.Time, needed time.Duration) {
					if taken, _, ok, _ := p.ledger.Take(w.t.Context(), bucket(heard)); ok {
						time.Sleep(needed)
						p.ledger.Refund(taken)
						w.mu.Lock()
						refunded++
						w.mu.Unlock()
					}
				}
			}
			w.join()
			w.join()
			w.join()
			time.Sleep(time.Second)
			w.mu.Lock()
			w.lossy = seed%3 == 0
			w.mu.Unlock()
			stop := make(chan struct{})
			var wg sync.WaitGroup
			for range 6 {
				r := rand.New(rand.NewPCG(seed, r.Uint64()))
				wg.Go(func() {
					for {
						living := w.members()
						heard := time.Now().Add(-time.Duration(r.Int64N(int64(300 * time.Millisecond))))
						p := w.node(living[r.IntN(len(living))])
						if r.IntN(3) == 0 {
							refund(p, heard, time.Duration(r.Int64N(int64(150*time.Millisecond))))
						}
						if _, ok := request(p, heard); !ok {
							w.mu.Lock()
							refused++
							w.mu.Unlock()
						}
						select {
						case <-stop:
							return
						case <-time.After(time.Duration(r.Int64N(int64(gap)))):
						}
					}
				})
			}
			crashes := int64(0)
			for range 4 {
				time.Sleep(time.Duration(r.IntN(3000)) * time.Millisecond)
				living := w.members()
				p := w.node(living[r.IntN(len(living))])
				switch n := r.IntN(4); {
				case len(living) > 2 && n == 0 && seed%2 == 0:
					crashes++
					kills++
					w.kill(p)
				case len(living) > 2 && n == 1:
					moved++
					w.leave(p)
				default:
					moved++
					w.join()
				}
			}
			time.Sleep(time.Second)
			w.mu.Lock()
			w.lossy = false
			w.mu.Unlock()
			close(stop)
			wg.Wait()
			admitted += len(w.taken)
			unanswered += w.unanswered
			if n := over(rate, rate.Capacity*(1+crashes), w.taken); n > 0 {
				t.Errorf("seed %d: %d of %d too many, %d crashes, lossy %v, rate %+v", seed, n, len(w.taken), crashes, seed%3 == 0, rate)
			}
			if seed >= 60 {
				time.Sleep(10 * time.Second) // all have heard of the rate
			}
			p := w.node(w.members()[0])
			for {
				retry, ok := request(p, time.Now())
				if ok {
					continue
				}
				time.Sleep(retry)
				if again, ok := request(w.node(w.members()[1]), time.Now()); !ok {
					t.Errorf("seed %d: refused after Retry-After %v: %v", seed, retry, again)
				}
				break
			}
		})
	}
	t.Logf("%d admitted, %d refunded, %d refused, %d of these not answered, %d moves, %d crashes", admitted, refunded, refused, unanswered, moved, kills)
	if admitted < 3000 || refunded < 1000 || refused-unanswered < 1000 || moved < 60 || kills < 10 {
		t.Error("void")
	}
}

// A planned move takes the level along: neither is anything admitted beyond the
// capacity, and what comes back meanwhile, nor refused below it.
func TestAPlannedMoveIsNotNoticed(t *testing.T) {
	for _, planned := range []string{"join", "leave"} {
		for seed := range uint64(60) {
			t.Run(fmt.Sprint(planned, seed), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t, Rate{100, time.Hour}, seed)
					defer w.stop()
					who := tenant()
					bucket := Bucket{holder{who, who.UUID}, 0, ScopeTenant}
					came := func() int { return 0 }
					if seed >= 30 {
						began := time.Now()
						bucket = EmbedKeyMessages(who, embedKey(), 100)
						came = func() int { return int(time.Since(began) / perMinute(100).Every) }
					}
					a, b := w.join(), w.join()
					time.Sleep(time.Second)
					for i := range 60 {
						if _, ok := w.take([]*site{a, b}[i%2], bucket); !ok {
							t.Fatalf("request %d is refused", i+1)
						}
					}
					if planned == "join" {
						w.join()
						w.join()
					} else {
						owner := w.node(a.Owner(bucket.address().Shard()))
						w.leave(owner)
						if owner == a {
							a = b
						}
					}
					passed := 60
					empty := func(p *site) {
						t.Helper()
						for {
							retry, ok := w.take(p, bucket)
							if !ok && passed < 100 {
								t.Fatalf("request %d is refused, retry %v", passed+1, retry)
							}
							if !ok {
								return
							}
							if passed++; passed > 100+came() {
								t.Fatalf("request %d passes, %d came", passed, came())
							}
						}
					}
					empty(a) // at once: some nodes do not know of the move yet
					time.Sleep(time.Second)
					empty(w.node(w.members()[0]))
				})
			})
		}
	}
}

// A node that lives and cannot be asked may have admitted all there was.
func TestWhereTheFormerOwnerDoesNotAnswerABucketBeginsEmpty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rate := Rate{100, 100 * time.Millisecond}
		w := newWorld(t, rate, 1)
		defer w.stop()
		a := w.join()
		who := tenant()
		for range 100 {
			w.request(a, who)
		}
		b := &site{}
		for b = w.join(); a.Owner(TenantBucket(who).Shard()) == a.member; time.Sleep(300 * time.Millisecond) {
			if w.node(w.members()[len(w.members())-1]).Owner(TenantBucket(who).Shard()) == a.member {
				b = w.join()
			}
			w.mu.Lock()
			w.cut[[2]id.MemberID{b.member, a.member}] = true
			w.mu.Unlock()
		}
		time.Sleep(2 * time.Second)
		passed := 0
		for range 200 {
			if _, ok := w.request(b, who); ok {
				passed++
			}
		}
		if passed > 30 {
			t.Errorf("%d passed", passed)
		}
	})
}

// It stays known for as long as a bucket that is refilled by the minute takes to be
// full.
func TestThatBucketsBeginEmptyGoesAlongWithTheirShard(t *testing.T) {
	for _, c := range []struct {
		after time.Duration
		goes  bool
	}{{59 * time.Second, true}, {2 * time.Minute, false}} {
		k := NewKeeper(KeeperConfig{Rate: Rate{120, 50 * time.Millisecond}, Now: func() time.Time { return epoch.Add(c.after) }})
		k.shards[7] = shard{held: true, emptied: epoch}
		got, err := k.give(memberID(1), Fetch{Shards: []id.Shard{7}})
		if err != nil || (len(got.Emptied) == 1) != c.goes {
			t.Errorf("after %v: %+v %v", c.after, got, err)
		}
	}
}

// counted is what a counter stands at.
func counted(t *testing.T, c prometheus.Counter) float64 {
	t.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(c)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	return families[0].GetMetric()[0].GetCounter().GetValue()
}

// apart is a world of two nodes in which b cannot ask a, and a tenant whose bucket
// a has.
func apart(t *testing.T, hangs bool) (w *world, a, b *site, who id.TenantID, cut func(bool)) {
	w = newWorld(t, Rate{100, time.Hour}, 1)
	a, b = w.join(), w.join()
	time.Sleep(time.Second)
	for who = tenant(); b.Owner(TenantBucket(who).Shard()) != a.member; {
		who = tenant()
	}
	w.hangs = hangs
	cut = func(on bool) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.cut[[2]id.MemberID{b.member, a.member}] = on
	}
	cut(true)
	return w, a, b, who, cut
}

// Where nobody can be asked whether there are tokens, it is not said that there are
// none: each request hears UNAVAILABLE when it has waited as long as it may, and
// what waits when the owner is back passes.
func TestWhereTheOwnerCannotBeAskedNobodyHasDoneTooMuch(t *testing.T) {
	for _, hangs := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w, _, b, who, cut := apart(t, hangs)
			defer w.stop()
			refused, unanswered := counted(t, refusals[ScopeTenant]), counted(t, unavailable)
			var wg sync.WaitGroup
			for _, c := range []struct {
				name        string
				after, left time.Duration // when it comes, and how long it may take
				waits       time.Duration
			}{
				{"the first", 0, 0, askFor},
				{"who comes with it", 0, 0, askFor},
				{"who comes later", 2 * time.Second, 0, askFor},
				{"who comes when the first gives up", askFor, 0, askFor},
				{"who has less time", time.Second, 300 * time.Millisecond, 300 * time.Millisecond},
				{"who has less time, and is alone", 2*askFor + time.Second, 300 * time.Millisecond, 300 * time.Millisecond},
			} {
				wg.Go(func() {
					time.Sleep(c.after)
					ctx := t.Context()
					if c.left > 0 {
						var cancel context.CancelFunc
						ctx, cancel = context.WithTimeout(ctx, c.left)
						defer cancel()
					}
					began := time.Now()
					_, ok, err := b.ledger.Tenant(ctx, who)
					took := time.Since(began)
					var p *problem.Error
					if ok || !errors.As(err, &p) || p.Code != problem.CodeUnavailable || p.RetryAfter != time.Second {
						t.Errorf("hangs %v, %s: %v %v", hangs, c.name, ok, err)
					}
					if took < c.waits-10*time.Millisecond || took > c.waits+2*askPause+10*time.Millisecond {
						t.Errorf("hangs %v, %s: heard after %v, want %v", hangs, c.name, took, c.waits)
					}
				})
			}
			wg.Wait()
			if n := counted(t, unavailable) - unanswered; n != 6 || counted(t, refusals[ScopeTenant]) != refused {
				t.Errorf("hangs %v: %v counted as unanswered, %v as refused", hangs, n, counted(t, refusals[ScopeTenant])-refused)
			}
			for range 20 { // the owner is back before they have waited for too long
				wg.Go(func() {
					if _, ok := w.request(b, who); !ok {
						t.Errorf("hangs %v: does not pass", hangs)
					}
				})
			}
			time.Sleep(askFor - 500*time.Millisecond)
			cut(false)
			wg.Wait()
			for range 80 {
				if _, ok := w.request(b, who); !ok {
					t.Fatalf("hangs %v: refused while there are tokens", hangs)
				}
			}
			if retry, ok, err := b.ledger.Tenant(t.Context(), who); ok || err != nil || retry <= 0 {
				t.Errorf("hangs %v: 101: %v %v %v", hangs, retry, ok, err)
			}
		})
	}
}

// The owner is dead: who asked it passes at the next, when it is known that it is.
func TestARequestOutlivesTheOwnerOfItsBucket(t *testing.T) {
	for seed := range uint64(40) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, Rate{100, time.Hour}, seed)
			defer w.stop()
			w.hangs = seed%2 == 0
			a, b, _ := w.join(), w.join(), w.join()
			time.Sleep(time.Second)
			who := tenant()
			for b.Owner(TenantBucket(who).Shard()) != a.member {
				who = tenant()
			}
			var wg sync.WaitGroup
			wg.Go(func() { w.kill(a) })
			time.Sleep(time.Millisecond)
			for i := range 30 {
				wg.Go(func() {
					time.Sleep(time.Duration(i) * 10 * time.Millisecond)
					if _, ok, err := b.ledger.Tenant(t.Context(), who); !ok || err != nil {
						t.Errorf("seed %d, request %d: %v %v", seed, i, ok, err)
					}
				})
			}
			wg.Wait()
			time.Sleep(time.Second) // all have seen who is there
		})
	}
}

// What is known nowhere else is known after a node has stopped.
func TestAKeeperThatStopsBringsItsBucketsToTheirOwners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Rate{10, time.Hour}, 1)
		defer w.stop()
		a, b := w.join(), w.join()
		time.Sleep(time.Second)
		var mine []id.TenantID // of a
		for len(mine) < 50 {
			if who := tenant(); a.Owner(who.UUID.Shard()) == a.member {
				mine = append(mine, who)
				for range 7 {
					w.request(b, who)
				}
			}
		}
		w.leave(a)
		for _, who := range mine {
			for i := range 4 {
				if _, ok := w.request(b, who); ok != (i < 3) {
					t.Errorf("request %d: %v", i+8, ok)
				}
			}
		}
	})
}

func TestAFetchOfManyBucketsComesInParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Rate{10, time.Hour}, 1)
		defer w.stop()
		a := w.join()
		var all []id.TenantID
		for range 9 * fetchMost / 4 {
			all = append(all, tenant())
			w.request(a, all[len(all)-1])
		}
		for range 5 {
			a.ledger.runOnce()
		}
		b := w.join()
		time.Sleep(time.Second)
		for who := tenant(); ; who = tenant() {
			if b.Owner(who.UUID.Shard()) == b.member {
				w.request(b, who) // the first fetches all
				break
			}
		}
		time.Sleep(time.Second)
		has := -1 // the last one's
		b.keeper.mu.Lock()
		defer b.keeper.mu.Unlock()
		for s := range b.keeper.shards {
			has += len(b.keeper.shards[s].buckets)
		}
		owned := 0
		for _, who := range all {
			if b.Owner(who.UUID.Shard()) == b.member {
				owned++
			}
		}
		if has != owned || owned < fetchMost {
			t.Errorf("%d of %d buckets came", has, owned)
		}
	})
}

// What a node may have got and does not know of is not missing: who asks it for
// the shard asks again.
func TestWhatMayBeOnItsWayIsNotHandedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Rate{10, time.Hour}, 1)
		defer w.stop()
		a, b, c := w.join(), w.join(), w.join()
		time.Sleep(time.Second)
		s := id.Shard(0)
		for b.Owner(s) != b.member {
			s++
		}
		w.mu.Lock()
		w.cut[[2]id.MemberID{b.member, a.member}] = true
		w.mu.Unlock()
		b.keeper.mu.Lock()
		b.keeper.want(s)
		b.keeper.mu.Unlock()
		for _, wait := range []time.Duration{100 * time.Millisecond, 300 * time.Millisecond} { // also between two rounds
			time.Sleep(wait)
			got, err := b.keeper.give(c.member, Fetch{No: 1, Shards: []id.Shard{s}})
			if err != nil || len(got.Later) != 1 {
				t.Errorf("%+v %v", got, err)
			}
		}
		w.mu.Lock()
		clear(w.cut)
		w.mu.Unlock()
		time.Sleep(300 * time.Millisecond)
		if got, err := b.keeper.give(c.member, Fetch{No: 1, Shards: []id.Shard{s}}); err != nil || len(got.Later) != 0 {
			t.Errorf("%+v %v", got, err)
		}
	})
}

// unheardOf is a world of a, and of b, which has joined and of which a has not heard:
// both think that they own what b owns.
func unheardOf(t *testing.T) (w *world, a, b *site) {
	w = newWorld(t, Rate{10, time.Hour}, 1)
	a = w.join()
	time.Sleep(time.Second)
	return w, a, w.enter()
}

// readable lets the world's list be read by those who look, or not.
func (w *world) readable(on bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.blind = !on
}

// late is what may hinder a node to learn of another: the list cannot be read for longer
// than a node that does not answer is waited for, then that node cannot be asked for a
// while, and in that while the list is followed.
func (w *world) late(a, b *site) {
	way := [2]id.MemberID{a.member, b.member}
	w.readable(false)
	w.mu.Lock()
	w.cut[way] = true
	w.mu.Unlock()
	time.Sleep(2 * patience)
	w.readable(true)
	time.Sleep(patience / 2)
	a.see()
	time.Sleep(patience / 4)
	w.mu.Lock()
	delete(w.cut, way)
	w.mu.Unlock()
}

// Who waits for the list does not wait for the nodes: these have their time to answer
// after it was read.
func TestTheTimeToReadTheListIsNotTheNodesTimeToAnswer(t *testing.T) {
	for _, c := range []struct {
		name   string
		hinder func(w *world, a, b *site)
	}{
		{"the list is late", func(w *world, _, _ *site) {
			w.readable(false)
			time.Sleep(2 * patience)
			w.readable(true)
		}},
		{"the list is late, and then the node and its shards", (*world).late},
	} {
		t.Run("buckets, "+c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, a, b := unheardOf(t)
				defer w.stop()
				who := tenant()
				for b.Owner(TenantBucket(who).Shard()) != b.member {
					who = tenant()
				}
				for range 4 {
					w.request(b, who)
				}
				w.node(a.member).wg.Go(func() { c.hinder(w, a, b) })
				synctest.Wait()
				for i := range 7 {
					if _, ok := w.request(a, who); ok != (i < 6) || w.unanswered > 0 {
						t.Errorf("request %d: %v, %d not answered", i+5, ok, w.unanswered)
					}
				}
			})
		})
		t.Run("holders, "+c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, a, b := unheardOf(t)
				defer w.stop()
				at := somewhere()
				for b.Owner(at.Shard()) != b.member {
					at = somewhere()
				}
				if _, ok, err := b.holds.Hold(t.Context(), at, 1); !ok || err != nil {
					t.Fatal(ok, err)
				}
				w.node(a.member).wg.Go(func() { c.hinder(w, a, b) })
				synctest.Wait()
				if _, ok, err := a.holds.Hold(t.Context(), at, 1); ok || err != nil {
					t.Errorf("two hold, at most one may: %v %v", ok, err)
				}
			})
		})
	}
}

// While the list is read it is as old as before: what comes from a dead node meanwhile is
// asked for as well, of who has joined and has it.
func TestAListThatIsBeingReadIsStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Rate{10, time.Hour}, 1)
		defer w.stop()
		a, b := w.join(), w.join()
		time.Sleep(time.Second)
		w.mu.Lock()
		w.owners = []id.MemberID{a.member}
		w.mu.Unlock()
		b.end()
		n := w.enter()
		owned := func(by *site) id.TenantID { // by a or b, and n does not know of a change
			for {
				if who := tenant(); a.Owner(TenantBucket(who).Shard()) == by.member && n.Owner(TenantBucket(who).Shard()) == n.member {
					return who
				}
			}
		}
		mine, theirs := owned(a), owned(b)
		for range 10 {
			if _, ok := w.request(n, theirs); !ok {
				t.Fatal("refused")
			}
		}
		w.readable(false)
		a.wg.Go(func() { w.request(a, mine) }) // n has it: a begins to look
		time.Sleep(patience / 4)
		a.seeing.Lock()
		a.follow([]id.MemberID{a.member}, []id.MemberID{a.member})
		a.seeing.Unlock()
		w.readable(true)
		if _, ok := w.request(a, theirs); ok || w.unanswered > 0 {
			t.Errorf("request 11: %v, %d not answered", ok, w.unanswered)
		}
	})
}
