package bucket

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"agentsvc/cluster/clustertest"
	"agentsvc/cluster/handover"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
)

// world is the nodes of a cluster with their ledgers and keepers, and the tokens that
// they took.
type world struct {
	*clustertest.World[parts]
	t *testing.T

	mu         sync.Mutex // guards the fields below
	taken      []time.Time
	unanswered int
}

type site = clustertest.Site[parts]

type parts struct {
	ledger *Ledger
	keeper *Keeper
}

func newWorld(t *testing.T, rate Rate, seed uint64) *world {
	codec := msg.NewCodec()
	AddTo(codec)
	return &world{t: t, World: clustertest.New(t, seed, codec, func(p *site) {
		k := NewKeeper(KeeperConfig{Kind: msg.KindLimit, Rate: rate, Peers: p, Living: p.Living, Refresh: p.Refresh, Now: time.Now})
		l := NewLedger(LedgerConfig{Node: p, Rate: rate})
		p.Part = parts{l, k}
		p.Actors[msg.KindLimit] = k.receive
		p.Services[ServiceRecall], p.Services[k.Service()] = l.Served, k.Served
		p.Changed = append(p.Changed, k.Changed)
		p.Halt, p.Quit = l.Stop, k.Stop
		if err := l.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	})}
}

// request takes a token of a tenant at a node.
func (w *world) request(p *site, who id.TenantID) (time.Duration, bool) {
	retry, ok, err := p.Part.ledger.Tenant(w.t.Context(), who)
	return w.note(p, retry, ok, err)
}

// take takes a token of an embed bucket at a node.
func (w *world) take(p *site, b Spec) (time.Duration, bool) {
	_, retry, ok, err := p.Part.ledger.Take(w.t.Context(), b)
	return w.note(p, retry, ok, err)
}

func (w *world) note(p *site, retry time.Duration, ok bool, err error) (time.Duration, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case err != nil:
		w.unanswered++
	case ok:
		if !p.Gone() {
			w.taken = append(w.taken, time.Now())
		}
	}
	return retry, ok
}

// At any time at most capacity + refill × time is admitted, plus one capacity for each crash,
// whatever is lost and wherever buckets move; and Retry-After holds. If the rate of a key
// changes and the nodes hear of it one after another, the highest rate counts. A refunded
// token was never admitted.
func TestLawOfBucketsOnManyNodes(t *testing.T) { lawOfBuckets(t, 16) }

func lawOfBuckets(t *testing.T, seeds int) {
	var admitted, refused, unanswered, moved, kills, refunded int
	for seed := range uint64(seeds) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 5))
			rate := Rate{1 + r.Int64N(40), time.Duration(5+r.IntN(200)) * time.Millisecond}
			w := newWorld(t, rate, seed)
			defer w.Stop()
			who, key := tenant(), id.EmbedKeyID{UUID: id.NewAnywhere()}
			gap := rate.Every * 8
			request := func(p *site, _ time.Time) (time.Duration, bool) { return w.request(p, who) }
			refund := func(*site, time.Time, time.Duration) {}
			if seed >= uint64(seeds)/2 {
				before, after := 1+r.IntN(300), 1+r.IntN(300)
				changed := time.Now().Add(time.Duration(1+r.IntN(8)) * time.Second)
				rate = perMinute(int64(max(before, after)))
				gap = 60 * time.Millisecond
				bucket := func(heard time.Time) Spec {
					if heard.After(changed) {
						return EmbedKeyMessages(who, key, after)
					}
					return EmbedKeyMessages(who, key, before)
				}
				request = func(p *site, heard time.Time) (time.Duration, bool) { return w.take(p, bucket(heard)) }
				refund = func(p *site, heard time.Time, needed time.Duration) {
					if taken, _, ok, _ := p.Part.ledger.Take(w.t.Context(), bucket(heard)); ok {
						time.Sleep(needed)
						p.Part.ledger.Refund(taken)
						w.mu.Lock()
						refunded++
						w.mu.Unlock()
					}
				}
			}
			w.Join()
			w.Join()
			w.Join()
			time.Sleep(time.Second)
			w.Lossy(seed%3 == 0)
			stop := make(chan struct{})
			var wg sync.WaitGroup
			for range 6 {
				r := rand.New(rand.NewPCG(seed, r.Uint64()))
				wg.Go(func() {
					for {
						living := w.Members()
						heard := time.Now().Add(-time.Duration(r.Int64N(int64(300 * time.Millisecond))))
						p := w.Site(living[r.IntN(len(living))])
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
				living := w.Members()
				p := w.Site(living[r.IntN(len(living))])
				switch n := r.IntN(4); {
				case len(living) > 2 && n == 0 && seed%2 == 0:
					crashes++
					kills++
					w.Kill(p)
				case len(living) > 2 && n == 1:
					moved++
					w.Leave(p)
				default:
					moved++
					w.Join()
				}
			}
			time.Sleep(time.Second)
			w.Lossy(false)
			close(stop)
			wg.Wait()
			admitted += len(w.taken)
			unanswered += w.unanswered
			if n := over(rate, rate.Capacity*(1+crashes), w.taken); n > 0 {
				t.Errorf("seed %d: %d of %d too many, %d crashes, lossy %v, rate %+v", seed, n, len(w.taken), crashes, seed%3 == 0, rate)
			}
			if seed >= uint64(seeds)/2 {
				time.Sleep(10 * time.Second) // all have heard of the rate
			}
			p := w.Site(w.Members()[0])
			for {
				retry, ok := request(p, time.Now())
				if ok {
					continue
				}
				time.Sleep(retry)
				if again, ok := request(w.Site(w.Members()[1]), time.Now()); !ok {
					t.Errorf("seed %d: refused after Retry-After %v: %v", seed, retry, again)
				}
				break
			}
		})
	}
	t.Logf("%d admitted, %d refunded, %d refused, %d of these not answered, %d moves, %d crashes", admitted, refunded, refused, unanswered, moved, kills)
	if admitted < 25*seeds || refunded < 8*seeds || refused-unanswered < 8*seeds || moved < seeds/2 || kills < seeds/12 {
		t.Error("void")
	}
}

// A planned move hands the level over: no more than the capacity and the refill is admitted,
// and nothing less is refused.
func TestAPlannedMoveIsNotNoticed(t *testing.T) { plannedMoves(t, 12) }

func plannedMoves(t *testing.T, seeds int) {
	for _, planned := range []string{"join", "leave"} {
		for seed := range uint64(seeds) {
			t.Run(fmt.Sprint(planned, seed), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t, Rate{100, time.Hour}, seed)
					defer w.Stop()
					who := tenant()
					bucket := Spec{name{who, who.UUID}, 0, ScopeTenant}
					came := func() int { return 0 }
					if seed >= uint64(seeds)/2 {
						began := time.Now()
						bucket = EmbedKeyMessages(who, embedKey(), 100)
						came = func() int { return int(time.Since(began) / perMinute(100).Every) }
					}
					a, b := w.Join(), w.Join()
					time.Sleep(time.Second)
					for i := range 60 {
						if _, ok := w.take([]*site{a, b}[i%2], bucket); !ok {
							t.Fatalf("request %d is refused", i+1)
						}
					}
					if planned == "join" {
						w.Join()
						w.Join()
					} else {
						owner := w.Site(a.Owner(bucket.address().Shard()))
						w.Leave(owner)
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
					empty(w.Site(w.Members()[0]))
				})
			})
		}
	}
}

// A living node that cannot be asked may have admitted everything.
func TestWhereTheFormerOwnerDoesNotAnswerABucketBeginsEmpty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rate := Rate{100, 100 * time.Millisecond}
		w := newWorld(t, rate, 1)
		defer w.Stop()
		a := w.Join()
		who := tenant()
		for range 100 {
			w.request(a, who)
		}
		b := &site{}
		for b = w.Join(); a.Owner(tenantBucket(who).Shard()) == a.Member(); time.Sleep(300 * time.Millisecond) {
			if w.Site(w.Members()[len(w.Members())-1]).Owner(tenantBucket(who).Shard()) == a.Member() {
				b = w.Join()
			}
			w.Cut(b.Member(), a.Member(), true)
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
		k.shards[7] = shard{emptied: epoch}
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
	a, b = w.Join(), w.Join()
	time.Sleep(time.Second)
	for who = tenant(); b.Owner(tenantBucket(who).Shard()) != a.Member(); {
		who = tenant()
	}
	w.Hangs(hangs)
	cut = func(on bool) { w.Cut(b.Member(), a.Member(), on) }
	cut(true)
	return w, a, b, who, cut
}

// If the owner cannot be asked, requests are not refused: each gets UNAVAILABLE when it has
// waited for as long as it may. Requests that wait when the owner is back pass.
func TestWhereTheOwnerCannotBeAskedNobodyHasDoneTooMuch(t *testing.T) {
	for _, hangs := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w, _, b, who, cut := apart(t, hangs)
			defer w.Stop()
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
					_, ok, err := b.Part.ledger.Tenant(ctx, who)
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
			if retry, ok, err := b.Part.ledger.Tenant(t.Context(), who); ok || err != nil || retry <= 0 {
				t.Errorf("hangs %v: 101: %v %v %v", hangs, retry, ok, err)
			}
		})
	}
}

// Requests to a dead owner pass at the next owner, when the death is known.
func TestARequestOutlivesTheOwnerOfItsBucket(t *testing.T) {
	for seed := range uint64(40) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, Rate{100, time.Hour}, seed)
			defer w.Stop()
			w.Hangs(seed%2 == 0)
			a, b, _ := w.Join(), w.Join(), w.Join()
			time.Sleep(time.Second)
			who := tenant()
			for b.Owner(tenantBucket(who).Shard()) != a.Member() {
				who = tenant()
			}
			var wg sync.WaitGroup
			wg.Go(func() { w.Kill(a) })
			time.Sleep(time.Millisecond)
			for i := range 30 {
				wg.Go(func() {
					time.Sleep(time.Duration(i) * 10 * time.Millisecond)
					if _, ok, err := b.Part.ledger.Tenant(t.Context(), who); !ok || err != nil {
						t.Errorf("seed %d, request %d: %v %v", seed, i, ok, err)
					}
				})
			}
			wg.Wait()
			time.Sleep(time.Second) // all have seen the members
		})
	}
}

// Buckets that only a stopping node knows are known after it has stopped.
func TestAKeeperThatStopsBringsItsBucketsToTheirOwners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Rate{10, time.Hour}, 1)
		defer w.Stop()
		a, b := w.Join(), w.Join()
		time.Sleep(time.Second)
		var mine []id.TenantID // of a
		for len(mine) < 50 {
			if who := tenant(); a.Owner(who.UUID.Shard()) == a.Member() {
				mine = append(mine, who)
				for range 7 {
					w.request(b, who)
				}
			}
		}
		w.Leave(a)
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
		defer w.Stop()
		a := w.Join()
		var all []id.TenantID
		for range 9 * fetchMost / 4 {
			all = append(all, tenant())
			w.request(a, all[len(all)-1])
		}
		for range 5 {
			a.Part.ledger.runOnce()
		}
		b := w.Join()
		time.Sleep(time.Second)
		for who := tenant(); ; who = tenant() {
			if b.Owner(who.UUID.Shard()) == b.Member() {
				w.request(b, who) // the first fetches all
				break
			}
		}
		time.Sleep(time.Second)
		has := -1 // the last one's
		b.Part.keeper.mu.Lock()
		defer b.Part.keeper.mu.Unlock()
		for s := range b.Part.keeper.shards {
			has += len(b.Part.keeper.shards[s].buckets)
		}
		owned := 0
		for _, who := range all {
			if b.Owner(who.UUID.Shard()) == b.Member() {
				owned++
			}
		}
		if has != owned || owned < fetchMost {
			t.Errorf("%d of %d buckets came", has, owned)
		}
	})
}

// A node does not answer for a shard that may be on its way to it: the asker asks again.
func TestWhatMayBeOnItsWayIsNotHandedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Rate{10, time.Hour}, 1)
		defer w.Stop()
		a, b, c := w.Join(), w.Join(), w.Join()
		time.Sleep(time.Second)
		s := id.Shard(0)
		for b.Owner(s) != b.Member() {
			s++
		}
		w.Cut(b.Member(), a.Member(), true)
		b.Part.keeper.mu.Lock()
		b.Part.keeper.has.Here(s)
		b.Part.keeper.mu.Unlock()
		for _, wait := range []time.Duration{100 * time.Millisecond, 300 * time.Millisecond} { // also between two rounds
			time.Sleep(wait)
			got, err := b.Part.keeper.give(c.Member(), Fetch{No: 1, Shards: []id.Shard{s}})
			if err != nil || len(got.Later) != 1 {
				t.Errorf("%+v %v", got, err)
			}
		}
		w.Mend()
		time.Sleep(300 * time.Millisecond)
		if got, err := b.Part.keeper.give(c.Member(), Fetch{No: 1, Shards: []id.Shard{s}}); err != nil || len(got.Later) != 0 {
			t.Errorf("%+v %v", got, err)
		}
	})
}

// unheardOf is a world of a and b, where a does not know yet that b has joined: both think
// that they own b's shards.
func unheardOf(t *testing.T) (w *world, a, b *site) {
	w = newWorld(t, Rate{10, time.Hour}, 1)
	a = w.Join()
	time.Sleep(time.Second)
	return w, a, w.Enter()
}

// late delays what a learns of b: the list cannot be read for longer than Patience, then b
// cannot be asked for a while, and during that while a follows the list.
func late(w *world, a, b *site) {
	w.Readable(false)
	w.Cut(a.Member(), b.Member(), true)
	time.Sleep(2 * handover.Patience)
	w.Readable(true)
	time.Sleep(handover.Patience / 2)
	a.See()
	time.Sleep(handover.Patience / 4)
	w.Cut(a.Member(), b.Member(), false)
}

// Members have their time to answer after the list was read, also if reading it takes longer
// than that.
func TestTheTimeToReadTheListIsNotTheNodesTimeToAnswer(t *testing.T) {
	for _, c := range []struct {
		name   string
		hinder func(w *world, a, b *site)
	}{
		{"the list is late", func(w *world, _, _ *site) {
			w.Readable(false)
			time.Sleep(2 * handover.Patience)
			w.Readable(true)
		}},
		{"the list is late, and then the node and its shards", late},
	} {
		t.Run("buckets, "+c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, a, b := unheardOf(t)
				defer w.Stop()
				who := tenant()
				for b.Owner(tenantBucket(who).Shard()) != b.Member() {
					who = tenant()
				}
				for range 4 {
					w.request(b, who)
				}
				a.Go(func() { c.hinder(w, a, b) })
				synctest.Wait()
				for i := range 7 {
					if _, ok := w.request(a, who); ok != (i < 6) || w.unanswered > 0 {
						t.Errorf("request %d: %v, %d not answered", i+5, ok, w.unanswered)
					}
				}
			})
		})
	}
}

// A list that is being read is still stale: shards of a dead node that are gained meanwhile are
// also fetched from the member that has joined.
func TestAListThatIsBeingReadIsStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Rate{10, time.Hour}, 1)
		defer w.Stop()
		a, b := w.Join(), w.Join()
		time.Sleep(time.Second)
		w.Own(a.Member())
		b.End()
		n := w.Enter()
		owned := func(by *site) id.TenantID { // by a or b, and n does not know of a change
			for {
				if who := tenant(); a.Owner(tenantBucket(who).Shard()) == by.Member() && n.Owner(tenantBucket(who).Shard()) == n.Member() {
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
		w.Readable(false)
		a.Go(func() { w.request(a, mine) }) // n has it: a begins to look
		time.Sleep(handover.Patience / 4)
		a.Follow([]id.MemberID{a.Member()}, []id.MemberID{a.Member()})
		w.Readable(true)
		if _, ok := w.request(a, theirs); ok || w.unanswered > 0 {
			t.Errorf("request 11: %v, %d not answered", ok, w.unanswered)
		}
	})
}
