package workflow_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"agentsvc/actors/durable"
	"agentsvc/actors/workflow"
	"agentsvc/schemas/flow"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/tool"
)

// edits is the rule of all browser skills for edits: n may become 2.
type edits struct{}

func (edits) CheckSkillEdit(_ context.Context, _ id.TenantID, _ id.SkillRunID, args json.RawMessage) (string, error) {
	if string(args) != `{"n":2}` {
		return "The policy of this browser skill does not allow edits.", nil
	}
	return "", nil
}

// The form of a gated browser skill is filled before people are asked: the approval says which run
// they decide on and why it was called, an edit obeys the skill, and a form that cannot be filled
// fails the node without an approval.
func TestSkillsOfToolNodes(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct {
		name, tool            string
		action                lifecycle.Action
		edited                string
		refused               bool // the decision
		status, output, marks string
		calls                 int
	}{
		{"approved", "skill.fills", "approve", "", false, "succeeded", `{"text":"{\"n\":1}","child_run_id":null,"json":{"n":1}}`,
			"node.started node.completed approval.required run.waiting run.resumed tool.called tool.result node.completed", 1},
		{"edited", "skill.fills", "edit", `{"n":2}`, false, "succeeded", `{"text":"{\"n\":2}","child_run_id":null,"json":{"n":2}}`, "", 1},
		{"edited against the skill's policy", "skill.fills", "edit", `{"n":3}`, true, "succeeded", `{"text":"{\"n\":1}","child_run_id":null,"json":{"n":1}}`, "", 1},
		{"rejected", "skill.fills", "reject", "", false, "failed TOOL_FAILED", "", "node.started node.completed approval.required run.waiting run.resumed node.completed", 0},
		{"not landed", "skill.misses", "", "", false, "failed TOOL_FAILED", "", "node.started node.completed", 0},
		{"done before", "skill.repeats", "", "", false, "succeeded", `{"text":"{\"duplicate\":true}","child_run_id":null,"json":{"duplicate":true}}`,
			"node.started tool.called tool.result node.completed", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			w.t = t
			r := w.begin(`{"nodes": [{"id": "k", "type": "tool", "tool": "`+c.tool+`", "args": {"n": 1}}]}`, `null`, ``)
			if c.action != "" {
				a := w.approval(r, "k")
				if got := w.text(`SELECT concat_ws(' ', r.status, s.status, a.browser_skill_run_id IS NOT NULL, a.reasoning_summary, a.agent_id, a.schema)
					FROM approvals a JOIN runs r ON r.id = a.run_id JOIN run_steps s ON s.run_id = a.run_id WHERE a.id = $1`, a); got != `waiting_approval waiting t the customer asked {"type":"object"}` {
					t.Error(got)
				}
				err := w.decide(a, c.action, "no", c.edited)
				if c.refused {
					if !errors.Is(err, problem.New(problem.CodeInvalidArgs, "")) {
						t.Errorf("the edit: %v", err)
					}
					err = w.decide(a, lifecycle.ActionApprove, "", "")
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if got := w.ended(r); got != c.status {
				t.Errorf("it is %s", got)
			}
			if got := w.text(`SELECT output -> 'outputs' -> 'k' FROM runs WHERE id = $1`, r); got != c.output {
				t.Errorf("output %s", got)
			}
			if got := w.text(`SELECT string_agg(type, ' ' ORDER BY seq) FROM run_marks WHERE run_id = $1`, r); c.marks != "" && got != c.marks {
				t.Errorf("frames %s", got)
			}
			if n := w.calls(c.tool, r); len(n) != c.calls || len(w.calls("preview", r)) != 1 {
				t.Errorf("calls %v, previews %v", n, w.calls("preview", r))
			}
			asked := "0"
			if c.action != "" {
				asked = "1"
			}
			if got := w.text(`SELECT count(*) FROM approvals WHERE run_id = $1`, r); got != asked {
				t.Errorf("%s approvals", got)
			}
			if c.tool == "skill.misses" && !strings.Contains(w.text(`SELECT error_message FROM runs WHERE id = $1`, r), "(not_found)") {
				t.Error(w.text(`SELECT error_message FROM runs WHERE id = $1`, r))
			}
			w.exact(r)
		})
	}
	w.t = t
}

// Two branches that call the same skill with the same values have one run of it and one approval: both get its
// result, and the second call begins when the first has ended. Other values are asked about by themselves. A
// cancel tells each run of a skill once.
func TestBranchesWithTheSameCallOfASkill(t *testing.T) {
	w := newWorld(t)
	const branches = `{"nodes": [{"id": "a", "type": "tool", "tool": "skill.fills", "args": {"n": 1}}, {"id": "b", "type": "tool", "tool": "skill.fills", "args": {"n": 1}},
		{"id": "c", "type": "tool", "tool": "skill.fills", "args": {"n": 2}}]}`
	asks := func(restarts bool) id.RunID {
		t.Helper()
		r := w.begin(branches, `null`, ``)
		w.approval(r, "c")
		w.eventually("all calls are planned", func() bool {
			return w.text(`SELECT count(*) FROM run_steps WHERE run_id = $1 AND input::text = '{"shown":true}'`, r) == "3" && w.text(`SELECT count(*) FROM approvals WHERE run_id = $1`, r) == "2"
		})
		if restarts {
			w.restart(0, false)
		}
		return r
	}
	for _, restarts := range []bool{false, true} {
		r := asks(restarts)
		leads := w.text(`SELECT s.name FROM approvals a JOIN run_steps s ON s.run_id = a.run_id AND s.idx = a.step_idx WHERE a.run_id = $1 AND s.name <> 'c'`, r)
		joins := map[string]string{"a": "b", "b": "a"}[leads]
		if got := w.text(`SELECT status FROM run_steps WHERE run_id = $1 AND name = $2`, r, joins); got != "running" {
			t.Errorf("the second is %s", got)
		}
		if err := w.decide(w.approval(r, "c"), lifecycle.ActionApprove, "", ""); err != nil {
			t.Fatal(err)
		}
		w.eventually("the other call has ended", func() bool {
			return w.text(`SELECT status FROM run_steps WHERE run_id = $1 AND name = 'c'`, r) == "succeeded"
		})
		if n := w.calls("skill.fills", r); len(n) != 1 {
			t.Errorf("before the decision: calls %v", n)
		}
		if err := w.decide(w.approval(r, leads), lifecycle.ActionApprove, "", ""); err != nil {
			t.Fatal(err)
		}
		if got := w.ended(r); got != "succeeded" {
			t.Fatalf("it is %s", got)
		}
		of := w.text(`SELECT browser_skill_run_id FROM approvals a JOIN run_steps s ON s.run_id = a.run_id AND s.idx = a.step_idx WHERE a.run_id = $1 AND s.name = $2`, r, leads)
		for node, want := range map[string]string{leads: `{"n":1}`, joins: `{"duplicate":"` + of + `"}`, "c": `{"n":2}`} {
			if got := w.text(`SELECT output -> 'outputs' -> $2::text -> 'json' FROM runs WHERE id = $1`, r, node); got != want {
				t.Errorf("%s: output %s", node, got)
			}
		}
		if got := w.text(`SELECT string_agg(concat_ws(' ', type, data ->> 'node_id'), ', ' ORDER BY seq) FROM run_marks WHERE run_id = $1 AND
			seq > (SELECT max(seq) FROM run_marks WHERE run_id = $1 AND type = 'run.resumed') AND type IN ('tool.called', 'node.completed')`, r); got !=
			"tool.called, node.completed "+leads+", tool.called, node.completed "+joins {
			t.Errorf("frames %s", got)
		}
		if n := w.calls("skill.fills", r); len(n) != 3 || len(w.calls("preview", r)) != 2 {
			t.Errorf("calls %v, previews %v", n, w.calls("preview", r))
		}
		if !restarts {
			w.exact(r)
		}
	}
	r := asks(false)
	w.ask(r, msg.CancelRun{})
	if got := w.ended(r) + ", " + w.text(`SELECT count(*) FROM timers WHERE kind = 'skillrun' AND name = 'look'`); got != "cancelled CANCELLED, 2" {
		t.Error(got)
	}
	w.exact(r)
}

// A preview whose process dies is begun again, and people are asked once.
func TestAPreviewIsOwedAgainAfterACrash(t *testing.T) {
	w := newWorld(t)
	w.mu.Lock()
	w.silent = true
	w.mu.Unlock()
	r := w.begin(`{"nodes": [{"id": "k", "type": "tool", "tool": "skill.fills", "args": {"n": 1}}]}`, `null`, ``)
	w.eventually("the form is filled", func() bool { return len(w.calls("preview", r)) == 1 })
	if got := w.text(`SELECT concat_ws(' ', r.status, s.status, (SELECT count(*) FROM approvals)) FROM runs r JOIN run_steps s ON s.run_id = r.id`); got != "running running 0" {
		t.Errorf("before its end: %s", got)
	}
	w.mu.Lock()
	w.silent = false
	w.mu.Unlock()
	w.restart(0, false)
	if err := w.decide(w.approval(r, "k"), lifecycle.ActionApprove, "", ""); err != nil {
		t.Fatal(err)
	}
	if got := w.ended(r); got != "succeeded" {
		t.Errorf("it is %s", got)
	}
	if previews, calls := w.calls("preview", r), w.calls("skill.fills", r); fmt.Sprint(slices.Collect(maps.Values(previews)), slices.Collect(maps.Values(calls))) != "[2] [1]" {
		t.Errorf("previews %v, calls %v", previews, calls)
	}
	if got := w.text(`SELECT count(*) FROM approvals`); got != "1" {
		t.Errorf("people are asked %s times", got)
	}
	w.exact(r)
}

// The end of a run ends what is filled for it: each run of a browser skill that it began gets the
// timer by which it looks at the end, in the commit of the end.
func TestTheEndOfARunTellsItsSkills(t *testing.T) {
	w := newWorld(t)
	const one = `{"nodes": [{"id": "k", "type": "tool", "tool": "skill.fills", "args": {"n": 1}}]}`
	waits := w.begin(one, `null`, ``)
	w.approval(waits, "k")
	w.mu.Lock()
	w.silent = true
	w.mu.Unlock()
	fills := w.begin(one, `null`, ``)
	w.eventually("the form is filled", func() bool { return len(w.calls("preview", fills)) == 1 })
	for n, r := range []id.RunID{fills, waits} {
		w.ask(r, msg.CancelRun{})
		if got := w.ended(r) + ", " + w.text(`SELECT count(*) FROM timers WHERE kind = 'skillrun' AND name = 'look'`); got != fmt.Sprintf("cancelled CANCELLED, %d", n+1) {
			t.Error(got)
		}
		w.exact(r)
	}
	if of := w.text(`SELECT browser_skill_run_id FROM approvals WHERE run_id = $1`, waits); w.text(`SELECT count(*) FROM timers WHERE kind = 'skillrun' AND entity_id = $1::uuid`, of) != "1" {
		t.Errorf("the run %s, on which people decided, has no timer", of)
	}
}

// A run that leaves its node asks people all the same, keeps a result that was known, and hears of a
// preview once.
func TestPreviewsOfARunThatLeaves(t *testing.T) {
	t.Parallel()
	plan, err := flow.Load(json.RawMessage(`{"nodes": [{"id": "k", "type": "tool", "tool": "skill.fills", "args": {}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	begun, _, err := plan.Start(t.Context(), json.RawMessage("null"), nil)
	if err != nil {
		t.Fatal(err)
	}
	approval := id.ApprovalID{UUID: id.NewAnywhere()}
	call := &workflow.Call{Plan: tool.Planned{Tool: "skill.fills", Repeat: true, Terms: &tool.Terms{SLAMinutes: 60}, Approval: &approval, Skill: &tool.SkillCall{Run: id.SkillRunID{UUID: id.NewAnywhere()}, Previews: true}}}
	s := workflow.State{Status: lifecycle.RunRunning, Plan: plan, Flow: begun, Seq: 3, Steps: 1, Open: []*workflow.Step{{Call: call}}}
	var mc workflow.Machine
	decide := func(s workflow.State, m any) durable.Decision[workflow.State] {
		t.Helper()
		d, err := mc.Decide(s, m, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	owes := func(s workflow.State) string {
		var keys []string
		for _, e := range mc.Owed(s) {
			keys = append(keys, e.Key())
		}
		return strings.Join(keys, " ")
	}
	if got := owes(s); got != "preview/0" {
		t.Errorf("it owes %q", got)
	}
	if d := decide(s, durable.Activated{Epoch: 2}); d.Changed {
		t.Errorf("its next activation changes %+v", d.Facts)
	}
	asks := decide(s, durable.Leaving{Msg: workflow.Previewed{}})
	if asks.Next.Status != lifecycle.RunWaitingApproval || owes(asks.Next) != "" || !asks.Changed {
		t.Errorf("it is %s, and owes %q", asks.Next.Status, owes(asks.Next))
	}
	if d := decide(asks.Next, workflow.Previewed{Outcome: &tool.Outcome{IsError: true}}); d.Changed {
		t.Errorf("a second preview: %+v", d.Facts)
	}
	known := decide(s, durable.Leaving{Msg: workflow.Previewed{Outcome: &tool.Outcome{Content: "1", Shown: json.RawMessage("1")}}})
	if owes(known.Next) != "" || !known.Next.Owes {
		t.Errorf("it owes %q here, and elsewhere %t", owes(known.Next), known.Next.Owes)
	}
	if d := decide(known.Next, durable.Activated{Epoch: 2}); owes(d.Next) != "walk/0" {
		t.Errorf("the next activation owes %q", owes(d.Next))
	}
	failed := decide(s, durable.Leaving{Msg: workflow.Previewed{Outcome: &tool.Outcome{Content: `{"error":"not_found"}`, IsError: true}}})
	if failed.Next.Status != lifecycle.RunFailed || failed.Next.Error.Code != lifecycle.FailToolFailed {
		t.Errorf("it is %s", failed.Next.Status)
	}
}
