package remote

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"agentsvc/cluster"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/testkit"
)

func TestAskAndCall(t *testing.T) {
	odd := newCodec()
	odd.Add("test_private", private{})
	kinds := map[string]func(cluster.Context, any){
		"echo":    echo,
		"mute":    func(cluster.Context, any) {},
		"gone":    func(c cluster.Context, _ any) { c.Reply(problem.NotFound("run")) },
		"full":    func(c cluster.Context, _ any) { c.Reply(problem.RateLimited("Slow down.", 7*time.Second)) },
		"plain":   func(c cluster.Context, _ any) { c.Reply(errors.New("plain words")) },
		"late":    func(c cluster.Context, _ any) { c.Reply(fmt.Errorf("wait: %w", context.DeadlineExceeded)) },
		"boom":    func(cluster.Context, any) { panic("boom") },
		"odd":     func(c cluster.Context, _ any) { c.Reply(private{}) },
		"strange": func(c cluster.Context, _ any) { c.Reply(make(chan int)) },
		"huge":    func(c cluster.Context, _ any) { c.Reply(ping{Text: strings.Repeat("x", maxBody)}) },
		"large":   func(c cluster.Context, _ any) { c.Reply(ping{Text: strings.Repeat("x", maxBody-100)}) },
	}
	// With the race detector on a busy machine a process may stand still for seconds
	// over 32 MiB; this test is not about death.
	const beat = 20 * time.Second
	a := startMember(t, setup{codec: odd, beat: beat})
	b := startMember(t, setup{beat: beat, kinds: kinds, services: map[string]cluster.Service{
		"who": func(_ context.Context, from id.MemberID, m any) (any, error) {
			return ping{N: m.(ping).N, Text: from.String()}, nil
		},
		"fail": func(context.Context, id.MemberID, any) (any, error) { return nil, problem.NotFound("thing") },
		"boom": func(context.Context, id.MemberID, any) (any, error) { panic("boom") },
	}})
	join(t, a, b)
	for _, row := range []struct {
		name string
		kind string
		msg  any
		want any
		err  error
		text string
	}{
		{name: "the reply is returned", kind: "echo", msg: ping{N: 7}, want: ping{N: 7}},
		{name: "no reply is nil", kind: "mute", msg: ping{}},
		{name: "a problem crosses with its code", kind: "gone", msg: ping{}, err: problem.NotFound("")},
		{name: "another error crosses as its text", kind: "plain", msg: ping{}, text: "plain words"},
		{name: "a deadline that passed there is UNAVAILABLE here", kind: "late", msg: ping{}, err: problem.New(problem.CodeUnavailable, "")},
		{name: "a panic answers the asker", kind: "boom", msg: ping{}, err: cluster.ErrPanicked},
		{name: "an unknown kind is an error", kind: "nobody", msg: ping{}, err: cluster.ErrUnknownKind, text: "nobody"},
		{name: "a type that only the asker knows is his error", kind: "echo", msg: private{}, err: msg.ErrUnknownType, text: "test_private"},
		{name: "a type that the asker may not send is his error", kind: "echo", msg: 7, err: msg.ErrUnknownType},
		{name: "a reply that may not be sent is the asker's error", kind: "odd", msg: ping{}, err: msg.ErrUnknownType},
		{name: "a reply that cannot be sent is the asker's error", kind: "strange", msg: ping{}, err: msg.ErrUnknownType},
		{name: "an oversized message fails alone", kind: "echo", msg: ping{Text: strings.Repeat("x", maxBody)}, err: ErrTooLarge},
		{name: "an oversized reply fails alone", kind: "huge", msg: ping{}, err: ErrTooLarge},
		{name: "a body of almost 32 MiB passes", kind: "large", msg: ping{}, want: ping{Text: strings.Repeat("x", maxBody-100)}},
		{name: "after all that the stream works", kind: "echo", msg: ping{N: 8}, want: ping{N: 8}},
	} {
		t.Run(row.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // 32 MiB take their time on a busy machine
			defer cancel()
			got, err := a.Node.Ask(ctx, at(b, row.kind), row.msg)
			if got != row.want || row.err != nil && !errors.Is(err, row.err) || row.err == nil && row.text == "" && err != nil {
				t.Fatalf("got %.100v, %v", got, err)
			}
			if row.text != "" && (err == nil || !strings.Contains(err.Error(), row.text)) {
				t.Fatalf("err = %v", err)
			}
		})
	}
	t.Run("a problem keeps when to come again", func(t *testing.T) {
		_, err := a.Node.Ask(t.Context(), at(b, "full"), ping{})
		var p *problem.Error
		if !errors.As(err, &p) || p.RetryAfter != 7*time.Second || p.Detail != "Slow down." {
			t.Fatalf("err = %v", err)
		}
	})
	t.Run("a service answers and knows its caller", func(t *testing.T) {
		got, err := a.Node.Call(t.Context(), b.id, "who", ping{N: 3})
		if want := (ping{N: 3, Text: a.id.String()}); got != want || err != nil {
			t.Fatalf("got %v, %v", got, err)
		}
	})
	t.Run("a service's error is the caller's", func(t *testing.T) {
		if _, err := a.Node.Call(t.Context(), b.id, "fail", ping{}); !errors.Is(err, problem.NotFound("")) {
			t.Fatalf("err = %v", err)
		}
	})
	t.Run("a service that panics answers", func(t *testing.T) {
		if _, err := a.Node.Call(t.Context(), b.id, "boom", ping{}); !errors.Is(err, cluster.ErrPanicked) {
			t.Fatalf("err = %v", err)
		}
	})
	t.Run("an unknown service is an error", func(t *testing.T) {
		if _, err := a.Node.Call(t.Context(), b.id, "nothing", ping{}); !errors.Is(err, cluster.ErrUnknownKind) {
			t.Fatalf("err = %v", err)
		}
	})
	t.Run("an unknown member is an error", func(t *testing.T) {
		if _, err := a.Node.Call(t.Context(), newMember(), "who", ping{}); !errors.Is(err, cluster.ErrUnknownMember) {
			t.Fatalf("err = %v", err)
		}
		if err := a.Remote.Tell(newMember(), at(b, "echo"), ping{}); !errors.Is(err, cluster.ErrUnknownMember) {
			t.Fatalf("err = %v", err)
		}
	})
}

func TestAnErrMovedIsAskedAgain(t *testing.T) {
	var calls atomic.Int32
	a := startMember(t, setup{})
	b := startMember(t, setup{kinds: map[string]func(cluster.Context, any){"moving": func(c cluster.Context, m any) {
		if calls.Add(1) < 4 {
			c.Reply(fmt.Errorf("row: %w", cluster.ErrMoved))
			c.Stop()
			return
		}
		c.Reply(m)
	}}})
	join(t, a, b)
	got, err := a.Node.Ask(t.Context(), at(b, "moving"), ping{N: 5})
	if got != any(ping{N: 5}) || err != nil || calls.Load() != 4 {
		t.Fatalf("got %v, %v after %d calls", got, err, calls.Load())
	}
}

func TestWhatIsToldArrivesInOrder(t *testing.T) {
	const senders, each = 4, 3000
	got := make(chan ping, senders*each)
	a := startMember(t, setup{})
	b := startMember(t, setup{kinds: map[string]func(cluster.Context, any){"log": func(c cluster.Context, m any) {
		got <- m.(ping)
		if rand.IntN(50) == 0 {
			c.Stop()
		}
	}}})
	join(t, a, b)
	to := at(b, "log")
	var wg sync.WaitGroup
	for s := range senders {
		wg.Go(func() {
			for i := range each {
				a.Node.Tell(to, ping{N: i, Text: fmt.Sprint(s)})
			}
		})
	}
	wg.Wait()
	next := map[string]int{}
	for range senders * each {
		p := <-got
		if p.N != next[p.Text] {
			t.Fatalf("sender %s: %d instead of %d", p.Text, p.N, next[p.Text])
		}
		next[p.Text]++
	}
}

func TestOverBrokenStreamsTheOrderHoldsAndWhatWaitedArrives(t *testing.T) {
	var mu sync.Mutex
	last, count := -1, 0
	a := startMember(t, setup{})
	b := startMember(t, setup{kinds: map[string]func(cluster.Context, any){"log": func(_ cluster.Context, m any) {
		mu.Lock()
		defer mu.Unlock()
		if n := m.(ping).N; n <= last {
			t.Errorf("%d after %d", n, last)
		} else {
			last = n
		}
		count++
	}}})
	join(t, a, b)
	to := at(b, "log")
	net := startProxy(t, b.addr)
	a.SetPeers(map[id.MemberID]string{b.id: net.Addr().String()})
	seen := func() int { mu.Lock(); defer mu.Unlock(); return last }
	n := 0
	for range 10 {
		testkit.Eventually(t, "messages arrive over the new stream", func() bool {
			for begun := n; n < begun+50; n++ {
				if err := a.Remote.Tell(b.id, to, ping{N: n}); err != nil {
					t.Fatal(err)
				}
			}
			return seen() >= n-1000
		})
		mark := n
		net.cut()
		testkit.Eventually(t, "what was told after the break arrives", func() bool {
			if err := a.Remote.Tell(b.id, to, ping{N: n}); err != nil {
				t.Fatal(err)
			}
			n++
			return seen() >= mark
		})
	}
	mu.Lock()
	defer mu.Unlock()
	t.Logf("%d of %d messages arrived over 10 breaks", count, n)
}

// holding does not answer until it is released.
func holding(entered chan any, release chan struct{}) func(cluster.Context, any) {
	return func(c cluster.Context, m any) {
		entered <- m
		<-release
		c.Reply(m)
	}
}

func TestTheDeathOfAMemberFailsWhatIsUnderWayAtOnce(t *testing.T) {
	entered, release, dead := make(chan any, 4), make(chan struct{}), make(chan struct{})
	a := startMember(t, setup{kinds: map[string]func(cluster.Context, any){"hold": holding(entered, release)}})
	b := startMember(t, setup{kinds: map[string]func(cluster.Context, any){"hold": holding(entered, dead)}})
	defer close(dead)
	defer close(release)
	join(t, a, b)
	once, repeated := make(chan error, 1), make(chan any, 1)
	begun := time.Now()
	go func() { _, err := a.Node.Ask(t.Context(), at(b, "hold"), ping{}); once <- err }()
	go func() {
		v, err := a.Node.Ask(t.Context(), at(b, "hold"), again{N: 3})
		if err != nil {
			v = err
		}
		repeated <- v
	}()
	<-entered
	<-entered
	b.kill()
	if err := <-once; !errors.Is(err, cluster.ErrLost) {
		t.Fatalf("err = %v", err)
	}
	t.Logf("lost %v after the ask", time.Since(begun))
	testkit.Eventually(t, "the refusal was noticed", func() bool { return a.refused.Load() > 0 })
	select {
	case v := <-repeated:
		t.Fatalf("a repeatable message ended with %v", v)
	default:
	}
	a.SetPeers(nil)
	if err := a.SetMembers([]id.MemberID{a.id}); err != nil {
		t.Fatal(err)
	}
	if m := <-entered; m != any(again{N: 3}) {
		t.Fatalf("the new owner received %v", m)
	}
	release <- struct{}{}
	if v := <-repeated; v != any(again{N: 3}) {
		t.Fatalf("the repeated message ended with %v", v)
	}
}

func TestAMemberThatLeavesTheListFailsWhatWaitsForIt(t *testing.T) {
	entered, release := make(chan any, 1), make(chan struct{})
	a := startMember(t, setup{})
	b := startMember(t, setup{kinds: map[string]func(cluster.Context, any){"hold": holding(entered, release)}})
	defer close(release)
	join(t, a, b)
	done := make(chan error, 1)
	to := at(b, "hold")
	go func() { _, err := a.Remote.Ask(context.Background(), b.id, to, ping{}); done <- err }()
	<-entered
	a.SetPeers(nil)
	if err := <-done; !errors.Is(err, cluster.ErrLost) {
		t.Fatalf("err = %v", err)
	}
	if _, err := a.Remote.Ask(t.Context(), b.id, to, ping{}); !errors.Is(err, cluster.ErrUnknownMember) {
		t.Fatalf("err = %v", err)
	}
}

func TestASilentLinkIsNoticedBeforeTheDeadline(t *testing.T) {
	const beat = 300 * time.Millisecond
	const tries = 5
	entered, release := make(chan any, tries), make(chan struct{})
	a := startMember(t, setup{beat: beat})
	b := startMember(t, setup{beat: beat, kinds: map[string]func(cluster.Context, any){"echo": echo, "hold": holding(entered, release)}})
	join(t, a, b)
	net := startProxy(t, b.addr)
	a.SetPeers(map[id.MemberID]string{b.id: net.Addr().String()})
	lost := make(chan error, 1)
	for n, received := 0, false; !received; n++ { // a busy machine may be silent, too, before the message is received
		if n == tries {
			t.Fatal("no message was received")
		}
		to := at(b, "hold")
		go func() { _, err := a.Remote.Ask(context.Background(), b.id, to, ping{N: n}); lost <- err }()
		for asked := true; asked && !received; {
			select {
			case m := <-entered:
				received = m == any(ping{N: n})
			case err := <-lost:
				t.Log(err)
				asked = false
			}
		}
	}
	net.drop.Store(true)
	begun := time.Now()
	if err := <-lost; !errors.Is(err, cluster.ErrLost) {
		t.Fatalf("err = %v", err)
	}
	took := time.Since(begun)
	t.Logf("noticed after %v, at a beat of %v", took, beat)
	if took > cluster.DefaultTimeout*4/5 {
		t.Fatalf("noticed after %v", took)
	}
	close(release)
	net.drop.Store(false)
	net.cut() // the connection that was being made meanwhile got no answer either
	// Repeatable, as the stream that is cut may be the next one already.
	if v, err := a.Node.Ask(t.Context(), at(b, "echo"), again{N: 1}); v != any(again{N: 1}) || err != nil {
		t.Fatalf("after the partition: %v, %v", v, err)
	}
}

func TestAPeerThatComesLateIsReachedWithinTheAsk(t *testing.T) {
	addr, open := reserve(t)
	a, bID := startMember(t, setup{}), newMember()
	a.SetPeers(map[id.MemberID]string{bID: addr})
	if err := a.SetMembers([]id.MemberID{a.id, bID}); err != nil {
		t.Fatal(err)
	}
	to := at(a, "echo")
	for a.Owns(to.Shard()) {
		to.ID = id.NewAnywhere()
	}
	done := make(chan error, 1)
	go func() { _, err := a.Node.Ask(context.Background(), to, ping{}); done <- err }()
	testkit.Eventually(t, "several refusals", func() bool { return a.refused.Load() > 3 })
	b := startMember(t, setup{id: bID, listen: open(), kinds: map[string]func(cluster.Context, any){"echo": echo}})
	if err := b.SetMembers([]id.MemberID{a.id, bID}); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestAnotherMemberAtTheAddressGetsNothing(t *testing.T) {
	a := startMember(t, setup{})
	b := startMember(t, setup{kinds: map[string]func(cluster.Context, any){"echo": func(c cluster.Context, m any) {
		t.Error("a message for another member was received")
	}}})
	dead := newMember()
	a.SetPeers(map[id.MemberID]string{dead: b.addr})
	if err := a.Remote.Tell(dead, at(b, "echo"), ping{}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Remote.Ask(t.Context(), dead, at(b, "echo"), ping{}); !errors.Is(err, cluster.ErrUnknownMember) {
		t.Fatalf("err = %v", err)
	}
	testkit.Eventually(t, "it counts as refused", func() bool { return a.refused.Load() > 0 })
}

func TestBounds(t *testing.T) {
	l := listen(t) // no Accept: the connection is made and no answer comes
	defer l.Close()
	a, silent := startMember(t, setup{}), newMember()
	to := at(a, "echo")
	for _, row := range []struct {
		name string
		body int
		most int
	}{
		{"65,536 messages wait for a member", 0, maxQueued},
		{"64 MiB wait for a member", 1 << 20, 64},
	} {
		t.Run(row.name, func(t *testing.T) {
			a.SetPeers(nil)
			a.SetPeers(map[id.MemberID]string{silent: l.Addr().String()})
			m, n := ping{Text: strings.Repeat("x", row.body)}, 0
			for ; n <= row.most; n++ {
				if err := a.Remote.Tell(silent, to, m); err != nil {
					if !errors.Is(err, problem.New(problem.CodeUnavailable, "")) {
						t.Fatalf("err = %v", err)
					}
					break
				}
			}
			if n > row.most || n < row.most-1 {
				t.Fatalf("%d messages wait", n)
			}
			if _, err := a.Remote.Ask(t.Context(), silent, to, m); !errors.Is(err, problem.New(problem.CodeUnavailable, "")) {
				t.Fatalf("err = %v", err)
			}
		})
	}
}

func TestDeadlines(t *testing.T) {
	entered, release := make(chan any, 4), make(chan struct{})
	left := make(chan time.Duration, 1)
	a := startMember(t, setup{})
	b := startMember(t, setup{
		kinds: map[string]func(cluster.Context, any){"hold": holding(entered, release), "echo": echo},
		services: map[string]cluster.Service{"left": func(ctx context.Context, _ id.MemberID, _ any) (any, error) {
			until, _ := ctx.Deadline()
			select {
			case left <- time.Until(until):
			default:
			}
			<-ctx.Done()
			return nil, ctx.Err()
		}},
	})
	join(t, a, b)
	to := at(b, "hold")
	leaving, leave := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { _, err := a.Node.Ask(leaving, to, ping{}); done <- err }()
	<-entered
	behind, stop := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer stop()
	if _, err := a.Node.Ask(behind, to, ping{N: 99}); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, problem.New(problem.CodeUnavailable, "")) {
		t.Fatalf("err = %v", err)
	}
	leave()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Fatalf("err = %v", err)
	}
	close(release) // the late reply does no harm
	if v, err := a.Node.Ask(t.Context(), to, ping{N: 2}); v != any(ping{N: 2}) || err != nil {
		t.Fatalf("got %v, %v", v, err)
	}
	for len(left) == 0 { // on a slow machine the call may never run
		call, end := context.WithTimeout(t.Context(), 200*time.Millisecond)
		if _, err := a.Node.Call(call, b.id, "left", ping{}); err == nil {
			t.Fatal("the call was answered")
		}
		end()
	}
	if d := <-left; d > 200*time.Millisecond {
		t.Fatalf("the service had %v", d)
	}
	testkit.Eventually(t, "nothing is owed any more", func() bool { return !b.Remote.owes() && !a.Remote.owes() })
}

func TestCallsOfAMemberAreBounded(t *testing.T) {
	var running, most atomic.Int32
	release := make(chan struct{})
	a := startMember(t, setup{})
	b := startMember(t, setup{services: map[string]cluster.Service{"hold": func(context.Context, id.MemberID, any) (any, error) {
		n := running.Add(1)
		defer running.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		<-release
		return nil, nil
	}}})
	join(t, a, b)
	const calls = maxCalls + 100
	var wg sync.WaitGroup
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for range calls {
		wg.Go(func() {
			if _, err := a.Node.Call(ctx, b.id, "hold", ping{}); err != nil {
				t.Error(err)
			}
		})
	}
	testkit.Eventually(t, "all places are taken", func() bool { return running.Load() == maxCalls })
	close(release)
	wg.Wait()
	if most.Load() != maxCalls {
		t.Fatalf("%d calls ran at a time", most.Load())
	}
}

func TestStopAnswersAndSendsWhatItOwes(t *testing.T) {
	entered, release := make(chan any, 1), make(chan struct{})
	told := make(chan any, 1000)
	log := func(_ cluster.Context, m any) { told <- m }
	a := startMember(t, setup{kinds: map[string]func(cluster.Context, any){"log": log}})
	b := startMember(t, setup{kinds: map[string]func(cluster.Context, any){"hold": holding(entered, release), "log": log}})
	join(t, a, b)
	to, back := at(b, "hold"), at(a, "log")
	answered := make(chan error, 1)
	go func() { _, err := a.Remote.Ask(context.Background(), b.id, to, ping{}); answered <- err }()
	<-entered
	for i := range 1000 {
		b.Node.Tell(back, ping{N: i})
	}
	stopped := make(chan struct{})
	go func() { b.stop(t); close(stopped) }()
	close(release)
	if err := <-answered; err != nil {
		t.Fatalf("the asker got %v", err)
	}
	<-stopped
	for i := range 1000 {
		if m := <-told; m != any(ping{N: i}) {
			t.Fatalf("%v came as number %d", m, i)
		}
	}
	if err := b.Remote.Tell(a.id, back, ping{}); err == nil {
		t.Fatal("a stopped member tells")
	}
}

func TestAStrangerDoesNotHoldUpStop(t *testing.T) {
	a := startMember(t, setup{})
	c, err := net.Dial("tcp", a.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	begun := time.Now()
	a.stop(t)
	if took := time.Since(begun); took > 3*handshakeTimeout {
		t.Fatalf("it took %v", took)
	}
}

func TestThreeMembersAnswerWhileShardsMove(t *testing.T) {
	kinds := map[string]func(cluster.Context, any){"echo": echo}
	ms := []*member{startMember(t, setup{kinds: kinds}), startMember(t, setup{kinds: kinds}), startMember(t, setup{kinds: kinds})}
	join(t, ms...)
	stop := make(chan struct{})
	var asked atomic.Int64
	var wg sync.WaitGroup
	for g := range 9 {
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				to := cluster.Address{Kind: "echo", Tenant: id.TenantID{UUID: id.NewAnywhere()}, ID: id.NewAnywhere()}
				if v, err := ms[g%3].Node.Ask(context.Background(), to, ping{N: i}); v != any(ping{N: i}) || err != nil {
					t.Errorf("got %v, %v", v, err)
					return
				}
				asked.Add(1)
			}
		})
	}
	all := []id.MemberID{ms[0].id, ms[1].id, ms[2].id}
	for round := range 12 {
		n := asked.Load()
		drained := ms[round%3]
		drained.Yield(true)
		list := all
		if round%2 == 0 {
			list = nil
			for _, m := range all {
				if m != drained.id {
					list = append(list, m)
				}
			}
		}
		for _, i := range rand.Perm(3) {
			if err := ms[i].SetMembers(list); err != nil {
				t.Error(err)
			}
		}
		testkit.Eventually(t, "asks go on", func() bool { return asked.Load() > n+200 || t.Failed() })
	}
	close(stop)
	wg.Wait()
	t.Logf("%d asks over 12 moves", asked.Load())
}

func BenchmarkAsk(b *testing.B) {
	kinds := map[string]func(cluster.Context, any){"echo": echo}
	x := startMember(b, setup{kinds: kinds})
	y := startMember(b, setup{kinds: kinds})
	join(b, x, y)
	for _, row := range []struct {
		name string
		to   cluster.Address
	}{{"local", at(x, "echo")}, {"remote", at(y, "echo")}} {
		b.Run(row.name+"/one", func(b *testing.B) {
			for b.Loop() {
				if _, err := x.Node.Ask(context.Background(), row.to, ping{N: 1}); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(row.name+"/parallel", func(b *testing.B) {
			b.SetParallelism(32)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if _, err := x.Node.Ask(context.Background(), row.to, ping{N: 1}); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}

// connections are the addresses that the metrics show as connected or not.
func connections(t *testing.T) map[string]float64 {
	t.Helper()
	families, err := prometheus.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		if f.GetName() != "svc_cluster_remote_connected" {
			continue
		}
		for _, m := range f.GetMetric() {
			out[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
		}
	}
	return out
}

// A member that left the list while its stream was open does not count as missing in the
// metrics.
func TestTheMetricsDropMembersThatLeft(t *testing.T) {
	a := startMember(t, setup{})
	b := startMember(t, setup{kinds: map[string]func(cluster.Context, any){"echo": echo}})
	join(t, a, b)
	if _, err := a.Node.Ask(t.Context(), at(b, "echo"), ping{}); err != nil {
		t.Fatal(err)
	}
	if up := connections(t)[b.addr]; up != 1 {
		t.Fatalf("connected is %v", up)
	}
	a.SetPeers(nil)
	a.stop(t) // its loops have ended
	if up, ok := connections(t)[b.addr]; ok {
		t.Fatalf("who left is still shown, as %v", up)
	}
}

// A node that was started again at its address is shown as connected when its former process leaves
// the list.
func TestTheMetricsShowANodeThatWasStartedAgain(t *testing.T) {
	echoes := map[string]func(cluster.Context, any){"echo": echo}
	a := startMember(t, setup{})
	addr, open := reserve(t)
	former := startMember(t, setup{kinds: echoes, listen: open()})
	join(t, a, former)
	if _, err := a.Node.Ask(t.Context(), at(former, "echo"), ping{}); err != nil {
		t.Fatal(err)
	}
	former.stop(t)
	again := startMember(t, setup{kinds: echoes, listen: open()})
	again.SetPeers(map[id.MemberID]string{a.id: a.addr, again.id: addr})
	a.SetPeers(map[id.MemberID]string{a.id: a.addr, former.id: addr, again.id: addr})
	if _, err := a.Node.Call(t.Context(), again.id, "none", ping{}); err == nil {
		t.Fatal("a service that is not there has answered")
	}
	for range 2 {
		if up := connections(t)[addr]; up != 1 {
			t.Errorf("connected is %v", up)
		}
		a.SetPeers(map[id.MemberID]string{a.id: a.addr, again.id: addr})
	}
	a.SetPeers(nil)
	if up, ok := connections(t)[addr]; ok {
		t.Errorf("a node that left is still shown, as %v", up)
	}
}

// Three streams of a member follow each other while the first one's batch is still
// being handed over: the third is not received before that.
func TestAStreamWaitsForAllThatCameBeforeIt(t *testing.T) {
	a := startMember(t, setup{})
	from := newMember()
	open := func(number uint64) (*session, chan bool) {
		s := &session{r: a.Remote, from: from, number: number, wake: make(chan struct{}, 1)}
		done := make(chan bool, 1)
		go func() {
			ok := a.Remote.open(s)
			if ok {
				a.Remote.wg.Done() // nothing receives here
			}
			done <- ok
		}()
		testkit.Eventually(t, "it is the newest", func() bool {
			a.Remote.mu.RLock()
			defer a.Remote.mu.RUnlock()
			return a.Remote.sessions[from] == s
		})
		return s, done
	}
	first, opened := open(1)
	if !<-opened {
		t.Fatal("the first was refused")
	}
	first.receiving.Lock() // a batch of it is being handed over
	_, second := open(2)
	third, opened := open(3)
	early := time.NewTimer(50 * time.Millisecond)
	defer early.Stop()
	select {
	case <-opened:
		t.Error("the third stream is received before the first has ended")
		opened <- true
	case <-second:
		t.Error("the second stream is received before the first has ended")
		second <- true
	case <-early.C:
	}
	first.receiving.Unlock()
	if !<-second || !<-opened {
		t.Fatal("a stream was refused")
	}
	if !first.cut || third.cut {
		t.Errorf("cut: the first %v, the newest %v", first.cut, third.cut)
	}
	a.Remote.close(third)
}
