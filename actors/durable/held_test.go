package durable

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"agentsvc/cluster"
	"agentsvc/schemas/id"
	"agentsvc/schemas/testkit"
)

// pair are two nodes over one storage. The actors of the first one are about to move
// to the second.
type pair struct {
	t        *testing.T
	m        *memory
	w        *world
	addr     cluster.Address
	from, to *cluster.Node
	began    chan string   // effects
	release  chan struct{} // lets charges end
	silent   atomic.Bool   // the first one cannot be reached by calls
	left     atomic.Int32  // activations that left
	living   []id.MemberID
}

// ways is Peers over the nodes of a pair.
type ways struct{ p *pair }

func (w ways) node(to id.MemberID) *cluster.Node {
	if w.p.from.Member() == to {
		return w.p.from
	}
	return w.p.to
}

func (w ways) Ask(ctx context.Context, to id.MemberID, a cluster.Address, m any) (any, error) {
	got := make(chan any, 1)
	until, ok := ctx.Deadline()
	if !ok {
		until = time.Now().Add(time.Minute)
	}
	w.node(to).Receive(a, m, until, func(v any) { got <- v })
	v := <-got
	if err, ok := v.(error); ok {
		return nil, err
	}
	return v, nil
}

func (w ways) Tell(to id.MemberID, a cluster.Address, m any) error {
	return w.node(to).ReceiveTold(a, m)
}

func (w ways) Call(ctx context.Context, to id.MemberID, service string, m any) (any, error) {
	if w.p.silent.Load() {
		return nil, cluster.ErrLost
	}
	return w.node(to).Served(ctx, to, service, m)
}

func newPair(t *testing.T) *pair {
	t.Helper()
	p := &pair{t: t, m: newMemory(), w: newWorld(), addr: address(), began: make(chan string, 10), release: make(chan struct{})}
	p.m.put(p.addr, ledger{Orders: []order{}})
	p.w.gate = func(ctx context.Context, key string) bool {
		p.began <- key
		if key != (charge{"c"}).Key() {
			return true
		}
		select {
		case <-p.release:
			return true
		case <-ctx.Done():
			return false
		}
	}
	for _, to := range []**cluster.Node{&p.from, &p.to} {
		n := cluster.New(cluster.Config{Member: id.MemberID{UUID: id.NewAnywhere()}, Peers: ways{p}})
		k := toyKind(p.m, p.w)
		k.Finishes = func(e Effect) bool { _, ok := e.(charge); return ok }
		k.Left = func(cluster.Address) { p.left.Add(1) }
		holder := Holder(n, func() []id.MemberID { return p.living })
		k.Load = func(ctx context.Context, a cluster.Address) (Loaded[ledger], error) {
			l, err := p.m.load(ctx, a)
			if err == nil && slices.ContainsFunc(l.State.Orders, func(o order) bool { return o.Status == "begun" }) {
				if at := holder(ctx, a); !at.IsZero() {
					return Loaded[ledger]{}, &Elsewhere{At: at}
				}
			}
			return l, err
		}
		Register(n, p.m, k, Config{})
		ServeHolder(n)
		*to = n
	}
	p.living = []id.MemberID{p.from.Member(), p.to.Member()}
	for _, n := range []*cluster.Node{p.from, p.to} {
		n.Yield(true)
		if err := n.SetMembers([]id.MemberID{p.from.Member()}); err != nil {
			t.Fatal(err)
		}
		if err := n.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { testkit.Stop(t, n.Stop) })
	}
	return p
}

// move gives everything to the second node.
func (p *pair) move() {
	p.t.Helper()
	for _, n := range []*cluster.Node{p.to, p.from} {
		if err := n.SetMembers([]id.MemberID{p.to.Member()}); err != nil {
			p.t.Fatal(err)
		}
	}
}

func TestWhatIsUnderWayIsFinishedWhereItWasBegun(t *testing.T) {
	p := newPair(t)
	ask(t, p.from, p.addr, add{ID: "c", N: 1, Charge: true})
	if key := <-p.began; key != "charge:c" {
		t.Fatal(key)
	}
	p.move()
	before, _ := p.m.row(p.addr)
	p.to.Tell(p.addr, Wake{})
	for _, n := range []*cluster.Node{p.to, p.from} { // the owner passes it on
		if got := ask(t, n, p.addr, sum{}); got != total(1) {
			t.Fatalf("got %v", got)
		}
	}
	if r, _ := p.m.row(p.addr); r.version != before.version || !p.from.Holds(p.addr) || p.to.Holds(p.addr) {
		t.Fatalf("the owner took it up: version %d after %d", r.version, before.version)
	}
	ask(t, p.to, p.addr, add{ID: "x", N: 2}) // is decided, and begun by the next one
	if r, s := p.m.row(p.addr); r.epoch != before.epoch || status(s, "x") != "owed" || len(p.began) != 0 {
		t.Fatalf("epoch %d, %+v, %d effects", r.epoch, s, len(p.began))
	}
	close(p.release)
	if key := <-p.began; key != "send:x" {
		t.Fatal(key)
	}
	testkit.Eventually(t, "all of it is done", func() bool {
		_, s := p.m.row(p.addr)
		return status(s, "c") == "sent" && status(s, "x") == "sent" && !p.from.Active(p.addr)
	})
	if p.w.times(p.addr, "charge:c") != 1 || p.w.times(p.addr, "send:x") != 1 || p.left.Load() != 1 || !p.to.Holds(p.addr) {
		t.Errorf("charged %d times, sent %d times, %d left", p.w.times(p.addr, "charge:c"), p.w.times(p.addr, "send:x"), p.left.Load())
	}
}

// What is told to the owner meanwhile comes to its turn, there or here.
func TestWhatIsToldMeanwhileIsNotLost(t *testing.T) {
	p := newPair(t)
	ask(t, p.from, p.addr, add{ID: "c", N: 1, Charge: true})
	<-p.began
	p.move()
	p.to.Tell(p.addr, add{ID: "x", N: 2})
	testkit.Eventually(t, "the owner has looked", func() bool { loads, _ := p.m.counts(); return loads >= 2 })
	close(p.release)
	testkit.Eventually(t, "it is done", func() bool { _, s := p.m.row(p.addr); return status(s, "c") == "sent" && status(s, "x") == "sent" })
}

// A result that the machine leaves to the next activation is not lost if the shard comes back
// before this one has left: the effect is performed again.
func TestAShardThatComesBack(t *testing.T) {
	p := newPair(t)
	passed.Store(0)
	hold := make(chan struct{})
	gate := p.w.gate
	p.w.gate = func(ctx context.Context, key string) bool {
		if key == (send{"later"}).Key() {
			<-hold
		}
		return gate(ctx, key)
	}
	ask(t, p.from, p.addr, add{ID: "c", N: 1, Charge: true})
	ask(t, p.from, p.addr, add{ID: "later", N: 1})
	<-p.began
	p.move()
	close(hold)
	testkit.Eventually(t, "the result is passed over", func() bool { return passed.Load() == 1 })
	for _, n := range []*cluster.Node{p.to, p.from} {
		if err := n.SetMembers([]id.MemberID{p.from.Member()}); err != nil {
			t.Fatal(err)
		}
	}
	close(p.release)
	testkit.Eventually(t, "all of it is done", func() bool {
		_, s := p.m.row(p.addr)
		return status(s, "c") == "sent" && status(s, "later") == "sent"
	})
	if n := p.w.times(p.addr, "send:later"); n != 2 {
		t.Errorf("performed %d times", n)
	}
}

func TestAHolderThatEndsIsNotWaitedFor(t *testing.T) {
	for name, ends := range map[string]func(p *pair){
		"it has left the members": func(p *pair) { p.silent.Store(true); p.living = p.living[1:] },
		"it is silent":            func(p *pair) { p.silent.Store(true) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPair(t)
			ask(t, p.from, p.addr, add{ID: "c", N: 1, Charge: true})
			<-p.began
			p.move()
			ends(p)
			p.to.Tell(p.addr, Wake{})
			testkit.Eventually(t, "the owner takes it up", func() bool { _, s := p.m.row(p.addr); return status(s, "c") == "unknown" })
			close(p.release) // what it came to is not committed: the row has another owner
			testkit.Eventually(t, "the former one lets go", func() bool { return !p.from.Active(p.addr) })
			if _, s := p.m.row(p.addr); status(s, "c") != "unknown" {
				t.Errorf("%+v", s)
			}
		})
	}
}

func TestANodeThatFinishes(t *testing.T) {
	p := newPair(t)
	ask(t, p.from, p.addr, add{ID: "c", N: 1, Charge: true})
	<-p.began
	idle := address()
	p.m.put(idle, ledger{Orders: []order{}})
	ask(t, p.from, idle, sum{})
	early, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := p.from.Finish(early); err == nil {
		t.Fatal("it did not wait for the charge")
	}
	testkit.Eventually(t, "who has nothing under way leaves", func() bool { return !p.from.Active(idle) })
	ask(t, p.from, p.addr, add{ID: "x", N: 2})
	ask(t, p.from, idle, add{ID: "y", N: 1})
	close(p.release)
	testkit.Eventually(t, "it lets go", func() bool { return !p.from.Active(p.addr) && !p.from.Active(idle) })
	_, s := p.m.row(p.addr)
	_, other := p.m.row(idle)
	if status(s, "c") != "sent" || status(s, "x") != "owed" || status(other, "y") != "owed" || len(p.began) != 0 {
		t.Errorf("%+v %+v, %d effects were begun", s, other, len(p.began))
	}
}
