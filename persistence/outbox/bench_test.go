package outbox

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"agentsvc/persistence/pgtest"
	"agentsvc/schemas/lifecycle"
)

// BenchmarkDrain settles 20,000 pending deliveries of 1 kB over 10 endpoints, by
// Turns of 32 with the results of the Turn before, on a disk that syncs. Run it with
// -benchtime=1x.
func BenchmarkDrain(b *testing.B) {
	const endpoints, each, want = 10, 2000, 32
	body := bytes.Repeat([]byte("x"), 1000)
	var spent time.Duration
	for range b.N {
		cluster := pgtest.Private(b, pgtest.PrivateOptions{Fsync: true})
		x := worldIn(b, &cluster.DB, nil)
		all := make([]Endpoint, endpoints)
		for i := range all {
			all[i] = x.endpoint()
			x.backlog(all[i], each, body)
		}
		start := time.Now()
		var wg sync.WaitGroup
		for _, e := range all {
			wg.Go(func() {
				turn := Turn{Endpoint: e, Want: want}
				for sent := 0; ; {
					c, err := x.o.Turn(context.Background(), turn)
					if err != nil {
						b.Error(err)
						return
					}
					if sent += len(c.Attempts); len(c.Attempts) == 0 {
						if sent != each {
							b.Errorf("%d of %d were claimed", sent, each)
						}
						return
					}
					turn.Results = turn.Results[:0]
					for _, a := range c.Attempts {
						turn.Results = append(turn.Results, Result{Delivery: a.Delivery, N: a.N, BegunAt: a.BegunAt, Status: lifecycle.DeliverySucceeded, HTTPStatus: 200, Duration: time.Millisecond})
					}
				}
			})
		}
		wg.Wait()
		spent += time.Since(start)
		if n := x.count(`SELECT count(*) FROM webhook_deliveries WHERE status = 'succeeded' AND attempts = 1 AND json_array_length(attempt_log) = 1`); n != endpoints*each {
			b.Errorf("%d of %d succeeded", n, endpoints*each)
		}
	}
	b.ReportMetric(float64(b.N*endpoints*each)/spent.Seconds(), "deliveries/s")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkLoneTurn is a Turn that claims one delivery and settles the one before,
// with a backlog of 100,000 behind it, and without.
func BenchmarkLoneTurn(b *testing.B) {
	for _, backlog := range []int{0, 100_000} {
		b.Run(fmt.Sprint(backlog), func(b *testing.B) {
			cluster := pgtest.Private(b, pgtest.PrivateOptions{Fsync: true})
			x := worldIn(b, &cluster.DB, nil)
			e := x.endpoint()
			x.backlog(e, b.N+backlog, []byte("{}"))
			turn := Turn{Endpoint: e, Want: 1}
			b.ResetTimer()
			for range b.N {
				a := x.must(turn).Attempts[0]
				turn.Results = []Result{{Delivery: a.Delivery, N: 1, Status: lifecycle.DeliverySucceeded, HTTPStatus: 200}}
			}
		})
	}
}
