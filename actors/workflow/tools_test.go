package workflow_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"agentsvc/persistence/vault"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/model"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/tool"
)

// toolbox knows the tools shop.once, shop.again, which is repeatable, shop.asks, which waits for
// an approval, and shop.fails; and browser skills whose form is filled before their approval opens:
// skill.fills, skill.misses, whose form cannot be filled, and skill.repeats, whose result is known.
type toolbox world

func (b *toolbox) Plan(ctx context.Context, t tool.Caller, first int, calls []model.Call) ([]tool.Planned, error) {
	if b.planning != nil {
		b.planning(ctx)
	}
	if t.Workflow == nil || len(calls) != 1 {
		return nil, fmt.Errorf("a caller %+v with %d calls", t, len(calls))
	}
	c := &calls[0]
	p := tool.Planned{CallID: c.ID, Tool: c.Name, Args: c.Args, Shown: json.RawMessage(`{"shown":true}`), Schema: json.RawMessage(`{"type":"object"}`), Repeat: c.Name == "shop.again"}
	switch {
	case c.Malformed != "":
		out := tool.FailedResult(tool.ErrInvalidArgs, "The arguments are no object.")
		p.Refused = &out
	case c.Name == "shop.asks":
		approval := id.ApprovalID{UUID: id.New(t.Run.Shard())}
		p.Approval, p.Terms = &approval, &tool.Terms{Risk: lifecycle.RiskHigh, Required: 1, Role: lifecycle.RoleMember, SLAMinutes: 60, OnTimeout: "reject", Policy: tool.PolicyRef{Name: "p", Kind: tool.KindPolicy}}
	case strings.HasPrefix(c.Name, "skill."):
		approval := id.ApprovalID{UUID: id.New(t.Run.Shard())}
		p.Approval, p.Terms = &approval, &tool.Terms{Risk: lifecycle.RiskHigh, Required: 1, Role: lifecycle.RoleMember, SLAMinutes: 60, OnTimeout: "reject", Policy: tool.PolicyRef{Name: c.Name, Kind: tool.KindSkill}}
		p.Skill, p.Repeat = &tool.SkillCall{Run: id.SkillRunID{UUID: id.New(t.Run.Shard())}, Previews: true, Reason: "the customer asked"}, true
	case !strings.HasPrefix(c.Name, "shop."):
		out := tool.FailedResult(tool.ErrNotGranted, "Nothing was run.")
		p.Refused = &out
	}
	return []tool.Planned{p}, nil
}

// Preview counts as the calls do, and waits as long.
func (b *toolbox) Preview(ctx context.Context, t tool.Caller, idx int, p tool.Planned) *tool.Outcome {
	out := b.Call(ctx, t, idx, tool.Planned{Tool: "preview"})
	switch p.Tool {
	case "skill.misses":
		out = tool.FailedResult("not_found", "No element was found.")
	case "skill.repeats":
		out = tool.Outcome{Content: `{"duplicate":true}`, Shown: json.RawMessage(`"masked"`)}
	default:
		return nil
	}
	return &out
}

func (b *toolbox) Call(ctx context.Context, t tool.Caller, idx int, p tool.Planned) tool.Outcome {
	b.mu.Lock()
	b.called[fmt.Sprintf("%s %s/%d", p.Tool, t.Run, idx)]++
	silent, held, refuses := b.silent, b.held, b.refuses
	b.mu.Unlock()
	if refuses {
		return tool.UnsentResult(tool.ErrNotGranted, "Nothing was run.")
	}
	if held != nil {
		select {
		case <-held:
		case <-ctx.Done():
		}
	}
	if silent {
		<-ctx.Done()
	}
	if p.Skill != nil && p.Skill.Joins {
		return tool.Outcome{Content: `{"duplicate":"` + p.Skill.Run.String() + `"}`, Shown: json.RawMessage(`"masked"`)}
	}
	if p.Tool == "shop.fails" {
		return tool.FailedResult(tool.ErrToolTimeout, "It did not answer.")
	}
	return tool.Outcome{Content: string(p.Args), Shown: json.RawMessage(`"masked"`)}
}

// calls are the calls of a tool that a run has sent, and how often, by step.
func (w *world) calls(name string, r id.RunID) map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := maps.Clone(w.called)
	maps.DeleteFunc(out, func(k string, _ int) bool { return !strings.HasPrefix(k, name+" "+r.String()+"/") })
	return out
}

func TestToolNodes(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct {
		name, tool, args      string
		action                lifecycle.Action
		edited                string
		status, output, marks string
		calls                 int
	}{
		{"a call", "shop.once", `{"n": "{{input.n}}"}`, "", "", "succeeded", `{"text":"{\"n\":7}","child_run_id":null,"json":{"n":7}}`, "node.started tool.called tool.result node.completed", 1},
		{"a call that fails", "shop.fails", `{}`, "", "", "failed TOOL_FAILED", "", "node.started tool.called tool.result node.completed", 1},
		{"a call that is refused", "other.x", `{}`, "", "", "failed TOOL_FAILED", "", "node.started node.completed", 0},
		{"an approved call", "shop.asks", `{"n": 1}`, "approve", "", "succeeded", `{"text":"{\"n\":1}","child_run_id":null,"json":{"n":1}}`,
			"node.started node.completed approval.required run.waiting run.resumed tool.called tool.result node.completed", 1},
		{"an edited call", "shop.asks", `{"n": 1}`, "edit", `{"n":2}`, "succeeded", `{"text":"{\"n\":2}","child_run_id":null,"json":{"n":2}}`, "", 1},
		{"a rejected call", "shop.asks", `{"n": 1}`, "reject", "", "failed TOOL_FAILED", "", "node.started node.completed approval.required run.waiting run.resumed node.completed", 0},
		{"a call that is answered by a person", "shop.asks", `{"n": 1}`, "respond", "", "failed TOOL_FAILED", "", "", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			w.t = t
			r := w.begin(`{"nodes": [{"id": "g", "type": "tool", "tool": "`+c.tool+`", "args": `+c.args+`}]}`, `{"n": 7}`, ``)
			if c.action != "" {
				a := w.approval(r, "g")
				if got := w.text(`SELECT r.status || ' ' || s.status || ' ' || s.kind FROM runs r JOIN run_steps s ON s.run_id = r.id WHERE r.id = $1`, r); got != "waiting_approval waiting tool" {
					t.Error(got)
				}
				if err := w.decide(a, c.action, "no", c.edited); err != nil {
					t.Fatal(err)
				}
			}
			if got := w.ended(r); got != c.status {
				t.Errorf("it is %s", got)
			}
			if got := w.text(`SELECT output -> 'outputs' -> 'g' FROM runs WHERE id = $1`, r); got != c.output {
				t.Errorf("output %s", got)
			}
			// The type is in the frame once: its data does not repeat it.
			if got := w.text(`SELECT string_agg(type, ' ') FROM run_marks WHERE run_id = $1 AND data ->> 'type' IS NOT NULL`, r); got != "" {
				t.Errorf("%s: the data of %s have a type", c.name, got)
			}
			if got := w.text(`SELECT string_agg(type, ' ' ORDER BY seq) FROM run_marks WHERE run_id = $1`, r); c.marks != "" && got != c.marks {
				t.Errorf("frames %s", got)
			}
			n := 0
			for _, times := range w.calls(c.tool, r) {
				n += times
			}
			if n != c.calls {
				t.Errorf("%d calls", n)
			}
			if got := w.text(`SELECT output FROM run_steps WHERE run_id = $1`, r); c.status == "succeeded" && got != `"masked"` {
				t.Errorf("the step shows %s", got)
			}
			w.exact(r)
		})
	}
	w.t = t
}

// What is sealed of a call is what a repeat needs: the schema of its tool, which may be large, is in
// the approval alone, and the arguments are there once.
func TestWhatIsSealedOfACall(t *testing.T) {
	w := newWorld(t)
	w.mu.Lock()
	w.silent = true
	w.mu.Unlock()
	r := w.begin(`{"nodes": [{"id": "t", "type": "tool", "tool": "shop.again", "args": {"n": 1}}, {"id": "g", "type": "tool", "tool": "shop.asks", "args": {"n": 2}}]}`, `null`, ``)
	w.approval(r, "g")
	w.eventually("it is called", func() bool { return len(w.calls("shop.again", r)) == 1 })
	for idx, want := range []string{
		`{"call":{"call_id":"t","tool":"shop.again","repeat":true,"args":"eyJuIjoxfQ==","shown":"eyJzaG93biI6dHJ1ZX0=","called":true}}`,
		`{"call":{"call_id":"g","tool":"shop.asks","terms":TERMS,"args":"eyJuIjoyfQ==","shown":"eyJzaG93biI6dHJ1ZX0="}}`,
	} {
		var sealed []byte
		if err := w.pool.QueryRow(t.Context(), `SELECT sealed FROM run_steps WHERE run_id = $1 AND idx = $2`, r, idx).Scan(&sealed); err != nil {
			t.Fatal(err)
		}
		plain, err := w.vault.Open(vault.AAD{Tenant: w.tenant, Table: "run_steps", Row: fmt.Sprintf("%s/%d", r, idx), Column: "sealed"}, sealed)
		if err != nil {
			t.Fatal(err)
		}
		got := regexp.MustCompile(`"terms":.*?,"args"`).ReplaceAllString(string(plain), `"terms":TERMS,"args"`)
		if got != want {
			t.Errorf("step %d: %s", idx, got)
		}
	}
	if got := w.text(`SELECT schema FROM approvals WHERE run_id = $1`, r); got != `{"type":"object"}` {
		t.Errorf("the approval has the schema %s", got)
	}
	w.ask(r, msg.CancelRun{})
	w.ended(r)
}

// A call whose answer is lost with its process is sent again where that is safe, under the same key.
// Else the run fails, and the call is not repeated.
func TestACallWhoseAnswerIsLost(t *testing.T) {
	w := newWorld(t)
	t.Run("and is refused when it is sent again", func(t *testing.T) {
		const flow = `{"nodes": [{"id": "g", "type": "tool", "tool": "shop.again", "args": {}}]}`
		w.mu.Lock()
		w.silent = true
		w.mu.Unlock()
		r := w.begin(flow, `null`, ``)
		w.eventually("it is called", func() bool { return len(w.calls("shop.again", r)) == 1 })
		w.mu.Lock()
		w.silent, w.refuses = false, true
		w.mu.Unlock()
		w.restart(0, false)
		w.ended(r)
		fresh := w.begin(flow, `null`, ``)
		w.ended(fresh)
		w.mu.Lock()
		w.refuses = false
		w.mu.Unlock()
		for r, code := range map[id.RunID]string{r: "(UNKNOWN_OUTCOME)", fresh: "(TOOL_NOT_GRANTED)"} {
			if got := w.text(`SELECT error_message FROM runs WHERE id = $1`, r); !strings.Contains(got, code) {
				t.Errorf("%s, want %s", got, code)
			}
		}
	})
	for name, want := range map[string]string{"shop.once": "failed TOOL_FAILED [1]", "shop.again": "succeeded [2]"} {
		w.mu.Lock()
		w.silent = true
		w.mu.Unlock()
		r := w.begin(`{"nodes": [{"id": "g", "type": "tool", "tool": "`+name+`", "args": {}}]}`, `null`, ``)
		w.eventually("it is called", func() bool { return len(w.calls(name, r)) == 1 })
		w.mu.Lock()
		w.silent = false
		w.mu.Unlock()
		w.restart(0, false)
		got := w.ended(r)
		if got = fmt.Sprint(got, " ", slices.Collect(maps.Values(w.calls(name, r)))); got != want {
			t.Errorf("%s: %s instead of %s", name, got, want)
		}
	}
}
