//go:build storm

package blackbox

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"agentsvc/cmd/svc/client"
)

// followed is a long run whose stream is read over the death of a node.
type followed struct {
	run    string
	frames []client.Frame
	at     []time.Time // when each frame came
	err    error
}

// budget of the time from a kill to the next sign of life of what ran there.
const goesOnWithin = 6 * time.Second

// TestClusterKill kills a node under load, with the lease of production: every
// run that it had goes on elsewhere soon, no request to another node fails of it,
// and streams are resumed exactly.
func TestClusterKill(t *testing.T) {
	b := newBed(t, 3, 3*time.Second)
	b.start()
	l := newLoad(t, b, b.book)
	ctx := within(t, time.Minute)
	const rounds, runs = 3, 24
	var wentOn, slowest []time.Duration
	affected, resumed, survived := 0, 0, 0
	for round := range rounds {
		all := make([]*followed, runs)
		var readers sync.WaitGroup
		for i := range all {
			all[i] = &followed{}
			var started struct {
				RunID string `json:"run_id"`
			}
			input := fmt.Sprintf("/delay 50ms\n/tokens 240\n/say done %d-%d", round, i)
			if err := l.scene.post(ctx, l.c, "/v1/agents/"+l.helper+"/runs", fmt.Sprintf("kill-%d-%d", round, i), object{"input": input}, &started); err != nil {
				t.Fatal(err)
			}
			all[i].run = started.RunID
			readers.Go(func() { all[i].follow(ctx, l.scene) })
		}
		stop := make(chan struct{})
		var asking sync.WaitGroup
		for range 8 { // requests of all kinds at any node, more than those of the readers
			asking.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					default:
					}
					l.request(ctx, i)
				}
			})
		}
		pauseFor(ctx, 2*time.Second)
		victim := b.nodes[round%len(b.nodes)]
		killed := time.Now() // before the kill: clients that were cut come back at once
		victim.kill()
		pauseFor(ctx, goesOnWithin)
		close(stop)
		asking.Wait()
		for _, a := range b.book.requests() {
			if a.live || a.node == victim || a.end.Before(killed) || a.at.After(killed.Add(goesOnWithin)) || !strings.HasPrefix(a.path, "/v1/") {
				continue
			}
			survived++
			slowest = append(slowest, a.end.Sub(a.at))
			if a.err != nil || a.status >= 500 {
				t.Errorf("%s %s to node %s, asked %s after the kill, was answered %d, %v after %s", a.method, a.path, a.node.name, a.at.Sub(killed), a.status, a.err, a.end.Sub(a.at))
			}
		}
		rejoins := time.Now() // from here on runs may move because a node has come
		victim.back(ctx)
		readers.Wait()
		for _, x := range all {
			if x.err != nil {
				t.Error(x.err)
				continue
			}
			e := &end{run: new(runAnswer)}
			if a, err := l.settled(ctx, x.run, e.run); err != nil || a.status != http.StatusOK {
				t.Fatalf("run %s: %v %s", x.run, err, a)
			}
			var err error
			if e.replay, err = l.scene.hear(ctx, x.run, nil); err != nil {
				t.Fatal(err)
			}
			r := newRulings()
			_, _, says := cutLast(string(e.run.Run.Input))
			new(findings).stream(r, x.run, x.run, x.frames, true, says, e)
			r.report(t)
			if e.run.Run.Status != "succeeded" {
				t.Errorf("run %s is %s %+v", x.run, e.run.Run.Status, e.run.Run.Error)
			}
			if took, ok := x.anew(killed, rejoins); ok {
				affected++
				wentOn = append(wentOn, took)
			}
			if silent := x.silence(killed); silent > goesOnWithin {
				t.Errorf("nothing was heard of run %s for %s after the kill", x.run, silent)
			}
		}
		for _, a := range b.book.requests() {
			if a.resumes && a.at.After(killed) {
				resumed++
			}
		}
	}
	b.book.report(t)
	if affected == 0 || resumed == 0 || survived == 0 {
		t.Fatalf("%d runs were on a node that was killed, %d streams went on elsewhere, %d requests were sent to others: the test is void", affected, resumed, survived)
	}
	slices.Sort(wentOn)
	slices.Sort(slowest)
	t.Logf("%d kills: %d of %d runs were on the node; they went on after p50 %s, at most %s; %d streams were resumed elsewhere; %d requests to other nodes in the %s after a kill, none failed, p99 %s, at most %s",
		rounds, affected, rounds*runs, wentOn[len(wentOn)/2].Round(time.Millisecond), wentOn[len(wentOn)-1].Round(time.Millisecond), resumed, survived, goesOnWithin,
		slowest[len(slowest)*99/100].Round(time.Millisecond), slowest[len(slowest)-1].Round(time.Millisecond))
}

// cutLast is what the last /say of a script says.
func cutLast(input string) (before, sep, says string) {
	var text string
	_ = json.Unmarshal([]byte(input), &text)
	i := strings.LastIndex(text, "/say ")
	return text[:i], "/say ", text[i+len("/say "):]
}

// follow reads the run's stream to its end, over whatever happens.
func (x *followed) follow(ctx context.Context, w *scene) {
	x.frames, x.err = w.hear(ctx, x.run, func(client.Frame) error {
		x.at = append(x.at, time.Now())
		return nil
	})
}

// anew is how long after a moment, and before another one, the run began a step
// anew.
func (x *followed) anew(from, to time.Time) (time.Duration, bool) {
	for i, f := range x.frames {
		if f.Type == "step.started" && x.at[i].After(from) && x.at[i].Before(to) {
			return x.at[i].Sub(from), true
		}
	}
	return 0, false
}

// silence is the longest time without a frame after a moment.
func (x *followed) silence(from time.Time) (longest time.Duration) {
	for _, at := range x.at {
		if at.After(from) {
			longest = max(longest, at.Sub(from))
			from = at
		}
	}
	return longest
}
