package delivery

import (
	"fmt"
	"testing"
	"time"

	"agentsvc/persistence/outbox"
	"agentsvc/schemas/testkit"
)

// A backlog drains through the real outbox, sender and sockets to healthy endpoints
// of this machine; b.N is ignored, deliveries/s is what it tells.
func BenchmarkDrain(b *testing.B) {
	for _, endpoints := range []int{1, 10} {
		b.Run(fmt.Sprintf("%d endpoints", endpoints), func(b *testing.B) {
			const backlog = 20_000
			x := newWorld(b)
			p := x.process(nil)
			var all []outbox.Endpoint
			for range endpoints {
				e := x.endpoint(newReceiver(b, nil).url)
				x.pending(e, backlog/endpoints)
				all = append(all, e)
			}
			b.ResetTimer()
			began := time.Now()
			wake(p.Node, all...)
			for _, e := range all {
				testkit.Eventually(b, "it drains", func() bool { return left(p.Node, e) })
			}
			b.ReportMetric(backlog/time.Since(began).Seconds(), "deliveries/s")
			b.StopTimer()
			for _, e := range all {
				if n := x.count(e, "succeeded"); n != backlog/endpoints {
					b.Errorf("%d of %d", n, backlog/endpoints)
				}
			}
		})
	}
}
