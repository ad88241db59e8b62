//go:build failpoints

package blackbox

import (
	"context"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// plant builds the service with these faults, of which it has the one that the
// environment names.
func plant(t *testing.T, faults []fault) string {
	t.Helper()
	list := overlay(t, faults)
	file := filepath.Join(filepath.Dir(list), "svc")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-tags", "failpoints", "-overlay", list, "-o", file, "agentsvc/cmd/svc").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return file
}

// round tells every story once, over a crash at point, and judges.
func (w *scene) round(t *testing.T, point string) *rulings {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	told := make(chan []*tale, 1)
	if point != "" {
		w.kill()
	}
	go func() { told <- w.tellEach(ctx) }()
	if point != "" {
		w.dieAt(ctx, t, point, 1+rand.IntN(9)) // the stories pass each point more often
		w.launch()
	}
	r := w.judge(t, <-told)
	w.examine(r)
	return r
}

// TestCrashPlantedFaults sees to it that the laws of the storms find what they
// are there for.
func TestCrashPlantedFaults(t *testing.T) {
	file := plant(t, faults)
	begin := func(t *testing.T, name string) *scene {
		n := newSceneNode(t, plantedBy+"="+name)
		n.file = file
		n.start()
		return newScene(t, n)
	}
	t.Run("none", func(t *testing.T) {
		t.Parallel()
		w := begin(t, "")
		for _, point := range []string{"", "run.tool_after_call", "approval.decided"} {
			w.round(t, point).report(t)
		}
	})
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			w := begin(t, f.name)
			for i := range 20 {
				if r := w.round(t, f.point); len(r.broken[f.law]) > 0 {
					t.Logf("found in round %d: %s: %s", i+1, f.law, r.broken[f.law][0])
					return
				}
			}
			t.Errorf("the law %q has not found it", f.law)
		})
	}
}
