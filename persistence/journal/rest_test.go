package journal

import (
	"fmt"
	"math"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"agentsvc/schemas/id"
)

func TestHowLongALaneRests(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		n                int
		took             time.Duration
		beside, heldBack bool
		want             time.Duration
	}{
		{restFrom - 1, 50 * ms, false, false, 0},
		{restFrom - 1, 50 * ms, true, false, 0},
		{restFrom - 1, 50 * ms, true, true, 0},
		{restFrom, 3 * ms, false, true, 1500 * time.Microsecond},
		{restFrom, 2 * ms, true, false, 4 * ms},
		{restFrom, 3 * ms, true, true, restHeldBack},
		{restBelow - 1, 40 * ms, false, false, restAlone},
		{restBelow - 1, 40 * ms, false, true, restAlone},
		{restBelow - 1, 5 * ms, true, false, restBeside},
		{restBelow - 1, 10 * time.Second, false, true, restAlone},
		{restBelow - 1, 10 * time.Second, true, false, restBeside},
		{restBelow - 1, 10 * time.Second, true, true, restHeldBack},
		{restBelow, 50 * ms, false, false, 0},
		{restBelow, 50 * ms, true, false, 0},
		{restBelow, 50 * ms, true, true, 0},
		{restFrom, 0, true, false, 0},
	} {
		t.Run(fmt.Sprintf("%d commits, %v, beside others %v, held back %v", c.n, c.took, c.beside, c.heldBack), func(t *testing.T) {
			if got := restAfter(c.n, c.took, c.beside, c.heldBack); got != c.want {
				t.Errorf("it rests for %v, want %v", got, c.want)
			}
		})
	}
}

// TestAfterWhatALaneRests: after a flush that one tenant has filled, and after no other.
func TestAfterWhatALaneRests(t *testing.T) {
	for name, c := range map[string]struct {
		commits, tenants int
		rests            bool
	}{
		"a few commits":                      {restFrom - 1, 1, false},
		"more":                               {restFrom, 1, true},
		"a full flush":                       {restBelow, 1, false},
		"of each tenant a few":               {3 * restFrom, restFrom, false},
		"of each tenant one more than a few": {fewCommits * restFrom, restFrom, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			reg := prometheus.NewRegistry()
			x := newWorld(t, func(c *Config) { c.Metrics = NewMetrics(reg) })
			tenants := []id.TenantID{x.tenant}
			for len(tenants) < c.tenants {
				tenant, _ := x.newTenant()
				tenants = append(tenants, tenant)
			}
			var commits []*draft
			for n := range c.commits {
				one := x.auditOnly(0)
				one.Tenant = tenants[n%len(tenants)]
				commits = append(commits, one)
			}
			for _, err := range x.all(commits) {
				if err != nil {
					t.Fatal(err)
				}
			}
			x.must(x.auditOnly(0)) // in the flush after the rest
			if seconds := counted(t, reg, "svc_journal_rest_seconds_total"); seconds > 0 != c.rests {
				t.Errorf("the lanes rested for %v s", seconds)
			}
		})
	}
}

// TestWhileTenantsAreHeldBack: beside others a lane rests longer from a slow flush on,
// until quick ones have given back what it took, and then as before.
func TestWhileTenantsAreHeldBack(t *testing.T) {
	var clock atomic.Int64 // stands still but for flushes
	reg := prometheus.NewRegistry()
	x := newWorld(t, func(c *Config) {
		c.Metrics = NewMetrics(reg)
		c.Lanes = 1 // its clock is its own
		c.Now = func() time.Time { return noon.Add(time.Duration(clock.Load())) }
	})
	for _, tenant := range []id.TenantID{newTenantID(), x.tenant} {
		release, err := x.w.inflight.take(t.Context(), tenant)
		if err != nil {
			t.Fatal(err)
		}
		release()
	}
	const quick = slowFlush / slowTimes
	rested := 0.
	for i, c := range []struct {
		flush time.Duration
		after bool // as many as give back what slow ones took
		want  time.Duration
	}{
		{slowFlush - 1, false, 2 * (slowFlush - 1)},
		{slowFlush, false, restHeldBack},
		{quick, false, restHeldBack},
		{quick, true, 2 * quick},
	} {
		x.w.hooks.afterCommit = nil
		x.must(x.auditOnly(0)) // the quickest flush, and the lane rests no more
		took := c.flush
		x.w.hooks.afterCommit = func(uint32) { clock.Add(int64(took)) }
		for held := c.after; held; _, held = x.w.inflight.shared() {
			x.must(x.auditOnly(0))
		}
		var commits []*draft
		for range restFrom {
			commits = append(commits, x.auditOnly(0))
		}
		for _, err := range x.all(commits) {
			if err != nil {
				t.Fatal(err)
			}
		}
		x.must(x.auditOnly(0)) // in the flush after the rest
		seconds := counted(t, reg, "svc_journal_rest_seconds_total")
		if got := time.Duration(math.Round((seconds - rested) * 1e9)); got != c.want {
			t.Errorf("flush %d, of %v: the lane rested for %v, want %v", i+1, c.flush, got, c.want)
		}
		rested = seconds
	}
}
