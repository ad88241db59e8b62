package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"agentsvc/schemas/id"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/testkit"
)

// owned is an address of a kind in a shard of m by n's view.
func owned(n *Node, m id.MemberID, kind string) Address {
	for {
		if a := address(kind); n.Owner(a.Shard()) == m {
			return a
		}
	}
}

// answers collects what reply was called with.
type answers chan any

func (a answers) reply(v any) { a <- v }

func TestReceive(t *testing.T) {
	other := member()
	n := start(t, Config{}, map[string]func(Address) Behavior{"echo": echo})
	if err := n.SetMembers([]id.MemberID{n.Member(), other}); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		name string
		to   Address
		msg  any
		want any
	}{
		{"the reply comes once", owned(n, n.Member(), "echo"), 7, 7},
		{"no reply is nil", owned(n, n.Member(), "echo"), "mute", nil},
		{"a panic answers", owned(n, n.Member(), "echo"), "boom", ErrPanicked},
		{"a foreign shard is ErrNotOwner", owned(n, other, "echo"), 7, ErrNotOwner},
	} {
		t.Run(row.name, func(t *testing.T) {
			got := make(answers, 2)
			n.Receive(row.to, row.msg, time.Now().Add(time.Minute), got.reply)
			if v := <-got; v != row.want {
				t.Fatalf("got %v", v)
			}
			if len(got) != 0 {
				t.Fatal("it was answered twice")
			}
		})
	}
	t.Run("an unknown kind is an error", func(t *testing.T) {
		got := make(answers, 1)
		n.Receive(owned(n, n.Member(), "nobody"), 1, time.Now().Add(time.Minute), got.reply)
		if err, _ := (<-got).(error); !errors.Is(err, ErrUnknownKind) {
			t.Fatalf("got %v", err)
		}
	})
	t.Run("what waited past its deadline is not received, and answered", func(t *testing.T) {
		got := make(answers, 1)
		n.Receive(owned(n, n.Member(), "echo"), 7, time.Now().Add(-time.Second), got.reply)
		if v := <-got; v != context.DeadlineExceeded {
			t.Fatalf("got %v", v)
		}
	})
	t.Run("told to a foreign shard is ErrNotOwner", func(t *testing.T) {
		if err := n.ReceiveTold(owned(n, other, "echo"), 1); !errors.Is(err, ErrNotOwner) {
			t.Fatalf("err = %v", err)
		}
	})
}

func TestANodeThatStopsSendsOthersAskersOn(t *testing.T) {
	hold, entered := make(chan struct{}), make(chan struct{}, 1)
	n := New(Config{Member: member()})
	n.Register("k", func(Address) Behavior {
		return &scripted{receive: func(Context, any) { entered <- struct{}{}; <-hold }}
	})
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	a := address("k")
	n.Tell(a, 1)
	<-entered
	got := make(answers, 2)
	n.Receive(a, "behind", time.Now().Add(time.Minute), got.reply)
	stopped := make(chan error, 1)
	go func() { stopped <- n.Stop(context.Background()) }()
	testkit.Eventually(t, "the drain begins", n.swept.Load)
	n.Receive(address("k"), "later", time.Now().Add(time.Minute), got.reply)
	close(hold)
	for range 2 {
		if v := <-got; v != ErrNotOwner {
			t.Fatalf("got %v", v)
		}
	}
	if err := n.ReceiveTold(a, 1); !errors.Is(err, problem.New(problem.CodeUnavailable, "")) {
		t.Fatalf("told: %v", err)
	}
	if err := <-stopped; err != nil {
		t.Fatal(err)
	}
}

func TestServices(t *testing.T) {
	peers := loopback{}
	n := New(Config{Member: member(), Peers: peers})
	var asked id.MemberID
	n.Serve("who", func(_ context.Context, from id.MemberID, m any) (any, error) { asked = from; return m, nil })
	n.Serve("boom", func(context.Context, id.MemberID, any) (any, error) { panic("boom") })
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer n.Stop(context.Background())
	if v, err := n.Call(t.Context(), n.Member(), "who", 3); v != 3 || err != nil || asked != n.Member() {
		t.Fatalf("own service: %v, %v, from %v", v, err, asked)
	}
	if _, err := n.Call(t.Context(), n.Member(), "nothing", 3); !errors.Is(err, ErrUnknownKind) {
		t.Fatalf("unknown service: %v", err)
	}
	if _, err := n.Call(t.Context(), n.Member(), "boom", 3); !errors.Is(err, ErrPanicked) {
		t.Fatalf("a service that panics: %v", err)
	}
}

func TestOnChange(t *testing.T) {
	a, b, c := member(), member(), member()
	n := start(t, Config{Member: a}, nil)
	var changes []Change
	n.OnChange(func(ch Change) {
		if !slices.Equal(ch.Members, n.Members()) {
			t.Error("a change tells other members than the node has")
		}
		for _, s := range ch.Gained {
			if !n.Owns(s) {
				t.Error("a gained shard is not owned")
			}
		}
		n.Yield(true) // takes the node's lock
		n.OnStop(func(context.Context) error { return nil })
		changes = append(changes, ch)
	})
	for _, list := range [][]id.MemberID{{a, b}, {a, b, c}, {a}, {b}, {a, b}} {
		if err := n.SetMembers(list); err != nil {
			t.Fatal(err)
		}
	}
	if len(changes) != 5 {
		t.Fatalf("%d changes", len(changes))
	}
	for i, row := range []struct {
		gains bool
		left  []id.MemberID
	}{{false, nil}, {false, nil}, {true, []id.MemberID{b, c}}, {false, []id.MemberID{a}}, {true, nil}} {
		got := slices.Clone(changes[i].Left)
		slices.SortFunc(got, func(x, y id.MemberID) int { return slices.Compare(x.UUID[:], y.UUID[:]) })
		if (len(changes[i].Gained) > 0) != row.gains || !slices.Equal(got, row.left) {
			t.Errorf("change %d: %d gained, left %v", i, len(changes[i].Gained), got)
		}
	}
	if len(changes[4].Gained) != len(n.Shards()) {
		t.Errorf("gained %d of %d shards after owning none", len(changes[4].Gained), len(n.Shards()))
	}
}

func TestSetMembersAndOnChangeRace(t *testing.T) {
	a, b := member(), member()
	n := start(t, Config{Member: a}, map[string]func(Address) Behavior{"echo": echo})
	var inside atomic.Int32
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 50 {
				n.OnChange(func(Change) {
					if inside.Add(1) != 1 {
						t.Error("two changes at a time")
					}
					inside.Add(-1)
				})
				list := []id.MemberID{a, b}
				if (g+i)%2 == 0 {
					list = list[:1]
				}
				if err := n.SetMembers(list); err != nil {
					t.Error(err)
				}
				n.Tell(address("echo"), i)
			}
		})
	}
	wg.Wait()
}

func TestOnlyANodeThatYieldsFollowsAListWithoutIt(t *testing.T) {
	n := start(t, Config{}, nil)
	list := []id.MemberID{member()}
	if err := n.SetMembers(list); err == nil {
		t.Fatal("it was followed")
	}
	n.Yield(true)
	if err := n.SetMembers(list); err != nil || len(n.Shards()) != 0 {
		t.Fatalf("%v, with %d shards", err, len(n.Shards()))
	}
	n.MintShard() // of another member; it must not fail
	n.Yield(false)
	if err := n.SetMembers(list); err == nil {
		t.Fatal("it was followed after the end of the yield")
	}
	if err := n.SetMembers(append(list, n.Member())); err != nil || len(n.Shards()) == 0 {
		t.Fatalf("%v, with %d shards", err, len(n.Shards()))
	}
}

// moving is two nodes and an address that is going to move from the first to the
// second. Its actor on the first holds its message until it is released.
type moving struct {
	from, to *Node
	addr     Address
	entered  chan struct{}
	release  chan struct{}
	got      chan any
}

func newMoving(t *testing.T) *moving {
	peers := loopback{}
	m := &moving{entered: make(chan struct{}, 1), release: make(chan struct{}), got: make(chan any, 1000)}
	m.from = start(t, Config{Peers: peers}, map[string]func(Address) Behavior{"k": func(Address) Behavior {
		return &scripted{receive: func(Context, any) { m.entered <- struct{}{}; <-m.release }}
	}})
	m.to = start(t, Config{Peers: peers}, map[string]func(Address) Behavior{"k": func(Address) Behavior {
		return &scripted{receive: func(c Context, v any) { m.got <- v; c.Reply("new owner") }}
	}})
	peers[m.from.Member()], peers[m.to.Member()] = m.from, m.to
	m.addr = address("k")
	m.from.Tell(m.addr, "hold")
	<-m.entered
	return m
}

// move gives all shards to the second node.
func (m *moving) move(t *testing.T) {
	t.Helper()
	m.from.Yield(true)
	for _, n := range []*Node{m.to, m.from} {
		if err := n.SetMembers([]id.MemberID{m.to.Member()}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestWhatAMovedActivationLeavesGoesToTheNewOwnerInOrder(t *testing.T) {
	m := newMoving(t)
	for i := range 10 {
		m.from.Tell(m.addr, i)
	}
	asked, local := make(answers, 1), make(chan any, 1)
	m.from.Receive(m.addr, "asked from elsewhere", time.Now().Add(time.Minute), asked.reply)
	go func() { v, _ := m.from.Ask(context.Background(), m.addr, "asked here"); local <- v }()
	p := m.from.placer(m.addr)
	testkit.Eventually(t, "all of it waits", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.live[m.addr].UserMessageCount() == 12
	})
	m.move(t)
	for i := range 10 { // told while the former activation still works: not to overtake
		m.from.Tell(m.addr, 10+i)
	}
	if len(m.got) != 0 {
		t.Fatal("what was told later overtook")
	}
	close(m.release)
	if v := <-asked; v != ErrNotOwner {
		t.Fatalf("the asker elsewhere got %v", v)
	}
	if v := <-local; v != "new owner" {
		t.Fatalf("the asker here got %v", v)
	}
	want := 0
	for want < 20 {
		if v := <-m.got; v == want {
			want++
		} else if v != "asked here" {
			t.Fatalf("%v came as number %d", v, want)
		}
	}
}

func TestANodeThatYieldsAndStopsPassesOnWhatItWasTold(t *testing.T) {
	m := newMoving(t)
	for i := range 10 {
		m.from.Tell(m.addr, i)
	}
	m.move(t)
	stopped := make(chan error, 1)
	go func() { stopped <- m.from.Stop(context.Background()) }()
	testkit.Eventually(t, "the drain begins", m.from.swept.Load)
	m.from.Tell(m.addr, 10) // during the drain
	close(m.release)
	if err := <-stopped; err != nil {
		t.Fatal(err)
	}
	for i := range 11 {
		if v := <-m.got; v != i {
			t.Fatalf("%v came as number %d", v, i)
		}
	}
}

// repeatable may be received twice.
type repeatable struct{ n int }

func (repeatable) Repeatable() {}

// losing is Peers that lose the first answers.
type losing struct {
	loopback
	lose atomic.Int32
}

func (l *losing) Ask(ctx context.Context, to id.MemberID, a Address, msg any) (any, error) {
	if l.lose.Add(-1) >= 0 {
		return nil, ErrLost
	}
	return l.loopback.Ask(ctx, to, a, msg)
}

func TestALostAnswer(t *testing.T) {
	for _, row := range []struct {
		name string
		msg  any
		err  error
	}{
		{"a repeatable message is asked again", repeatable{1}, nil},
		{"another one is not: the asker learns that it may have been received", 1, ErrLost},
	} {
		t.Run(row.name, func(t *testing.T) {
			peers := &losing{loopback: loopback{}}
			peers.lose.Store(2)
			a, b := start(t, Config{Peers: peers}, nil), start(t, Config{Peers: peers}, map[string]func(Address) Behavior{"echo": echo})
			peers.loopback[a.Member()], peers.loopback[b.Member()] = a, b
			for _, n := range []*Node{a, b} {
				if err := n.SetMembers([]id.MemberID{a.Member(), b.Member()}); err != nil {
					t.Fatal(err)
				}
			}
			v, err := a.Ask(t.Context(), owned(a, b.Member(), "echo"), row.msg)
			if !errors.Is(err, row.err) || err == nil && v != row.msg {
				t.Fatalf("got %v, %v", v, err)
			}
		})
	}
}

func TestTheDepthOfMailboxesIsKnown(t *testing.T) {
	hold, entered := make(chan struct{}), make(chan struct{}, 1)
	n := start(t, Config{}, map[string]func(Address) Behavior{"deep": func(Address) Behavior {
		return &scripted{receive: func(c Context, m any) {
			if m == "hold" {
				entered <- struct{}{}
				<-hold
				c.Stop() // what waits goes to the next activation
			}
		}}
	}})
	depth, a := depths.of("deep"), address("deep")
	n.Tell(a, "hold")
	<-entered
	for i := range 7 {
		n.Tell(a, i)
	}
	if d := depth.Load(); d != 7 {
		t.Fatalf("%d messages wait", d)
	}
	close(hold)
	if _, err := n.Ask(t.Context(), a, "last"); err != nil {
		t.Fatal(err)
	}
	if d := depth.Load(); d != 0 {
		t.Fatalf("%d messages wait after all were received", d)
	}
}

// A local kind lives on the node that sends to it, regardless of the shard's owner. A member
// list does not end it; the end of the node does.
func TestALocalKindStays(t *testing.T) {
	self, other := member(), member()
	peers := loopback{}
	var ended atomic.Int32
	n := New(Config{Member: self, Peers: peers})
	n.RegisterLocal("here", func(Address) Behavior {
		return &scripted{receive: func(c Context, m any) { c.Reply(m) }, stopped: func() { ended.Add(1) }}
	})
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.Yield(true)
	var addrs []Address
	for range 20 {
		a := address("here")
		addrs = append(addrs, a)
		if v, err := n.Ask(t.Context(), a, 1); err != nil || v != 1 {
			t.Fatalf("%v, %v", v, err)
		}
	}
	if err := n.SetMembers([]id.MemberID{other}); err != nil { // nothing is this node's any more
		t.Fatal(err)
	}
	addrs = append(addrs, address("here"))
	for _, a := range addrs {
		n.Tell(a, 2)
		if v, err := n.Ask(t.Context(), a, 3); err != nil || v != 3 {
			t.Errorf("%v, %v", v, err)
		}
	}
	if got := ended.Load(); got != 0 {
		t.Errorf("%d ended", got)
	}
	if err := n.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	if got := int(ended.Load()); got != len(addrs) {
		t.Errorf("%d of %d ended", got, len(addrs))
	}
}

// wrapped is a message with something of this node's.
type wrapped struct{ msg any }

func (w wrapped) Message() any { return w.msg }

// The remaining messages of a moving activation go to the new owner, without the data that only
// this node needs. Messages to the activation itself are dropped.
func TestWhatIsForOneActivationStays(t *testing.T) {
	self, other := member(), member()
	peers := &taught{}
	n := New(Config{Member: self, Peers: peers})
	begun, release := make(chan struct{}), make(chan struct{})
	var ref Ref
	n.Register("mover", func(Address) Behavior {
		return &scripted{receive: func(c Context, m any) {
			ref = c.Ref()
			close(begun)
			<-release
		}}
	})
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer n.Stop(context.WithoutCancel(t.Context()))
	a := address("mover")
	n.Tell(a, "first")
	<-begun
	ref.Send("own")
	n.Tell(a, wrapped{"inner"})
	n.Tell(a, "plain")
	n.Yield(true)
	if err := n.SetMembers([]id.MemberID{other}); err != nil {
		t.Fatal(err)
	}
	close(release)
	testkit.Eventually(t, "it has moved", func() bool { return !n.Active(a) && len(peers.heard()) == 2 })
	if got := fmt.Sprint(peers.heard()); got != "[inner plain]" {
		t.Error(got)
	}
	if ref.Send("late") {
		t.Error("an activation that has ended took a message")
	}
}

// taught are Peers that note what they are told.
type taught struct {
	alone
	mu   sync.Mutex // guards told
	told []any
}

func (p *taught) Tell(_ id.MemberID, _ Address, m any) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.told = append(p.told, m)
	return nil
}

func (p *taught) heard() []any {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.told)
}

// keeping is a Finisher that keeps as long as its test says so.
type keeping struct {
	scripted
	keeps *atomic.Bool
}

func (k *keeping) Busy() bool  { return k.keeps.Load() }
func (k *keeping) Holds() bool { return k.keeps.Load() }

func TestAFinisherStaysUntilItHasFinished(t *testing.T) {
	var keeps atomic.Bool
	keeps.Store(true)
	peers := loopback{}
	behavior := func(name string) func(Address) Behavior {
		return func(Address) Behavior {
			return &keeping{scripted{receive: func(c Context, m any) {
				if m == "done" {
					keeps.Store(false)
					if c.Node().Leaves(c.Self()) {
						c.Stop()
					}
				}
				c.Reply(name)
			}}, &keeps}
		}
	}
	from := start(t, Config{Peers: peers}, map[string]func(Address) Behavior{"k": behavior("from")})
	to := start(t, Config{Peers: peers}, map[string]func(Address) Behavior{"k": behavior("to")})
	peers[from.Member()], peers[to.Member()] = from, to
	a := address("k")
	if v, err := from.Ask(t.Context(), a, "hello"); v != "from" {
		t.Fatal(v, err)
	}
	from.Yield(true)
	for _, n := range []*Node{to, from} {
		if err := n.SetMembers([]id.MemberID{to.Member()}); err != nil {
			t.Fatal(err)
		}
	}
	got := make(answers, 1)
	for range 3 { // it answers, although its node does not own it
		from.Receive(a, "hello", time.Now().Add(time.Minute), got.reply)
		if v := <-got; v != "from" {
			t.Fatalf("got %v", v)
		}
	}
	if !from.Holds(a) || to.Holds(a) || !from.Leaves(a) || to.Leaves(a) {
		t.Error("who holds it is not where it is")
	}
	from.Receive(a, "done", time.Now().Add(time.Minute), got.reply)
	<-got
	testkit.Eventually(t, "it leaves", func() bool { return !from.Active(a) })
	from.Receive(a, "hello", time.Now().Add(time.Minute), got.reply)
	if v := <-got; v != ErrNotOwner {
		t.Errorf("got %v", v)
	}
	if v, err := from.Ask(t.Context(), a, "hello"); v != "to" {
		t.Error(v, err)
	}
}

func TestFinishWaitsForFinishersAlone(t *testing.T) {
	var keeps atomic.Bool
	n := start(t, Config{}, map[string]func(Address) Behavior{
		"echo": echo,
		"k": func(Address) Behavior {
			return &keeping{scripted{receive: func(c Context, m any) {
				if m == "done" {
					c.Stop()
				}
				c.Reply(m)
			}}, &keeps}
		},
	})
	idle, busy, other := address("k"), address("k"), address("echo")
	for _, a := range []Address{idle, busy, other} {
		if _, err := n.Ask(t.Context(), a, 1); err != nil {
			t.Fatal(err)
		}
	}
	keeps.Store(true)
	finished := make(chan error, 1)
	go func() { finished <- n.Finish(t.Context()) }()
	testkit.Eventually(t, "it finishes", n.Finishing)
	for range 10 {
		if v, err := n.Ask(t.Context(), busy, 7); v != 7 {
			t.Fatal(v, err)
		}
	}
	select {
	case err := <-finished:
		t.Fatalf("it did not wait: %v", err)
	default:
	}
	for _, a := range []Address{idle, busy} {
		if _, err := n.Ask(t.Context(), a, "done"); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-finished; err != nil || !n.Active(other) {
		t.Fatalf("%v; others end only with the node", err)
	}
}
