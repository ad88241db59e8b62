//go:build failpoints

package blackbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"testing"
	"time"

	"agentsvc/cmd/svc/client"
)

// TestCrashOfAConversationThatBegins kills the process at every commit boundary that
// the message meets with which a visitor's thread begins: who insists under his
// Idempotency-Key is answered one thread and one run, and there are no others.
func TestCrashOfAConversationThatBegins(t *testing.T) {
	names := slices.DeleteFunc(failpoints(t), func(name string) bool {
		return gatedPoint(name) || evidencePoint(name) || deliverablePoint(name) || flowPoint(name) || webhookPoint(name) || elsewhere(name)
	})
	if len(names) < 3 {
		t.Fatalf("only %v are declared: the test is void", names)
	}
	n := newSceneNode(t, behindProxy)
	n.start()
	c := n.tenant("conversations")
	replayed := 0
	for _, name := range names {
		for _, hit := range []int{1, 7} {
			t.Run(fmt.Sprintf("%s:%d", name, hit), func(t *testing.T) {
				ctx := within(t, time.Minute)
				agent := c.publish(t, name, simulatedModel)
				k := c.newEmbedKey(t, ctx, agent, "visited", object{"rate_limit_per_min": 10000})
				visitors := make([]*guest, 6)
				for i := range visitors {
					visitors[i] = c.visitor(t, ctx, k.Key, "")
				}
				n.kill()
				n.launch(fmt.Sprintf("SVC_FAILPOINT=%s:%d", name, hit))
				died := make(chan bool, 1)
				end := n.ended()
				go func() {
					select {
					case <-end:
						n.launch()
						died <- true
					case <-ctx.Done():
						died <- false
					}
				}()
				errs := make([]error, len(visitors))
				talks := make([][]*utterance, len(visitors))
				each(len(visitors), len(visitors), func(i int) { talks[i], errs[i] = visitors[i].begins(ctx, i) })
				if err := errors.Join(errs...); err != nil {
					t.Fatal(err)
				}
				if !<-died {
					t.Fatal("the failpoint was never hit")
				}
				if err := n.ready(time.Minute); err != nil {
					t.Fatal(err)
				}
				runs, threads := map[string]string{}, map[string]bool{}
				for i, g := range visitors {
					thread := talks[i][0].ThreadID
					threads[thread] = true
					var want []heldMessage
					for _, u := range talks[i] {
						if other := runs[u.RunID]; other != "" || u.ThreadID != thread {
							t.Errorf("%s answers %q, and before it %q", u, u.content, other)
						}
						runs[u.RunID] = u.content
						r := c.poll(t, ctx, u.RunID, "succeeded")
						want = append(want, heldMessage{"user", u.content, u.RunID}, heldMessage{"assistant", r.text(), u.RunID})
						// The first answer is what the key is answered for good.
						again, err := g.insist(ctx, u.posted, u.content, u.key)
						if err != nil || again.status != 202 || again.ThreadID != thread || again.RunID != u.RunID || again.MessageID != u.MessageID {
							t.Errorf("%q again under its key: %v %s, want %s", u.content, err, again, u)
						}
						replayed++
					}
					var history struct{ Items []heldMessage }
					g.ask(t, ctx, 200, "GET", "/v1/embed/threads/"+thread+"/messages", nil, &history)
					if !slices.Equal(history.Items, want) {
						t.Errorf("thread %s holds %+v, want %+v", thread, history.Items, want)
					}
					var own struct{ Items []struct{ ID string } }
					g.ask(t, ctx, 200, "GET", "/v1/embed/threads", nil, &own)
					if len(own.Items) != 1 || own.Items[0].ID != thread {
						t.Errorf("a visitor began thread %s and has %+v", thread, own.Items)
					}
				}
				c.noOthers(t, ctx, agent, runs, threads)
			})
		}
	}
	if replayed == 0 {
		t.Error("nothing was asked again: the test is void")
	}
}

// begins begins a conversation and goes on with it, over crashes.
func (g *guest) begins(ctx context.Context, i int) (all []*utterance, err error) {
	thread := ""
	for m := range 2 {
		u, err := g.insist(ctx, thread, fmt.Sprintf("/delay 2ms\n/tokens 15\n/say visitor %d message %d", i, m), fmt.Sprintf("message-%d", m))
		if err != nil || u.status != 202 {
			return nil, fmt.Errorf("message %d: %w %s", m, err, u)
		}
		all, thread = append(all, u), u.ThreadID
		if err := g.Follow(ctx, u.RunID, "", func(client.Frame) error { return nil }); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// noOthers looks for runs and threads of an agent that no answer named.
func (c *caller) noOthers(t *testing.T, ctx context.Context, agent string, runs map[string]string, threads map[string]bool) {
	t.Helper()
	for path, known := range map[string][]string{"/v1/runs": slices.Collect(maps.Keys(runs)), "/v1/threads": slices.Collect(maps.Keys(threads))} {
		items, _, err := c.Pages(ctx, path, url.Values{}, 1000)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, raw := range items {
			var x struct {
				ID      string
				AgentID string `json:"agent_id"`
			}
			if err := json.Unmarshal(raw, &x); err != nil {
				t.Fatal(err)
			}
			if x.AgentID != agent {
				continue
			}
			if n++; !slices.Contains(known, x.ID) {
				t.Errorf("%s has %s, which no answer named: a phantom", path, raw)
			}
		}
		if n != len(known) {
			t.Errorf("%s has %d of the agent, %d were answered", path, n, len(known))
		}
	}
}
