//go:build storm

package blackbox

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"
)

// TestClusterBulk cuts a node off from Postgres while three approvals of a run are
// decided in one request: some may be decided and others not. A repeat of the
// request decides the others too, and the run goes on.
func TestClusterBulk(t *testing.T) {
	b := newBed(t, 1, time.Second)
	b.start()
	l := newLoad(t, b, b.book)
	bulk := stories[slices.IndexFunc(stories, func(s story) bool { return s.name == "in bulk" })]
	halves := 0
	for round := 0; halves == 0; round++ {
		if round == 30 {
			t.Fatal("no bulk decision was answered in part: the test is void")
		}
		ctx := within(t, endsWithin)
		tales := make([]*tale, 6)
		var wg, waiting sync.WaitGroup
		waiting.Add(len(tales))
		go func() {
			waiting.Wait()
			pauseFor(ctx, rand.N(4*time.Millisecond))
			b.nodes[0].database.set("", dropped)
			pauseFor(ctx, 2*b.lease)
			b.nodes[0].database.set("", whole)
		}()
		for i := range tales {
			x := l.scene.newTale(bulk)
			x.crowd = func(ctx context.Context) error {
				waiting.Done()
				waiting.Wait() // all are decided at the same time
				return l.scene.bulk(ctx, x)
			}
			tales[i] = x
			wg.Go(func() { l.scene.tell(context.WithValue(ctx, telling{}, x.title()), x) })
		}
		wg.Wait()
		l.scene.judge(t, tales).report(t)
		for _, x := range tales {
			halves += x.halves
			if x.err != nil {
				l.rows(t, x.run)
			}
		}
		if t.Failed() {
			return
		}
	}
}
