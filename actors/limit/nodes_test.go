package limit

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"agentsvc/cluster"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
)

// fabric joins real nodes: what one says is received by another as it came over
// a wire. What is told may be lost.
type fabric struct {
	codec *msg.Codec

	mu    sync.Mutex // guards the fields below
	nodes map[id.MemberID]*cluster.Node
	lost  func(m any) bool
}

func newFabric() *fabric {
	f := &fabric{codec: msg.NewCodec(), nodes: map[id.MemberID]*cluster.Node{}, lost: func(any) bool { return false }}
	AddTo(f.codec)
	f.codec.AddError("moved", cluster.ErrMoved)
	f.codec.AddError("owner", cluster.ErrNotOwner)
	return f
}

func (f *fabric) node(m id.MemberID) *cluster.Node {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.nodes[m]
}

func (f *fabric) wire(v any) (any, error) {
	name, body, err := f.codec.Encode(v)
	if err != nil {
		return nil, err
	}
	return f.codec.Decode(name, body)
}

func (f *fabric) lose(lost func(m any) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lost = lost
}

// end is a member's end of a fabric.
type end struct {
	*fabric
	self id.MemberID
}

func (e end) Ask(ctx context.Context, to id.MemberID, a cluster.Address, m any) (any, error) {
	n := e.node(to)
	if n == nil {
		return nil, cluster.ErrUnknownMember
	}
	m, err := e.wire(m)
	if err != nil {
		return nil, err
	}
	out := make(chan any, 1)
	until, _ := ctx.Deadline()
	n.Receive(a, m, until, func(v any) { out <- v })
	select {
	case v := <-out:
		if v, err = e.wire(v); err != nil {
			return nil, err
		}
		if err, ok := v.(error); ok {
			return nil, err
		}
		return v, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (e end) Tell(to id.MemberID, a cluster.Address, m any) error {
	n := e.node(to)
	e.mu.Lock()
	lost := e.lost(m)
	e.mu.Unlock()
	if n == nil || lost {
		return nil
	}
	m, err := e.wire(m)
	if err != nil {
		return err
	}
	return n.ReceiveTold(a, m)
}

func (e end) Call(ctx context.Context, to id.MemberID, service string, m any) (any, error) {
	n := e.node(to)
	if n == nil {
		return nil, cluster.ErrUnknownMember
	}
	m, err := e.wire(m)
	if err != nil {
		return nil, err
	}
	v, err := n.Served(ctx, e.self, service, m)
	if err != nil {
		return nil, err
	}
	return e.wire(v)
}

// join adds a node to the fabric, which the others do not know of yet.
func (f *fabric) join(t *testing.T, register func(n *cluster.Node)) *cluster.Node {
	t.Helper()
	self := id.MemberID{UUID: id.NewAnywhere()}
	n := cluster.New(cluster.Config{Member: self, Log: zerolog.Nop(), Peers: end{f, self}})
	register(n)
	startNode(t, n)
	f.mu.Lock()
	f.nodes[self] = n
	f.mu.Unlock()
	return n
}

// kill ends a node without a word.
func (f *fabric) kill(n *cluster.Node) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.nodes, n.Member())
}

// know tells all nodes who is there.
func (f *fabric) know(t *testing.T) {
	t.Helper()
	f.mu.Lock()
	var members []id.MemberID
	for m := range f.nodes {
		members = append(members, m)
	}
	nodes := f.nodes
	f.mu.Unlock()
	for _, m := range members {
		if err := nodes[m].SetMembers(members); err != nil {
			t.Fatal(err)
		}
	}
}

func (f *fabric) members() []id.MemberID {
	f.mu.Lock()
	defer f.mu.Unlock()
	var members []id.MemberID
	for m := range f.nodes {
		members = append(members, m)
	}
	return members
}

// Two real nodes: requests at both get exactly the capacity, also after the
// bucket has moved to a third; those of embed keys what came back meanwhile, too.
// The buckets go by a clock that stands while requests come: nobody who is recalled
// counts as silent, on however busy a machine.
func TestBucketsOnRealNodes(t *testing.T) {
	f, rate := newFabric(), Rate{200, time.Hour}
	var elapsed atomic.Int64 // in nanoseconds
	clock := func() time.Time { return epoch.Add(time.Duration(elapsed.Load())) }
	ledgers := map[id.MemberID]*Ledger{}
	join := func() *cluster.Node {
		return f.join(t, func(n *cluster.Node) {
			k := NewKeeper(KeeperConfig{Kind: msg.KindLimit, Rate: rate, Peers: n, Living: f.members, Now: clock})
			l := NewLedger(LedgerConfig{Node: n, Rate: rate})
			ledgers[n.Member()] = l
			if err := l.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(l.Stop)
			n.RegisterShared(msg.KindLimit, k.Behavior)
			n.Serve(k.Service(), k.Served)
			n.Serve(ServiceRecall, l.Served)
			n.OnChange(k.Changed)
			t.Cleanup(func() { _ = k.Stop(context.Background()) })
		})
	}
	a, b := join(), join()
	f.know(t)
	var who []Bucket
	for range 30 {
		t := tenant()
		who = append(who, Bucket{holder{t, t.UUID}, 0, ScopeTenant}, EmbedKeyMessages(t, embedKey(), 200))
	}
	passed := make([]int, len(who))
	var mu sync.Mutex
	burst := func(nodes ...*cluster.Node) {
		var wg sync.WaitGroup
		for _, n := range nodes {
			for i, bucket := range who {
				wg.Go(func() {
					for range 120 / len(nodes) {
						_, _, ok, err := ledgers[n.Member()].Take(t.Context(), bucket)
						if err != nil {
							t.Error(err)
						}
						if ok {
							mu.Lock()
							passed[i]++
							mu.Unlock()
						}
					}
				})
			}
		}
		wg.Wait()
	}
	burst(a, b)
	c := join()
	f.know(t)
	elapsed.Store(int64(3 * time.Second))
	burst(a, b, c)
	want := map[Scope]int{ScopeTenant: 200, ScopeEmbedKeyMessages: 200 + 3*200/60}
	moved := map[Scope]int{}
	for i, n := range passed {
		if scope := who[i].scope; n != want[scope] {
			t.Errorf("bucket %d of %v: %d passed, want %d", i, scope, n, want[scope])
		}
		if c.Owns(who[i].address().Shard()) {
			moved[who[i].scope]++
		}
	}
	if moved[ScopeTenant] == 0 || moved[ScopeEmbedKeyMessages] == 0 {
		t.Errorf("%v moved: void", moved)
	}
}

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

// start is what a run does that is granted a place.
func (p *pool) start(run id.RunID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.running[run] && !p.ended[run] { // what is granted twice is granted once
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

// Two nodes, and a third that has the slots and dies: at most two run at a time,
// the oldest first, though every second word between nodes is lost, and nobody
// waits for ever.
func TestSlotsOverNodes(t *testing.T) {
	f, p := newFabric(), &pool{running: map[id.RunID]bool{}, ended: map[id.RunID]bool{}, started: make(chan id.RunID, 100)}
	queues := map[id.MemberID]*Queue{}
	join := func() *cluster.Node {
		return f.join(t, func(n *cluster.Node) {
			n.Register(KindSlots, Slots(SlotsConfig{Limit: 2, Running: p, Now: time.Now, Log: zerolog.Nop()}))
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
	f.know(t)
	who := tenant()
	for !c.Owns(who.UUID.Shard()) {
		who = tenant()
	}
	words := 0
	f.lose(func(any) bool { words++; return words%2 == 0 })
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
	f.kill(c)
	f.know(t)
	finish(first)
	finish(second)
	ended := map[id.RunID]bool{first: true, second: true}
	for len(ended) < len(runs) {
		run := next()
		if ended[run] {
			t.Errorf("%v runs again", run)
		}
		ended[run] = true
		finish(run)
	}
	if p.most > 2 {
		t.Errorf("%d ran at a time", p.most)
	}
	for _, q := range queues {
		eventually(t, "nothing is repeated any more", func() bool {
			q.mu.Lock()
			defer q.mu.Unlock()
			return len(q.tenants) == 0 || q == queues[c.Member()]
		})
	}
}

// Whoever was granted a place by slots that lived elsewhere is running, or has
// lost the place, before others are granted theirs.
func TestSlotsThatMoveWaitForWhoWasGranted(t *testing.T) {
	f, p := newFabric(), &pool{running: map[id.RunID]bool{}, ended: map[id.RunID]bool{}, started: make(chan id.RunID, 100)}
	read := make(chan struct{}, 100)
	rows := reads{p, read}
	register := func(n *cluster.Node) {
		n.Register(KindSlots, Slots(SlotsConfig{Limit: 1, Running: rows, Now: time.Now, Log: zerolog.Nop()}))
		n.Register(msg.KindRun, func(a cluster.Address) cluster.Behavior { return poolRun{p, id.RunID{UUID: a.ID}} })
	}
	a, b := f.join(t, register), f.join(t, register)
	f.know(t)
	who := tenant()
	for !a.Owns(who.UUID.Shard()) {
		who = tenant()
	}
	late, waits := id.RunID{UUID: id.New(b.MintShard())}, id.RunID{UUID: id.New(b.MintShard())}
	b.Tell(TenantSlots(who), msg.AcquireSlot{Run: waits})
	<-read
	p.start(late) // the other slots had granted it when these began
	<-read
	<-p.started
	p.end(late)
	b.Tell(TenantSlots(who), msg.ReleaseSlot{Run: late})
	if got := <-p.started; got != waits || p.most != 1 {
		t.Errorf("%v runs, %d at a time", got, p.most)
	}
}

// A run that goes on is counted, also where nobody heard that it does.
func TestALostTakeIsNoticed(t *testing.T) {
	f, p := newFabric(), &pool{running: map[id.RunID]bool{}, ended: map[id.RunID]bool{}, started: make(chan id.RunID, 100)}
	read, queues := make(chan struct{}, 100), map[id.MemberID]*Queue{}
	register := func(n *cluster.Node) {
		n.Register(KindSlots, Slots(SlotsConfig{Limit: 1, Running: reads{p, read}, Now: time.Now, Log: zerolog.Nop()}))
		n.Register(msg.KindRun, func(a cluster.Address) cluster.Behavior { return poolRun{p, id.RunID{UUID: a.ID}} })
		q := NewQueue(n)
		queues[n.Member()] = q
		if err := q.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(q.Stop)
	}
	a, b := f.join(t, register), f.join(t, register)
	f.know(t)
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
	eventually(t, "all is heard", silent)
	f.lose(func(m any) bool { _, takes := m.(msg.TakeSlot); return takes })
	p.start(resumed)
	<-p.started
	q.Take(who, msg.TakeSlot{Run: resumed})
	select {
	case <-read:
	case <-time.After(time.Minute):
		t.Fatal("nobody looks who runs")
	}
	eventually(t, "all is heard again", silent)
	eventually(t, "it is known to run", func() bool {
		v, err := b.Ask(t.Context(), TenantSlots(who), Wishes{Waiting: []msg.AcquireSlot{{Run: resumed}}})
		return err == nil && slices.Equal(v.(Granted).Running, []id.RunID{resumed})
	})
	q.Acquire(who, msg.AcquireSlot{Run: next})
	if _, err := b.Ask(t.Context(), TenantSlots(who), Wishes{}); err != nil {
		t.Fatal(err)
	}
	p.end(resumed)
	q.Release(who, msg.ReleaseSlot{Run: resumed})
	if got := <-p.started; got != next || p.most != 1 {
		t.Errorf("%v runs, %d at a time", got, p.most)
	}
}

// reads says when it was read.
type reads struct {
	*pool
	done chan struct{}
}

func (r reads) Running(ctx context.Context, t id.TenantID) ([]id.RunID, error) {
	defer func() { r.done <- struct{}{} }()
	return r.pool.Running(ctx, t)
}
