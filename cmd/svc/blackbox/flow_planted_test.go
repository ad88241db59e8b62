//go:build failpoints

package blackbox

import (
	"context"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// flowRound tells every story once, over a crash at point, and judges. The book is that of the
// round.
func (w *flows) flowRound(t *testing.T, point string) *book {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	w.book = newBook()
	if point == "" {
		w.judgeFlows(t, w.tellFlows(ctx, 1, len(flowStories)))
		return w.book
	}
	told := make(chan []*flowTale, 1)
	w.kill()
	go func() { told <- w.tellFlows(ctx, 1, len(flowStories)) }()
	within := 4 // of the passages: the stories pass each point more often
	if strings.HasPrefix(point, "journal.") {
		within = 16
	}
	w.dieAt(ctx, t, point, 1+rand.IntN(within))
	w.launch()
	w.judgeFlows(t, <-told)
	return w.book
}

// TestCrashPlantedFlowFaults sees to it that the laws of workflows find what they are there
// for.
func TestCrashPlantedFlowFaults(t *testing.T) {
	file := plant(t, flowFaults)
	begin := func(t *testing.T, name string) *flows {
		n := newSceneNode(t, plantedBy+"="+name)
		n.file = file
		n.start()
		return newFlowScene(t, n)
	}
	found := map[string]bool{}
	for _, f := range flowFaults {
		found[f.law] = true
	}
	for _, law := range flowLaws {
		if !found[law] {
			t.Errorf("no fault is planted for the law %q", law)
		}
	}
	t.Run("none", func(t *testing.T) {
		t.Parallel()
		w := begin(t, "")
		for _, point := range []string{"", "workflow.tool_after_call", "journal.after_commit"} {
			w.flowRound(t, point).report(t)
		}
	})
	for _, f := range flowFaults {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			w := begin(t, f.name)
			for i := range 20 {
				if why := w.flowRound(t, f.point).breaches(f.law); len(why) > 0 {
					t.Logf("found in round %d: %s: %s", i+1, f.law, why[0][:min(len(why[0]), 500)])
					return
				}
			}
			t.Errorf("the law %q has not found it", f.law)
		})
	}
}
