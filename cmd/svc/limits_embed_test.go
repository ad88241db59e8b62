package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"agentsvc/actors/limit/bucket"
	"agentsvc/actors/limit/hold"
	"agentsvc/cluster"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
)

// limitHall joins the nodes of a test in one process. Their buckets go by its clock,
// which stands still until the test moves it.
type limitHall struct {
	clock atomic.Int64

	all []id.MemberID

	mu    sync.Mutex                    // guards nodes
	nodes map[id.MemberID]*cluster.Node // those that live
}

func (h *limitHall) now() time.Time          { return time.Unix(1e9, h.clock.Load()) }
func (h *limitHall) advance(d time.Duration) { h.clock.Add(int64(d)) }

func (h *limitHall) node(m id.MemberID) (*cluster.Node, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if n := h.nodes[m]; n != nil {
		return n, nil
	}
	return nil, cluster.ErrUnknownMember
}

func (h *limitHall) living() (members []id.MemberID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for m := range h.nodes {
		members = append(members, m)
	}
	return members
}

// limitPeers are the other nodes of one of them.
type limitPeers struct {
	*limitHall
	self id.MemberID
}

func (p limitPeers) Ask(ctx context.Context, to id.MemberID, a cluster.Address, m any) (any, error) {
	n, err := p.node(to)
	if err != nil {
		return nil, err
	}
	out := make(chan any, 1)
	until, _ := ctx.Deadline()
	n.Receive(a, m, until, func(v any) { out <- v })
	select {
	case v := <-out:
		if err, ok := v.(error); ok {
			return nil, err
		}
		return v, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (p limitPeers) Tell(to id.MemberID, a cluster.Address, m any) error {
	n, err := p.node(to)
	if err != nil {
		return err
	}
	return n.ReceiveTold(a, m)
}

func (p limitPeers) Call(ctx context.Context, to id.MemberID, service string, m any) (any, error) {
	n, err := p.node(to)
	if err != nil {
		return nil, err
	}
	return n.Served(ctx, p.self, service, m)
}

// embedNodes are nodes with buckets and holders, joined as in wire.go.
func embedNodes(t *testing.T, count int) (*limitHall, []embedLimits) {
	t.Helper()
	h := &limitHall{nodes: map[id.MemberID]*cluster.Node{}}
	var all []embedLimits
	for range count {
		self := id.MemberID{UUID: id.NewAnywhere()}
		n := cluster.New(cluster.Config{Member: self, Log: zerolog.Nop(), Peers: limitPeers{h, self}})
		rate := bucket.Rate{Capacity: 1, Every: time.Hour}
		k := bucket.NewKeeper(bucket.KeeperConfig{Kind: msg.KindLimit, Rate: rate, Peers: n, Living: h.living, Now: h.now})
		holds := hold.New(hold.Config{Node: n, Living: h.living, Now: h.now})
		ledger := bucket.NewLedger(bucket.LedgerConfig{Node: n, Rate: rate})
		n.RegisterShared(msg.KindLimit, k.Behavior)
		n.RegisterShared(hold.Kind, holds.Behavior)
		n.Serve(k.Service(), k.Served)
		n.Serve(hold.Service, holds.Served)
		n.Serve(bucket.ServiceRecall, ledger.Served)
		n.OnChange(k.Changed)
		n.OnChange(holds.Changed)
		if err := n.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			if err := n.Stop(ctx); err != nil {
				t.Error(err)
			}
			holds.Stop()
			_ = k.Stop(ctx) // others may have gone before
		})
		h.mu.Lock()
		h.nodes[self] = n
		h.mu.Unlock()
		h.all = append(h.all, self)
		all = append(all, embedLimits{bucket.Embed{Ledger: ledger}, hold.EmbedStreams{Semaphores: holds}})
	}
	h.know(t)
	return h, all
}

// know tells all nodes who is there.
func (h *limitHall) know(t *testing.T) {
	t.Helper()
	members := h.living()
	for _, m := range members {
		if n, err := h.node(m); err == nil {
			if err := n.SetMembers(members); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func anyTenant() id.TenantID     { return id.TenantID{UUID: id.NewAnywhere()} }
func anyEmbedKey() id.EmbedKeyID { return id.EmbedKeyID{UUID: id.NewAnywhere()} }
func anyVisitor() id.VisitorID   { return id.VisitorID{UUID: id.NewAnywhere()} }

// wantRefused checks what a client is told, and returns when it may come again.
func wantRefused(t *testing.T, err error, code problem.Code, says string) time.Duration {
	t.Helper()
	var p *problem.Error
	if !errors.As(err, &p) || p.Code != code || !strings.Contains(p.Detail, says) || p.RetryAfter <= 0 {
		t.Fatalf("%v, want %s that names %q", err, code, says)
	}
	body, err := json.Marshal(p)
	var told struct {
		RetryAfter int `json:"retry_after"`
		Status     int
	}
	if err != nil || json.Unmarshal(body, &told) != nil || told.RetryAfter != p.RetryAfterSeconds() || told.RetryAfter < 1 || told.Status != p.Status() {
		t.Errorf("%s, %v", body, err)
	}
	return p.RetryAfter
}

// service.md, Limits: the last request within a limit passes on either node, the next
// one is told when to come again, and passes then; nobody else has less.
func TestEmbedLimits(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	type who struct {
		tenant  id.TenantID
		key     id.EmbedKeyID
		visitor id.VisitorID
		ip      netip.Addr
	}
	addr := netip.MustParseAddr
	post := func(l embedLimits, w who) error { return l.Post(ctx, w.tenant, w.key, 15, w.visitor) }
	postFree := func(l embedLimits, w who) error { return l.Post(ctx, w.tenant, w.key, 10000, w.visitor) }
	for _, c := range []struct {
		scope  string
		most   int
		call   func(embedLimits, who) error
		same   func(who) who   // who shares the bucket
		others []func(who) who // who do not
	}{
		{"embed_ip_config", 60, func(l embedLimits, w who) error { return l.IP(ctx, "config", w.ip) },
			func(w who) who { w.ip = addr("2001:db8:1:2:ffff::1"); return w },
			[]func(who) who{func(w who) who { w.ip = addr("2001:db8:1:3::1"); return w }, func(w who) who { w.ip = addr("192.0.2.1"); return w }}},
		{"embed_ip_session", 30, func(l embedLimits, w who) error { return l.IP(ctx, "session", w.ip) },
			func(w who) who { w.ip = addr("2001:db8:1:2::9"); return w },
			[]func(who) who{func(w who) who { w.ip = addr("2001:db8:1:3::1"); return w }, func(w who) who { w.ip = addr("192.0.2.1"); return w }}},
		{"embed_key_mint", 70, func(l embedLimits, w who) error { return l.Mint(ctx, w.tenant, w.key, 7) },
			func(w who) who { w.ip = addr("192.0.2.1"); w.visitor = anyVisitor(); return w },
			[]func(who) who{func(w who) who { w.key = anyEmbedKey(); return w }, func(w who) who { w.tenant = anyTenant(); return w }}},
		{"embed_key_messages", 15, post,
			func(w who) who { w.visitor = anyVisitor(); return w },
			[]func(who) who{func(w who) who { w.key = anyEmbedKey(); return w }, func(w who) who { w.tenant = anyTenant(); return w }}},
		{"embed_visitor_messages", 20, postFree,
			func(w who) who { w.key = anyEmbedKey(); return w },
			[]func(who) who{func(w who) who { w.visitor = anyVisitor(); return w }, func(w who) who { w.tenant = anyTenant(); return w }}},
		{"embed_visitor_reads", 60, func(l embedLimits, w who) error { return l.Read(ctx, w.tenant, w.visitor) },
			func(w who) who { w.ip = addr("192.0.2.1"); return w },
			[]func(who) who{func(w who) who { w.visitor = anyVisitor(); return w }, func(w who) who { w.tenant = anyTenant(); return w }}},
	} {
		t.Run(c.scope, func(t *testing.T) {
			h, nodes := embedNodes(t, 2)
			me := who{anyTenant(), anyEmbedKey(), anyVisitor(), addr("2001:db8:1:2::1")}
			for i := range c.most {
				w := me
				if i%3 == 0 {
					w = c.same(me)
				}
				if err := c.call(nodes[i%2], w); err != nil {
					t.Fatalf("%d of %d: %v", i+1, c.most, err)
				}
			}
			for _, w := range []who{me, c.same(me)} {
				wantRefused(t, c.call(nodes[0], w), problem.CodeRateLimited, c.scope)
			}
			for i, other := range c.others {
				if err := c.call(nodes[i%2], other(me)); err != nil {
					t.Errorf("other %d: %v", i, err)
				}
			}
			retry := wantRefused(t, c.call(nodes[1], me), problem.CodeRateLimited, c.scope)
			h.advance(retry)
			if err := c.call(nodes[1], me); err != nil {
				t.Errorf("after Retry-After %v: %v", retry, err)
			}
		})
	}
	_, nodes := embedNodes(t, 1)
	if nodes[0].IP(ctx, "other", addr("192.0.2.1")) == nil {
		t.Error("a scope that is not there passes")
	}
}

// A visitor who posts too much takes nothing from the key; whom the key refuses has
// lost nothing.
func TestAnEmbedPostThatIsRefusedCostsNothing(t *testing.T) {
	t.Parallel()
	_, nodes := embedNodes(t, 2)
	ctx, tenant, key, flood := t.Context(), anyTenant(), anyEmbedKey(), anyVisitor()
	passed := 0
	for i := range 60 {
		if nodes[i%2].Post(ctx, tenant, key, 25, flood) == nil {
			passed++
		}
	}
	calm := anyVisitor()
	rest := 0
	for i := range 25 {
		err := nodes[i%2].Post(ctx, tenant, key, 25, calm)
		if err == nil {
			rest++
			continue
		}
		wantRefused(t, err, problem.CodeRateLimited, "embed_key_messages")
	}
	if passed != 20 || rest != 5 {
		t.Errorf("%d of the flood pass and %d others, the key has 25", passed, rest)
	}
	again := 0
	other := anyEmbedKey()
	for i := range 30 {
		if nodes[i%2].Post(ctx, tenant, other, 1000, calm) == nil {
			again++
		}
	}
	if again+rest != 20 {
		t.Errorf("a visitor of 20 messages has posted %d and then %d", rest, again)
	}
}

// PATCH of rate_limit_per_min: the next mint and the next message go by it, on every
// node.
func TestAnEmbedKeysNewRateHoldsAtOnce(t *testing.T) {
	t.Parallel()
	h, nodes := embedNodes(t, 2)
	ctx, tenant, key := t.Context(), anyTenant(), anyEmbedKey()
	mints := func(rate, tries int) (n int) {
		for i := range tries {
			if nodes[i%2].Mint(ctx, tenant, key, rate) == nil {
				n++
			}
		}
		return n
	}
	if n := mints(1000, 5000); n != 5000 { // half of what there is
		t.Fatalf("%d of 5000", n)
	}
	if n := mints(1, 50); n != 5 {
		t.Errorf("%d pass of a half full bucket of 10", n)
	}
	if n := mints(1000, 50); n != 0 {
		t.Errorf("%d pass of an empty bucket of 10000", n)
	}
	h.advance(3 * time.Second)
	if n := mints(1000, 600); n != 500 {
		t.Errorf("%d pass after a twentieth of a minute, of 10000 a minute", n)
	}
}

// A visitor has two live streams of a key over all nodes; one that is closed is free
// at once, and so are those of a node that died as soon as it is no member.
func TestEmbedStreams(t *testing.T) {
	t.Parallel()
	h, nodes := embedNodes(t, 2)
	ctx, tenant, key, visitor := t.Context(), anyTenant(), anyEmbedKey(), anyVisitor()
	open := func(n int) (func(), error) { return nodes[n].Stream(ctx, tenant, key, visitor) }
	for round := range 5 {
		var mu sync.Mutex
		var held []func()
		var refused []error
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				release, err := open(i % 2)
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					refused = append(refused, err)
					return
				}
				held = append(held, release)
			})
		}
		wg.Wait()
		if len(held) != 2 {
			t.Fatalf("round %d: %d of 20 are open", round, len(held))
		}
		for _, err := range refused {
			if retry := wantRefused(t, err, problem.CodeEmbedTooManyStreams, "2 live streams"); retry != 5*time.Second {
				t.Errorf("Retry-After %v", retry)
			}
		}
		for _, other := range []func() (func(), error){
			func() (func(), error) { return nodes[0].Stream(ctx, anyTenant(), key, visitor) },
			func() (func(), error) { return nodes[0].Stream(ctx, tenant, anyEmbedKey(), visitor) },
			func() (func(), error) { return nodes[0].Stream(ctx, tenant, key, anyVisitor()) },
		} {
			release, err := other()
			if err != nil {
				t.Fatalf("another's is refused: %v", err)
			}
			release()
		}
		held[0]()
		held[0]() // twice is once
		third, err := open(round % 2)
		if err != nil {
			t.Fatalf("a closed stream is not free at once: %v", err)
		}
		if _, err := open(round % 2); err == nil {
			t.Error("a stream that was closed twice is free twice")
		}
		third()
		held[1]()
	}
	for range 2 {
		if _, err := open(1); err != nil {
			t.Fatal(err)
		}
	}
	h.mu.Lock()
	delete(h.nodes, h.all[1])
	h.mu.Unlock()
	h.know(t)
	for range 2 {
		release, err := open(0)
		if err != nil {
			t.Fatalf("the streams of a node that died are counted: %v", err)
		}
		defer release()
	}
}

// Where nobody can say whether there is a token or a place, nobody has had too many.
func TestEmbedLimitsThatCannotBeAskedAreUnavailable(t *testing.T) {
	t.Parallel()
	h, nodes := embedNodes(t, 2)
	h.mu.Lock()
	delete(h.nodes, h.all[1])
	h.mu.Unlock()
	unavailable := map[string]bool{}
	for range 20 { // some live on the other node
		tenant, key, visitor := anyTenant(), anyEmbedKey(), anyVisitor()
		for name, ask := range map[string]func(ctx context.Context) error{
			"mint": func(ctx context.Context) error { return nodes[0].Mint(ctx, tenant, key, 60) },
			"post": func(ctx context.Context) error { return nodes[0].Post(ctx, tenant, key, 60, visitor) },
			"read": func(ctx context.Context) error { return nodes[0].Read(ctx, tenant, visitor) },
			"stream": func(ctx context.Context) error {
				release, err := nodes[0].Stream(ctx, tenant, key, visitor)
				if err == nil {
					release()
				}
				return err
			},
		} {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
			err := ask(ctx)
			cancel()
			if err != nil {
				wantRefused(t, err, problem.CodeUnavailable, "in time")
				unavailable[name] = true
			}
		}
	}
	if len(unavailable) != 4 {
		t.Errorf("only %v: void", unavailable)
	}
}
