package limit

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"agentsvc/cluster"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// clock is what the buckets go by; it moves when the test says so.
type clock struct{ at atomic.Int64 }

func (c *clock) now() time.Time          { return epoch.Add(time.Duration(c.at.Load())) }
func (c *clock) advance(d time.Duration) { c.at.Add(int64(d)) }

// desk is the edge of one node; in these tests all buckets live on one cluster
// node and several edges ask it.
type desk struct {
	*cluster.Node
	member id.MemberID
	asked  atomic.Int64
}

func (d *desk) Member() id.MemberID { return d.member }
func (d *desk) Ask(ctx context.Context, a cluster.Address, m any) (any, error) {
	d.asked.Add(1)
	return d.Node.Ask(ctx, a, m)
}

// ledgers brings recalls to those who answer.
type ledgers struct {
	*cluster.Node
	mu    sync.Mutex
	by    map[id.MemberID]*Ledger
	heard atomic.Int64
	done  atomic.Int64
}

func (l *ledgers) Call(ctx context.Context, to id.MemberID, service string, m any) (any, error) {
	l.heard.Add(1)
	defer l.done.Add(1)
	l.mu.Lock()
	led := l.by[to]
	l.mu.Unlock()
	if led == nil || service != ServiceRecall {
		return nil, cluster.ErrUnknownMember
	}
	return led.Served(ctx, l.Member(), m)
}

func setUp(t testing.TB, rate Rate, edges int) (*clock, []*Ledger, []*desk, *ledgers) {
	t.Helper()
	n := cluster.New(cluster.Config{Member: id.MemberID{UUID: id.NewAnywhere()}, Log: zerolog.Nop()})
	c, all := &clock{}, &ledgers{Node: n, by: map[id.MemberID]*Ledger{}}
	k := NewKeeper(KeeperConfig{Kind: msg.KindLimit, Rate: rate, Peers: all, Now: c.now})
	n.Register(msg.KindLimit, k.Behavior)
	startNode(t, n)
	t.Cleanup(func() {
		if err := k.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	var ls []*Ledger
	var ds []*desk
	for range edges {
		d := &desk{Node: n, member: id.MemberID{UUID: id.NewAnywhere()}}
		l := NewLedger(LedgerConfig{Node: d, Rate: rate, MaxStrangers: 8})
		all.by[d.member] = l
		ls, ds = append(ls, l), append(ds, d)
	}
	return c, ls, ds, all
}

func startNode(t testing.TB, n *cluster.Node) {
	t.Helper()
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := n.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

func tenant() id.TenantID { return id.TenantID{UUID: id.NewAnywhere()} }

func TestATenantsBucketAndRetryAfter(t *testing.T) {
	c, ls, _, _ := setUp(t, PerSecond(120, 20), 1)
	who, other := tenant(), tenant()
	for i := range 120 {
		if _, ok, _ := ls[0].Tenant(t.Context(), who); !ok {
			t.Fatalf("request %d is refused", i+1)
		}
	}
	retry, ok, err := ls[0].Tenant(t.Context(), who)
	if ok || err != nil || retry != time.Second {
		t.Fatalf("request 121: %v %v %v", retry, ok, err)
	}
	if _, ok, _ := ls[0].Tenant(t.Context(), other); !ok {
		t.Error("another tenant is refused")
	}
	c.advance(retry)
	if _, ok, _ := ls[0].Tenant(t.Context(), who); !ok {
		t.Error("refused after Retry-After")
	}
}

func TestTheHotPathAsksNobody(t *testing.T) {
	_, ls, ds, _ := setUp(t, PerSecond(1000000, 1), 1)
	who := tenant()
	for range 4000 {
		if _, ok, _ := ls[0].Tenant(t.Context(), who); !ok {
			t.Fatal("refused")
		}
	}
	if n := ds[0].asked.Load(); n > 40 {
		t.Errorf("%d messages for 4000 requests", n)
	}
	before := ds[0].asked.Load()
	if _, ok, _ := ls[0].Tenant(t.Context(), tenant()); !ok || ds[0].asked.Load() != before+1 {
		t.Error("a first use is one ask")
	}
}

func TestConcurrentRequestsGetExactlyTheCapacity(t *testing.T) {
	_, ls, _, _ := setUp(t, Rate{500, time.Hour}, 3)
	who := tenant()
	var passed atomic.Int64
	var wg sync.WaitGroup
	for i := range 60 {
		wg.Go(func() {
			for range 20 {
				if _, ok, _ := ls[i%3].Tenant(t.Context(), who); ok {
					passed.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if n := passed.Load(); n != 500 {
		t.Errorf("%d of 1200 passed, capacity 500", n)
	}
}

func TestNobodyIsRefusedWhileTokensAreIdleElsewhere(t *testing.T) {
	_, ls, _, all := setUp(t, Rate{100, time.Hour}, 2)
	who := tenant()
	for range 40 { // the second half of these leases ahead
		ls[0].Tenant(t.Context(), who)
	}
	passed := 0
	for range 60 {
		if _, ok, _ := ls[1].Tenant(t.Context(), who); ok {
			passed++
		}
	}
	if passed != 60 {
		t.Errorf("%d of 60 passed although nobody else used them", passed)
	}
	if all.heard.Load() == 0 {
		t.Error("nothing was recalled: void")
	}
	if _, ok, _ := ls[0].Tenant(t.Context(), who); ok {
		t.Error("the 101st passes")
	}
}

// slowDesk hears the owner's next answer late.
type slowDesk struct {
	*desk
	slow     atomic.Bool
	answered chan struct{}
	goOn     chan struct{}
}

func (d *slowDesk) Ask(ctx context.Context, a cluster.Address, m any) (any, error) {
	v, err := d.desk.Ask(ctx, a, m)
	if d.slow.CompareAndSwap(true, false) {
		close(d.answered)
		<-d.goOn
	}
	return v, err
}

// The owner asks for tokens back while they are on their way to their node.
func TestTokensThatAreRecalledOnTheirWayComeBack(t *testing.T) {
	rate := Rate{3, time.Hour}
	_, ls, ds, all := setUp(t, rate, 2)
	late := &slowDesk{desk: ds[0], answered: make(chan struct{}), goOn: make(chan struct{})}
	ls[0] = NewLedger(LedgerConfig{Node: late, Rate: rate})
	all.mu.Lock()
	all.by[late.member] = ls[0]
	all.mu.Unlock()
	who := tenant()
	if _, ok, _ := ls[0].Tenant(t.Context(), who); !ok {
		t.Fatal("the first is refused")
	}
	late.slow.Store(true)
	second, third := make(chan bool), make(chan bool)
	go func() { _, ok, _ := ls[0].Tenant(t.Context(), who); second <- ok }()
	<-late.answered // with a token beyond the one that it asked for
	go func() { _, ok, _ := ls[1].Tenant(t.Context(), who); third <- ok }()
	eventually(t, "the recall", func() bool { return all.done.Load() > 0 })
	close(late.goOn)
	if !<-second || !<-third {
		t.Error("refused while a token was idle")
	}
	if _, ok, _ := ls[1].Tenant(t.Context(), who); ok {
		t.Error("the fourth passes")
	}
}

func TestANodeThatDoesNotAnswerIsWaitedForShortly(t *testing.T) {
	c, ls, ds, all := setUp(t, Rate{100, time.Hour}, 2)
	who := tenant()
	for range 40 {
		ls[0].Tenant(t.Context(), who)
	}
	all.mu.Lock()
	delete(all.by, ds[0].member)
	all.mu.Unlock()
	passed := 0
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 60 {
			if _, ok, _ := ls[1].Tenant(t.Context(), who); ok {
				passed++
			}
		}
	}()
	eventually(t, "the recall", func() bool { return all.heard.Load() > 0 })
	c.advance(recallWait)
	<-done
	if passed == 0 || passed >= 60 {
		t.Errorf("%d passed; what the silent node holds is not to be had", passed)
	}
}

func TestIdleTokensAreBackWithinThreeTicks(t *testing.T) {
	_, ls, ds, _ := setUp(t, Rate{100, time.Hour}, 2)
	who := tenant()
	for range 40 {
		ls[0].Tenant(t.Context(), who)
	}
	for range 3 {
		ls[0].runOnce()
	}
	h := holder{who, who.UUID}
	if a := ls[0].book(h).accounts[h]; a.tokens != 0 || !a.reported {
		t.Fatalf("%+v", a)
	}
	// The owner has them: it grants the rest without a recall.
	v, err := ds[1].Ask(t.Context(), TenantBucket(who), Lease{Node: ds[1].member, Seq: 1, Want: 100})
	if err != nil || v.(Leased).Granted != 60 {
		t.Errorf("%v %v", v, err)
	}
}

func TestABusyNodeKeepsWhatItUses(t *testing.T) {
	_, ls, ds, _ := setUp(t, Rate{100000, time.Hour}, 1)
	who := tenant()
	for range 10 {
		for range 100 {
			ls[0].Tenant(t.Context(), who)
		}
		ls[0].runOnce()
	}
	if n := ds[0].asked.Load(); n > 40 {
		t.Errorf("%d messages for 1000 requests", n)
	}
}

func TestIPsCountByAddressAndBySixtyFour(t *testing.T) {
	_, ls, _, _ := setUp(t, Rate{1, time.Hour}, 1)
	for _, c := range []struct {
		addr string
		ok   bool
	}{
		{"192.0.2.1", true}, {"192.0.2.1", false}, {"::ffff:192.0.2.1", false}, {"192.0.2.2", true},
		{"2001:db8::1", true}, {"2001:db8::ffff:1", false}, {"2001:db8:0:1::1", true}, {"::c000:201", true},
	} {
		if _, ok, _ := ls[0].IP(t.Context(), netip.MustParseAddr(c.addr)); ok != c.ok {
			t.Errorf("%s: %v", c.addr, ok)
		}
	}
}

func TestARefundedTokenIsThereAgain(t *testing.T) {
	_, ls, _, _ := setUp(t, Rate{3, time.Hour}, 1)
	addr := netip.MustParseAddr("192.0.2.1")
	for range 50 {
		if _, ok, _ := ls[0].IP(t.Context(), addr); !ok {
			t.Fatal("refused")
		}
		ls[0].RefundIP(addr)
	}
	for i := range 4 {
		if _, ok, _ := ls[0].IP(t.Context(), addr); ok != (i < 3) {
			t.Errorf("take %d: %v", i, ok)
		}
	}
}

func TestStrangersCannotFillMemory(t *testing.T) {
	c, ls, ds, _ := setUp(t, Rate{2, time.Millisecond}, 1)
	l := ls[0]
	for i := range 5000 {
		l.IP(t.Context(), netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}))
	}
	count := func() (n, strangers int) {
		for i := range l.books {
			for h := range l.books[i].accounts {
				n++
				if h.stranger() {
					strangers++
				}
			}
		}
		return
	}
	if n, s := count(); s != 8 || n > 8+sharedBuckets {
		t.Fatalf("%d accounts, %d of strangers", n, s)
	}
	if _, ok, _ := l.Tenant(t.Context(), tenant()); !ok {
		t.Error("a tenant is refused because of strangers")
	}
	c.advance(time.Second)
	for range int(l.rest) + 5 {
		l.runOnce()
	}
	if n, _ := count(); n != 0 || l.strangers.Load() != 0 {
		t.Errorf("%d accounts stay", n)
	}
	eventually(t, "full buckets leave memory", func() bool { return !ds[0].Active(IPBucket(netip.MustParseAddr("10.0.0.0"))) })
}

// table is Postgres for slots, runs are the actors that are told.
type table struct {
	mu      sync.Mutex
	running []id.RunID
	err     error
}

func (t *table) Running(context.Context, id.TenantID) ([]id.RunID, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.running), t.err
}

type runActor struct {
	id  id.RunID
	out chan id.RunID
}

func (r *runActor) Receive(_ cluster.Context, m any) {
	if _, ok := m.(msg.SlotGranted); ok {
		r.out <- r.id
	}
}
func (r *runActor) Stopped() {}

func TestSlotsOnANode(t *testing.T) {
	rows := &table{running: []id.RunID{runID(9)}}
	granted := make(chan id.RunID, 100)
	n := cluster.New(cluster.Config{Member: id.MemberID{UUID: id.NewAnywhere()}, Log: zerolog.Nop()})
	n.Register(KindSlots, Slots(SlotsConfig{Limit: 2, Running: rows, Rest: time.Millisecond, Now: time.Now, Log: zerolog.Nop()}))
	n.Register(msg.KindRun, func(a cluster.Address) cluster.Behavior {
		return &runActor{id: id.RunID{UUID: a.ID}, out: granted}
	})
	startNode(t, n)
	who := tenant()
	at := TenantSlots(who)
	rows.err = errors.New("the database is away")
	for i := byte(1); i <= 3; i++ {
		n.Tell(at, msg.AcquireSlot{Run: runID(i), CreatedAt: epoch.Add(time.Duration(i))})
	}
	rows.mu.Lock()
	rows.err = nil
	rows.mu.Unlock()
	next := func(want id.RunID) {
		t.Helper()
		select {
		case got := <-granted:
			if got != want {
				t.Errorf("granted %v, want %v", got, want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("%v is not granted", want)
		}
	}
	next(runID(1)) // 9 ran before and holds the other place
	rows.mu.Lock()
	rows.running = nil
	rows.mu.Unlock()
	n.Tell(at, msg.ReleaseSlot{Run: runID(9)})
	next(runID(2))
	n.Tell(at, msg.AcquireSlot{Run: runID(2)})
	next(runID(2)) // told again
	n.Tell(at, msg.ReleaseSlot{Run: runID(1)})
	next(runID(3))
	n.Tell(at, msg.TakeSlot{Run: runID(4)}) // goes on after an approval
	n.Tell(at, msg.AcquireSlot{Run: runID(5)})
	n.Tell(at, msg.ReleaseSlot{Run: runID(2)}) // 3 and 4 run
	n.Tell(at, msg.ReleaseSlot{Run: runID(4)})
	next(runID(5))
	n.Tell(at, msg.ReleaseSlot{Run: runID(5)})
	n.Tell(at, msg.ReleaseSlot{Run: runID(3)})
	eventually(t, "slots that nobody holds leave memory", func() bool { return !n.Active(at) })
	if len(granted) != 0 {
		t.Error("granted too much")
	}
}

// gate is a table that answers one read each time it is opened.
type gate struct {
	table
	open chan struct{}
}

func (g *gate) Running(ctx context.Context, t id.TenantID) ([]id.RunID, error) {
	select {
	case <-g.open:
		return g.table.Running(ctx, t)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func gatedSlots(t *testing.T) (n *cluster.Node, rows *gate, granted chan id.RunID) {
	rows, granted = &gate{open: make(chan struct{}, 1)}, make(chan id.RunID, 100)
	n = cluster.New(cluster.Config{Member: id.MemberID{UUID: id.NewAnywhere()}, Log: zerolog.Nop()})
	n.Register(KindSlots, Slots(SlotsConfig{Limit: 1, Running: rows, Rest: time.Hour, Now: time.Now, Log: zerolog.Nop()}))
	n.Register(msg.KindRun, func(a cluster.Address) cluster.Behavior {
		return &runActor{id: id.RunID{UUID: a.ID}, out: granted}
	})
	startNode(t, n)
	return n, rows, granted
}

// Whatever came before it is known who runs, the oldest is served first. A place
// that was given back meanwhile is free, though the read still saw it taken.
func TestSlotsThatDoNotKnowWhoRuns(t *testing.T) {
	for _, seen := range [][]id.RunID{nil, {runID(4)}} {
		n, rows, granted := gatedSlots(t)
		rows.running = seen
		at := TenantSlots(tenant())
		wish := func(run byte) msg.AcquireSlot {
			return msg.AcquireSlot{Run: runID(run), CreatedAt: epoch.Add(time.Duration(run))}
		}
		n.Tell(at, wish(3))
		for range 2 { // said again
			v, err := n.Ask(t.Context(), at, Wishes{Waiting: []msg.AcquireSlot{wish(1), wish(2)}, Released: []id.RunID{runID(4)}})
			if g, ok := v.(Granted); err != nil || !ok || len(g.Running) != 0 {
				t.Fatal(v, err)
			}
		}
		n.Tell(at, msg.ReleaseSlot{Run: runID(2)})
		if _, err := n.Ask(t.Context(), at, Wishes{}); err != nil {
			t.Fatal(err)
		}
		if len(granted) != 0 {
			t.Error("granted before it is known who runs")
		}
		rows.open <- struct{}{}
		var order []id.RunID
		for range 2 {
			select {
			case run := <-granted:
				order = append(order, run)
				n.Tell(at, msg.ReleaseSlot{Run: run})
			case <-time.After(time.Minute):
				t.Fatalf("nobody is granted a place after %v", order)
			}
		}
		if !slices.Equal(order, []id.RunID{runID(1), runID(3)}) {
			t.Errorf("granted %v", order)
		}
	}
}

// Slots that nobody uses for a moment still know who runs: the next run waits for
// no read.
func TestSlotsRest(t *testing.T) {
	n, rows, granted := gatedSlots(t)
	at := TenantSlots(tenant())
	rows.open <- struct{}{} // one read and no other
	for run := range byte(3) {
		n.Tell(at, msg.AcquireSlot{Run: runID(run)})
		select {
		case got := <-granted:
			if got != runID(run) {
				t.Errorf("granted %v", got)
			}
		case <-time.After(time.Minute):
			t.Fatalf("%v is not granted", runID(run))
		}
		n.Tell(at, msg.ReleaseSlot{Run: runID(run)})
		if _, err := n.Ask(t.Context(), at, Wishes{}); err != nil {
			t.Fatal(err)
		}
	}
}

func BenchmarkLedgerTake(b *testing.B) {
	_, ls, _, _ := setUp(b, Rate{1 << 40, time.Nanosecond}, 1)
	for _, tenants := range []int{1, 1000} {
		who := make([]id.TenantID, tenants)
		for i := range who {
			who[i] = tenant()
		}
		b.Run(fmt.Sprint(tenants), func(b *testing.B) {
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				if _, ok, _ := ls[0].Tenant(b.Context(), who[i%tenants]); !ok {
					b.Fatal("refused")
				}
				if i++; i%100000 == 0 {
					ls[0].runOnce()
				}
			}
		})
	}
}
