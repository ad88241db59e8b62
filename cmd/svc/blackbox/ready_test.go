package blackbox

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"agentsvc/persistence/pgtest"
)

// A 200 of /readyz means that the next call is served, whatever it is, from the moment at which Postgres crashed.
// The lease ends before, during or after the outage; the node's pool still has the connections from before.
func TestReadyMeansServed(t *testing.T) {
	t.Parallel()
	const lease = 1500 * time.Millisecond
	cluster := pgtest.Private(t, pgtest.PrivateOptions{Fsync: true})
	n := newNode(t, "SVC_DATABASE_URL="+cluster.URL, "SVC_CLUSTER_LEASE="+lease.String(), "SVC_RATE_CAPACITY=100000", "SVC_RATE_REFILL=100000")
	n.start()
	ctx := within(t, 2*time.Minute)
	c := n.tenant("ready")
	agent := c.publish(t, "Helper", simulatedModel)
	crowd := func(name string) {
		var wg sync.WaitGroup
		for i := range 24 {
			wg.Go(func() {
				method, path, body, want := "GET", "/v1/runs?limit=1", any(nil), 200
				if i%3 == 0 {
					method, path, body, want = "POST", "/v1/agents/"+agent+"/runs", object{"input": "/say hi"}, 202
				}
				if a, err := c.do(ctx, method, path, body); err != nil || a.status != want {
					t.Errorf("%s: %s %s: %v %s", name, method, path, err, a)
				}
			})
		}
		wg.Wait()
	}
	for i, down := range []time.Duration{0, lease / 3, lease, lease * 4 / 3} {
		eventually(t, ctx, "the node is ready", func() bool { code, _ := n.readiness(ctx); return code == 200 })
		crowd("warm") // all connections are open
		cluster.Crash(t)
		crashed := time.Now()
		back := make(chan struct{})
		go func() {
			defer close(back)
			select {
			case <-time.After(down):
			case <-ctx.Done():
			}
			cluster.Start(t)
		}()
		ready := 0
		for end := crashed.Add(down + 3*lease); time.Now().Before(end) && ctx.Err() == nil; {
			if code, _ := n.readiness(ctx); code != 200 {
				continue
			}
			ready++
			crowd(fmt.Sprintf("%d, down for %s, told 200 %s after the crash", i, down, time.Since(crashed).Round(time.Millisecond)))
			if t.Failed() {
				break
			}
		}
		<-back
		if t.Failed() {
			return
		}
		if ready == 0 {
			eventually(t, ctx, "the node is ready again", func() bool { code, _ := n.readiness(ctx); return code == 200 })
			crowd("again")
		}
	}
}
