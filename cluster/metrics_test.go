package cluster

import (
	"context"
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"agentsvc/schemas/id"
	"agentsvc/schemas/testkit"
)

// exported is what the registry has of a metric for a kind; -1: nothing.
func exported(t *testing.T, metric, kind string) float64 {
	t.Helper()
	families, err := prometheus.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == metric && m.GetLabel()[0].GetValue() == kind {
				return m.GetGauge().GetValue()
			}
		}
	}
	return -1
}

// However an activation ends, it is counted as long as it lives, each kind for itself.
func TestTheNumberOfActorsIsKnown(t *testing.T) {
	const own, shared, none = "counted", "counted-shared", "counted-none"
	self, other := member(), member()
	n := New(Config{Member: self})
	for _, kind := range []string{own, none} {
		n.Register(kind, echo)
	}
	n.RegisterShared(shared, echo)
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	all := make([]Address, 50)
	shards := map[id.Shard]bool{}
	ask := func(a Address, m any) {
		t.Helper()
		if _, err := n.Ask(t.Context(), a, m); err != nil && m != "boom" {
			t.Fatal(err)
		}
	}
	for i := range all {
		all[i] = address(own)
		one := all[i]
		one.Kind = shared
		shards[one.Shard()] = true
		for range 3 { // a live activation is not counted again
			ask(all[i], "hello")
			ask(one, "hello")
		}
	}
	counts := func(what string, want int) {
		t.Helper()
		testkit.Eventually(t, fmt.Sprintf("%s, %d actors live", what, want), func() bool { return exported(t, "svc_cluster_actors", own) == float64(want) })
	}
	counts("asked", len(all))
	ask(all[0], "stop")
	counts("after one stopped", len(all)-1)
	ask(all[1], "boom")
	counts("after one panicked", len(all)-2)
	ask(all[0], "hello")
	counts("after one is back", len(all)-1)
	if got := exported(t, "svc_cluster_actors", shared); got != float64(len(shards)) {
		t.Errorf("%v actors of a shared kind, whose messages were for %d shards", got, len(shards))
	}
	if err := n.SetMembers([]id.MemberID{self, other}); err != nil {
		t.Fatal(err)
	}
	stay, there := 0, map[id.Shard]bool{}
	for i, a := range all {
		if n.Owns(a.Shard()) {
			there[a.Shard()] = true
			if i != 1 {
				stay++
			}
		}
	}
	counts("after shards have left", stay)
	testkit.Eventually(t, "actors of a shared kind leave with their shard", func() bool { return exported(t, "svc_cluster_actors", shared) == float64(len(there)) })
	if err := n.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
	counts("after the node has ended", 0)
	for _, kind := range []string{shared, none} {
		if got := exported(t, "svc_cluster_actors", kind); got != 0 {
			t.Errorf("%v actors of the kind %s", got, kind)
		}
	}
}
