package handover

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
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const kind = "state"

// ask is the question of a step, and later its answer.
type (
	ask struct {
		Step   int
		Shards []id.Shard
	}
	later struct{ Shards []id.Shard }
)

// part is the state of one node.
type part struct {
	mu     sync.Mutex
	has    *Shards
	steps  [id.Shards]int // how many steps have been answered here
	silent int            // shards that began without the answer of a member
}

type (
	world = clustertest.World[*part]
	site  = clustertest.Site[*part]
)

func newWorld(t *testing.T, seed uint64, steps int) *world {
	codec := msg.NewCodec()
	codec.Add("ask", ask{})
	codec.Add("later", later{})
	return clustertest.New(t, seed, codec, func(p *site) {
		x := &part{}
		p.Part = x
		x.has = New(&x.mu, Config{
			Node: p, Living: p.Living, Refresh: p.Refresh, Now: time.Now, Steps: steps,
			Ask: func(ctx context.Context, to id.MemberID, step int, shards []id.Shard) ([]id.Shard, error) {
				v, err := p.Call(ctx, to, kind, ask{step, shards})
				if err != nil {
					return nil, err
				}
				return v.(later).Shards, nil
			},
			Silent: func(shards []id.Shard) { x.silent += len(shards) },
		})
		p.Services[kind] = func(_ context.Context, from id.MemberID, m any) (any, error) {
			x.has.Heard(from)
			x.mu.Lock()
			defer x.mu.Unlock()
			var out later
			for _, s := range m.(ask).Shards {
				if m.(ask).Step == 0 && !x.has.Yield(s) {
					out.Shards = append(out.Shards, s)
				} else {
					x.steps[s] = max(x.steps[s], m.(ask).Step+1)
				}
			}
			return out, nil
		}
		p.Actors[kind] = func(a cluster.Address, _ any) any {
			x.mu.Lock()
			defer x.mu.Unlock()
			if !x.has.Here(a.Shard()) {
				return cluster.ErrMoved
			}
			return msg.Done{}
		}
		p.Changed = append(p.Changed, func(c cluster.Change) {
			x.mu.Lock()
			defer x.mu.Unlock()
			x.has.Changed(c)
		})
		p.Quit = func(context.Context) error {
			x.mu.Lock()
			x.has.Stop()
			x.mu.Unlock()
			x.has.Wait()
			return nil
		}
	})
}

// use asks for the state of a shard at a node, and returns how long it took.
func use(t *testing.T, p *site, s id.Shard) time.Duration {
	t.Helper()
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := p.Ask(ctx, cluster.Address{Kind: kind, ID: id.New(s)}, msg.Done{}); err != nil && !p.Gone() {
		t.Errorf("shard %d: %v", s, err)
	}
	return time.Since(began)
}

// here returns how many living nodes have a shard.
func here(w *world, s id.Shard) (n int) {
	for _, m := range w.Members() {
		p := w.Site(m)
		p.Part.mu.Lock()
		if p.Part.has.here[s] && !p.Gone() {
			n++
		}
		p.Part.mu.Unlock()
	}
	return n
}

// A shard is at one node at a time, though nodes learn of the members one after another
// and questions and answers are lost, as long as members answer within Patience. And it
// can always be used again.
func TestAShardIsAtOneNodeAtATime(t *testing.T) {
	moves, uses := 0, 0
	for seed := range uint64(40) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 6))
			w := newWorld(t, seed, 1+int(seed%2))
			defer w.Stop()
			w.Join()
			w.Join()
			time.Sleep(time.Second)
			w.Lossy(seed%3 == 0)
			stop := make(chan struct{})
			var wg sync.WaitGroup
			var mu sync.Mutex
			for range 6 {
				r := rand.New(rand.NewPCG(seed, r.Uint64()))
				wg.Go(func() {
					for {
						members := w.Members()
						s := id.Shard(r.IntN(8))
						use(t, w.Site(members[r.IntN(len(members))]), s)
						mu.Lock()
						uses++
						mu.Unlock()
						if n := here(w, s); n > 1 {
							silent := 0
							for _, m := range w.Members() {
								p := w.Site(m)
								p.Part.mu.Lock()
								silent += p.Part.silent
								p.Part.mu.Unlock()
							}
							if silent == 0 {
								t.Errorf("seed %d: shard %d is at %d nodes", seed, s, n)
							}
						}
						select {
						case <-stop:
							return
						case <-time.After(time.Duration(r.Int64N(int64(120 * time.Millisecond)))):
						}
					}
				})
			}
			for range 5 {
				time.Sleep(time.Duration(r.IntN(1500)) * time.Millisecond)
				members := w.Members()
				moves++
				switch p := w.Site(members[r.IntN(len(members))]); {
				case len(members) > 2 && r.IntN(3) == 0:
					w.Leave(p)
				case len(members) > 2 && r.IntN(4) == 0:
					w.Kill(p)
				default:
					w.Join()
				}
			}
			time.Sleep(time.Second)
			close(stop)
			wg.Wait()
		})
	}
	t.Logf("%d moves, %d uses", moves, uses)
	if moves < 150 || uses < 3000 {
		t.Error("void")
	}
}

// A member that does not answer delays a move by Patience, and the state's owner is told.
func TestAMemberThatDoesNotAnswerIsWaitedForShortly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 1)
		defer w.Stop()
		a, b := w.Join(), w.Join()
		time.Sleep(time.Second)
		c := w.Enter()
		w.Cut(c.Member(), a.Member(), true)
		w.Spread()
		time.Sleep(300 * time.Millisecond)
		var s id.Shard
		for c.Owner(s) != c.Member() || b.Owner(s) != c.Member() {
			s++
		}
		if took := use(t, b, s); took > Patience+2*callTimeout {
			t.Errorf("it took %v", took)
		}
		if c.Part.silent == 0 {
			t.Error("nobody knows that a member did not answer")
		}
	})
}

// A step is asked when every member has answered the one before.
func TestStepsComeOneAfterAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 2)
		defer w.Stop()
		a, b := w.Join(), w.Join()
		time.Sleep(time.Second)
		c := w.Enter()
		w.Cut(c.Member(), a.Member(), true)
		var s id.Shard
		for c.Owner(s) != c.Member() {
			s++
		}
		before := b.Part.steps[s]
		if before > 1 {
			t.Fatalf("%d steps before the move", before)
		}
		c.Go(func() { use(t, c, s) })
		time.Sleep(Patience / 2)
		synctest.Wait()
		if n := b.Part.steps[s]; n != 1 {
			t.Errorf("%d steps were asked while a member has not answered the first", n)
		}
		w.Mend()
		time.Sleep(Patience / 4)
		synctest.Wait()
		if a.Part.steps[s] != 2 || b.Part.steps[s] != 2 || here(w, s) != 1 {
			t.Errorf("%d and %d steps, at %d nodes", a.Part.steps[s], b.Part.steps[s], here(w, s))
		}
	})
}

// A member that does not answer a step is left out of the next one; the others are asked it.
func TestStepsGoOnWithoutASilentMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 2)
		defer w.Stop()
		a, b := w.Join(), w.Join()
		time.Sleep(time.Second)
		c := w.Enter()
		w.Cut(c.Member(), a.Member(), true)
		var s id.Shard
		for c.Owner(s) != c.Member() {
			s++
		}
		if took := use(t, c, s); took > Patience+2*callTimeout {
			t.Errorf("it took %v", took)
		}
		if a.Part.steps[s] > 1 || b.Part.steps[s] != 2 || c.Part.silent == 0 {
			t.Errorf("the silent member answered %d steps, the other %d; %d shards began without a member", a.Part.steps[s], b.Part.steps[s], c.Part.silent)
		}
	})
}

// A shard for which no member answers comes after Patience, also where there are more steps.
func TestAShardOfSilentMembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 2)
		defer w.Stop()
		a := w.Join()
		time.Sleep(time.Second)
		c := w.Enter()
		w.Cut(c.Member(), a.Member(), true)
		var s id.Shard
		for c.Owner(s) != c.Member() {
			s++
		}
		if took := use(t, c, s); took > Patience+2*callTimeout || c.Part.silent == 0 {
			t.Errorf("it took %v, %d shards began without a member", took, c.Part.silent)
		}
	})
}

// A shard that a node gains while it gathers the shard's state is gathered whole: no answer
// counts as received whose state was dropped.
func TestAShardGainedWhileItIsGathered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const s = id.Shard(7)
		first, second := id.MemberID{UUID: id.NewAnywhere()}, id.MemberID{UUID: id.NewAnywhere()}
		var mu sync.Mutex
		var h *Shards
		has, asked := map[id.MemberID]bool{}, 0 // what was gathered of s, and how often second was asked for it
		h = New(&mu, Config{
			Node: alone{first}, Living: func() []id.MemberID { return []id.MemberID{first, second} }, Self: true, Now: time.Now, Steps: 2,
			Ask: func(_ context.Context, to id.MemberID, step int, shards []id.Shard) ([]id.Shard, error) {
				mu.Lock()
				defer mu.Unlock()
				if step == 0 || !slices.Contains(shards, s) {
					return nil, nil
				}
				if to == second {
					switch asked++; asked {
					case 1: // the first member has answered when this one is asked again
						return nil, context.DeadlineExceeded
					case 2:
						h.Changed(cluster.Change{Gained: []id.Shard{s}})
					}
				}
				has[to] = true
				return nil, nil
			},
			Dropped: func(o id.Shard) {
				if o == s {
					clear(has)
				}
			},
		})
		mu.Lock()
		h.Here(s)
		mu.Unlock()
		h.Wait()
		mu.Lock()
		defer mu.Unlock()
		if asked < 2 || !h.here[s] || !has[first] || !has[second] {
			t.Errorf("asked %d times, here: %v, of the first member: %v, of the second: %v", asked, h.here[s], has[first], has[second])
		}
	})
}

// alone owns every shard.
type alone struct{ member id.MemberID }

func (a alone) Member() id.MemberID        { return a.member }
func (a alone) Owner(id.Shard) id.MemberID { return a.member }
