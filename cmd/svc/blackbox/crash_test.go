//go:build failpoints

package blackbox

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"agentsvc/persistence/failpoint"
)

// elsewhere reports whether a failpoint is met in the test of its own package.
func elsewhere(name string) bool {
	return strings.HasPrefix(name, "sync.") || strings.HasPrefix(name, "skillrun.") || strings.HasPrefix(name, "ingest.")
}

// TestCrashAtEveryFailpoint kills the process at every commit boundary that the
// code names, early and late, and starts it anew. Those that only a gated call, evidence, a
// workflow, a delivery, a sync or a document meets have tests of their own.
func TestCrashAtEveryFailpoint(t *testing.T) {
	names := slices.DeleteFunc(failpoints(t), func(name string) bool {
		return gatedPoint(name) || evidencePoint(name) || deliverablePoint(name) || flowPoint(name) || webhookPoint(name) || elsewhere(name)
	})
	if len(names) < 3 {
		t.Fatalf("only %v are declared: the test is void", names)
	}
	inPlaces(t, func(t *testing.T, n *node) {
		c := n.tenant("crash")
		for _, name := range names {
			for _, hit := range []int{1, 20} {
				t.Run(fmt.Sprintf("%s:%d", name, hit), func(t *testing.T) {
					agent := c.publish(t, name, simulatedModel)
					n.kill()
					n.launch(fmt.Sprintf("SVC_FAILPOINT=%s:%d", name, hit))
					died := make(chan bool, 1)
					go func() {
						end := n.ended()
						select {
						case <-end:
							n.launch()
							died <- true
						case <-time.After(2 * time.Minute):
							died <- false
						}
					}()
					ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
					defer cancel()
					jobs, err := workload(ctx, c, agent, name+strconv.Itoa(hit), 8, 3, slowAnswer)
					if err != nil {
						t.Fatal(err)
					}
					select {
					case hit := <-died:
						if !hit {
							t.Error("the failpoint was never hit")
						}
					case <-time.After(2 * time.Minute):
						t.Error("the failpoint was never hit")
					}
					if err := n.ready(time.Minute); err != nil {
						t.Fatal(err)
					}
					for _, j := range jobs {
						checkStream(t, j)
					}
					checkStore(t, c, agent, jobs, 3)
				})
			}
		}
	})
}

// mostKills bounds the time of a test on a machine that is too slow to get on between two kills.
const mostKills = 15

// TestCrashAtRandomUnderLoad kills the process again and again while messages
// are sent and streams are read.
func TestCrashAtRandomUnderLoad(t *testing.T) {
	inPlaces(t, func(t *testing.T, n *node) {
		c := n.tenant("crash")
		agent := c.publish(t, "Crash", simulatedModel)
		stop, stopped := make(chan struct{}), make(chan int)
		go func() {
			kills := 0
			defer func() { stopped <- kills }()
			for ; kills < mostKills; kills++ {
				select {
				case <-stop:
					return
				case <-time.After(200*time.Millisecond + rand.N(600*time.Millisecond)):
				}
				n.kill()
				n.launch()
				if err := n.ready(time.Minute); err != nil {
					t.Error(err)
				}
			}
		}()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		const messages = 12
		jobs, err := workload(ctx, c, agent, "random", 16, messages, func(i, m int) string {
			return fmt.Sprintf("/delay 5ms\n/tokens %d", 10+rand.IntN(40))
		})
		close(stop)
		if kills := <-stopped; kills < 3 {
			t.Errorf("only %d kills: the test is void", kills)
		} else {
			t.Logf("%d kills", kills)
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range jobs {
			checkStream(t, j)
		}
		checkStore(t, c, agent, jobs, messages)
	})
}

// inPlaces tests a node whose runs go at once, and one whose runs wait for places:
// they have a transition more.
func inPlaces(t *testing.T, test func(*testing.T, *node)) {
	for name, env := range map[string][]string{"any number": nil, "four places": {"SVC_RUN_CONCURRENCY=4"}} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, env...)
			n.start()
			test(t, n)
		})
	}
}

// slowAnswer takes some tens of milliseconds, so that crashes meet it.
func slowAnswer(thread, message int) string {
	return fmt.Sprintf("/delay 2ms\n/tokens 15\n/say thread %d message %d", thread, message)
}

// failpoints lists the points of the binary, sorted.
func failpoints(t *testing.T) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), binary(t), "version")
	var errs strings.Builder
	cmd.Env, cmd.Stderr = append(os.Environ(), "SVC_FAILPOINT="+failpoint.List), &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %s", err, errs.String())
	}
	var names []string
	for line := range strings.Lines(errs.String()) {
		if name, is := strings.CutPrefix(strings.TrimSpace(line), failpoint.Listed); is {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
