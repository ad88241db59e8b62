package limit

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"agentsvc/cluster"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
)

// somewhere is what the tests hold.
func somewhere() cluster.Address { return HoldsAddress(tenant(), "stream", "visitor") }

func TestCountRefusesAfterACheckOnly(t *testing.T) {
	c := &count{}
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

// Who asked, was to wait and gave up without a word is forgotten, and so is what
// he asked for.
func TestACountForgetsWhoGaveUp(t *testing.T) {
	n := cluster.New(cluster.Config{Member: id.MemberID{UUID: id.NewAnywhere()}, Log: zerolog.Nop()})
	h, at := NewHolds(HoldsConfig{Node: n, Now: time.Now}), somewhere()
	h.counted[at.Shard()] = true
	for i := range byte(3) { // the first holds
		h.receive(at, Hold{Holder: id.UUID{i}, Member: n.Member(), Max: 1})
	}
	h.receive(at, Release{Holder: id.UUID{0}})
	h.Stop() // the check is over
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.rest(holderOf(at), true) || len(h.counts[at.Shard()]) != 0 {
		t.Error("it is remembered")
	}
}

// At most most hold at a time, wherever they are and whatever is lost; and who is
// refused met most others.
func TestLawOfHolds(t *testing.T) {
	var holdings, refusals int
	for seed := range uint64(60) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 8))
			w := newWorld(t, Rate{1, time.Second}, seed)
			defer w.stop()
			most, at := 1+r.IntN(4), somewhere()
			w.join()
			w.join()
			w.join()
			time.Sleep(time.Second)
			w.mu.Lock()
			w.lossy = seed%3 > 0
			w.mu.Unlock()
			var mu sync.Mutex
			holds := map[*int]*site{} // who holds on which node
			stop := make(chan struct{})
			var wg sync.WaitGroup
			for range 8 {
				r := rand.New(rand.NewPCG(seed, r.Uint64()))
				wg.Go(func() {
					for {
						living := w.members()
						p := w.node(living[r.IntN(len(living))])
						release, ok, err := p.holds.Hold(t.Context(), at, most)
						if ok && !p.gone() {
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
				living := w.members()
				p := w.node(living[r.IntN(len(living))])
				switch n := r.IntN(3); {
				case len(living) > 2 && n == 0:
					w.mu.Lock()
					w.killed = func(p *site) {
						mu.Lock()
						defer mu.Unlock()
						for who, on := range holds {
							if on == p {
								delete(holds, who)
							}
						}
					}
					w.mu.Unlock()
					w.kill(p)
				default:
					w.join()
				}
			}
			close(stop)
			wg.Wait()
			w.mu.Lock()
			w.lossy = false
			w.mu.Unlock()
			time.Sleep(time.Second)
			var all []func()
			for i := range most + 1 { // those of who were killed, and lost releases, are not counted any more
				release, ok, err := w.node(w.members()[i%len(w.members())]).holds.Hold(t.Context(), at, most)
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

// A place is free as soon as its holder let go of it, also where nobody heard it.
func TestALostReleaseRefusesNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Rate{1, time.Second}, 1)
		defer w.stop()
		a, b := w.join(), w.join()
		time.Sleep(time.Second)
		at := somewhere()
		for range 20 {
			for _, p := range []*site{a, b} {
				release, ok, err := p.holds.Hold(t.Context(), at, 1)
				if !ok || err != nil {
					t.Fatalf("%v %v", ok, err)
				}
				w.mu.Lock()
				w.mute = true
				w.mu.Unlock()
				release()
				time.Sleep(10 * time.Millisecond)
				w.mu.Lock()
				w.mute = false
				w.mu.Unlock()
			}
		}
	})
}

// A node that does not answer holds what it held.
func TestHoldersOnASilentNodeCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Rate{1, time.Second}, 1)
		defer w.stop()
		a, b := w.join(), w.join()
		time.Sleep(time.Second)
		at := somewhere()
		for a.Owner(at.Shard()) != a.member {
			at = somewhere()
		}
		release, ok, err := b.holds.Hold(t.Context(), at, 1)
		if !ok || err != nil {
			t.Fatal(ok, err)
		}
		defer release()
		w.mu.Lock()
		w.cut[[2]id.MemberID{a.member, b.member}] = true
		w.mu.Unlock()
		begin := time.Now()
		if _, ok, err := a.holds.Hold(t.Context(), at, 1); ok || err != nil || time.Since(begin) > 2*recallWait {
			t.Errorf("%v %v after %v", ok, err, time.Since(begin))
		}
	})
}

// On one node, with its real mailbox.
func TestHoldsOnANode(t *testing.T) {
	n := cluster.New(cluster.Config{Member: id.MemberID{UUID: id.NewAnywhere()}, Log: zerolog.Nop()})
	h := NewHolds(HoldsConfig{Node: n, Now: time.Now})
	n.RegisterShared(KindHolds, h.Behavior)
	n.Serve(ServiceHolds, h.Served)
	startNode(t, n)
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
	if left := h.own[holderOf(at)]; left == nil || left.next != nil { // the one of the higher bound
		t.Errorf("%+v is remembered", left)
	}
}

func TestAHoldThatNobodyAnswersIsUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Rate{1, time.Second}, 1)
		defer w.stop()
		a, b := w.join(), w.join()
		time.Sleep(time.Second)
		at := somewhere()
		for a.Owner(at.Shard()) != a.member {
			at = somewhere()
		}
		w.mu.Lock()
		w.cut[[2]id.MemberID{b.member, a.member}] = true
		w.mu.Unlock()
		if _, ok, err := b.holds.Hold(t.Context(), at, 1); ok || err == nil {
			t.Errorf("%v %v", ok, err)
		}
		b.holds.mu.Lock()
		defer b.holds.mu.Unlock()
		if len(b.holds.own) != 0 {
			t.Error("it is remembered")
		}
	})
}

// Every message crosses nodes with all its fields.
func TestMessagesCrossNodes(t *testing.T) {
	c := msg.NewCodec()
	AddTo(c)
	for _, m := range []any{
		Lease{memberID(1), 2, 3, 4, 5, 6}, Leased{1, 2, true, 3}, GiveBack{memberID(1), 2, 3, 4}, Recall{somewhere()},
		Hold{id.UUID{1}, memberID(2), 3}, Held{true, true}, Release{id.UUID{1}}, Granted{[]id.RunID{runID(1)}},
	} {
		name, body, err := c.Encode(m)
		if err != nil {
			t.Fatal(err)
		}
		v, err := c.Decode(name, body)
		if err != nil {
			t.Fatal(err)
		}
		switch m := m.(type) {
		case Granted:
			if !slices.Equal(v.(Granted).Running, m.Running) {
				t.Errorf("%+v", v)
			}
		default:
			if v != m {
				t.Errorf("%+v, want %+v", v, m)
			}
		}
	}
}

// A count without a message is looked at every minute or so: who is gone without a word
// is found, and a count of nobody is forgotten.
func TestCountsAreLookedAt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Rate{1, time.Second}, 1)
		defer w.stop()
		a := w.join()
		time.Sleep(time.Second)
		gone, stays := somewhere(), somewhere()
		for _, at := range []cluster.Address{gone, stays} {
			if _, ok, err := a.holds.Hold(t.Context(), at, 1); !ok || err != nil {
				t.Fatal(ok, err)
			}
		}
		a.holds.mu.Lock()
		delete(a.holds.own, holderOf(gone))
		a.holds.mu.Unlock()
		time.Sleep(2*checkEvery + checkEvery/8)
		a.holds.mu.Lock()
		defer a.holds.mu.Unlock()
		if c := a.holds.counts[gone.Shard()][holderOf(gone)]; c != nil {
			t.Errorf("who is gone is counted: %+v", c)
		}
		if c := a.holds.counts[stays.Shard()][holderOf(stays)]; c == nil || len(c.holders) != 1 {
			t.Errorf("who holds is not counted: %+v", c)
		}
	})
}
