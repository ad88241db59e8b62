package workflow_test

import (
	"encoding/json"
	"testing"

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
