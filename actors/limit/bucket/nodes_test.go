package bucket

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"agentsvc/cluster"
	"agentsvc/cluster/clustertest"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
)

// codec knows the messages of this package.
func codec() *msg.Codec {
	c := msg.NewCodec()
	AddTo(c)
	return c
}

// Requests at two real nodes get exactly the capacity, also after the bucket has moved to a
// third node. Those of embed keys also get the refill. The clock of the buckets stands still
// during the requests, so no recalled node counts as silent, however busy the machine is.
func TestBucketsOnRealNodes(t *testing.T) {
	f, rate := clustertest.NewFabric(codec()), Rate{200, time.Hour}
	var elapsed atomic.Int64 // in nanoseconds
	clock := func() time.Time { return epoch.Add(time.Duration(elapsed.Load())) }
	ledgers := map[id.MemberID]*Ledger{}
	join := func() *cluster.Node {
		return f.Join(t, func(n *cluster.Node) {
			k := NewKeeper(KeeperConfig{Kind: msg.KindLimit, Rate: rate, Peers: n, Living: f.Members, Now: clock})
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
	f.Know(t)
	var who []Spec
	for range 30 {
		t := tenant()
		who = append(who, Spec{name{t, t.UUID}, 0, ScopeTenant}, EmbedKeyMessages(t, embedKey(), 200))
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
	f.Know(t)
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

// Every message crosses nodes with all its fields.
func TestMessagesCrossNodes(t *testing.T) {
	c := codec()
	for _, m := range []any{
		Lease{memberID(1), 2, 3, 4, 5, 6}, Leased{1, 2, true, 3}, GiveBack{memberID(1), 2, 3, 4}, Recall{tenantBucket(tenant())},
	} {
		name, body, err := c.Encode(m)
		if err != nil {
			t.Fatal(err)
		}
		v, err := c.Decode(name, body)
		if err != nil {
			t.Fatal(err)
		}
		if v != m {
			t.Errorf("%+v, want %+v", v, m)
		}
	}
}
