//go:build failpoints

package blackbox

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// flowPoint reports whether only runs of workflows meet a failpoint.
func flowPoint(name string) bool { return strings.HasPrefix(name, "workflow.") }

// TestCrashAtEveryFlowCommit kills the process at each commit of a run with nodes of all types
// in turn, before its rows are written and after, and at each call of its tool nodes.
func TestCrashAtEveryFlowCommit(t *testing.T) {
	for point, least := range map[string]int{"journal.before_flush": 15, "journal.after_commit": 15, "workflow.tool_before_call": 2, "workflow.tool_after_call": 2} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			n := newSceneNode(t)
			n.start()
			w := newFlowScene(t, n)
			var tales []*flowTale
			for died := true; died; {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				x, told := w.newFlow("all types"), make(chan struct{})
				tales = append(tales, x)
				n.kill()
				n.launch(fmt.Sprintf("SVC_FAILPOINT=%s:%d", point, len(tales)))
				go func() { defer close(told); w.tellFlow(ctx, x) }()
				select {
				case <-n.ended():
					n.launch()
					<-told
				case <-told:
					died = false
				}
				cancel()
			}
			n.kill() // the point may still come
			n.launch()
			w.judgeFlows(t, tales)
			w.book.report(t)
			r := newRulings()
			w.examine(r)
			r.report(t)
			if kills := len(tales) - 1; kills < least {
				t.Errorf("only %d kills: the test is void", kills)
			} else {
				t.Logf("%d kills", kills)
			}
		})
	}
}

// flowStorm tells stories of workflows, some at a time, while kills is at work and until each
// was told and all that was begun has ended. Then it holds what was told against the laws.
func flowStorm(t *testing.T, kills func(ctx context.Context, n *node), env ...string) {
	t.Helper()
	n := newSceneNode(t, env...)
	n.start()
	w := newFlowScene(t, n)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	stop := make(chan struct{})
	var mu sync.Mutex // guards tales
	var tales []*flowTale
	next := func() *flowTale {
		mu.Lock()
		defer mu.Unlock()
		select {
		case <-stop:
			if len(tales) >= 2*len(flowStories) {
				return nil
			}
		default:
		}
		x := w.nextFlow()
		tales = append(tales, x)
		return x
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	for range tellers {
		wg.Go(func() {
			for x := next(); x != nil; x = next() {
				if w.tellFlow(ctx, x); x.err != nil {
					return
				}
			}
		})
	}
	n.kill()
	begun := time.Now()
	kills(ctx, n)
	t.Logf("kills over %s", time.Since(begun).Round(time.Millisecond))
	n.launch()
	close(stop)
	wg.Wait()
	w.judgeFlows(t, tales)
	w.book.report(t)
	w.flowsNotVoid(t, tales, true)
	r := newRulings()
	w.examine(r)
	r.report(t)
}

// TestCrashFlowsAtEachPoint kills the process at every point that a run of a workflow passes,
// with its children and approvals, again and again. The process that takes up what was broken
// off is killed in its turn.
func TestCrashFlowsAtEachPoint(t *testing.T) {
	points := slices.DeleteFunc(failpoints(t), func(name string) bool {
		return webhookPoint(name) || evidencePoint(name) || deliverablePoint(name) || strings.HasPrefix(name, "thread.") || strings.HasPrefix(name, "run.tool_") || elsewhere(name)
	})
	own := 0
	for _, point := range points {
		if flowPoint(point) {
			own++
		}
	}
	if own < 2 {
		t.Errorf("%v: the test is void", points)
	}
	for _, point := range points {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			flowStorm(t, func(ctx context.Context, n *node) {
				within := 60 // of the passages
				if !strings.HasPrefix(point, "journal.") && !strings.HasPrefix(point, "durable.") {
					within = 6
				}
				for range 8 {
					n.dieAt(ctx, t, point, 1+rand.IntN(within))
				}
			})
		})
	}
}

// TestCrashFlowsAtRandom kills at any moment.
func TestCrashFlowsAtRandom(t *testing.T) {
	flowStorm(t, func(ctx context.Context, n *node) {
		for range rounds {
			n.launch()
			select {
			case <-time.After(150*time.Millisecond + rand.N(700*time.Millisecond)):
			case <-ctx.Done():
			}
			n.kill()
		}
	}, "SVC_RUN_CONCURRENCY=8")
}
