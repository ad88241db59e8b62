package workflow_test

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
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
