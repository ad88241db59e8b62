package journal

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"agentsvc/schemas/id"
)

func TestHowLongALaneRests(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		n      int
		took   time.Duration
		beside bool
		want   time.Duration
	}{
		{restFrom - 1, 50 * ms, false, 0},
		{restFrom - 1, 50 * ms, true, 0},
		{restFrom, 3 * ms, false, 1500 * time.Microsecond},
		{restFrom, 3 * ms, true, 6 * ms},
		{restBelow - 1, 40 * ms, false, restAlone},
		{restBelow - 1, 5 * ms, true, restBeside},
		{restBelow - 1, 10 * time.Second, false, restAlone},
		{restBelow - 1, 10 * time.Second, true, restBeside},
		{restBelow, 50 * ms, false, 0},
		{restBelow, 50 * ms, true, 0},
		{restFrom, 0, true, 0},
	} {
		t.Run(fmt.Sprintf("%d commits, %v, beside others %v", c.n, c.took, c.beside), func(t *testing.T) {
			if got := restAfter(c.n, c.took, c.beside); got != c.want {
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
			var commits []*Commit
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
