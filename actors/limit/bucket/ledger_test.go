package bucket

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"agentsvc/cluster"
	"agentsvc/cluster/clustertest"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/quota"
	"agentsvc/schemas/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// clock is the clock of the buckets. The test moves it.
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

// ledgers sends recalls to the ledgers that answer.
type ledgers struct {
	*cluster.Node
	keeper *Keeper
	mu     sync.Mutex
	by     map[id.MemberID]*Ledger
	heard  atomic.Int64
	done   atomic.Int64
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

// buckets are those that the keeper has after it has looked at all.
func (l *ledgers) buckets(t *testing.T) (n int) {
	t.Helper()
	for part := range evictParts {
		l.keeper.evictPart(part)
	}
	l.keeper.mu.Lock()
	defer l.keeper.mu.Unlock()
	for s := range l.keeper.shards {
		n += len(l.keeper.shards[s].buckets)
	}
	if n != l.keeper.buckets {
		t.Errorf("%d buckets count as %d", n, l.keeper.buckets)
	}
	return n
}

func setUp(t testing.TB, rate Rate, edges int) (*clock, []*Ledger, []*desk, *ledgers) {
	t.Helper()
	n := clustertest.Node()
	c, all := &clock{}, &ledgers{Node: n, by: map[id.MemberID]*Ledger{}}
	k := NewKeeper(KeeperConfig{Kind: msg.KindLimit, Rate: rate, Peers: all, Now: c.now})
	all.keeper = k
	n.RegisterShared(msg.KindLimit, k.Behavior)
	testkit.Start(t, n)
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

func tenant() id.TenantID { return id.TenantID{UUID: id.NewAnywhere()} }

// tenantBucket is the address of a tenant's bucket.
func tenantBucket(t id.TenantID) cluster.Address { return name{t, t.UUID}.address() }

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
	testkit.Eventually(t, "the recall", func() bool { return all.done.Load() > 0 })
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
	testkit.Eventually(t, "the recall", func() bool { return all.heard.Load() > 0 })
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
	h := name{who, who.UUID}
	if a := ls[0].book(h).accounts[h]; a.tokens != 0 || !a.reported {
		t.Fatalf("%+v", a)
	}
	// The owner has them: it grants the rest without a recall.
	v, err := ds[1].Ask(t.Context(), tenantBucket(who), Lease{Node: ds[1].member, Seq: 1, Want: 100})
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

// A token that was reported counts as spent at the owner, which may have granted it to another
// node since. It is not refunded.
func TestATokenIsNotRefundedAfterItsReport(t *testing.T) {
	_, ls, _, _ := setUp(t, Rate{3, time.Hour}, 1)
	addr := netip.MustParseAddr("192.0.2.1")
	admitted := 0
	for range 20 {
		if _, ok, _ := ls[0].IP(t.Context(), addr); ok {
			admitted++
		}
		for range 5 {
			ls[0].runOnce()
		}
		ls[0].RefundIP(addr)
	}
	if admitted != 3 {
		t.Errorf("a bucket of 3 admits %d", admitted)
	}
}

// heard notes what a request is told of its limits.
type heard struct{ last quota.Quota }

func (h *heard) Charged(q quota.Quota) { h.last = q }

// A request is told what its bucket holds, whether the node asked the owner for it or
// had leased tokens, and also when it is refused.
func TestARequestIsToldOfItsBucket(t *testing.T) {
	_, ls, _, _ := setUp(t, Rate{5, time.Second}, 1)
	var h heard
	ctx := context.WithValue(t.Context(), quota.Key{}, &h)
	who, user, key := tenant(), id.UserID{UUID: id.NewAnywhere()}, embedKey()
	for name, c := range map[string]struct {
		most  int64
		every time.Duration
		take  func() (time.Duration, bool, error)
	}{
		"tenant": {5, time.Second, func() (time.Duration, bool, error) { return ls[0].Tenant(ctx, who) }},
		"user":   {5, time.Second, func() (time.Duration, bool, error) { return ls[0].User(ctx, who, user) }},
		"ip":     {5, time.Second, func() (time.Duration, bool, error) { return ls[0].IP(ctx, host(1)) }},
		"public": {5, time.Second, func() (time.Duration, bool, error) { return ls[0].Public(ctx, host(1)) }},
		"key": {6, 10 * time.Second, func() (time.Duration, bool, error) {
			_, retry, ok, err := ls[0].Take(ctx, EmbedKeyMessages(who, key, 6))
			return retry, ok, err
		}},
	} {
		for i := range c.most + 1 {
			h.last = quota.Quota{}
			_, ok, err := c.take()
			left := max(c.most-1-i, 0)
			if want := (quota.Quota{Limit: c.most, Remaining: left, Reset: time.Duration(c.most-left) * c.every}); ok != (i < c.most) || err != nil || h.last != want {
				t.Errorf("%s, request %d: %v %v, told %+v, want %+v", name, i+1, ok, err, h.last, want)
			}
		}
	}
}

func TestStrangersCannotFillMemory(t *testing.T) {
	c, ls, _, all := setUp(t, Rate{2, time.Millisecond}, 1)
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
	if n, _ := count(); n != 0 || l.strangers[0].Load() != 0 {
		t.Errorf("%d accounts stay", n)
	}
	testkit.Eventually(t, "full buckets leave memory", func() bool { c.advance(time.Second); return all.buckets(t) == 0 })
}

// embedKey, visitor and host are new ones.
func embedKey() id.EmbedKeyID { return id.EmbedKeyID{UUID: id.NewAnywhere()} }
func visitor() id.VisitorID   { return id.VisitorID{UUID: id.NewAnywhere()} }
func host(n byte) netip.Addr  { return netip.AddrFrom4([4]byte{192, 0, 2, n}) }

// service.md, Limits: what the embed API's buckets hold, and that a token comes back
// when Retry-After has passed, one and no more.
func TestTheBucketsOfTheEmbedAPI(t *testing.T) {
	who, key := tenant(), embedKey()
	v := visitor()
	for _, c := range []struct {
		bucket Spec
		scope  string
		most   int
		retry  time.Duration
	}{
		{EmbedConfig(host(1)), "embed_ip_config", 60, time.Second},
		{EmbedConfig(netip.MustParseAddr("2001:db8::1")), "embed_ip_config", 60, time.Second},
		{EmbedSession(host(1)), "embed_ip_session", 30, 2 * time.Second},
		{EmbedKeyMints(who, key, 6), "embed_key_mint", 60, time.Second},
		{EmbedKeyMessages(who, key, 60), "embed_key_messages", 60, time.Second},
		{EmbedKeyMessages(who, embedKey(), 1), "embed_key_messages", 1, time.Minute},
		{EmbedKeyMessages(who, embedKey(), 7), "embed_key_messages", 7, 9 * time.Second},
		{EmbedKeyMessages(who, embedKey(), 10000), "embed_key_messages", 10000, time.Second},
		{EmbedVisitorMessages(who, v), "embed_visitor_messages", 20, 3 * time.Second},
		{EmbedVisitorReads(who, v), "embed_visitor_reads", 60, time.Second},
	} {
		clock, ls, ds, _ := setUp(t, Rate{1, time.Hour}, 2)
		if got := c.bucket.Scope().String(); got != c.scope {
			t.Errorf("%s is %s", c.scope, got)
		}
		take := func(i int) (time.Duration, bool) {
			t.Helper()
			_, retry, ok, err := ls[i%2].Take(t.Context(), c.bucket)
			if err != nil {
				t.Fatal(err)
			}
			return retry, ok
		}
		for i := range c.most {
			if _, ok := take(i); !ok {
				t.Fatalf("%s: request %d of %d is refused", c.scope, i+1, c.most)
			}
		}
		retry, ok := take(0)
		if ok || retry != c.retry {
			t.Errorf("%s: request %d: %v %v", c.scope, c.most+1, retry, ok)
		}
		clock.advance(retry)
		if _, ok := take(1); !ok {
			t.Errorf("%s: refused after Retry-After %v", c.scope, retry)
		}
		for range 3 { // the owner hears what was spent
			ls[0].runOnce()
			ls[1].runOnce()
		}
		if _, err := ds[0].Ask(t.Context(), c.bucket.address(), Take{}); err != nil {
			t.Fatal(err)
		}
		clock.advance(time.Hour)
		for i := range c.most + 1 {
			if _, ok := take(i); ok != (i < c.most) {
				t.Errorf("%s: an hour later request %d of %d: %v", c.scope, i+1, c.most, ok)
			}
		}
	}
}

// No two scopes, tenants, keys, visitors and clients share a bucket, but for the
// addresses of one /64.
func TestEmbedBucketsAreApart(t *testing.T) {
	who, key, v := tenant(), embedKey(), visitor()
	other := tenant()
	six := netip.MustParseAddr
	apart := []Spec{
		{name{who, who.UUID}, 0, ScopeTenant}, {client(ScopeIP, host(1)), 0, ScopeIP}, {client(ScopeIP, six("2001:db8::1")), 0, ScopeIP},
		EmbedConfig(host(1)), EmbedConfig(host(2)), EmbedSession(host(1)), EmbedSession(host(2)),
		EmbedConfig(six("2001:db8::1")), EmbedConfig(six("2001:db8:0:1::1")), EmbedSession(six("2001:db8::1")), EmbedConfig(six("::c000:201")),
		EmbedKeyMints(who, key, 1), EmbedKeyMessages(who, key, 1), EmbedKeyMints(other, key, 1), EmbedKeyMessages(other, key, 1), EmbedKeyMints(who, embedKey(), 1),
		EmbedVisitorMessages(who, v), EmbedVisitorReads(who, v), EmbedVisitorMessages(other, v), EmbedVisitorReads(who, visitor()),
		// A visitor and a tenant whose ids are those of another thing.
		EmbedVisitorMessages(who, id.VisitorID(key)), EmbedVisitorReads(who, id.VisitorID(who)),
		{sharedBucket(ScopeIP, 1), 0, ScopeIP}, {sharedBucket(ScopeEmbedIPConfig, 1), 0, ScopeEmbedIPConfig}, {sharedBucket(ScopeEmbedIPSession, 1), 0, ScopeEmbedIPSession},
	}
	seen := map[cluster.Address]int{}
	for i, b := range apart {
		if j, ok := seen[b.address()]; ok {
			t.Errorf("%d and %d share a bucket", i, j)
		}
		seen[b.address()] = i
	}
	for _, same := range [][2]Spec{
		{EmbedConfig(six("2001:db8::1")), EmbedConfig(six("2001:db8::ffff:2"))},
		{EmbedSession(six("2001:db8::1")), EmbedSession(six("2001:db8::ffff:2"))},
		{EmbedSession(host(1)), EmbedSession(six("::ffff:192.0.2.1"))},
	} {
		if same[0] != same[1] {
			t.Errorf("%v and %v are two", same[0], same[1])
		}
	}
	spread := map[id.Shard]bool{}
	for range 200 {
		spread[EmbedVisitorReads(who, visitor()).address().Shard()] = true
	}
	if len(spread) < 100 {
		t.Errorf("200 visitors are in %d shards", len(spread))
	}
}

// A key's new rate holds from the next request on, also where tokens are held that
// were leased by the former one.
func TestAKeysNewRateHoldsAtOnce(t *testing.T) {
	_, ls, _, _ := setUp(t, Rate{1, time.Hour}, 2)
	who, key := tenant(), embedKey()
	passed := func(l *Ledger, rate, requests int) (n int) {
		for range requests {
			if _, _, ok, _ := l.Take(t.Context(), EmbedKeyMessages(who, key, rate)); ok {
				n++
			}
		}
		return n
	}
	if n := passed(ls[0], 6000, 3000); n != 3000 {
		t.Fatalf("%d of 3000 pass", n)
	}
	h := EmbedKeyMessages(who, key, 1).name
	if a := ls[0].book(h).accounts[h]; a.tokens == 0 {
		t.Error("nothing was leased ahead: void")
	}
	if n := passed(ls[0], 10, 100) + passed(ls[1], 10, 100); n != 5 {
		t.Errorf("%d pass of a half full bucket of 10", n)
	}
	if n := passed(ls[1], 100, 100); n > 10 { // what is less than a token of 10
		t.Errorf("%d pass of an empty bucket of 100", n)
	}
}

// A node leases ahead of an embed bucket no more than comes back in a second: of a
// slow one it holds nothing that another node would have to wait for.
func TestOfASlowBucketNothingIsIdle(t *testing.T) {
	for _, c := range []struct {
		rate  int
		ahead int64
	}{{20, 0}, {59, 0}, {60, 1}, {600, 10}} {
		_, ls, _, all := setUp(t, Rate{1, time.Hour}, 2)
		b := EmbedKeyMessages(tenant(), embedKey(), c.rate)
		var most int64
		for range min(c.rate, 50) - 1 {
			if _, _, ok, _ := ls[0].Take(t.Context(), b); !ok {
				t.Fatal("refused")
			}
			most = max(most, ls[0].book(b.name).accounts[b.name].tokens)
		}
		if most != c.ahead {
			t.Errorf("%d a minute: %d were idle, want %d", c.rate, most, c.ahead)
		}
		if _, _, ok, _ := ls[1].Take(t.Context(), b); !ok {
			t.Errorf("%d a minute: the last is refused elsewhere", c.rate)
		}
		if c.ahead == 0 && all.heard.Load() > 0 {
			t.Errorf("%d a minute: %d recalls", c.rate, all.heard.Load())
		}
	}
}

// A refunded token can be taken again, once.
func TestATokenIsRefundedOnce(t *testing.T) {
	_, ls, _, _ := setUp(t, Rate{1, time.Hour}, 2)
	b := EmbedVisitorMessages(tenant(), visitor())
	take := func(l *Ledger) (Taken, bool) {
		taken, _, ok, _ := l.Take(t.Context(), b)
		return taken, ok
	}
	for range 50 {
		taken, ok := take(ls[0])
		if !ok {
			t.Fatal("refused")
		}
		ls[0].Refund(taken)
	}
	first, _ := take(ls[0])
	if _, ok := take(ls[0]); !ok { // the owner hears that the first was spent
		t.Fatal("refused")
	}
	ls[0].Refund(first)
	late, _ := take(ls[1])
	for range 5 { // and so that of the late one
		ls[1].runOnce()
	}
	ls[1].Refund(late)
	ls[1].Refund(Taken{})
	passed := 0
	for range 40 {
		if _, ok := take(ls[passed%2]); ok {
			passed++
		}
	}
	if passed != 17 {
		t.Errorf("%d of the 17 others pass", passed)
	}
}

// An account leaves memory when a new one would be in the same state: soon if every token was
// spent, and otherwise when its bucket is full. A bucket leaves memory when it is full.
func TestAccountsAndBucketsLeaveMemory(t *testing.T) {
	clock, ls, _, all := setUp(t, Rate{1, time.Millisecond}, 1)
	l := ls[0]
	for i := range 100 {
		addr := netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})
		for _, b := range []Spec{EmbedConfig(addr), EmbedSession(addr), EmbedVisitorReads(tenant(), visitor())} {
			if _, _, ok, _ := l.Take(t.Context(), b); !ok {
				t.Fatal("refused")
			}
		}
	}
	for s := range l.strangers { // each scope has its own bound
		if n := l.strangers[s].Load(); n != []int64{0, 8, 8, 0}[s] {
			t.Errorf("%d strangers of scope %v", n, ScopeIP+Scope(s))
		}
	}
	if _, ok, _ := l.IP(t.Context(), host(1)); !ok || l.strangers[0].Load() != 1 {
		t.Error("strangers of the embed API take the place of others")
	}
	lent := EmbedKeyMessages(tenant(), id.EmbedKeyID{UUID: id.NewAnywhere()}, 600)
	for range 2 { // one of what the second brings is given back
		if _, _, ok, _ := l.Take(t.Context(), lent); !ok {
			t.Fatal("refused")
		}
	}
	accounts := func() (n int) {
		for i := range l.books {
			n += len(l.books[i].accounts)
		}
		return n
	}
	for range againTicks {
		l.runOnce()
	}
	if n := accounts(); n < 100 {
		t.Errorf("%d accounts, and the owner may not have heard", n)
	}
	for range 4 {
		l.runOnce()
	}
	for i := range l.books {
		for h, a := range l.books[i].accounts {
			if a.returned == 0 {
				t.Errorf("%v has given nothing back and stays", h)
			}
		}
	}
	if l.book(lent.name).accounts[lent.name] == nil {
		t.Error("one that gave something back is gone")
	}
	if n := all.buckets(t); n < 100 {
		t.Errorf("%d buckets, before they are full", n)
	}
	for range slowRest {
		l.runOnce()
	}
	if n := accounts(); n != 0 {
		t.Errorf("%d accounts stay", n)
	}
	testkit.Eventually(t, "full buckets leave memory", func() bool { clock.advance(time.Minute); return all.buckets(t) == 0 })
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
