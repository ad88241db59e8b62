package workflow_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"agentsvc/actors/durable"
	"agentsvc/actors/workflow"
	"agentsvc/schemas/flow"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/tool"
)

// everything are nodes of all types that wait, side by side.
const everything = `{"id": "g", "type": "gate", "title": "x", "escalate_to_role": "owner"}, {"id": "h", "type": "human_task", "title": "x"},
	{"id": "d", "type": "delay", "seconds": 3600}, {"id": "e", "type": "wait_event", "event": "x", "timeout_minutes": 60},
	{"id": "a", "type": "agent", "agent_id": "AGENT", "input": "x"}, {"id": "t", "type": "tool", "tool": "shop.asks", "args": {}}`

// A run whose rows cannot be read fails, and nothing of what it began is left behind.
func TestARunThatCannotBeReadEndsAllThatItBegan(t *testing.T) {
	w := newWorld(t)
	for name, spoil := range map[string]string{
		"an open step is damaged":       `UPDATE run_steps SET sealed = '\x00' WHERE run_id = $1 AND name = 'd'`,
		"an ended step is damaged":      `UPDATE run_steps SET sealed = '\x00' WHERE run_id = $1 AND name = 's'`,
		"a step is of an unknown node":  `UPDATE run_steps SET name = 'nobody' WHERE run_id = $1 AND name = 'h'`,
		"the progress is another one's": `UPDATE workflow_runs SET progress = 'p/' WHERE id = $1`,
		"the variables are damaged":     `UPDATE workflow_runs SET variables = '[]' WHERE id = $1`,
		"a decided answer is damaged": `UPDATE approvals SET status = 'edited', decision = 'edit', edited = '\x00', approvals_so_far = required_approvals, decided_at = now() WHERE run_id = $1
			AND step_idx = (SELECT idx FROM run_steps WHERE run_id = $1 AND name = 'h')`,
		"the definition is of a later version": `UPDATE workflow_versions SET definition = '{"nodes": [{"id": "x", "type": "teleport"}]}'
			WHERE workflow_id = (SELECT workflow_id FROM runs WHERE id = $1)`,
	} {
		t.Run(name, func(t *testing.T) {
			w.t = t
			w.mu.Lock()
			w.silent = true
			w.mu.Unlock()
			r := w.begin(`{"nodes": [{"id": "s", "type": "set", "values": {"x": 1}}, `+everything+`]}`, `null`, ``)
			w.eventually("all nodes wait", func() bool {
				return w.text(`SELECT count(*) FROM approvals WHERE run_id = $1`, r) == "3" && w.text(`SELECT status FROM runs WHERE parent_run_id = $1`, r) == "running"
			})
			w.restart(0, false)
			w.exec(spoil, r)
			w.exec(`DELETE FROM timers t USING approvals a WHERE t.entity_id = a.id AND a.run_id = $1 AND a.status <> 'pending'`, r) // as with a decision
			w.node.Tell(w.address(r), durable.Wake{})
			if got := w.ended(r); got != "failed INTERNAL" {
				t.Errorf("it is %s", got)
			}
			if got := w.text(`SELECT status FROM runs WHERE parent_run_id = $1`, r); got != "cancelled" {
				t.Errorf("the child is %s", got)
			}
		})
	}
	w.t = t
}

// A walk that begins nodes of all types and then fails ends them in the same commit.
func TestAWalkThatFailsLeavesNothing(t *testing.T) {
	w := newWorld(t)
	r := w.begin(`{"nodes": [`+everything+`, {"id": "c", "type": "condition", "expression": "input.missing"}]}`, `{}`, ``)
	if got := w.ended(r); got != "failed EXPRESSION_FAILED" {
		t.Errorf("it is %s", got)
	}
	if n := w.tags.commits(); n != 2 {
		t.Errorf("%d commits", n)
	}
	if got := w.nodes(r); got != "+g w:g +h w:h +d w:d +e w:e +a +t +c f:g f:h f:d f:e f:a f:t f:c" {
		t.Error(got)
	}
	w.exact(r)
	if got := w.text(`SELECT string_agg(DISTINCT status, ' ') FROM approvals WHERE run_id = $1`, r); got != "cancelled" {
		t.Errorf("the approvals are %s", got)
	}
	if got := w.text(`SELECT count(*) FROM runs WHERE parent_run_id = $1`, r) + w.text(`SELECT count(*) FROM timers`); got != "00" {
		t.Errorf("children and timers: %s", got)
	}

	// The event that leads there is taken by its node.
	r = w.begin(`{"nodes": [{"id": "e", "type": "wait_event", "event": "x"}, {"id": "g", "type": "gate", "title": "x"}, {"id": "c", "type": "condition", "expression": "input.missing"}],
		"edges": [{"from": "e", "to": "g"}, {"from": "g", "to": "c"}, {"from": "e", "to": "c"}]}`, `{}`, ``)
	w.inject(r, "x", `1`, "")
	if err := w.decide(w.approval(r, "g"), lifecycle.ActionApprove, "", ""); err != nil {
		t.Fatal(err)
	}
	if got := w.ended(r) + " " + w.nodes(r); got != "failed EXPRESSION_FAILED +e w:e s:e +g w:g s:g +c f:c" {
		t.Error(got)
	}
	w.exact(r)
}

// The end of one node, while the others are under way, ends them all, whatever they wait for.
func TestAFailureEndsWhatIsUnderWay(t *testing.T) {
	w := newWorld(t)
	held := make(chan struct{})
	defer close(held)
	w.mu.Lock()
	w.silent, w.held = true, held
	w.mu.Unlock()
	r := w.begin(`{"nodes": [`+everything+`, {"id": "o", "type": "tool", "tool": "shop.once", "args": {}}, {"id": "f", "type": "wait_event", "event": "f"}, {"id": "c", "type": "condition", "expression": "input.missing"}],
		"edges": [{"from": "f", "to": "c"}]}`, `{}`, ``)
	w.eventually("all nodes wait", func() bool {
		return w.text(`SELECT count(*) FROM approvals WHERE run_id = $1`, r) == "3" && w.text(`SELECT status FROM runs WHERE parent_run_id = $1`, r) == "running" && len(w.calls("shop.once", r)) == 1
	})
	w.inject(r, "f", `1`, "")
	if got := w.ended(r); got != "failed EXPRESSION_FAILED" {
		t.Errorf("it is %s", got)
	}
	if got := w.text(`SELECT string_agg(name || ' ' || status, ', ' ORDER BY idx) FROM run_steps WHERE run_id = $1 AND status <> 'failed'`, r); got != "f succeeded" {
		t.Error(got)
	}
	w.exact(r)
}

// An event that came in time counts for a run that is about to leave its node too, although this
// activation has not given it to its node yet.
func TestATimeoutOfARunThatLeaves(t *testing.T) {
	plan, err := flow.Load(json.RawMessage(`{"nodes": [{"id": "e", "type": "wait_event", "event": "x", "timeout_minutes": 1}]}`))
	if err != nil {
		t.Fatal(err)
	}
	begun, _, err := plan.Start(t.Context(), json.RawMessage("null"), nil)
	if err != nil {
		t.Fatal(err)
	}
	s := workflow.State{Status: lifecycle.RunRunning, Plan: plan, Flow: begun, Seq: 4, Steps: 1, Open: []*workflow.Step{{Text: "x"}}, Events: []workflow.Event{{Name: "x"}}, Heard: 1}
	d, err := workflow.Machine{}.Decide(s, durable.Leaving{Msg: durable.TimerDue{Name: "node/0"}}, s.CreatedAt)
	if err != nil || len(d.Facts) > 0 || d.Next.Status.Terminal() {
		t.Errorf("%+v, %v", d.Facts, err)
	}
}

// A run that leaves its node decides nothing about rows that it could not read: its next activation
// fails it.
func TestADamagedRunThatLeaves(t *testing.T) {
	for _, m := range []any{
		msg.ChildChanged{Run: id.RunID{UUID: id.NewAnywhere()}}, msg.ApprovalsDecided{}, durable.TimerDue{Name: "node/0"}, durable.TimerDue{Name: msg.ChildTimer(id.RunID{UUID: id.NewAnywhere()})},
		durable.TimerDue{Name: id.NewAnywhere().String()}, durable.Wake{}, durable.Answered{Msg: msg.ApprovalsDecided{}, Answer: workflow.Approvals{0: {Status: lifecycle.ApprovalApproved, Version: 2}}},
		workflow.ToolAnswered{}, workflow.Planned{}, workflow.Found{}, msg.InjectEvent{Name: "x"},
	} {
		s := workflow.State{Status: lifecycle.RunWaitingApproval, Seq: 4, Steps: 1, Open: []*workflow.Step{{Node: -1, Approval: &workflow.Approval{Version: 1}, Call: &workflow.Call{Plan: tool.Planned{}}}}}
		d, err := workflow.Machine{}.Decide(s, durable.Leaving{Msg: m}, s.CreatedAt)
		if err != nil {
			t.Errorf("%T: %v", m, err)
		}
		if d.Next.Status.Terminal() && d.Next.Status != lifecycle.RunFailed {
			t.Errorf("%T: it is %s", m, d.Next.Status)
		}
	}
}

// A node that ended well and whose outgoing edges then fail the run keeps what came back: its answer,
// the decision, the child's tokens, the event.
func TestANodeWhoseEdgeFailsKeepsWhatCameBack(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct{ name, node, output, frames string }{
		{"a call", `{"id": "n", "type": "tool", "tool": "shop.once", "args": {}}`, `"masked"`, "tool.called tool.result true"},
		{"an approved call", `{"id": "n", "type": "tool", "tool": "shop.asks", "args": {}}`, `"masked"`, "approval.required run.waiting run.resumed tool.called tool.result true"},
		{"a child", `{"id": "n", "type": "agent", "agent_id": "AGENT", "input": "/say hi"}`, `{"text":"hi","child_run_id":"CHILD"}`, ""},
		{"a gate", `{"id": "n", "type": "gate", "title": "x"}`, `{"text":"","child_run_id":null}`, "approval.required run.waiting run.resumed"},
		{"a task", `{"id": "n", "type": "human_task", "title": "x"}`, `{"text":"Ann","child_run_id":null}`, "approval.required run.waiting run.resumed"},
		{"an event", `{"id": "n", "type": "wait_event", "event": "x", "timeout_minutes": 60}`, `{"text":"","child_run_id":null,"json":{"n":1}}`, ""},
		{"a delay", `{"id": "n", "type": "delay", "seconds": 0.001}`, `{"text":"","child_run_id":null}`, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			w.t = t
			r := w.begin(`{"nodes": [`+c.node+`, {"id": "z", "type": "set", "values": {"z": 1}}], "edges": [{"from": "n", "to": "z", "when": "input.missing > 1"}]}`, `{}`, ``)
			if strings.Contains(c.frames, "approval.required") {
				if err := w.decide(w.approval(r, "n"), lifecycle.ActionApprove, "Ann", ""); err != nil {
					t.Fatal(err)
				}
			}
			if c.name == "an event" {
				w.inject(r, "x", `{"n":1}`, "")
			}
			if got := w.ended(r); got != "failed EXPRESSION_FAILED" {
				t.Errorf("it is %s", got)
			}
			if got := w.text(`SELECT string_agg(name || ' ' || status, ' ') FROM run_steps WHERE run_id = $1`, r); got != "n succeeded" {
				t.Errorf("steps %s", got)
			}
			child := w.text(`SELECT id FROM runs WHERE parent_run_id = $1`, r)
			if got := w.text(`SELECT output FROM run_steps WHERE run_id = $1`, r); got != strings.ReplaceAll(c.output, "CHILD", child) {
				t.Errorf("the step shows %s", got)
			}
			if got := w.text(`SELECT string_agg(type || coalesce(' ' || (data ->> 'ok'), ''), ' ' ORDER BY seq) FROM run_marks WHERE run_id = $1 AND type NOT LIKE 'node.%'`, r); got != c.frames {
				t.Errorf("frames %s", got)
			}
			if got := w.text(`SELECT count(*) FROM workflow_events WHERE run_id = $1 AND step_idx IS NULL`, r); got != "0" {
				t.Errorf("%s events are not taken", got)
			}
			if child != "" {
				sums := `SELECT (tokens_in > 0)::text || ' ' || tokens_in || ' ' || tokens_out || ' ' || cost_usd FROM `
				want := w.text(sums+`runs WHERE id = $1`, child)
				if got := w.text(sums+`runs WHERE id = $1`, r); got != want || !strings.HasPrefix(got, "true") {
					t.Errorf("the run has the sums %s, its child %s", got, want)
				}
				if got := w.text(sums+`run_steps WHERE run_id = $1`, r); got != want {
					t.Errorf("the step has the sums %s, its child %s", got, want)
				}
				if got := w.text(`SELECT status FROM runs WHERE id = $1`, child) + " " + w.text(`SELECT data ->> 'child_run_id' FROM run_marks WHERE run_id = $1 AND data ->> 'status' = 'succeeded'`, r); got != "succeeded "+child {
					t.Errorf("the child is %s", got)
				}
			}
			w.exact(r)
		})
	}
	w.t = t
}

// A run whose error quotes what cannot be stored, or much, fails with that error all the same.
func TestAnErrorThatQuotesWhatCannotBeStored(t *testing.T) {
	w := newWorld(t)
	for _, k := range []string{`a\u0000b`, strings.Repeat("k", 1<<20)} {
		r := w.begin(`{"nodes": [{"id": "t", "type": "tool", "tool": "shop.once", "args": {"k": "{{input.k}}"}}, {"id": "c", "type": "condition", "expression": "variables[nodes.t.json.k] == 1"}],
			"edges": [{"from": "t", "to": "c"}]}`, `{"k": "`+k+`"}`, ``)
		if got := w.ended(r); got != "failed EXPRESSION_FAILED" {
			t.Errorf("it is %s", got)
		}
		if got := w.text(`SELECT string_agg(name || ' ' || status, ', ' ORDER BY idx) FROM run_steps WHERE run_id = $1`, r); got != "t succeeded, c failed" {
			t.Errorf("steps %s", got)
		}
		if got := w.text(`SELECT error_message FROM runs WHERE id = $1`, r); len(got) > 3_000 || !strings.Contains(got, "no such key: ") {
			t.Errorf("a message of %d bytes: %.100s", len(got), got)
		}
		w.exact(r)
	}
}

// So does a node whose output is more than the run can hold.
func TestANodeThatLeavesTooMuchKeepsItsAnswer(t *testing.T) {
	w := newWorld(t)
	r := w.begin(`{"nodes": [{"id": "t", "type": "tool", "tool": "shop.once", "args": {"x": "{{input.x}}"}}]}`, `{"x": "`+strings.Repeat("x", 3<<19)+`", "y": "`+strings.Repeat("y", 9<<19)+`"}`, ``)
	if got := w.ended(r); got != "failed LIMIT_EXCEEDED" {
		t.Errorf("it is %s", got)
	}
	if got := w.text(`SELECT status || ' ' || output::text FROM run_steps WHERE run_id = $1`, r); got != `succeeded "masked"` {
		t.Error(got)
	}
	w.exact(r)
}

// What came back counts too while another branch fails the run, or a person cancels it, before it is
// walked. Rows that the database refuses are not written a second time.
func TestWhatCameBackBeforeTheEnd(t *testing.T) {
	plan, err := flow.Load(json.RawMessage(`{"nodes": [{"id": "a", "type": "tool", "tool": "x", "args": {}}, {"id": "b", "type": "tool", "tool": "x", "args": {}}, {"id": "c", "type": "tool", "tool": "x", "args": {}},
		{"id": "d", "type": "gate", "title": "d"}, {"id": "e", "type": "tool", "tool": "x", "args": {}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	begun, _, err := plan.Start(t.Context(), json.RawMessage("null"), nil)
	if err != nil {
		t.Fatal(err)
	}
	said := func(s string) tool.Outcome { return tool.Outcome{Content: s, Shown: json.RawMessage(`"` + s + `"`)} }
	bad := tool.FailedResult(tool.ErrToolTimeout, "late")
	a, kept := said("a"), said("c")
	asked := &workflow.Approval{ID: id.ApprovalID{UUID: id.NewAnywhere()}, Status: lifecycle.ApprovalApproved, Decision: lifecycle.ActionApprove, Version: 2}
	s := workflow.State{Status: lifecycle.RunWaitingApproval, Plan: plan, Flow: begun, Seq: 20, Steps: 5, Open: []*workflow.Step{
		{Idx: 0, Node: 0, Call: &workflow.Call{Called: true}}, {Idx: 1, Node: 1, Call: &workflow.Call{Called: true}},
		{Idx: 2, Node: 2, Call: &workflow.Call{Called: true, Answer: &kept}}, {Idx: 3, Node: 3, Approval: asked},
		{Idx: 4, Node: 4, Call: &workflow.Call{Called: true, Answer: &bad}}}, Queue: []workflow.End{
		{Node: 0, Output: flow.ToolOutput(a.Content), Shown: a.Shown}, {Node: 3, Decided: &workflow.Decided{ID: asked.ID, Decision: asked.Decision}}}}
	const lost = `{"error":"UNKNOWN_OUTCOME","message":"The run ended before the call was answered."}`
	failed := workflow.Walked{Parts: []workflow.Part{{End: s.Queue[0]}}, Flow: begun, Failure: &flow.Failure{Code: lifecycle.FailExpression}}
	for name, c := range map[string]struct {
		m    any
		want string
	}{
		"a failed walk":         {failed, `0 true "a", 0 succeeded "a", 1 false LOST, 1 failed LOST, 2 true "c", 2 succeeded "c", resumed, 3 succeeded {"text":"","child_run_id":null}, 4 false BAD, 4 failed BAD`},
		"a cancel":              {msg.CancelRun{}, `0 true "a", 0 succeeded "a", 1 false LOST, 1 failed LOST, 2 true "c", 2 succeeded "c", resumed, 3 succeeded {"text":"","child_run_id":null}, 4 false BAD, 4 failed BAD`},
		"rows that are refused": {durable.Refused{Msg: failed}, `0 false LOST, 0 failed LOST, 1 false LOST, 1 failed LOST, 2 false LOST, 2 failed LOST, 3 failed , 4 false LOST, 4 failed LOST`},
	} {
		d, err := workflow.Machine{}.Decide(s, c.m, s.CreatedAt)
		if err != nil || !d.Next.Status.Terminal() {
			t.Fatalf("%s: it is %s, %v", name, d.Next.Status, err)
		}
		var got []string
		for _, f := range d.Facts {
			switch f := f.(type) {
			case workflow.CallEnded:
				got = append(got, fmt.Sprintf("%d %t %s", f.Step.Idx, f.OK, f.Shown))
			case workflow.Resumed:
				got = append(got, "resumed")
			case workflow.NodeEnded:
				got = append(got, fmt.Sprintf("%d %s %s", f.Step.Idx, f.Status, f.Shown))
			}
		}
		if got, want := strings.Join(got, ", "), strings.NewReplacer("LOST", lost, "BAD", string(bad.Shown)).Replace(c.want); got != want {
			t.Errorf("%s:\n%s\n--- instead of\n%s", name, got, want)
		}
	}
}

// Of decisions that are read together those that let their nodes go on count beside the one that fails
// the run, in any order, and no call begins that nothing waits for.
func TestDecisionsThatAreReadTogether(t *testing.T) {
	plan, err := flow.Load(json.RawMessage(`{"nodes": [{"id": "r", "type": "gate", "title": "x"}, {"id": "g", "type": "gate", "title": "x"}, {"id": "t", "type": "tool", "tool": "x", "args": {}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	begun, _, err := plan.Start(t.Context(), json.RawMessage("null"), nil)
	if err != nil {
		t.Fatal(err)
	}
	decided := func(status lifecycle.ApprovalStatus) *workflow.Approval {
		return &workflow.Approval{ID: id.ApprovalID{UUID: id.NewAnywhere()}, Status: status, Version: 2, Digest: tool.Digest(json.RawMessage("{}"))}
	}
	r := &workflow.Step{Idx: 0, Node: 0, Approval: decided(lifecycle.ApprovalRejected)}
	g := &workflow.Step{Idx: 1, Node: 1, Approval: decided(lifecycle.ApprovalApproved)}
	call := &workflow.Step{Idx: 2, Node: 2, Approval: decided(lifecycle.ApprovalApproved), Call: &workflow.Call{Plan: tool.Planned{Args: json.RawMessage("{}")}}}
	for _, open := range [][]*workflow.Step{{r, g, call}, {call, g, r}, {g, call, r}} {
		d, err := workflow.Machine{}.Decide(workflow.State{Status: lifecycle.RunWaitingApproval, Plan: plan, Flow: begun, Open: open}, msg.ApprovalsDecided{}, time.Time{})
		if err != nil || d.Next.Error == nil || d.Next.Error.Code != lifecycle.FailGateRejected {
			t.Fatalf("%+v, %v", d.Next.Error, err)
		}
		steps := map[int]lifecycle.StepStatus{}
		resumed := map[id.ApprovalID]bool{}
		for _, f := range d.Facts {
			switch f := f.(type) {
			case workflow.NodeEnded:
				steps[f.Step.Idx] = f.Status
			case workflow.Resumed:
				resumed[f.ID] = true
			case workflow.StepCalled, workflow.CallEnded:
				t.Errorf("%T: the call begins", f)
			}
		}
		if steps[0] != lifecycle.StepFailed || steps[1] != lifecycle.StepSucceeded || steps[2] != lifecycle.StepFailed || len(resumed) != 2 || !resumed[r.Approval.ID] || !resumed[g.Approval.ID] {
			t.Errorf("steps %v, %d are resumed", steps, len(resumed))
		}
	}
}

// The sums of a run that fails, or that a person cancels, include what the children used that it
// cancels (open-parts.md, Changes, Workflows), also over a restart.
func TestTheSumsIncludeTheChildrenThatAreCancelled(t *testing.T) {
	w := newWorld(t)
	for name, c := range map[string]struct {
		ends func(r id.RunID) error
		want string
	}{
		"a gate is rejected": {func(r id.RunID) error { return w.decide(w.approval(r, "g"), lifecycle.ActionReject, "no", "") }, "failed GATE_REJECTED"},
		"a cancel":           {func(r id.RunID) error { _, err := w.try(r, msg.CancelRun{By: msg.By{Actor: "user:x"}}); return err }, "cancelled CANCELLED"},
		"a cancel after a restart": {func(r id.RunID) error {
			w.restart(0, false)
			_, err := w.try(r, msg.CancelRun{By: msg.By{Actor: "user:x"}})
			return err
		}, "cancelled CANCELLED"},
	} {
		t.Run(name, func(t *testing.T) {
			w.t = t
			w.mu.Lock()
			w.turns = 2 // of the child that ends, and the first of the other one
			w.mu.Unlock()
			r := w.begin(`{"nodes": [{"id": "done", "type": "agent", "agent_id": "AGENT", "input": "/say done"},
				{"id": "a", "type": "agent", "agent_id": "AGENT", "input": "/call none.such\n/say more"}, {"id": "g", "type": "gate", "title": "x"}],
				"edges": [{"from": "done", "to": "a"}, {"from": "done", "to": "g"}]}`, `null`, ``)
			w.eventually("the second child has used tokens", func() bool {
				return w.text(`SELECT count(*) FROM runs WHERE parent_run_id = $1 AND tokens_in > 0`, r) == "2" && w.text(`SELECT count(*) FROM approvals WHERE run_id = $1`, r) == "1"
			})
			if err := c.ends(r); err != nil {
				t.Fatal(err)
			}
			if got := w.ended(r); got != c.want {
				t.Errorf("it is %s", got)
			}
			w.eventually("nothing is owed", func() bool { return w.text(`SELECT owes FROM workflow_runs WHERE id = $1`, r) == "false" })
			sums := w.text(`SELECT sum(tokens_in) || ' ' || sum(tokens_out) || ' ' || sum(cost_usd) FROM runs WHERE parent_run_id = $1`, r)
			if got := w.text(`SELECT tokens_in || ' ' || tokens_out || ' ' || cost_usd FROM runs WHERE id = $1`, r); got != sums {
				t.Errorf("the run has the sums %s, its children %s", got, sums)
			}
			w.exact(r)
		})
	}
	w.t = t
}
