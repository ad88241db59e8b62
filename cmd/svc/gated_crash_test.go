//go:build failpoints

package main

import (
	"context"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"agentsvc/persistence/failpoint"
)

// gatedPoint reports whether only the path of a gated call meets a failpoint.
func gatedPoint(name string) bool {
	return strings.HasPrefix(name, "run.tool_") || strings.HasPrefix(name, "approval.")
}

func gatedPoints() []string {
	return slices.DeleteFunc(failpoint.Names(), func(name string) bool { return !gatedPoint(name) })
}

// rounds is how often each point is met.
const rounds = 25

// tellers is how many stories happen at a time.
const tellers = 14

// storm has tellers tell stories, one after another, while kills is at work, and
// until all that was begun has ended. It answers what was told.
func (w *scene) storm(t *testing.T, limit time.Duration, kills func(ctx context.Context)) []*tale {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	stop := make(chan struct{})
	var mu sync.Mutex // guards tales
	var tales []*tale
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for i := range tellers {
		wg.Go(func() {
			for n := i; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				x := w.newTale(stories[n%len(stories)])
				mu.Lock()
				tales = append(tales, x)
				mu.Unlock()
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
func storms(t *testing.T, limit time.Duration, kills func(ctx context.Context, n *node), env ...string) {
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
	if r.again == 0 || r.unknown == 0 {
		t.Error("no call was repeated, or no outcome was unknown: the test is void")
	}
}

// TestCrashAtEveryGatedFailpoint kills the process at every point that only a
// gated call meets, again and again: the process that takes up what was broken
// off is killed in its turn.
func TestCrashAtEveryGatedFailpoint(t *testing.T) {
	points := gatedPoints()
	if len(points) < 6 {
		t.Fatalf("only %v are declared: the test is void", points)
	}
	for _, point := range points {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			storms(t, 4*time.Minute, func(ctx context.Context, n *node) {
				for range rounds {
					n.dieAt(ctx, t, point, 1+rand.IntN(10))
				}
			})
		})
	}
}

// TestCrashGatedAtRandom kills at any moment, and at the boundaries of commits
// that gated calls share with all others.
func TestCrashGatedAtRandom(t *testing.T) {
	t.Run("any moment", func(t *testing.T) {
		t.Parallel()
		storms(t, 4*time.Minute, func(ctx context.Context, n *node) {
			for range 2 * rounds {
				n.launch()
				select {
				case <-time.After(150*time.Millisecond + rand.N(700*time.Millisecond)):
				case <-ctx.Done():
				}
				n.kill()
			}
		}, "SVC_RUN_CONCURRENCY=4") // places are taken and given back over kills
	})
	t.Run("any boundary", func(t *testing.T) {
		t.Parallel()
		var shared []string
		for _, name := range failpoint.Names() {
			if !gatedPoint(name) && name != "thread.before_next" { // these threads have one message
				shared = append(shared, name)
			}
		}
		storms(t, 6*time.Minute, func(ctx context.Context, n *node) {
			for i := range rounds * len(shared) {
				n.dieAt(ctx, t, shared[i%len(shared)], 1+rand.IntN(30))
			}
		})
	})
}
