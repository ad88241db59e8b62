package slot

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"agentsvc/cluster"
	"agentsvc/cluster/clustertest"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/testkit"
)

// pool is Postgres for slots and the runs of all nodes.
type pool struct {
	mu      sync.Mutex
	running map[id.RunID]bool
	ended   map[id.RunID]bool
	most    int
	started chan id.RunID
}

func (p *pool) Running(context.Context, id.TenantID) ([]id.RunID, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var runs []id.RunID
	for r := range p.running {
		runs = append(runs, r)
	}
	return runs, nil
}

// start is what a run does when it is granted a slot.
func (p *pool) start(run id.RunID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.running[run] && !p.ended[run] { // a second grant changes nothing
		p.running[run] = true
		p.most = max(p.most, len(p.running))
		p.started <- run
	}
}

func (p *pool) end(run id.RunID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.running, run)
	p.ended[run] = true
}

type poolRun struct {
	*pool
	run id.RunID
}

func (r poolRun) Receive(_ cluster.Context, m any) {
	if _, ok := m.(msg.SlotGranted); ok {
		r.start(r.run)
	}
}

func (poolRun) Stopped() {}

// Two nodes, and a third one that has the slots and dies: at most two runs run at a time, the
// oldest first, though every second told message is lost, and no run waits for ever.
func TestSlotsOverNodes(t *testing.T) {
	t.Parallel()
	f, p := clustertest.NewFabric(codec()), &pool{running: map[id.RunID]bool{}, ended: map[id.RunID]bool{}, started: make(chan id.RunID, 100)}
	queues := map[id.MemberID]*Queue{}
	join := func() *cluster.Node {
		return f.Join(t, func(n *cluster.Node) {
			n.Register(Kind, New(Config{Limit: 2, Running: p, Now: time.Now, Log: zerolog.Nop()}))
			n.Register(msg.KindRun, func(a cluster.Address) cluster.Behavior { return poolRun{p, id.RunID{UUID: a.ID}} })
			q := NewQueue(n)
			queues[n.Member()] = q
			n.OnChange(q.Changed)
			if err := q.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(q.Stop)
		})
	}
	a, b, c := join(), join(), join()
	f.Know(t)
	who := tenant()
	for !c.Owns(who.UUID.Shard()) {
		who = tenant()
	}
	words := 0
	f.Lose(func(any) bool { words++; return words%2 == 0 })
	var runs []id.RunID // in turn on a and b
	for i := range 8 {
		n := []*cluster.Node{a, b}[i%2]
		run := id.RunID{UUID: id.New(n.MintShard())}
		runs = append(runs, run)
		queues[n.Member()].Acquire(who, msg.AcquireSlot{Run: run, CreatedAt: epoch.Add(time.Duration(i) * time.Second)})
	}
	next := func() id.RunID {
		t.Helper()
		select {
		case run := <-p.started:
			return run
		case <-time.After(time.Minute):
			t.Fatal("nobody runs")
			return id.RunID{}
		}
	}
	finish := func(run id.RunID) {
		p.end(run)
		n := []*cluster.Node{a, b}[slices.Index(runs, run)%2]
		queues[n.Member()].Release(who, msg.ReleaseSlot{Run: run})
	}
	first, second := next(), next()
	f.Kill(c)
	f.Know(t)
	finish(first)
	finish(second)
	ended := map[id.RunID]bool{first: true, second: true}
	for len(ended) < len(runs) {
		run := next()
		if ended[run] {
			t.Errorf("%v runs again", run)
		}
		// Beside it at most one older run has its slot and has not started yet: its grant was lost.
		older := 0
		for _, r := range runs[:slices.Index(runs, run)] {
			if !ended[r] {
				older++
			}
		}
		if older > 1 {
			t.Errorf("%v runs before %d older ones", run, older)
		}
		ended[run] = true
		finish(run)
	}
	if p.most > 2 {
		t.Errorf("%d ran at a time", p.most)
	}
	for _, q := range queues {
		testkit.Eventually(t, "nothing is repeated any more", func() bool {
			q.mu.Lock()
			defer q.mu.Unlock()
			return len(q.tenants) == 0 || q == queues[c.Member()]
		})
	}
}

// Runs that a former owner of the slots granted are running, or have lost their slots, before
// others are granted theirs.
func TestSlotsThatMoveWaitForWhoWasGranted(t *testing.T) {
	f, p := clustertest.NewFabric(codec()), &pool{running: map[id.RunID]bool{}, ended: map[id.RunID]bool{}, started: make(chan id.RunID, 100)}
	read := make(chan struct{}, 100)
	rows := reads{p, read}
	register := func(n *cluster.Node) {
		n.Register(Kind, New(Config{Limit: 1, Running: rows, Now: time.Now, Log: zerolog.Nop()}))
		n.Register(msg.KindRun, func(a cluster.Address) cluster.Behavior { return poolRun{p, id.RunID{UUID: a.ID}} })
	}
	a, b := f.Join(t, register), f.Join(t, register)
	f.Know(t)
	who := tenant()
	for !a.Owns(who.UUID.Shard()) {
		who = tenant()
	}
	late, waits := id.RunID{UUID: id.New(b.MintShard())}, id.RunID{UUID: id.New(b.MintShard())}
	b.Tell(Address(who), msg.AcquireSlot{Run: waits})
	<-read
	p.start(late) // the former owner had granted it
	<-read
	<-p.started
	p.end(late)
	b.Tell(Address(who), msg.ReleaseSlot{Run: late})
	if got := <-p.started; got != waits || p.most != 1 {
		t.Errorf("%v runs, %d at a time", got, p.most)
	}
}

// A run that continues is counted, also if the message was lost.
func TestALostTakeIsNoticed(t *testing.T) {
	t.Parallel()
	f, p := clustertest.NewFabric(codec()), &pool{running: map[id.RunID]bool{}, ended: map[id.RunID]bool{}, started: make(chan id.RunID, 100)}
	read, queues := make(chan struct{}, 100), map[id.MemberID]*Queue{}
	register := func(n *cluster.Node) {
		n.Register(Kind, New(Config{Limit: 1, Running: reads{p, read}, Now: time.Now, Log: zerolog.Nop()}))
		n.Register(msg.KindRun, func(a cluster.Address) cluster.Behavior { return poolRun{p, id.RunID{UUID: a.ID}} })
		q := NewQueue(n)
		queues[n.Member()] = q
		if err := q.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(q.Stop)
	}
	a, b := f.Join(t, register), f.Join(t, register)
	f.Know(t)
	who, q := tenant(), queues[b.Member()]
	for !a.Owns(who.UUID.Shard()) {
		who = tenant()
	}
	run := func() id.RunID { return id.RunID{UUID: id.New(b.MintShard())} }
	silent := func() bool {
		q.mu.Lock()
		defer q.mu.Unlock()
		return len(q.tenants) == 0
	}
	first, resumed, next := run(), run(), run()
	q.Acquire(who, msg.AcquireSlot{Run: first})
	<-p.started
	p.end(first)
	q.Release(who, msg.ReleaseSlot{Run: first})
	for range 3 { // two before the first grant, and one after it
		<-read
	}
	testkit.Eventually(t, "all is heard", silent)
	f.Lose(func(m any) bool { _, takes := m.(msg.TakeSlot); return takes })
	p.start(resumed)
	<-p.started
	q.Take(who, msg.TakeSlot{Run: resumed})
	select {
	case <-read:
	case <-time.After(time.Minute):
		t.Fatal("nobody looks who runs")
	}
	testkit.Eventually(t, "all is heard again", silent)
	testkit.Eventually(t, "it is known to run", func() bool {
		v, err := b.Ask(t.Context(), Address(who), Wishes{Waiting: []msg.AcquireSlot{{Run: resumed}}})
		return err == nil && slices.Equal(v.(Granted).Running, []id.RunID{resumed})
	})
	q.Acquire(who, msg.AcquireSlot{Run: next})
	if _, err := b.Ask(t.Context(), Address(who), Wishes{}); err != nil {
		t.Fatal(err)
	}
	p.end(resumed)
	q.Release(who, msg.ReleaseSlot{Run: resumed})
	if got := <-p.started; got != next || p.most != 1 {
		t.Errorf("%v runs, %d at a time", got, p.most)
	}
}

// reads signals each read.
type reads struct {
	*pool
	done chan struct{}
}

func (r reads) Running(ctx context.Context, t id.TenantID) ([]id.RunID, error) {
	defer func() { r.done <- struct{}{} }()
	return r.pool.Running(ctx, t)
}
