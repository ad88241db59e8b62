//go:build failpoints

package blackbox

import (
	"context"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// gatedPoint reports whether only the path of a gated call meets a failpoint.
func gatedPoint(name string) bool {
	return strings.HasPrefix(name, "run.tool_") || strings.HasPrefix(name, "approval.")
}

// rounds is how often each point is met.
const rounds = 25

// tellers is how many stories happen at a time.
const tellers = 14

// stormLimit bounds a storm. One takes a minute, and four at a time take four on two cores that
// nothing else uses.
const stormLimit = 12 * time.Minute

// storm has tellers tell stories, one after another, while kills is at work, and
// until each story was told and all that was begun has ended. It answers what was
// told.
func (w *scene) storm(t *testing.T, limit time.Duration, kills func(ctx context.Context)) []*tale {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	stop := make(chan struct{})
	var mu sync.Mutex // guards tales
	var tales []*tale
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	next := func() *tale {
		mu.Lock()
		defer mu.Unlock()
		select {
		case <-stop:
			if len(tales) >= 2*len(stories) {
				return nil
			}
		default:
		}
		x := w.newTale(stories[len(tales)%len(stories)])
		tales = append(tales, x)
		return x
	}
	for range tellers {
		wg.Go(func() {
			for x := next(); x != nil; x = next() {
				if w.tell(ctx, x); x.err != nil {
					return
				}
			}
		})
	}
	kills(ctx)
	close(stop)
	wg.Wait()
	return tales
}

// dieAt starts the node, which is down, and waits until it has met the hit-th
// passage of a failpoint.
func (n *node) dieAt(ctx context.Context, t *testing.T, point string, hit int) {
	t.Helper()
	n.launch("SVC_FAILPOINT=" + point + ":" + strconv.Itoa(hit))
	select {
	case <-n.ended():
		if n.exit() != -1 {
			t.Fatalf("the node ended by itself: %s", n.logged())
		}
	case <-ctx.Done():
		t.Fatalf("%s was not passed %d times", point, hit)
	}
}

// storms runs a storm of kills on a node of its own, and holds what was told
// against the laws.
func storms(t *testing.T, limit time.Duration, kills func(ctx context.Context, n *node), env ...string) *rulings {
	t.Helper()
	n := newSceneNode(t, env...)
	n.start()
	w := newScene(t, n)
	r := w.judge(t, w.storm(t, limit, func(ctx context.Context) {
		n.kill()
		begun := time.Now()
		kills(ctx, n)
		t.Logf("kills over %s", time.Since(begun).Round(time.Millisecond))
		n.launch()
	}))
	w.examine(r)
	r.report(t)
	r.notVoid(t)
	return r
}

// TestCrashAtEveryGatedFailpoint kills the process at every point on the way of a
// gated call, again and again: those that only it meets, and the boundaries of
// commits that it shares with all others. The process that takes up what was
// broken off is killed in its turn.
func TestCrashAtEveryGatedFailpoint(t *testing.T) {
	only := 0
	var again, unknown atomic.Int64
	t.Cleanup(func() { // when all points are done
		if again.Load() == 0 || unknown.Load() == 0 {
			t.Error("no call was repeated, or no outcome was unknown: the test is void")
		}
	})
	for _, point := range failpoints(t) {
		within := 60 // of the passages
		switch {
		case gatedPoint(point):
			only++
			within = 10
		case evidencePoint(point) || deliverablePoint(point) || elsewhere(point): // there is no knowledge base and no deliverable
			continue
		case strings.HasPrefix(point, "run."): // a story passes it once or twice
			within = 20
		case point == "thread.before_next" || webhookPoint(point) || flowPoint(point): // these threads have one message, and there is no endpoint and no workflow
			continue
		}
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			r := storms(t, stormLimit, func(ctx context.Context, n *node) {
				for range rounds {
					n.dieAt(ctx, t, point, 1+rand.IntN(within))
				}
			})
			again.Add(int64(r.again))
			unknown.Add(int64(r.unknown))
		})
	}
	if only < 6 {
		t.Errorf("only %d points are a gated call's own: the test is void", only)
	}
}

// TestCrashGatedAtRandom kills at any moment. Places are taken and given back
// over kills, too.
func TestCrashGatedAtRandom(t *testing.T) {
	storms(t, stormLimit, func(ctx context.Context, n *node) {
		for range 2 * rounds {
			n.launch()
			select {
			case <-time.After(150*time.Millisecond + rand.N(700*time.Millisecond)):
			case <-ctx.Done():
			}
			n.kill()
		}
	}, "SVC_RUN_CONCURRENCY=4")
}
