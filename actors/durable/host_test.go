package durable

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"agentsvc/cluster"
	"agentsvc/persistence/journal"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/testkit"
)

func ask(t testing.TB, n *cluster.Node, a cluster.Address, m any) any {
	t.Helper()
	v, err := n.Ask(t.Context(), a, m)
	if err != nil {
		t.Fatalf("ask %T: %v", m, err)
	}
	return v
}

func TestFirstMessageLoadsTheRowAndNothingIsClaimedWithoutChange(t *testing.T) {
	m, a := newMemory(), address()
	m.put(a, ledger{Count: 7, Orders: []order{}})
	n := node(t, host(toyKind(m, newWorld()), m, Config{}))
	if got := ask(t, n, a, sum{}); got != total(7) {
		t.Fatalf("got %v", got)
	}
	ask(t, n, a, sum{})
	if loads, commits := m.counts(); loads != 1 || commits != 0 {
		t.Fatalf("%d loads, %d commits", loads, commits)
	}
	ask(t, n, a, add{ID: "x", N: 1})
	if r, _ := m.row(a); r.epoch != 1 {
		t.Fatalf("the first commit left epoch %d", r.epoch)
	}
}

func TestActivationClaimsWhatAnOlderEpochBegan(t *testing.T) {
	m, w, a := newMemory(), newWorld(), address()
	m.put(a, ledger{Orders: []order{{ID: "c", Charge: true, Status: "begun"}, {ID: "s", Status: "owed"}}})
	n := node(t, host(toyKind(m, w), m, Config{}))
	ask(t, n, a, sum{})
	testkit.Eventually(t, "the order is sent", func() bool { _, s := m.row(a); return status(s, "s") == "sent" })
	_, s := m.row(a)
	if status(s, "c") != "unknown" || w.times(a, "charge:c") != 0 {
		t.Fatalf("%+v, charged %d times", s, w.times(a, "charge:c"))
	}
	if r, _ := m.row(a); r.epoch != 1 || w.epochs[a.ID.String()+" send:s"] != 1 {
		t.Fatalf("epoch %d", r.epoch)
	}
}

func TestUnknownRowIsNotFoundAndLeavesMemory(t *testing.T) {
	m, a := newMemory(), address()
	n := node(t, host(toyKind(m, newWorld()), m, Config{}))
	if _, err := n.Ask(t.Context(), a, sum{}); !errors.Is(err, problem.NotFound("")) {
		t.Fatalf("err = %v", err)
	}
	n.Tell(a, sum{})
	testkit.Eventually(t, "it leaves", func() bool { loads, _ := m.counts(); return loads == 2 && !n.Active(a) })
}

func TestCreate(t *testing.T) {
	m, a := newMemory(), address()
	n := node(t, host(toyKind(m, newWorld()), m, Config{}))
	if got := ask(t, n, a, open{N: 3}); got != total(3) {
		t.Fatalf("got %v", got)
	}
	if loads, _ := m.counts(); loads != 0 {
		t.Fatalf("a beginning made %d reads", loads)
	}
	if r, _ := m.row(a); r.version != 1 || r.epoch != 0 {
		t.Fatalf("%+v", r)
	}
	ask(t, n, a, add{ID: "x", N: 2, Charge: true})
	testkit.Eventually(t, "charged", func() bool { _, s := m.row(a); return status(s, "x") == "sent" })
	if r, _ := m.row(a); r.version != 3 || r.epoch != 1 {
		t.Fatalf("%+v", r)
	}
}

// A commit of timers alone leaves the row's version: what the activation began before goes on, and its
// result is committed by the same activation.
func TestACommitWithoutRowsLeavesTheVersion(t *testing.T) {
	m, w, a := newMemory(), newWorld(), address()
	reached, release := make(chan struct{}), make(chan struct{})
	w.gate = func(context.Context, string) bool { close(reached); <-release; return true }
	m.put(a, ledger{Orders: []order{}})
	n := node(t, host(toyKind(m, w), m, Config{}))
	ask(t, n, a, add{ID: "c", N: 1, Charge: true})
	<-reached
	ask(t, n, a, rings{})
	close(release)
	testkit.Eventually(t, "the charge has an outcome", func() bool { _, s := m.row(a); return status(s, "c") != "begun" })
	if r, s := m.row(a); status(s, "c") != "sent" || r.version != 3 {
		t.Errorf("%+v in version %d", s, r.version)
	}
	if loads, commits := m.counts(); loads != 1 || commits != 3 {
		t.Errorf("%d loads, %d commits", loads, commits)
	}
}

// A kind that loads a state where there is no row (Version 0) inserts it later: the new row has version
// 1 and epoch 0, and the activation goes on with them.
func TestARowThatWasNotThereIsInserted(t *testing.T) {
	m, a := newMemory(), address()
	k := toyKind(m, newWorld())
	k.Create = nil
	k.Load = func(ctx context.Context, a cluster.Address) (Loaded[ledger], error) {
		l, err := m.load(ctx, a)
		if errors.Is(err, problem.NotFound("")) {
			return Loaded[ledger]{}, nil
		}
		return l, err
	}
	n := node(t, host(k, m, Config{}))
	ask(t, n, a, rings{})
	ask(t, n, a, open{N: 3})
	ask(t, n, a, add{ID: "c", N: 1, Charge: true})
	testkit.Eventually(t, "the charge has an outcome", func() bool { _, s := m.row(a); return status(s, "c") != "begun" })
	if r, s := m.row(a); status(s, "c") != "sent" || r.version != 3 || r.epoch != 1 {
		t.Errorf("%+v in %+v", s, r)
	}
	if loads, _ := m.counts(); loads != 1 {
		t.Errorf("%d loads", loads)
	}
}

func TestCreateTwiceIsAnsweredAsTheFirstTime(t *testing.T) {
	m, a := newMemory(), address()
	m.put(a, ledger{Count: 9, Orders: []order{}})
	n := node(t, host(toyKind(m, newWorld()), m, Config{}))
	if got := ask(t, n, a, open{N: 3}); got != total(9) {
		t.Fatalf("got %v", got)
	}
}

func TestCreateRefusedByTheDatabaseEndsWithTheCause(t *testing.T) {
	m, a := newMemory(), address()
	m.set(func() (error, bool) { return journal.ErrRefused, false })
	n := node(t, host(toyKind(m, newWorld()), m, Config{}))
	if _, err := n.Ask(t.Context(), a, open{N: 3}); !errors.Is(err, journal.ErrRefused) {
		t.Fatalf("err = %v", err)
	}
	testkit.Eventually(t, "it leaves", func() bool { return !n.Active(a) })
}

func TestCreateToldWithoutStorageComesAgain(t *testing.T) {
	m, a := newMemory(), address()
	var left atomic.Int32
	left.Store(3)
	m.set(func() (error, bool) {
		if left.Add(-1) >= 0 {
			return journal.ErrUnavailable, false
		}
		return nil, true
	})
	n := node(t, host(toyKind(m, newWorld()), m, Config{}))
	n.Tell(a, open{N: 3})
	testkit.Eventually(t, "created", func() bool { r, s := m.row(a); return r.version == 1 && s.Count == 3 })
}

func TestSeed(t *testing.T) {
	seeding := func(m *memory, w *world, l Loaded[ledger]) Kind[ledger] {
		k := toyKind(m, w)
		k.Seed = func(_ cluster.Address, m any) (Loaded[ledger], bool) { _, ok := m.(add); return l, ok }
		return k
	}
	t.Run("a seeded activation starts without a read", func(t *testing.T) {
		m, a := newMemory(), address()
		m.put(a, ledger{Count: 1, Orders: []order{}})
		n := node(t, host(seeding(m, newWorld(), Loaded[ledger]{State: ledger{Count: 1}, Guard: journal.Guard{Version: 1}}), m, Config{}))
		if got := ask(t, n, a, add{ID: "x", N: 1}); got != total(2) {
			t.Fatalf("got %v", got)
		}
		if loads, _ := m.counts(); loads != 0 {
			t.Fatalf("%d reads", loads)
		}
	})
	t.Run("an old seed is replaced by a read", func(t *testing.T) {
		m, a := newMemory(), address()
		m.put(a, ledger{Count: 1, Orders: []order{}})
		m.put(a, ledger{Count: 5, Orders: []order{{ID: "x", N: 4, Status: "sent"}}})
		n := node(t, host(seeding(m, newWorld(), Loaded[ledger]{State: ledger{Count: 1}, Guard: journal.Guard{Version: 1}}), m, Config{}))
		if got := ask(t, n, a, add{ID: "x", N: 4}); got != total(5) {
			t.Fatalf("got %v", got)
		}
	})
}

// TestWhatACommitEndsWith is the table of doc.go.
func TestWhatACommitEndsWith(t *testing.T) {
	unavailable := problem.New(problem.CodeUnavailable, "")
	for _, row := range []struct {
		name    string
		fault   error
		written bool
		want    error
		retry   bool // UNAVAILABLE carries Retry-After
		stays   bool // the activation stays
	}{
		{"a replayed key is replied as it is, state unchanged", journal.ErrReplay, false, journal.ErrReplay, false, true},
		{"no storage is UNAVAILABLE with Retry-After", journal.ErrUnavailable, false, unavailable, true, false},
		{"withdrawn new work is UNAVAILABLE with Retry-After, state unchanged", journal.ErrWithdrawn, false, unavailable, true, true},
		{"an open outcome is UNAVAILABLE with Retry-After", journal.ErrUnsettled, true, unavailable, true, false},
		{"a fenced process answers UNAVAILABLE", journal.ErrFenced, false, unavailable, true, false},
		{"an unknown failure answers UNAVAILABLE", errors.New("disk on fire"), false, unavailable, true, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			m, a := newMemory(), address()
			m.put(a, ledger{Orders: []order{}})
			n := node(t, host(toyKind(m, newWorld()), m, Config{}))
			ask(t, n, a, sum{})
			m.set(func() (error, bool) { return row.fault, row.written })
			_, err := n.Ask(t.Context(), a, add{ID: "x", N: 1})
			if !errors.Is(err, row.want) {
				t.Fatalf("err = %v", err)
			}
			var p *problem.Error
			if row.retry && (!errors.As(err, &p) || p.RetryAfter <= 0) {
				t.Fatalf("no Retry-After in %v", err)
			}
			if row.stays {
				if !n.Active(a) {
					t.Fatal("the activation ended")
				}
			} else {
				testkit.Eventually(t, "the activation ends", func() bool { return !n.Active(a) })
			}
			m.set(nil)
			if got := ask(t, n, a, add{ID: "x", N: 1}); got != total(1) {
				t.Fatalf("asked again: %v", got)
			}
			if _, s := m.row(a); s.Count != 1 {
				t.Fatalf("counted %d", s.Count)
			}
		})
	}
}

// The writer is told until when the asker waits, so that it does not send what would come
// too late.
func TestTheAskersDeadlineReachesTheWriter(t *testing.T) {
	m, a := newMemory(), address()
	m.put(a, ledger{Orders: []order{}})
	got := make(chan time.Time, 1)
	k := toyKind(m, newWorld())
	var adds sync.Map // the commits of orders
	rows := k.Rows
	k.Rows = func(a cluster.Address, prev Loaded[ledger], d Decision[ledger], msg any, op id.OpID, now time.Time) *journal.Commit {
		c := rows(a, prev, d, msg, op, now)
		if _, ok := msg.(add); ok {
			adds.Store(c, true)
		}
		return c
	}
	n := node(t, host(k, writerFunc(func(ctx context.Context, c *journal.Commit) error {
		if _, ok := adds.Load(c); ok {
			got <- c.Until
		}
		return m.Do(ctx, c)
	}), Config{}))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := n.Ask(ctx, a, add{ID: "x", N: 1}); err != nil {
		t.Fatal(err)
	}
	if want, _ := ctx.Deadline(); !(<-got).Equal(want) {
		t.Error("the context's deadline did not arrive")
	}
	before := time.Now()
	if _, err := n.Ask(t.Context(), a, add{ID: "y", N: 1}); err != nil {
		t.Fatal(err)
	}
	if until := <-got; until.Before(before.Add(cluster.DefaultTimeout)) || until.After(time.Now().Add(cluster.DefaultTimeout)) {
		t.Errorf("without a deadline: %v", until.Sub(before))
	}
	n.Receive(a, add{ID: "z", N: 1}, before.Add(time.Hour), func(any) {})
	if until := <-got; !until.Equal(before.Add(time.Hour)) {
		t.Errorf("of an asker on another node: %v", until.Sub(before))
	}
	n.Tell(a, add{ID: "v", N: 1})
	if until := <-got; !until.IsZero() {
		t.Errorf("of what was told: %v", until)
	}
}

// A machine's question is answered outside of the mailbox: the actor goes on meanwhile, and
// the message is decided on with the answer, by its asker's deadline.
func TestAQuestionIsReadOutsideOfTheMailbox(t *testing.T) {
	m, a := newMemory(), address()
	m.put(a, ledger{Orders: []order{}})
	asked, answer := make(chan any, 8), make(chan any)
	k := toyKind(m, newWorld())
	k.Read = func(ctx context.Context, at cluster.Address, q any) (any, error) {
		if _, ok := ctx.Deadline(); !ok || at != a {
			t.Errorf("%v without a deadline", at)
		}
		asked <- q
		select {
		case v := <-answer:
			if err, ok := v.(error); ok {
				return nil, err
			}
			if v == any("panic") {
				panic("the test says so")
			}
			return v, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	n := node(t, host(k, m, Config{}))
	type result struct {
		v   any
		err error
	}
	begin := func(ctx context.Context, id string) chan result {
		done := make(chan result, 1)
		go func() {
			v, err := n.Ask(ctx, a, priced{ID: id})
			done <- result{v, err}
		}()
		if q := <-asked; q != any(price{id}) {
			t.Errorf("asked %v", q)
		}
		return done
	}
	first := begin(t.Context(), "x")
	if got := ask(t, n, a, add{ID: "y", N: 1}); got != total(1) { // while the question is open
		t.Fatal(got)
	}
	answer <- int64(5)
	if got := <-first; got.err != nil || got.v != any(total(6)) {
		t.Fatalf("%+v", got)
	}
	for name, row := range map[string]struct {
		answer any
		want   error
	}{
		"a refusal":  {problem.Invalid("id", "unknown"), problem.New(problem.CodeValidation, "")},
		"no storage": {errors.New("down"), problem.New(problem.CodeUnavailable, "")},
		"a panic":    {"panic", problem.New(problem.CodeUnavailable, "")},
	} {
		done := begin(t.Context(), name)
		answer <- row.answer
		if got := <-done; !errors.Is(got.err, row.want) {
			t.Errorf("%s: %+v", name, got)
		}
	}
	ctx, leave := context.WithTimeout(t.Context(), time.Second)
	defer leave()
	if got := <-begin(ctx, "late"); got.err == nil {
		t.Errorf("after the asker's deadline: %+v", got)
	}
	if _, s := m.row(a); s.Count != 6 {
		t.Errorf("counted %d", s.Count)
	}
	// What was told is decided on as well, also after an answer that could not be had.
	n.Tell(a, priced{ID: "told"})
	<-asked
	answer <- errors.New("down")
	if q := <-asked; q != any(price{"told"}) {
		t.Errorf("asked %v", q)
	}
	answer <- int64(4)
	testkit.Eventually(t, "the told message counts", func() bool { _, s := m.row(a); return s.Count == 10 })
}

// An activation that ends while a question is open hands the message to the next one, which
// asks anew.
func TestAQuestionOutlivesItsActivation(t *testing.T) {
	m, a := newMemory(), address()
	m.put(a, ledger{Orders: []order{}})
	asked, answer := make(chan struct{}), make(chan int64, 1)
	k := toyKind(m, newWorld())
	k.Read = func(ctx context.Context, _ cluster.Address, _ any) (any, error) {
		asked <- struct{}{}
		select {
		case v := <-answer:
			return v, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	n := node(t, host(k, m, Config{}))
	done := make(chan error, 1)
	go func() {
		v, err := n.Ask(t.Context(), a, priced{ID: "x"})
		if err == nil && v != any(total(7)) {
			err = fmt.Errorf("replied %v", v)
		}
		done <- err
	}()
	<-asked
	if _, err := n.Ask(t.Context(), a, boom{}); !errors.Is(err, cluster.ErrPanicked) {
		t.Fatal(err)
	}
	<-asked
	answer <- 7
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A decision without rows is remembered, and nothing is written; the next swap is of the
// row as it is.
func TestWhatIsOnlyRemembered(t *testing.T) {
	m, a := newMemory(), address()
	m.put(a, ledger{Count: 2, Orders: []order{{ID: "x", N: 2, Status: "sent"}}})
	k := toyKind(m, newWorld())
	k.Idle = time.Minute
	rows := k.Rows
	k.Rows = func(a cluster.Address, prev Loaded[ledger], d Decision[ledger], msg any, op id.OpID, now time.Time) *journal.Commit {
		if _, ok := msg.(drops); ok {
			return nil
		}
		return rows(a, prev, d, msg, op, now)
	}
	n := node(t, host(k, m, Config{}))
	status := func() string { _, s := m.row(a); return s.Orders[0].Status }
	if got := ask(t, n, a, drops{ID: "x"}); got != total(2) || status() != "sent" {
		t.Fatal(got, status())
	}
	if got := ask(t, n, a, add{ID: "y", N: 1}); got != total(3) || status() != "failed" {
		t.Fatal(got, status())
	}
}

// An order whose entity another activation has made is answered as then.
func TestARepeatedOrder(t *testing.T) {
	m, a := newMemory(), address()
	m.put(a, ledger{Count: 3, Orders: []order{}})
	m.set(func() (error, bool) { return journal.ErrExists, false })
	n := node(t, host(toyKind(m, newWorld()), m, Config{}))
	if got := ask(t, n, a, add{ID: "x", N: 1}); got != total(3) {
		t.Error(got)
	}
	m.put(a, ledger{Count: 4, Orders: []order{}})
	if _, err := n.Ask(t.Context(), a, quirk{}); err == nil {
		t.Error("a machine that changes something on a repeated order is answered")
	}
}

// A used key is replied, and the activation goes on.
func TestAUsedKeyIsReplied(t *testing.T) {
	m, a := newMemory(), address()
	m.put(a, ledger{Orders: []order{}})
	k := toyKind(m, newWorld())
	k.Idle = time.Minute
	n := node(t, host(k, m, Config{}))
	ask(t, n, a, add{ID: "x", N: 1})
	m.set(func() (error, bool) { return journal.ErrReplay, false })
	if _, err := n.Ask(t.Context(), a, add{ID: "y", N: 1}); !errors.Is(err, journal.ErrReplay) {
		t.Error(err)
	}
	m.set(nil)
	if got := ask(t, n, a, add{ID: "z", N: 1}); got != total(2) || m.loads != 1 {
		t.Error(got, m.loads)
	}
}

func TestALostSwapIsAskedAgainAndToldAgain(t *testing.T) {
	m, w, a := newMemory(), newWorld(), address()
	m.put(a, ledger{Orders: []order{}})
	n := node(t, host(toyKind(m, w), m, Config{}))
	ask(t, n, a, sum{})
	m.put(a, ledger{Count: 10, Orders: []order{}}) // another activation
	if got := ask(t, n, a, add{ID: "x", N: 1}); got != total(11) {
		t.Fatalf("got %v", got)
	}
	m.put(a, ledger{Count: 20, Orders: []order{}})
	n.Tell(a, add{ID: "y", N: 1})
	testkit.Eventually(t, "the told message is decided on the new row", func() bool { _, s := m.row(a); return s.Count == 21 })
}

func TestTwoHostsOnOneRowExactlyOneCommits(t *testing.T) {
	m, w, a := newMemory(), newWorld(), address()
	m.put(a, ledger{Orders: []order{}})
	var lost atomic.Int32
	counting := writerFunc(func(ctx context.Context, c *journal.Commit) error {
		err := m.Do(ctx, c)
		if errors.Is(err, journal.ErrConflict) {
			lost.Add(1)
		}
		return err
	})
	one := node(t, host(toyKind(m, w), counting, Config{}))
	two := node(t, host(toyKind(m, w), counting, Config{}))
	ask(t, one, a, sum{})
	ask(t, two, a, sum{})
	var wg sync.WaitGroup
	for i, n := range []*cluster.Node{one, two} {
		wg.Go(func() { ask(t, n, a, add{ID: fmt.Sprint(i), N: 1, Charge: true}) })
	}
	wg.Wait()
	if _, s := m.row(a); lost.Load() == 0 || s.Count != 2 {
		t.Fatalf("%d swaps were lost, count %d", lost.Load(), s.Count)
	}
	if c := w.times(a, "charge:0"); c > 1 {
		t.Fatalf("charged %d times", c)
	}
}

type writerFunc func(context.Context, *journal.Commit) error

func (f writerFunc) Do(ctx context.Context, c *journal.Commit) error { return f(ctx, c) }
func (f writerFunc) Basis() uint64                                   { return 0 }

func TestRefusedRowsAreToldToTheMachineOnce(t *testing.T) {
	m, a := newMemory(), address()
	m.put(a, ledger{Orders: []order{}})
	n := node(t, host(toyKind(m, newWorld()), m, Config{}))
	if got := ask(t, n, a, quirk{}); got != total(1) {
		t.Fatalf("the machine's other decision: %v", got)
	}
	if _, err := n.Ask(t.Context(), a, quirk{Then: problem.Invalid("n", "no")}); !errors.Is(err, problem.New(problem.CodeValidation, "")) {
		t.Fatalf("err = %v", err)
	}
	testkit.Eventually(t, "it ends", func() bool { return !n.Active(a) })
	m.set(func() (error, bool) { return journal.ErrRefused, false })
	if _, err := n.Ask(t.Context(), a, quirk{}); !errors.Is(err, journal.ErrRefused) {
		t.Fatalf("refused twice: %v", err)
	}
	testkit.Eventually(t, "it ends", func() bool { return !n.Active(a) })
}

// The activation that was asked for what the database refuses ends, and what was
// under way with it; the next one comes by itself.
func TestWhatIsOwedBesideRefusedRowsGoesOn(t *testing.T) {
	for _, row := range []struct {
		name string
		send func(n *cluster.Node, a cluster.Address)
	}{
		{"asked", func(n *cluster.Node, a cluster.Address) {
			if _, err := n.Ask(t.Context(), a, quirk{Then: errOrder}); !errors.Is(err, errOrder) {
				t.Errorf("err = %v", err)
			}
		}},
		{"told", func(n *cluster.Node, a cluster.Address) { n.Tell(a, quirk{Then: errOrder}) }},
	} {
		t.Run(row.name, func(t *testing.T) {
			m, w, a := newMemory(), newWorld(), address()
			m.put(a, ledger{Orders: []order{}})
			var first atomic.Bool
			w.gate = func(ctx context.Context, _ string) bool {
				if first.CompareAndSwap(false, true) {
					<-ctx.Done()
				}
				return true
			}
			n := node(t, host(toyKind(m, w), m, Config{}))
			ask(t, n, a, add{ID: "x", N: 1})
			testkit.Eventually(t, "the effect runs", first.Load)
			row.send(n, a)
			testkit.Eventually(t, "it is sent by the next activation", func() bool { _, s := m.row(a); return status(s, "x") == "sent" })
		})
	}
}

func TestAnErrorOfTheMachineIsRepliedAndChangesNothing(t *testing.T) {
	m, a := newMemory(), address()
	m.put(a, ledger{Count: 1, Orders: []order{}})
	n := node(t, host(toyKind(m, newWorld()), m, Config{}))
	if _, err := n.Ask(t.Context(), a, add{ID: "x", N: -1}); !errors.Is(err, problem.New(problem.CodeValidation, "")) {
		t.Fatalf("err = %v", err)
	}
	if _, commits := m.counts(); commits != 0 || !n.Active(a) {
		t.Fatal("something changed")
	}
}

func TestStorageOutageAtLoadLosesNoToldMessage(t *testing.T) {
	m, a := newMemory(), address()
	m.put(a, ledger{Orders: []order{}})
	var down atomic.Bool
	down.Store(true)
	m.loadErr = func() error {
		if down.Load() {
			return errors.New("connection refused")
		}
		return nil
	}
	n := node(t, host(toyKind(m, newWorld()), m, Config{}))
	for i := range 20 {
		n.Tell(a, add{ID: fmt.Sprint(i), N: 1})
	}
	if _, err := n.Ask(t.Context(), a, sum{}); !errors.Is(err, problem.New(problem.CodeUnavailable, "")) {
		t.Fatalf("err = %v", err)
	}
	down.Store(false)
	testkit.Eventually(t, "all are counted", func() bool { _, s := m.row(a); return s.Count == 20 })
}

// A row that cannot be read is loaded once per pause, however often the sweep has sent its messages.
func TestARowThatCannotBeReadIsLoadedOncePerPause(t *testing.T) {
	for name, m := range map[string]any{"wake": Wake{}, "timer": TimerDue{Name: "t"}, "proceed": msg.Proceed{}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, a := newMemory(), address()
				store.loadErr = func() error { return errors.New("a block cannot be read") }
				n := node(t, host(toyKind(store, newWorld()), store, Config{}))
				for range 20 {
					n.Tell(a, m)
					time.Sleep(lastPause)
				}
				before, _ := store.counts()
				time.Sleep(12 * lastPause)
				if loads, _ := store.counts(); loads-before < 11 || loads-before > 13 {
					t.Errorf("loaded %d times in 12 pauses", loads-before)
				}
			})
		})
	}
}

func TestEffectsOfAnActivationThatLostStorageAreOwedAgain(t *testing.T) {
	m, w, a := newMemory(), newWorld(), address()
	m.put(a, ledger{Orders: []order{}})
	n := node(t, host(toyKind(m, w), m, Config{}))
	var commits atomic.Int32
	m.set(func() (error, bool) { // the order is stored, its result is not, twice
		if c := commits.Add(1); c == 2 || c == 3 {
			return journal.ErrUnavailable, false
		}
		return nil, true
	})
	ask(t, n, a, add{ID: "x", N: 1})
	testkit.Eventually(t, "nobody asks, and yet it is sent", func() bool { _, s := m.row(a); return status(s, "x") == "sent" })
	if w.times(a, "send:x") < 2 {
		t.Fatalf("performed %d times", w.times(a, "send:x"))
	}
}

func TestWhatIsNoLongerOwedIsCancelled(t *testing.T) {
	m, w, a := newMemory(), newWorld(), address()
	m.put(a, ledger{Orders: []order{}})
	cancelled, began := make(chan string, 2), make(chan struct{}, 2)
	w.gate = func(ctx context.Context, key string) bool {
		began <- struct{}{}
		<-ctx.Done()
		cancelled <- key
		return true
	}
	n := node(t, host(toyKind(m, w), m, Config{}))
	for _, o := range []string{"x", "y"} {
		ask(t, n, a, add{ID: o, N: 1})
		<-began
	}
	for _, o := range []string{"x", "y"} { // one of several, then the last one
		ask(t, n, a, drops{ID: o})
		if key := <-cancelled; key != "send:"+o {
			t.Fatalf("%s was cancelled instead of %s", key, o)
		}
	}
	ask(t, n, a, sum{})
	if _, s := m.row(a); status(s, "x") != "failed" || status(s, "y") != "failed" {
		t.Fatalf("%+v", s)
	}
}

func TestAResultThatIsNoLongerWantedWhenItsTurnComesIsDropped(t *testing.T) {
	m, w, a := newMemory(), newWorld(), address()
	m.put(a, ledger{Orders: []order{}})
	var slow atomic.Bool
	committing, commit, effect := make(chan struct{}), make(chan struct{}), make(chan struct{})
	w.gate = func(context.Context, string) bool { <-effect; return true }
	behind := writerFunc(func(ctx context.Context, c *journal.Commit) error {
		if c.Rows[0].(*toyRow).ID == a.ID && slow.Load() {
			committing <- struct{}{}
			<-commit
		}
		return m.Do(ctx, c)
	})
	n := node(t, host(toyKind(m, w), behind, Config{MaxEffects: 1}))
	ask(t, n, a, add{ID: "x", N: 1})
	slow.Store(true)
	n.Tell(a, drops{ID: "x"})
	<-committing
	close(effect) // the result lies in the mailbox, behind the order to drop it
	second := address()
	m.put(second, ledger{Orders: []order{{ID: "next", Status: "owed"}}})
	n.Tell(second, sum{}) // its effect runs when the first one has sent its result
	testkit.Eventually(t, "the first effect is over", func() bool { return w.times(second, "send:next") == 1 })
	slow.Store(false)
	commit <- struct{}{}
	ask(t, n, a, sum{})
	ask(t, n, a, sum{})
	if _, s := m.row(a); status(s, "x") != "failed" {
		t.Fatalf("%+v", s)
	}
}

func TestAPanickingEffectIsAResult(t *testing.T) {
	m, w, a := newMemory(), newWorld(), address()
	m.put(a, ledger{Orders: []order{}})
	w.gate = func(context.Context, string) bool { panic("boom") }
	n := node(t, host(toyKind(m, w), m, Config{}))
	ask(t, n, a, add{ID: "x", N: 1})
	testkit.Eventually(t, "the machine hears of it", func() bool { _, s := m.row(a); return status(s, "x") == "failed" })
}

func TestAPanickingMachineEndsItsActivationAndWhatIsOwedGoesOn(t *testing.T) {
	m, w, a := newMemory(), newWorld(), address()
	m.put(a, ledger{Orders: []order{}})
	var first atomic.Bool
	w.gate = func(ctx context.Context, _ string) bool {
		if first.CompareAndSwap(false, true) {
			<-ctx.Done()
		}
		return true
	}
	n := node(t, host(toyKind(m, w), m, Config{}))
	ask(t, n, a, add{ID: "x", N: 1})
	testkit.Eventually(t, "the effect runs", first.Load)
	if _, err := n.Ask(t.Context(), a, boom{}); !errors.Is(err, cluster.ErrPanicked) {
		t.Fatalf("err = %v", err)
	}
	testkit.Eventually(t, "it is sent by the next activation", func() bool { _, s := m.row(a); return status(s, "x") == "sent" })
}

func TestEffectsAreBoundedAndAllRun(t *testing.T) {
	m, w := newMemory(), newWorld()
	var now, peak atomic.Int32
	hold := make(chan struct{})
	w.gate = func(context.Context, string) bool {
		for c := now.Add(1); ; {
			if p := peak.Load(); c <= p || peak.CompareAndSwap(p, c) {
				break
			}
		}
		<-hold
		now.Add(-1)
		return true
	}
	n := node(t, host(toyKind(m, w), m, Config{MaxEffects: 3}))
	addrs := make([]cluster.Address, 20)
	for i := range addrs {
		addrs[i] = address()
		m.put(addrs[i], ledger{Orders: []order{}})
		ask(t, n, addrs[i], add{ID: "x", N: 1})
	}
	testkit.Eventually(t, "three run", func() bool { return now.Load() == 3 })
	close(hold)
	for _, a := range addrs {
		testkit.Eventually(t, "all are sent", func() bool { _, s := m.row(a); return status(s, "x") == "sent" })
	}
	if peak.Load() != 3 {
		t.Fatalf("%d at a time", peak.Load())
	}
}

// An effect that finds no place in time ends without having begun, also if a place comes free in that moment.
func TestAnEffectThatIsTooLateForItsPlace(t *testing.T) {
	m, w, first, second := newMemory(), newWorld(), address(), address()
	hold := make(chan struct{})
	w.gate = func(context.Context, string) bool { <-hold; return true }
	k := toyKind(m, w)
	by := time.Now().Add(20 * time.Millisecond)
	k.Late = func(e Effect) (time.Time, any) { return by, drops{ID: e.(send).ID} }
	n := node(t, host(k, m, Config{MaxEffects: 1}))
	m.put(first, ledger{Orders: []order{}})
	m.put(second, ledger{Orders: []order{}})
	ask(t, n, first, add{ID: "x", N: 1})
	testkit.Eventually(t, "the place is taken", func() bool { return w.times(first, "send:x") == 1 })
	ask(t, n, second, add{ID: "y", N: 1})
	testkit.Eventually(t, "the machine hears that it is late", func() bool { _, s := m.row(second); return status(s, "y") == "failed" })
	close(hold)
	testkit.Eventually(t, "what has its place is not late", func() bool { _, s := m.row(first); return status(s, "x") == "sent" })
	ask(t, n, second, sum{})
	if w.times(second, "send:y") != 0 {
		t.Error("it was begun")
	}
}

func TestLeavingMemory(t *testing.T) {
	for _, row := range []struct {
		name string
		kind func(*Kind[ledger])
		end  bool
	}{
		{"idle over: leaves", func(k *Kind[ledger]) { k.Idle = 20 * time.Millisecond }, true},
		{"no idle time: leaves at once", func(k *Kind[ledger]) { k.Idle = 0 }, true},
		{"done: leaves at once", func(k *Kind[ledger]) { k.Done = func(ledger) bool { return true } }, true},
		{"not done, not idle: stays", func(k *Kind[ledger]) { k.Done = func(ledger) bool { return false } }, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			m, w, a := newMemory(), newWorld(), address()
			m.put(a, ledger{Orders: []order{}})
			k := toyKind(m, w)
			hold, began := make(chan struct{}), make(chan struct{})
			w.gate = func(context.Context, string) bool { close(began); <-hold; return true }
			row.kind(&k)
			n := node(t, host(k, m, Config{}))
			ask(t, n, a, add{ID: "x", N: 1})
			<-began
			ask(t, n, a, sum{})
			checked := make(chan struct{})
			n.After(60*time.Millisecond, func() { close(checked) })
			<-checked
			if !n.Active(a) {
				t.Fatal("it left while something was owed")
			}
			close(hold)
			testkit.Eventually(t, "sent", func() bool { _, s := m.row(a); return status(s, "x") == "sent" })
			if row.end {
				testkit.Eventually(t, "it leaves", func() bool { return !n.Active(a) })
				return
			}
			ask(t, n, a, sum{})
			if !n.Active(a) {
				t.Fatal("it left")
			}
		})
	}
}

func TestMessagesKeepAnActivationFromIdling(t *testing.T) {
	m, a := newMemory(), address()
	m.put(a, ledger{Orders: []order{}})
	k := toyKind(m, newWorld())
	k.Idle = time.Hour
	var shift atomic.Int64
	began := time.Now()
	n := node(t, host(k, m, Config{Now: func() time.Time { return began.Add(time.Duration(shift.Load())) }}))
	ask(t, n, a, sum{})
	shift.Store(int64(50 * time.Minute))
	ask(t, n, a, sum{})
	shift.Store(int64(70 * time.Minute))
	n.Send(a, idleCheck{})
	ask(t, n, a, sum{})
	if loads, _ := m.counts(); loads != 1 {
		t.Fatal("it left 20 minutes after a message")
	}
	shift.Store(int64(140 * time.Minute))
	n.Send(a, idleCheck{})
	testkit.Eventually(t, "it leaves an hour after the last message", func() bool { return !n.Active(a) })
}

func TestAfterSeesCommittedChangesOnlyAndBeforeTheReplyIsForgotten(t *testing.T) {
	m, w, a := newMemory(), newWorld(), address()
	m.put(a, ledger{Orders: []order{}})
	k := toyKind(m, w)
	seen := make(chan int64, 8)
	k.After = func(_ cluster.Address, prev, next ledger, _ Decision[ledger]) { seen <- next.Count - prev.Count }
	n := node(t, host(k, m, Config{}))
	ask(t, n, a, sum{})
	m.set(func() (error, bool) { return journal.ErrUnavailable, false })
	if _, err := n.Ask(t.Context(), a, add{ID: "x", N: 5, Charge: true}); err == nil {
		t.Fatal("committed")
	}
	m.set(nil)
	ask(t, n, a, add{ID: "y", N: 2, Charge: true})
	if got := <-seen; got != 2 {
		t.Fatalf("published %d", got)
	}
}

func TestStopOfTheNodeCancelsEffectsAndWaitsForThem(t *testing.T) {
	m, w, a := newMemory(), newWorld(), address()
	m.put(a, ledger{Orders: []order{}})
	var over atomic.Bool
	began := make(chan struct{})
	w.gate = func(ctx context.Context, _ string) bool { close(began); <-ctx.Done(); over.Store(true); return true }
	n := cluster.New(cluster.Config{Member: id.MemberID{UUID: id.NewAnywhere()}})
	Register(n, m, toyKind(m, w), Config{})
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	ask(t, n, a, add{ID: "x", N: 1})
	<-began
	testkit.Stop(t, n.Stop)
	if !over.Load() {
		t.Fatal("Stop did not wait")
	}
	w.gate = nil
	next := node(t, host(toyKind(m, w), m, Config{}))
	ask(t, next, a, sum{})
	testkit.Eventually(t, "the next process sends it", func() bool { _, s := m.row(a); return status(s, "x") == "sent" })
}

func TestThousandAsksToAHundredActorsWithRandomPassivation(t *testing.T) {
	m, w := newMemory(), newWorld()
	k := toyKind(m, w)
	k.Done = func(ledger) bool { return rand.IntN(3) == 0 }
	n := node(t, host(k, m, Config{}))
	addrs := make([]cluster.Address, 100)
	for i := range addrs {
		addrs[i] = address()
		m.put(addrs[i], ledger{Orders: []order{}})
	}
	// The deadline is for a lost message, not for a busy machine.
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	for g := range 1000 {
		wg.Go(func() {
			for i := range 4 {
				if _, err := n.Ask(ctx, addrs[(g*4+i)%100], add{ID: fmt.Sprint(g), N: 1}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	for _, a := range addrs {
		testkit.Eventually(t, "all is sent", func() bool {
			_, s := m.row(a)
			for _, o := range s.Orders {
				if o.Status != "sent" {
					return false
				}
			}
			return s.Count == 40 && len(s.Orders) == 40
		})
	}
}

func TestIdleMemory(t *testing.T) {
	m := newMemory()
	n := node(t, host(toyKind(m, newWorld()), m, Config{}))
	const count = 20_000
	tenant := address().Tenant
	addrs := make([]cluster.Address, count)
	for i := range addrs {
		addrs[i] = cluster.Address{Kind: "toy", Tenant: tenant, ID: id.NewAnywhere()}
		m.put(addrs[i], ledger{})
	}
	before := liveBytes()
	for _, a := range addrs {
		ask(t, n, a, sum{})
	}
	per := (liveBytes() - before) / count
	t.Logf("%d bytes per idle activation", per)
	if per > 2048 {
		t.Fatalf("%d bytes per idle activation", per)
	}
	runtime.KeepAlive(addrs)
}

func liveBytes() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// counter is the smallest machine, to measure the host and not the toy.
type counter struct{}

func (counter) Decide(s int64, _ any, _ time.Time) (Decision[int64], error) {
	return Decision[int64]{Next: s + 1, Changed: true, Reply: nil}, nil
}
func (counter) Owed(int64) []Effect { return nil }

func BenchmarkAskDecideCommitReply(b *testing.B) {
	a := address()
	commit := &journal.Commit{}
	n := node(b, func(n *cluster.Node) {
		Register(n, writerFunc(func(context.Context, *journal.Commit) error { return nil }), Kind[int64]{
			Name: "toy", Machine: counter{}, Idle: time.Hour,
			Load: func(context.Context, cluster.Address) (Loaded[int64], error) {
				return Loaded[int64]{Guard: journal.Guard{Version: 1}}, nil
			},
			Rows: func(cluster.Address, Loaded[int64], Decision[int64], any, id.OpID, time.Time) *journal.Commit {
				return commit
			},
		}, Config{})
	})
	b.ReportAllocs()
	for b.Loop() {
		if _, err := n.Ask(context.Background(), a, a); err != nil {
			b.Fatal(err)
		}
	}
}

// An effect does not begin before the one in front of it in the list.
func TestNewEffectsBeginInOrder(t *testing.T) {
	fresh := []*performed[int]{{}, {}, {}, {}}
	inOrder(fresh)
	for i, p := range fresh {
		for j := i + 1; j < len(fresh); j++ {
			select {
			case <-fresh[j].before:
				t.Errorf("effect %d may begin before effect %d", j, i)
			default:
			}
		}
		p.begin() // does not block
	}
}

// forgetful is a writer for which the node has forgotten endpoints since the decision, at its
// next commits.
type forgetful struct {
	*memory
	mu    sync.Mutex
	next  int // commits that are outdated
	now   uint64
	given []uint64
}

func (f *forgetful) Basis() uint64 { f.mu.Lock(); defer f.mu.Unlock(); return f.now }

func (f *forgetful) Do(ctx context.Context, c *journal.Commit) error {
	f.mu.Lock()
	f.given = append(f.given, c.Basis)
	if f.next > 0 {
		f.next--
		f.now++
		f.mu.Unlock()
		return journal.ErrOutdated
	}
	f.mu.Unlock()
	return f.memory.Do(ctx, c)
}

// The rows of a decision are made again, with the new basis, if the node has forgotten what
// they were made on. The machine decides once, and the asker notices nothing.
func TestRowsAreMadeAgainIfTheyAreOutdated(t *testing.T) {
	m, a := newMemory(), address()
	m.put(a, ledger{Orders: []order{}})
	f := &forgetful{memory: m, next: 2, now: 7}
	k, asked := toyKind(m, newWorld()), []uint64(nil)
	rows := k.Rows
	k.Rows = func(a cluster.Address, prev Loaded[ledger], d Decision[ledger], msg any, op id.OpID, now time.Time) *journal.Commit {
		f.mu.Lock()
		asked = append(asked, f.now)
		f.mu.Unlock()
		return rows(a, prev, d, msg, op, now)
	}
	n := node(t, host(k, f, Config{}))
	if got, err := n.Ask(t.Context(), a, add{ID: "x", N: 3}); err != nil || got != total(3) {
		t.Fatal(got, err)
	}
	want := []uint64{7, 8, 9}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.given) < 3 || !slices.Equal(f.given[:3], want) || !slices.Equal(asked[:3], want) {
		t.Errorf("the commits have the bases %v, their rows were made at %v, want %v", f.given, asked, want)
	}
	if _, s := m.row(a); s.Count != 3 {
		t.Errorf("counted %d", s.Count)
	}
}
