package workflow_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
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

// open-parts.md, Gate and human task: what each decision does.
func TestDecisions(t *testing.T) {
	const (
		gate  = `{"id": "g", "type": "gate", "title": "Pay {{input.eur}}?"}`
		human = `{"id": "g", "type": "human_task", "title": "Who?", "form": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}}`
	)
	w := newWorld(t)
	for _, c := range []struct {
		name, node             string
		action                 lifecycle.Action
		feedback, edited       string
		refused                problem.Code // then it is approved
		status, output, frames string
	}{
		{"a gate is approved", gate, "approve", "", "", "", "succeeded", `{"text":"","child_run_id":null}`, "approval.required run.waiting run.resumed"},
		{"a gate is rejected", gate, "reject", "no", "", "", "failed GATE_REJECTED", "", "approval.required run.waiting run.resumed"},
		{"a gate is responded to", gate, "respond", "no", "", "", "failed GATE_REJECTED", "", "approval.required run.waiting run.resumed"},
		{"a gate cannot be edited", gate, "edit", "", `{"x": 1}`, problem.CodeValidation, "succeeded", `{"text":"","child_run_id":null}`, ""},
		{"a task is approved", human, "approve", "Ann", "", "", "succeeded", `{"text":"Ann","child_run_id":null}`, "approval.required run.waiting run.resumed"},
		{"a task is approved without a word", human, "approve", "", "", "", "succeeded", `{"text":"","child_run_id":null}`, ""},
		{"a task is responded to", human, "respond", "Ann", "", "", "succeeded", `{"text":"Ann","child_run_id":null}`, ""},
		{"a task is answered by its form", human, "edit", "", `{"name": "Ann"}`, "", "succeeded", `{"text":"","child_run_id":null,"json":{"name":"Ann"}}`, ""},
		{"an answer that does not fit the form", human, "edit", "", `{"nome": "Ann"}`, problem.CodeInvalidArgs, "succeeded", `{"text":"","child_run_id":null}`, ""},
		{"a task is rejected", human, "reject", "no", "", "", "failed GATE_REJECTED", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			w.t = t
			r := w.begin(`{"nodes": [`+c.node+`, {"id": "d", "type": "delay", "seconds": 0.005}]}`, `{"eur": 7}`, ``)
			a := w.approval(r, "g")
			if got := w.text(`SELECT status FROM runs WHERE id = $1`, r); got != "waiting_approval" {
				t.Errorf("it is %s", got)
			}
			w.eventually("the other branch goes on", func() bool { return strings.HasSuffix(w.nodes(r), "s:d") })
			err := w.decide(a, c.action, c.feedback, c.edited)
			if c.refused != "" {
				if !errors.Is(err, problem.New(c.refused, "")) {
					t.Errorf("the decision: %v", err)
				}
				err = w.decide(a, lifecycle.ActionApprove, "", "")
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := w.ended(r); got != c.status {
				t.Errorf("it is %s", got)
			}
			if got := w.text(`SELECT output -> 'outputs' -> 'g' FROM runs WHERE id = $1`, r); got != c.output {
				t.Errorf("output %s", got)
			}
			if got := w.text(`SELECT string_agg(type, ' ' ORDER BY seq) FROM run_marks WHERE run_id = $1 AND type NOT LIKE 'node.%'`, r); c.frames != "" && got != c.frames {
				t.Errorf("frames %s", got)
			}
			if got := w.text(`SELECT (kind = 'approval')::text FROM run_steps WHERE run_id = $1 AND name = 'g'`, r); got != "true" {
				t.Error("the step is no approval")
			}
			w.exact(r)
		})
	}
	w.t = t
	r := w.begin(`{"nodes": [`+gate+`]}`, `{"eur": 7}`, ``)
	w.approval(r, "g")
	if got := w.text(`SELECT tool || ' ' || args::text || ' ' || risk || ' ' || assignee_role || ' ' || required_approvals FROM approvals WHERE run_id = $1`, r); got != `workflow:gate {"title":"Pay 7?","input":{"eur": 7}} medium admin 1` &&
		got != `workflow:gate {"title":"Pay 7?","input":{"eur":7}} medium admin 1` {
		t.Error(got)
	}
	w.ask(r, msg.CancelRun{})
	if got := w.ended(r) + ", " + w.text(`SELECT status FROM approvals WHERE run_id = $1`, r); got != "cancelled CANCELLED, cancelled" {
		t.Error(got)
	}
	w.exact(r)
}

// A gate whose time is up fails the run.
func TestAGateExpires(t *testing.T) {
	w := newWorld(t)
	r := w.begin(`{"nodes": [{"id": "g", "type": "gate", "title": "x", "sla_minutes": 0.001}, {"id": "d", "type": "delay", "seconds": 3600}]}`, `null`, ``)
	if got := w.ended(r); got != "failed GATE_REJECTED" {
		t.Error(got)
	}
	w.exact(r)
}

// Fifty decisions at once on one gate have one outcome, and so have two gates that are decided at
// once.
func TestFiftyDecisionsAtOnce(t *testing.T) {
	w := newWorld(t)
	r := w.begin(`{"nodes": [{"id": "g", "type": "gate", "title": "x"}, {"id": "h", "type": "gate", "title": "x"}, {"id": "z", "type": "set", "values": {"z": 1}}],
		"edges": [{"from": "g", "to": "z"}, {"from": "h", "to": "z"}]}`, `null`, ``)
	g, h := w.approval(r, "g"), w.approval(r, "h")
	var taken atomic.Int32
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			a := g
			if i%2 == 1 {
				a = h
			}
			switch err := w.decide(a, lifecycle.ActionApprove, "", ""); {
			case err == nil:
				taken.Add(1)
			case !errors.Is(err, problem.New(problem.CodeAlreadyDecided, "")):
				t.Error(err)
			}
		})
	}
	all.Wait()
	if got := w.ended(r); got != "succeeded" || taken.Load() != 2 {
		t.Errorf("%s, %d decisions", got, taken.Load())
	}
	if got := w.text(`SELECT count(*) FROM run_marks WHERE run_id = $1 AND type = 'run.resumed'`, r); got != "2" {
		t.Errorf("resumed %s times", got)
	}
	w.exact(r)
}

// service.md, Run status: a run that waits, or waits again, says so after each approval that it asks
// for, and after each decision that leaves another one open. The frames end as GET does.
func TestFramesSayWhetherARunWaits(t *testing.T) {
	const gates = `{"id": "g", "type": "gate", "title": "x"}, {"id": "h", "type": "gate", "title": "x"}`
	w := newWorld(t)
	for _, c := range []struct{ name, definition, frames string }{
		{"one after the other", `{"nodes": [` + gates + `], "edges": [{"from": "g", "to": "h"}]}`,
			"approval.required run.waiting | run.resumed approval.required run.waiting | run.resumed run.completed"},
		{"side by side", `{"nodes": [` + gates + `]}`, "approval.required approval.required run.waiting | run.resumed run.waiting | run.resumed run.completed"},
		{"the second one begins while the first one waits", `{"nodes": [` + gates + `, {"id": "e", "type": "wait_event", "event": "x"}], "edges": [{"from": "e", "to": "g"}]}`,
			"approval.required run.waiting approval.required run.waiting | run.resumed run.waiting | run.resumed run.completed"},
		{"a call before a gate", `{"nodes": [{"id": "g", "type": "tool", "tool": "shop.asks", "args": {}}, {"id": "h", "type": "gate", "title": "x"}]}`,
			"approval.required run.waiting approval.required run.waiting | run.resumed run.waiting | run.resumed run.completed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w.t = t
			r := w.begin(c.definition, `null`, ``)
			w.inject(r, "x", `1`, "")
			frames := func() string {
				return w.text(`SELECT string_agg(type, ' ' ORDER BY seq) FROM run_marks WHERE run_id = $1 AND type SIMILAR TO '(run|approval).%'`, r)
			}
			told, want := "", ""
			for i, part := range strings.Split(c.frames, " | ") {
				if i > 0 {
					if err := w.decide(w.approval(r, []string{"g", "h"}[i-1]), lifecycle.ActionApprove, "", ""); err != nil {
						t.Fatal(err)
					}
				}
				if want = strings.TrimSpace(want + " " + part); strings.HasSuffix(want, " run.completed") {
					break
				}
				w.eventually("the frames are "+want, func() bool { told = frames(); return told == want })
				if got := w.status(r); got != "waiting_approval" {
					t.Errorf("after %s it is %s", told, got)
				}
			}
			if got := w.ended(r) + " " + frames() + " run.completed"; got != "succeeded "+want {
				t.Errorf("%s instead of %s", got, want)
			}
			w.exact(r)
		})
	}
	w.t = t
}

// Two calls that are given at once do not tell of a wait between them.
func TestDecidedCallsBeginTogether(t *testing.T) {
	plan, err := flow.Load(json.RawMessage(`{"nodes": [{"id": "a", "type": "tool", "tool": "x", "args": {}}, {"id": "b", "type": "tool", "tool": "x", "args": {}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	begun, _, err := plan.Start(t.Context(), json.RawMessage("null"), nil)
	if err != nil {
		t.Fatal(err)
	}
	gated := func(idx int) *workflow.Step {
		return &workflow.Step{Idx: idx, Node: idx, Call: &workflow.Call{Plan: tool.Planned{Args: json.RawMessage("{}")}},
			Approval: &workflow.Approval{ID: id.ApprovalID{UUID: id.NewAnywhere()}, Status: lifecycle.ApprovalApproved, Version: 2, Digest: tool.Digest(json.RawMessage("{}"))}}
	}
	d, err := workflow.Machine{}.Decide(workflow.State{Status: lifecycle.RunWaitingApproval, Plan: plan, Flow: begun, Open: []*workflow.Step{gated(0), gated(1)}}, msg.ApprovalsDecided{}, time.Time{})
	if err != nil || d.Next.Status != lifecycle.RunRunning {
		t.Fatalf("it is %s, %v", d.Next.Status, err)
	}
	var got []string
	for _, f := range d.Facts {
		got = append(got, strings.TrimPrefix(fmt.Sprintf("%T", f), "workflow."))
	}
	if got := strings.Join(got, " "); got != "WakeGone Resumed StepCalled WakeGone Resumed StepCalled" {
		t.Error(got)
	}
}

// service.md, Approval status: the decision's feedback becomes the node's output, not that of an
// approver before.
func TestTheFeedbackIsTheDecisions(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct {
		action         lifecycle.Action
		feedback, want string
	}{
		{lifecycle.ActionRespond, "", ""}, {lifecycle.ActionApprove, "", ""}, {lifecycle.ActionRespond, "Bob", "Bob"}, {lifecycle.ActionApprove, "Bob", "Bob"},
	} {
		r := w.begin(`{"nodes": [{"id": "g", "type": "human_task", "title": "Who?", "required_approvals": 2}]}`, `null`, ``)
		a := w.approval(r, "g")
		if err := w.decide(a, lifecycle.ActionApprove, "Ann", ""); err != nil {
			t.Fatal(err)
		}
		if err := w.decide(a, c.action, c.feedback, ""); err != nil {
			t.Fatal(err)
		}
		if got := w.ended(r) + " " + w.text(`SELECT output -> 'outputs' -> 'g' ->> 'text' FROM runs WHERE id = $1`, r); got != "succeeded "+c.want {
			t.Errorf("%s %q: %s", c.action, c.feedback, got)
		}
	}
}

// A vote that decides nothing does not concern the other branches: a call that fails after it ends the
// run with its own answer.
func TestACallFailsBesideAVote(t *testing.T) {
	w := newWorld(t)
	held := make(chan struct{})
	w.mu.Lock()
	w.held = held
	w.mu.Unlock()
	r := w.begin(`{"nodes": [{"id": "t", "type": "tool", "tool": "shop.fails"}, {"id": "g", "type": "gate", "title": "x", "required_approvals": 2}]}`, `null`, ``)
	a := w.approval(r, "g")
	w.eventually("it is called", func() bool { return len(w.calls("shop.fails", r)) == 1 })
	if err := w.decide(a, lifecycle.ActionApprove, "", ""); err != nil {
		t.Fatal(err)
	}
	close(held)
	if got := w.ended(r) + ", " + w.text(`SELECT status FROM approvals WHERE id = $1`, a); got != "failed TOOL_FAILED, cancelled" {
		t.Error(got)
	}
	if got := w.text(`SELECT output ->> 'error' FROM run_steps WHERE run_id = $1 AND name = 't'`, r); got != tool.ErrToolTimeout {
		t.Errorf("the step shows %s", got)
	}
	w.exact(r)
}

// A run may end while the decision of a gate is on its way to it, and its commit is then refused: it is
// repeated, and the call beside the gate keeps what came back.
func TestACallEndsBesideADecision(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct{ name, tool, want, step string }{
		{"it fails", "shop.fails", "failed TOOL_FAILED", "failed " + tool.ErrToolTimeout},
		{"what follows fails", "shop.once", "failed EXPRESSION_FAILED", "succeeded "},
	} {
		t.Run(c.name, func(t *testing.T) {
			w.t = t
			held := make(chan struct{})
			w.mu.Lock()
			w.held = held
			w.mu.Unlock()
			r := w.begin(`{"nodes": [{"id": "t", "type": "tool", "tool": "`+c.tool+`"}, {"id": "g", "type": "gate", "title": "x"}, {"id": "c", "type": "condition", "expression": "input.missing"}],
				"edges": [{"from": "t", "to": "c"}]}`, `{}`, ``)
			a := w.approval(r, "g")
			w.eventually("it is called", func() bool { return len(w.calls(c.tool, r)) == 1 })
			// As a decision of which the run is not told yet.
			w.exec(`UPDATE approvals SET version = version + 1, status = 'approved', decision = 'approve', approvals_so_far = required_approvals, decided_at = now() WHERE id = $1`, a)
			close(held)
			if got := w.ended(r) + ", " + w.text(`SELECT status FROM approvals WHERE id = $1`, a); got != c.want+", approved" {
				t.Error(got)
			}
			if got := w.text(`SELECT status || ' ' || coalesce(CASE WHEN status = 'failed' THEN output ->> 'error' END, '') FROM run_steps WHERE run_id = $1 AND name = 't'`, r); got != c.step {
				t.Errorf("the step is %s", got)
			}
			w.exact(r)
		})
	}
	w.t = t
}

// The newest approval is the first of the lists, also that of a run which began long before: they are in
// the order of the ids.
func TestALateGateIsTheNewest(t *testing.T) {
	w := newWorld(t)
	const gate = `{"id": "g", "type": "gate", "title": "x"}`
	late := w.begin(`{"nodes": [{"id": "e", "type": "wait_event", "event": "go"}, `+gate+`], "edges": [{"from": "e", "to": "g"}]}`, `null`, ``)
	early := w.begin(`{"nodes": [`+gate+`]}`, `null`, ``)
	first := w.approval(early, "g")
	w.inject(late, "go", `1`, "")
	if got := w.approval(late, "g"); slices.Compare(got.UUID[:], first.UUID[:]) <= 0 || got.Shard() != late.Shard() {
		t.Errorf("%s opened after %s, in shard %d", got, first, got.Shard())
	}
	for _, r := range []id.RunID{late, early} {
		w.ask(r, msg.CancelRun{})
		w.ended(r)
	}
}

// A run that is told of its approvals while they wait reads for which roles they do: its end cancels
// what it has read.
func TestAnEscalationIsRead(t *testing.T) {
	a := &workflow.Approval{ID: id.ApprovalID{UUID: id.NewAnywhere()}, Status: lifecycle.ApprovalPending, Assignee: lifecycle.RoleAdmin, Version: 1}
	s := workflow.State{Status: lifecycle.RunWaitingApproval, Open: []*workflow.Step{{Approval: a}}}
	d, err := workflow.Machine{}.Decide(s, msg.ApprovalsDecided{}, time.Time{})
	if err != nil || d.Question != any(workflow.ReadApprovals{}) {
		t.Fatalf("%+v, %v", d, err)
	}
	escalated := *a
	escalated.Assignee, escalated.Version = lifecycle.RoleOwner, 2
	d, err = workflow.Machine{}.Decide(s, durable.Answered{Msg: msg.ApprovalsDecided{}, Question: d.Question, Answer: workflow.Approvals{0: &escalated}}, time.Time{})
	if err != nil || len(d.Facts) > 0 || d.Next.Open[0].Approval.Assignee != lifecycle.RoleOwner {
		t.Errorf("%+v, %v", d, err)
	}
}
