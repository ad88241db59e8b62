package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"agentsvc/schemas/id"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// scripted is a Behavior of two functions.
type scripted struct {
	receive func(c Context, m any)
	stopped func()
}

func (s *scripted) Receive(c Context, m any) { s.receive(c, m) }
func (s *scripted) Stopped() {
	if s.stopped != nil {
		s.stopped()
	}
}

func member() id.MemberID { return id.MemberID{UUID: id.NewAnywhere()} }

func address(kind string) Address {
	return Address{Kind: kind, Tenant: id.TenantID{UUID: id.NewAnywhere()}, ID: id.NewAnywhere()}
}

func start(t testing.TB, cfg Config, kinds map[string]func(Address) Behavior) *Node {
	t.Helper()
	if cfg.Member.IsZero() {
		cfg.Member = member()
	}
	n := New(cfg)
	for k, f := range kinds {
		n.Register(k, f)
	}
	return testkit.Start(t, n)
}

// echo replies what it gets; stop ends it, boom panics, mute does not reply.
func echo(Address) Behavior {
	return &scripted{receive: func(c Context, m any) {
		switch m {
		case "stop":
			c.Stop()
		case "boom":
			panic("boom")
		case "mute":
			return
		}
		c.Reply(m)
	}}
}

func TestAsk(t *testing.T) {
	n := start(t, Config{}, map[string]func(Address) Behavior{"echo": echo, "errs": func(Address) Behavior {
		return &scripted{receive: func(c Context, m any) { c.Reply(problem.NotFound("run")); c.Reply("second") }}
	}})
	a := address("echo")
	for _, row := range []struct {
		name string
		to   Address
		msg  any
		want any
		err  error
	}{
		{"the reply is returned", a, 7, 7, nil},
		{"a reply that is an error is returned as the error, a second reply is ignored", address("errs"), 1, nil, problem.NotFound("")},
		{"no reply is nil", a, "mute", nil, nil},
		{"a panic answers the asker", a, "boom", nil, ErrPanicked},
		{"after a panic the next activation answers", a, 8, 8, nil},
		{"an unknown kind is an error", address("nobody"), 1, nil, ErrUnknownKind},
	} {
		t.Run(row.name, func(t *testing.T) {
			got, err := n.Ask(t.Context(), row.to, row.msg)
			if got != row.want || !errors.Is(err, row.err) {
				t.Fatalf("got %v, %v", got, err)
			}
		})
	}
}

func TestAskGivesUpAtTheDeadlineAndItsMessageIsNotReceived(t *testing.T) {
	hold, entered := make(chan struct{}), make(chan struct{}, 1)
	var late atomic.Bool
	n := start(t, Config{}, map[string]func(Address) Behavior{"slow": func(Address) Behavior {
		return &scripted{receive: func(c Context, m any) {
			switch m {
			case "hold":
				entered <- struct{}{}
				<-hold
			case "late":
				late.Store(true)
			}
		}}
	}})
	a := address("slow")
	n.Tell(a, "hold")
	<-entered
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := n.Ask(ctx, a, "late")
	if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, problem.New(problem.CodeUnavailable, "")) {
		t.Fatalf("err = %v", err)
	}
	gone, leave := context.WithCancel(t.Context())
	leave()
	if _, err := n.Ask(gone, a, "late"); !errors.Is(err, context.Canceled) {
		t.Fatalf("err = %v", err)
	}
	close(hold)
	if _, err := n.Ask(t.Context(), a, "next"); err != nil {
		t.Fatal(err)
	}
	if late.Load() {
		t.Fatal("the message of an asker that had left was received")
	}
}

func TestAskIsSentAgainWhileTheAddressMoves(t *testing.T) {
	var calls atomic.Int32
	n := start(t, Config{}, map[string]func(Address) Behavior{"moving": func(Address) Behavior {
		return &scripted{receive: func(c Context, m any) {
			if calls.Add(1) < 4 {
				c.Reply(fmt.Errorf("row: %w", ErrMoved))
				c.Stop()
				return
			}
			c.Reply(m)
		}}
	}})
	got, err := n.Ask(t.Context(), address("moving"), 5)
	if got != 5 || err != nil || calls.Load() != 4 {
		t.Fatalf("got %v, %v after %d calls", got, err, calls.Load())
	}
}

func TestOneMessageAtATimeAndStoppedLast(t *testing.T) {
	var inside, spawned, stopped atomic.Int32
	n := start(t, Config{}, map[string]func(Address) Behavior{"one": func(Address) Behavior {
		spawned.Add(1)
		ended := false
		return &scripted{
			receive: func(c Context, m any) {
				if inside.Add(1) != 1 || ended {
					t.Error("two at a time, or after Stopped")
				}
				if m.(int)%17 == 0 {
					c.Stop()
				}
				inside.Add(-1)
				c.Reply(m)
			},
			stopped: func() { ended = true; stopped.Add(1) },
		}
	}})
	a := address("one")
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 500 {
				if _, err := n.Ask(t.Context(), a, g*500+i); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	n.Tell(a, 17)
	testkit.Eventually(t, "every activation stopped", func() bool { return !n.Active(a) && spawned.Load() == stopped.Load() })
}

func TestTellIsLosslessAndOrderedOverStops(t *testing.T) {
	type item struct{ from, n int }
	var mu sync.Mutex
	last, total := map[int]int{}, 0
	n := start(t, Config{Placers: 3}, map[string]func(Address) Behavior{"log": func(Address) Behavior {
		return &scripted{receive: func(c Context, m any) {
			it := m.(item)
			mu.Lock()
			if last[it.from] != it.n-1 {
				t.Errorf("sender %d: %d after %d", it.from, it.n, last[it.from])
			}
			last[it.from] = it.n
			total++
			mu.Unlock()
			if rand.IntN(10) == 0 {
				c.Stop()
			}
		}}
	}})
	const senders, each = 8, 1000
	a := address("log")
	var wg sync.WaitGroup
	for s := range senders {
		wg.Go(func() {
			for i := range each {
				n.Tell(a, item{s, i + 1})
			}
		})
	}
	wg.Wait()
	testkit.Eventually(t, "everything arrived", func() bool { mu.Lock(); defer mu.Unlock(); return total == senders*each })
}

func TestThousandAsksToAHundredActorsWithPassivationLoseNothing(t *testing.T) {
	var counts sync.Map
	n := start(t, Config{}, map[string]func(Address) Behavior{"count": func(a Address) Behavior {
		return &scripted{receive: func(c Context, m any) {
			v, _ := counts.LoadOrStore(a, new(atomic.Int64))
			v.(*atomic.Int64).Add(1)
			if rand.IntN(3) == 0 {
				c.Stop()
			}
			c.Reply(m)
		}}
	}})
	addrs := make([]Address, 100)
	for i := range addrs {
		addrs[i] = address("count")
	}
	var wg sync.WaitGroup
	for g := range 1000 {
		wg.Go(func() {
			for i := range 10 {
				if got, err := n.Ask(t.Context(), addrs[(g*10+i)%100], g); got != g || err != nil {
					t.Errorf("got %v, %v", got, err)
				}
			}
		})
	}
	wg.Wait()
	for _, a := range addrs {
		if v, _ := counts.Load(a); v.(*atomic.Int64).Load() != 100 {
			t.Errorf("%s received %d of 100", a, v.(*atomic.Int64).Load())
		}
	}
}

func TestSendReachesOnlyALivingActivation(t *testing.T) {
	got := make(chan any, 4)
	refs := make(chan Ref, 4)
	n := start(t, Config{}, map[string]func(Address) Behavior{"k": func(Address) Behavior {
		return &scripted{receive: func(c Context, m any) {
			got <- m
			refs <- c.Ref()
			if m == "stop" {
				c.Stop()
			}
		}}
	}})
	a := address("k")
	if n.Send(a, 1) || n.Active(a) {
		t.Fatal("Send made an activation")
	}
	n.Tell(a, 2)
	<-got
	first := <-refs
	if !n.Send(a, 3) || !first.Send("stop") {
		t.Fatal("a living activation was not reached")
	}
	testkit.Eventually(t, "it stopped", func() bool { return !n.Active(a) })
	n.Tell(a, 4)
	testkit.Eventually(t, "the next one lives", func() bool { return n.Active(a) })
	if first.Send(5) {
		t.Fatal("a Ref reached the next activation")
	}
}

func TestStopDrainsAfterTheCurrentMessage(t *testing.T) {
	n := New(Config{Member: member()})
	hold, entered := make(chan struct{}), make(chan struct{})
	var done, stopped, hook atomic.Bool
	n.Register("k", func(Address) Behavior {
		return &scripted{
			receive: func(c Context, m any) {
				if m != "hold" {
					t.Error("received after the drain began")
				}
				close(entered)
				<-hold
				done.Store(true)
			},
			stopped: func() { stopped.Store(done.Load()) },
		}
	})
	n.OnStop(func(context.Context) error { hook.Store(stopped.Load()); return nil })
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	a := address("k")
	n.Tell(a, "hold")
	<-entered
	asked := make(chan error, 1)
	go func() { _, err := n.Ask(context.Background(), a, "behind"); asked <- err }()
	p := n.placer(a)
	testkit.Eventually(t, "the ask waits", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.live[a].UserMessageCount() == 1
	})

	short, cancel := context.WithCancel(t.Context())
	cancel()
	drained := make(chan error, 1)
	go func() { drained <- n.Stop(context.Background()) }()
	testkit.Eventually(t, "the drain begins", n.swept.Load)
	if _, err := n.Ask(t.Context(), address("k"), 1); !errors.Is(err, problem.New(problem.CodeUnavailable, "")) {
		t.Fatalf("a new message got %v", err)
	}
	n.Tell(address("k"), 1)
	if err := n.Stop(short); err != nil {
		t.Fatalf("a second Stop: %v", err)
	}
	close(hold)
	if err := <-drained; err != nil {
		t.Fatal(err)
	}
	if err := <-asked; !errors.Is(err, problem.New(problem.CodeUnavailable, "")) {
		t.Fatalf("the waiting ask got %v", err)
	}
	if !hook.Load() {
		t.Fatal("the stop hook did not run after the last Stopped")
	}
}

func TestStopIsBoundedByItsContext(t *testing.T) {
	n := New(Config{Member: member()})
	hold, entered := make(chan struct{}), make(chan struct{})
	n.Register("k", func(Address) Behavior {
		return &scripted{receive: func(Context, any) { close(entered); <-hold }}
	})
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.Tell(address("k"), 1)
	<-entered
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := n.Stop(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("err = %v", err)
	}
	close(hold)
	<-n.drained
}

// loopback is Peers over nodes of this process.
type loopback map[id.MemberID]*Node

func (l loopback) Ask(ctx context.Context, to id.MemberID, a Address, msg any) (any, error) {
	n := l[to]
	if n == nil {
		return nil, ErrUnknownMember
	}
	if !n.Owns(a.Shard()) {
		return nil, ErrNotOwner
	}
	return n.Ask(ctx, a, msg)
}

func (l loopback) Call(ctx context.Context, to id.MemberID, service string, m any) (any, error) {
	return l[to].Served(ctx, to, service, m)
}

func (l loopback) Tell(to id.MemberID, a Address, msg any) error {
	n := l[to]
	if n == nil {
		return ErrUnknownMember
	}
	return n.ReceiveTold(a, msg)
}

func TestRestEndsTheActivationsOfAKindAndLosesNothing(t *testing.T) {
	var stopped, made atomic.Int32
	receiving, release := make(chan struct{}, 1), make(chan struct{})
	n := start(t, Config{}, map[string]func(Address) Behavior{
		"worker": func(Address) Behavior {
			made.Add(1)
			return &scripted{receive: func(c Context, m any) {
				if m == "wait" {
					receiving <- struct{}{}
					<-release
				}
				c.Reply(m)
			}, stopped: func() { stopped.Add(1) }}
		},
		"echo": echo,
	})
	busy, idle, other := address("worker"), address("worker"), address("echo")
	for _, a := range []Address{idle, other} {
		if _, err := n.Ask(t.Context(), a, "x"); err != nil {
			t.Fatal(err)
		}
	}
	n.Tell(busy, "wait")
	<-receiving
	n.Suspend("worker")
	testkit.Eventually(t, "the idle one ended", func() bool { return !n.Active(idle) })
	if !n.Active(busy) || !n.Active(other) {
		t.Error("a busy one, or one of another kind, was cut")
	}
	answered := make(chan any, 1)
	go func() { v, _ := n.Ask(t.Context(), busy, "behind"); answered <- v }()
	close(release)
	if got := <-answered; got != any("behind") {
		t.Errorf("behind the stop: %v", got)
	}
	if stopped.Load() != 2 || made.Load() != 3 {
		t.Errorf("%d stopped, %d made", stopped.Load(), made.Load())
	}
}

func TestAMemberListMovesShards(t *testing.T) {
	ids := []id.MemberID{member(), member()}
	peers := loopback{}
	where := func(self id.MemberID) func(Address) Behavior {
		return func(Address) Behavior {
			return &scripted{receive: func(c Context, m any) { c.Reply(self) }}
		}
	}
	a := start(t, Config{Member: ids[0], Peers: peers}, map[string]func(Address) Behavior{"k": where(ids[0])})
	b := start(t, Config{Member: ids[1], Peers: peers}, map[string]func(Address) Behavior{"k": where(ids[1])})
	peers[ids[0]], peers[ids[1]] = a, b
	if err := a.SetMembers(ids[1:]); err == nil {
		t.Fatal("a list without the node itself was followed")
	}
	addrs := make([]Address, 200)
	for i := range addrs {
		addrs[i] = address("k")
		if got, err := a.Ask(t.Context(), addrs[i], 1); got != ids[0] || err != nil {
			t.Fatalf("alone: %v, %v", got, err)
		}
	}
	for _, n := range []*Node{a, b} {
		if err := n.SetMembers(ids); err != nil {
			t.Fatal(err)
		}
	}
	moved := 0
	for _, addr := range addrs {
		want := ids[1]
		if a.Owns(addr.Shard()) {
			want = ids[0]
		} else {
			moved++
			testkit.Eventually(t, "the former activation ended", func() bool { return !a.Active(addr) })
		}
		for _, n := range []*Node{a, b} {
			if got, err := n.Ask(t.Context(), addr, 1); got != want || err != nil {
				t.Fatalf("got %v, %v, want %v", got, err, want)
			}
		}
	}
	if moved == 0 || moved == len(addrs) {
		t.Fatalf("%d of %d addresses moved", moved, len(addrs))
	}
	if s := a.MintShard(); !a.Owns(s) || b.Owns(s) {
		t.Fatalf("shard %d was minted by a node that does not own it", s)
	}
}

func TestAskOfAnUnknownMemberEndsAtTheDeadline(t *testing.T) {
	n := start(t, Config{}, map[string]func(Address) Behavior{"echo": echo})
	if err := n.SetMembers([]id.MemberID{n.Member(), member()}); err != nil {
		t.Fatal(err)
	}
	a := address("echo")
	for n.Owns(a.Shard()) {
		a = address("echo")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if _, err := n.Ask(ctx, a, 1); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("err = %v", err)
	}
}

func TestAfterCallsInOrderOfTime(t *testing.T) {
	n := start(t, Config{}, nil)
	for undisturbed := false; !undisturbed; {
		got := make(chan int, 3)
		begun := time.Now()
		n.After(30*time.Millisecond, func() { got <- 3 })
		n.After(0, func() { got <- 1 })
		n.After(15*time.Millisecond, func() { got <- 2 })
		undisturbed = time.Since(begun) < 15*time.Millisecond // else 3 may be due before 2
		for want := 1; want <= 3; want++ {
			if g := <-got; g != want && undisturbed {
				t.Fatalf("%d came as number %d", g, want)
			}
		}
	}
}

func TestIdleMemory(t *testing.T) {
	n := start(t, Config{}, map[string]func(Address) Behavior{"echo": echo})
	const count = 20_000
	before := liveBytes()
	for range count {
		if _, err := n.Ask(t.Context(), address("echo"), 1); err != nil {
			t.Fatal(err)
		}
	}
	per := (liveBytes() - before) / count
	t.Logf("%d bytes per idle activation", per)
	if per > 1500 {
		t.Fatalf("%d bytes per idle activation", per)
	}
}

func liveBytes() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func BenchmarkAsk(b *testing.B) {
	n := start(b, Config{}, map[string]func(Address) Behavior{"echo": echo})
	a := address("echo")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := n.Ask(context.Background(), a, a); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkTell(b *testing.B) {
	n := start(b, Config{}, map[string]func(Address) Behavior{"sink": func(Address) Behavior {
		return &scripted{receive: func(Context, any) {}}
	}})
	a := address("sink")
	b.ReportAllocs()
	for b.Loop() {
		n.Tell(a, 1)
	}
}

func BenchmarkSpawn(b *testing.B) {
	n := start(b, Config{}, map[string]func(Address) Behavior{"echo": echo})
	b.ReportAllocs()
	for b.Loop() {
		if _, err := n.Ask(context.Background(), address("echo"), "stop"); err != nil {
			b.Fatal(err)
		}
	}
}

// One activation of a shared kind receives what is for any address of a shard, what
// is for one in its order, and knows for which it is: also when it has panicked, and
// when the shard has moved.
func TestASharedKind(t *testing.T) {
	type received struct {
		at Address
		v  any
	}
	shard, peers := id.Shard(7), loopback{}
	var mu sync.Mutex
	made := map[id.MemberID]int{}
	got := map[id.MemberID]map[Address][]any{}
	entered, release := make(chan struct{}), make(chan struct{})
	node := func() *Node {
		n := New(Config{Member: member(), Peers: peers})
		got[n.Member()] = map[Address][]any{}
		n.RegisterShared("bucket", func(a Address) Behavior {
			mu.Lock()
			defer mu.Unlock()
			made[n.Member()]++
			return &scripted{receive: func(c Context, m any) {
				switch m {
				case "boom":
					panic(m)
				case "hold":
					entered <- struct{}{}
					<-release
				}
				mu.Lock()
				defer mu.Unlock()
				got[n.Member()][c.Self()] = append(got[n.Member()][c.Self()], m)
				c.Reply(received{c.Self(), m})
			}}
		})
		peers[n.Member()] = n
		return testkit.Start(t, n)
	}
	from, to := node(), node()
	var all []Address
	for range 20 {
		all = append(all, Address{Kind: "bucket", Tenant: id.TenantID{UUID: id.NewAnywhere()}, ID: id.New(shard)})
	}
	var wg sync.WaitGroup
	for _, a := range all {
		wg.Go(func() {
			for i := range 100 {
				if i%2 == 0 {
					from.Tell(a, i)
				} else if v, err := from.Ask(t.Context(), a, i); v != (received{a, i}) || err != nil {
					t.Errorf("%v: %v %v", a, v, err)
				}
			}
		})
	}
	wg.Wait()
	check := func(n *Node, a Address, first, last int) {
		t.Helper()
		mu.Lock()
		defer mu.Unlock()
		here := got[n.Member()][a]
		if len(here) != last-first+1 {
			t.Fatalf("%v received %v", a, here)
		}
		for i, v := range here {
			if v != first+i {
				t.Fatalf("%v received %v", a, here)
			}
		}
	}
	for _, a := range all {
		check(from, a, 0, 99)
	}
	if made[from.Member()] != 1 || !from.Active(all[0]) {
		t.Errorf("%d activations", made[from.Member()])
	}
	if _, err := from.Ask(t.Context(), all[0], "boom"); !errors.Is(err, ErrPanicked) {
		t.Error(err)
	}
	if v, err := from.Ask(t.Context(), all[1], 100); v != (received{all[1], 100}) || err != nil {
		t.Error(v, err)
	}
	if !from.Send(all[1], 101) {
		t.Error("an activation that lives took no message")
	}
	testkit.Eventually(t, "it was received", func() bool { mu.Lock(); defer mu.Unlock(); return len(got[from.Member()][all[1]]) == 102 })
	check(from, all[1], 0, 101)
	// The shard moves while messages for several wait.
	from.Tell(all[19], "hold")
	<-entered
	for i := range 10 {
		for _, a := range all[:3] {
			from.Tell(a, i)
		}
	}
	from.Yield(true)
	for _, n := range []*Node{to, from} {
		if err := n.SetMembers([]id.MemberID{to.Member()}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 10 {
		for _, a := range all[:3] {
			from.Tell(a, 10+i)
		}
	}
	close(release)
	testkit.Eventually(t, "all of it went to the new owner", func() bool {
		mu.Lock()
		defer mu.Unlock()
		here := got[to.Member()]
		return len(here[all[0]]) >= 20 && len(here[all[1]]) >= 20 && len(here[all[2]]) >= 20
	})
	for _, a := range all[:3] {
		check(to, a, 0, 19)
	}
}
