package journal

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"agentsvc/persistence/pgtest"
	"agentsvc/schemas/id"
	"agentsvc/schemas/webhook"
)

// BenchmarkEvent is what an event of 1 kB adds to the smallest commit there is, for a
// tenant with no endpoint that hears of it and with some, on a disk that syncs.
func BenchmarkEvent(b *testing.B) {
	for _, bb := range []struct {
		name              string
		events, endpoints int
	}{{"no event", 0, 0}, {"no endpoint", 1, 0}, {"1 endpoint", 1, 1}, {"10 endpoints", 1, 10}} {
		b.Run(bb.name, func(b *testing.B) {
			cluster := pgtest.Private(b, pgtest.PrivateOptions{Fsync: true})
			x := worldIn(b, &cluster.DB, func(c *Config) { c.Lanes = benchLanes })
			for range bb.endpoints {
				x.endpoint(x.tenant, webhook.RunCompleted)
			}
			body := fmt.Appendf(nil, `{"data":%q}`, benchText)
			var left atomic.Int64
			left.Store(int64(b.N))
			var wg sync.WaitGroup
			b.ResetTimer()
			for n := range benchCallers {
				wg.Go(func() {
					for left.Add(-1) >= 0 {
						c := x.auditOnly(id.Shard(n))
						for range bb.events {
							c.Events = append(c.Events, Event{ID: id.EventID{UUID: id.New(0)}, Type: webhook.RunCompleted, Body: body, At: noon})
						}
						if err := x.w.Do(context.Background(), c.commit()); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "commits/s")
		})
	}
}
