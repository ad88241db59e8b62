package hold

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"agentsvc/cluster"
	"agentsvc/cluster/clustertest"
	"agentsvc/cluster/handover"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func memberID(n byte) id.MemberID { return id.MemberID{UUID: id.UUID{15: n}} }

func tenant() id.TenantID { return id.TenantID{UUID: id.NewAnywhere()} }

// A lost answer to Hold is asked for again.
var _ cluster.Repeatable = Hold{}

// world is the nodes of a cluster with their semaphores.
type (
	world = clustertest.World[*Semaphores]
	site  = clustertest.Site[*Semaphores]
)

func newWorld(t *testing.T, seed uint64) *world {
	codec := msg.NewCodec()
	AddTo(codec)
	return clustertest.New(t, seed, codec, func(p *site) {
		p.Part = New(Config{Node: p, Living: p.Living, Refresh: p.Refresh, Now: time.Now})
		p.Actors[Kind] = p.Part.receive
		p.Services[Service] = p.Part.Served
		p.Changed = append(p.Changed, p.Part.Changed)
		p.Quit = func(context.Context) error { p.Part.Stop(); return nil }
	})
}

// somewhere is what the tests hold.
func somewhere() cluster.Address { return Address(tenant(), "stream", "visitor") }

func TestCountRefusesAfterACheckOnly(t *testing.T) {
	c := &semaphore{}
	who := func(n byte) id.UUID { return id.UUID{n} }
	hold := func(n byte, m id.MemberID) (ok, wait bool) { return c.hold(Hold{Holder: who(n), Member: m, Max: 2}) }
	a, b := memberID(1), memberID(2)
	for _, n := range []byte{1, 2, 1} {
		if ok, _ := hold(n, a); !ok {
			t.Fatalf("%d does not hold", n)
		}
	}
	if ok, wait := hold(3, b); ok || !wait {
		t.Fatal("refused without a check")
	}
	if got := c.begin(); !slices.Equal(got, []id.MemberID{a}) {
		t.Fatalf("asked %v", got)
	}
	if c.begin() != nil {
		t.Error("two checks at a time")
	}
	if ok, wait := hold(4, b); ok || !wait {
		t.Error("refused by a check that began before")
	}
	c.checked(map[id.MemberID][]id.UUID{a: {who(1), who(2)}})
	if ok, wait := hold(3, b); ok || wait {
		t.Error("all hold, and nobody is refused")
	}
	if ok, wait := hold(4, b); ok || !wait || !c.asked() {
		t.Error("who came later waits for his own check")
	}
	c.begin()
	if gone := c.checked(map[id.MemberID][]id.UUID{a: {who(2)}}); gone != 1 {
		t.Errorf("%d are gone", gone)
	}
	if ok, _ := hold(4, b); !ok {
		t.Error("a place of one who holds no more is free")
	}
	if ok, _ := hold(5, b); ok {
		t.Error("three of two")
	}
	c.begin()
	c.release(who(2))
	hold(6, b) // comes while the check is under way
	if gone := c.checked(map[id.MemberID][]id.UUID{a: nil, b: {who(4)}}); gone != 0 {
		t.Error("who came since is not known there and stays")
	}
	c.forget([]id.MemberID{a})
	if len(c.holders) != 0 {
		t.Error("who left holds no more")
	}
	if ok, wait := c.hold(Hold{Holder: who(9), Max: 0}); ok || wait {
		t.Error("at most none")
	}
}

// A tenant may have very many streams: to take over and to check their holders costs what reading
// them costs, not the square of it, because all semaphores of the node wait meanwhile.
func TestManyHoldersAreCheckedTogether(t *testing.T) {
	const n = 100_000
	a, b := memberID(1), memberID(2)
	there := make([]id.UUID, n)
	for i := range there {
		there[i] = id.NewAnywhere()
	}
	began := time.Now()
	c := &semaphore{}
	c.addAll(there[:n/2], a)
	c.addAll(there[n/2:], b)
	c.addAll(there[:n/2], a) // told again
	if len(c.holders) != n {
		t.Fatalf("%d holders", len(c.holders))
	}
	if members := c.begin(); len(members) != 2 {
		t.Fatalf("asks %v", members)
	}
	c.addAll([]id.UUID{{1}, there[0]}, a) // while they are asked
	if gone := c.checked(map[id.MemberID][]id.UUID{a: there[2 : n/2]}); gone != 1 || len(c.holders) != n {
		t.Errorf("%d are gone, %d left", gone, len(c.holders))
	}
	if took := time.Since(began); took > 20*time.Second { // usually 100 ms; the square of it takes minutes
		t.Errorf("it took %v", took)
	}
}

// A holder that waited and gave up without a message is forgotten, and so is its semaphore.
func TestACountForgetsWhoGaveUp(t *testing.T) {
	n := clustertest.Node()
	h, at := New(Config{Node: n, Now: time.Now}), somewhere()
	n.Serve(Service, h.Served)
	testkit.Eventually(t, "this node counts", func() bool { return h.receive(at, Hold{Member: n.Member(), Max: 1}) == Held{OK: true} })
	h.mu.Lock()
	h.add(&held{all: h, at: nameOf(at), holds: true}) // a check finds that the first holds
	h.mu.Unlock()
	for i := range byte(3) {
		h.receive(at, Hold{Holder: id.UUID{i}, Member: n.Member(), Max: 1})
	}
	h.receive(at, Release{Holder: id.UUID{0}})
	h.Stop() // the check is over
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.tidy(nameOf(at), true) || len(h.semaphores[at.Shard()]) != 0 {
		t.Error("it is remembered")
	}
}

// At most most hold at a time, wherever they are and whatever is lost. A refused one met most
// others.
func TestLawOfHolds(t *testing.T) {
	var holdings, refusals int
	for seed := range uint64(60) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 8))
			w := newWorld(t, seed)
			defer w.Stop()
			most, at := 1+r.IntN(4), somewhere()
			w.Join()
			w.Join()
			w.Join()
			time.Sleep(time.Second)
			w.Lossy(seed%3 > 0)
			var mu sync.Mutex
			holds := map[*int]*site{} // the holders, and their nodes
			stop := make(chan struct{})
			var wg sync.WaitGroup
			for range 8 {
				r := rand.New(rand.NewPCG(seed, r.Uint64()))
				wg.Go(func() {
					for {
						living := w.Members()
						p := w.Site(living[r.IntN(len(living))])
						release, ok, err := p.Part.Hold(t.Context(), at, most)
						if ok && !p.Gone() {
							me := new(int)
							mu.Lock()
							holdings++
							holds[me] = p
							if len(holds) > most {
								t.Errorf("seed %d: %d hold, at most %d may", seed, len(holds), most)
							}
							mu.Unlock()
							time.Sleep(time.Duration(r.Int64N(int64(time.Second))))
							mu.Lock()
							delete(holds, me)
							mu.Unlock()
							release()
						} else if err == nil {
							mu.Lock()
							refusals++
							mu.Unlock()
						}
						select {
						case <-stop:
							return
						case <-time.After(time.Duration(r.Int64N(int64(500 * time.Millisecond)))):
						}
					}
				})
			}
			for range 4 {
				time.Sleep(time.Duration(r.IntN(3000)) * time.Millisecond)
				living := w.Members()
				p := w.Site(living[r.IntN(len(living))])
				switch n := r.IntN(3); {
				case len(living) > 2 && n == 0:
					w.OnKilled(func(p *site) {
						mu.Lock()
						defer mu.Unlock()
						for who, on := range holds {
							if on == p {
								delete(holds, who)
							}
						}
					})
					w.Kill(p)
				default:
					w.Join()
				}
			}
			close(stop)
			wg.Wait()
			w.Lossy(false)
			time.Sleep(time.Second)
			var all []func()
			for i := range most + 1 { // holders of killed nodes, and those whose release was lost, are not counted any more
				release, ok, err := w.Site(w.Members()[i%len(w.Members())]).Part.Hold(t.Context(), at, most)
				if ok != (i < most) || err != nil {
					t.Errorf("seed %d: holder %d of %d: %v %v", seed, i+1, most, ok, err)
				}
				if ok {
					all = append(all, release)
				}
			}
			for _, release := range all {
				release()
			}
		})
	}
	t.Logf("%d held, %d refused", holdings, refusals)
	if holdings < 1000 || refusals < 300 {
		t.Error("void")
	}
}

// A released hold is free at once, also if the message was lost.
func TestALostReleaseRefusesNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		defer w.Stop()
		a, b := w.Join(), w.Join()
		time.Sleep(time.Second)
		at := somewhere()
		for range 20 {
			for _, p := range []*site{a, b} {
				release, ok, err := p.Part.Hold(t.Context(), at, 1)
				if !ok || err != nil {
					t.Fatalf("%v %v", ok, err)
				}
				w.Mute(true)
				release()
				time.Sleep(10 * time.Millisecond)
				w.Mute(false)
			}
		}
	})
}

// The holders of a node that does not answer still count.
func TestHoldersOnASilentNodeCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		defer w.Stop()
		a, b := w.Join(), w.Join()
		time.Sleep(time.Second)
		at := somewhere()
		for a.Owner(at.Shard()) != a.Member() {
			at = somewhere()
		}
		release, ok, err := b.Part.Hold(t.Context(), at, 1)
		if !ok || err != nil {
			t.Fatal(ok, err)
		}
		defer release()
		w.Cut(a.Member(), b.Member(), true)
		begin := time.Now()
		if _, ok, err := a.Part.Hold(t.Context(), at, 1); ok || err != nil || time.Since(begin) > 2*checkWait {
			t.Errorf("%v %v after %v", ok, err, time.Since(begin))
		}
	})
}

// A new owner that cannot ask a member still learns the holders on all others.
func TestASilentMemberHidesOnlyItsOwnHolders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		defer w.Stop()
		a, b := w.Join(), w.Join()
		time.Sleep(time.Second)
		held := map[cluster.Address]func(){}
		for range 32 {
			at := somewhere()
			release, ok, err := b.Part.Hold(t.Context(), at, 1)
			if !ok || err != nil {
				t.Fatal(ok, err)
			}
			held[at] = release
		}
		c := w.Enter()
		w.Cut(c.Member(), a.Member(), true)
		c.Go(func() {
			time.Sleep(2 * time.Second)
			w.Mend()
		})
		w.Spread()
		time.Sleep(300 * time.Millisecond)
		moved := 0
		for at, release := range held {
			if b.Owner(at.Shard()) != c.Member() {
				release()
				continue
			}
			moved++
			c.Go(func() {
				if _, ok, err := c.Part.Hold(t.Context(), at, 1); ok || err != nil {
					t.Errorf("a second holder: %v %v", ok, err)
				}
				time.Sleep(10 * time.Second)
				if _, ok, err := c.Part.Hold(t.Context(), at, 1); ok || err != nil {
					t.Errorf("a second holder, when all members answer again: %v %v", ok, err)
				}
				release()
				if _, ok, err := c.Part.Hold(t.Context(), at, 1); !ok || err != nil {
					t.Errorf("refused after the release: %v %v", ok, err)
				}
			})
		}
		if moved == 0 {
			t.Error("no semaphore moved: void")
		}
		time.Sleep(20 * time.Second)
	})
}

// On one node, with its real mailbox.
func TestHoldsOnANode(t *testing.T) {
	n := clustertest.Node()
	h := New(Config{Node: n, Now: time.Now})
	n.RegisterShared(Kind, h.Behavior)
	n.Serve(Service, h.Served)
	testkit.Start(t, n)
	t.Cleanup(h.Stop)
	at := somewhere()
	first, ok, err := h.Hold(t.Context(), at, 2)
	if !ok || err != nil {
		t.Fatal(ok, err)
	}
	second, _, _ := h.Hold(t.Context(), at, 2)
	if _, ok, _ := h.Hold(t.Context(), at, 2); ok {
		t.Error("the third holds")
	}
	if _, ok, _ := h.Hold(t.Context(), at, 3); !ok {
		t.Error("a higher bound does not hold")
	}
	other, ok, _ := h.Hold(t.Context(), somewhere(), 1)
	if !ok {
		t.Error("another is refused")
	}
	other()
	first()
	first()
	third, ok, _ := h.Hold(t.Context(), at, 3)
	if !ok {
		t.Error("refused after a release")
	}
	second()
	third()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, ok, err := h.Hold(ctx, at, 1); ok || err == nil {
		t.Error("who has given up holds")
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if left := h.own[nameOf(at)]; left == nil || left.next != nil { // the one of the higher bound
		t.Errorf("%+v is remembered", left)
	}
}

func TestAHoldThatNobodyAnswersIsUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		defer w.Stop()
		a, b := w.Join(), w.Join()
		time.Sleep(time.Second)
		at := somewhere()
		for a.Owner(at.Shard()) != a.Member() {
			at = somewhere()
		}
		w.Cut(b.Member(), a.Member(), true)
		if _, ok, err := b.Part.Hold(t.Context(), at, 1); ok || err == nil {
			t.Errorf("%v %v", ok, err)
		}
		b.Part.mu.Lock()
		defer b.Part.mu.Unlock()
		if len(b.Part.own) != 0 {
			t.Error("it is remembered")
		}
	})
}

// Every message crosses nodes with all its fields.
func TestMessagesCrossNodes(t *testing.T) {
	c := msg.NewCodec()
	AddTo(c)
	for _, m := range []any{
		Hold{id.UUID{1}, memberID(2), 3}, Held{true, true}, Release{id.UUID{1}},
	} {
		name, body, err := c.Encode(m)
		if err != nil {
			t.Fatal(err)
		}
		v, err := c.Decode(name, body)
		if err != nil {
			t.Fatal(err)
		}
		if v != m {
			t.Errorf("%+v, want %+v", v, m)
		}
	}
}

// A semaphore without messages is checked every minute or so: a holder that is gone without a
// message is removed, and so is a semaphore without holders.
func TestCountsAreLookedAt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		defer w.Stop()
		a := w.Join()
		time.Sleep(time.Second)
		gone, stays := somewhere(), somewhere()
		for _, at := range []cluster.Address{gone, stays} {
			if _, ok, err := a.Part.Hold(t.Context(), at, 1); !ok || err != nil {
				t.Fatal(ok, err)
			}
		}
		a.Part.mu.Lock()
		delete(a.Part.own, nameOf(gone))
		a.Part.mu.Unlock()
		time.Sleep(2*checkEvery + checkEvery/8)
		a.Part.mu.Lock()
		defer a.Part.mu.Unlock()
		if c := a.Part.semaphores[gone.Shard()][nameOf(gone)]; c != nil {
			t.Errorf("who is gone is counted: %+v", c)
		}
		if c := a.Part.semaphores[stays.Shard()][nameOf(stays)]; c == nil || len(c.holders) != 1 {
			t.Errorf("who holds is not counted: %+v", c)
		}
	})
}

// A member has its time to answer after the list was read, also where reading it takes
// longer than that.
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
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, a, b := unheardOf(t)
				defer w.Stop()
				at := somewhere()
				for b.Owner(at.Shard()) != b.Member() {
					at = somewhere()
				}
				if _, ok, err := b.Part.Hold(t.Context(), at, 1); !ok || err != nil {
					t.Fatal(ok, err)
				}
				a.Go(func() { c.hinder(w, a, b) })
				synctest.Wait()
				if _, ok, err := a.Part.Hold(t.Context(), at, 1); ok || err != nil {
					t.Errorf("two hold, at most one may: %v %v", ok, err)
				}
			})
		})
	}
}

// unheardOf is a world of a and b, where a does not know yet that b has joined: both think
// that they own b's shards.
func unheardOf(t *testing.T) (w *world, a, b *site) {
	w = newWorld(t, 1)
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
