//go:build failpoints

package blackbox

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// evidencePoint reports whether only a run with evidence meets a failpoint.
func evidencePoint(name string) bool { return strings.HasPrefix(name, "run.evidence_") }

// TestCrashAtEveryEvidencePoint kills the process at each point of a run with evidence, and at each
// call of a kb.search. The run goes on, a search is repeated, and its frames and citations are whole.
func TestCrashAtEveryEvidencePoint(t *testing.T) {
	n := newNode(t)
	n.start()
	ctx := within(t, 4*time.Minute)
	c := n.tenant("evidence")
	l := c.library(t, ctx, "returns.md", "Shoes may be returned within 30 days.")
	c.grant(t, ctx, object{"source": "builtin", "tool_pattern": "kb.search", "effect": "allow"})
	agent := c.reader(t, true, l)
	cites, never := "/call kb.search {\"query\":\"shoes\"}\n/cite yes", "/say shoes"
	points := 0
	for _, point := range failpoints(t) {
		content, status := cites, "succeeded"
		switch {
		case evidencePoint(point):
			points++
			if strings.HasSuffix(point, "uncited") {
				content, status = never, "failed"
			}
		case point == "run.tool_before_call", point == "run.tool_after_call", point == "run.tool_before_result", point == "run.model_answered":
		default:
			continue
		}
		t.Run(point, func(t *testing.T) {
			n.kill()
			n.launch("SVC_FAILPOINT=" + point + ":1")
			if err := n.ready(time.Minute); err != nil {
				t.Fatal(err)
			}
			var made struct{ ID string }
			if err := c.once(ctx, "/v1/threads", "thread of "+point, object{"agent_id": agent}, &made); err != nil {
				t.Fatal(err)
			}
			var posted struct {
				RunID string `json:"run_id"`
			}
			died := n.ended()
			if err := c.once(ctx, "/v1/threads/"+made.ID+"/messages", "message of "+point, object{"content": content, "evidence": true}, &posted); err != nil {
				t.Fatal(err)
			}
			select {
			case <-died:
			case <-ctx.Done():
				t.Fatal("the failpoint was not met")
			}
			n.launch()
			if err := n.ready(time.Minute); err != nil {
				t.Fatal(err)
			}
			r := c.poll(t, ctx, posted.RunID, status)
			var kept []string
			for _, s := range r.Steps {
				if s.Status != "abandoned" {
					kept = append(kept, s.Kind)
				}
			}
			want := "retrieval llm retrieval llm"
			if status == "failed" {
				if want = "retrieval llm llm"; r.Run.Error.Code != "OUTPUT_INVALID" {
					t.Errorf("%+v", r.Run.Error)
				}
			} else if m := c.citedMessages(t, ctx, made.ID); len(m) != 2 || len(m[1].Citations) != 1 {
				t.Errorf("%+v", m)
			}
			if got := strings.Join(kept, " "); got != want {
				t.Errorf("%s, want %s", r.shape(), want)
			}
			frames := c.stream(t, ctx, posted.RunID, "?replay=full", "", nil)
			if got, want := strings.Count(types(frames), "retrieval.result tool.result"), strings.Count(want, "retrieval"); got != want {
				t.Errorf("%d results of searches, want %d: %s", got, want, types(frames))
			}
			for i := range frames[:len(frames)-1] {
				if rest := c.stream(t, ctx, posted.RunID, "", frames[i].ID, nil); fmt.Sprint(rest) != fmt.Sprint(frames[i+1:]) {
					t.Errorf("resumed after %s: %s", frames[i].ID, types(rest))
				}
			}
		})
	}
	if points < 3 {
		t.Errorf("%d points: the test is void", points)
	}
}
