package workflow_test

import (
	"encoding/json"
	"testing"
	"time"

	"agentsvc/actors/durable"
	"agentsvc/actors/workflow"
	"agentsvc/persistence/engine"
	"agentsvc/schemas/flow"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/tool"
)

// A run that leaves its node while it walks the end of a call finishes the walk, and keeps the
// answers of calls that came meanwhile: they are nowhere else.
func TestAnAnsweredCallLeavesWithItsRun(t *testing.T) {
	plan, err := flow.Load(json.RawMessage(`{"nodes": [{"id": "a", "type": "tool", "tool": "shop.once", "args": {}}, {"id": "b", "type": "tool", "tool": "shop.once", "args": {}},
		{"id": "d", "type": "delay", "seconds": 3600}]}`))
	if err != nil {
		t.Fatal(err)
	}
	begun, _, err := plan.Start(t.Context(), json.RawMessage("null"), nil)
	if err != nil {
		t.Fatal(err)
	}
	var mc workflow.Machine
	s := workflow.State{Status: lifecycle.RunRunning, Plan: plan, Flow: begun, Seq: 7, Steps: 3, Open: []*workflow.Step{
		{Idx: 0, Node: 0, Call: &workflow.Call{Called: true}}, {Idx: 1, Node: 1, Call: &workflow.Call{Called: true}}, {Idx: 2, Node: 2}}}
	decide := func(m any) durable.Decision[workflow.State] {
		t.Helper()
		d, err := mc.Decide(s, m, time.Now())
		if err != nil || !d.Changed {
			t.Fatalf("%T: changed %t, %v", m, d.Changed, err)
		}
		s = d.Next
		return d
	}
	decide(workflow.ToolAnswered{Idx: 0, Outcome: tool.Outcome{Content: "1", Shown: json.RawMessage("1")}})
	walk := mc.Owed(s)[0]
	decide(workflow.ToolAnswered{Idx: 1, Outcome: tool.Outcome{Content: "two", Shown: json.RawMessage(`"shown"`)}})
	if owed := mc.Owed(s); len(owed) != 1 || owed[0].Key() != walk.Key() {
		t.Fatalf("it owes %v", owed)
	}
	finishes := workflow.New(workflow.Config{Store: engine.New(nil)}).Finishes
	if !finishes(walk) {
		t.Error("the node does not wait for the walk")
	}
	if finishes(workflow.Walk{Of: &s, Queue: []workflow.End{{Node: 2}}}) {
		t.Error("the node waits for the walk of a timer, which comes again")
	}
	next, facts, err := plan.End(t.Context(), begun, 0, flow.ToolOutput("1"))
	if err != nil {
		t.Fatal(err)
	}
	part := workflow.Part{End: workflow.End{Node: 0, Output: flow.ToolOutput("1")}}
	for _, f := range facts {
		part.Facts = append(part.Facts, workflow.Fact{Fact: f})
	}
	d := decide(durable.Leaving{Msg: workflow.Walked{Parts: []workflow.Part{part}, Flow: next}})
	if len(s.Queue) != 0 || len(s.Open) != 2 || s.Open[0].Call.Answer == nil || s.Open[0].Call.Answer.Content != "two" || string(s.Open[0].Call.Answer.Shown) != `"shown"` {
		t.Errorf("queue %v, open %+v", s.Queue, s.Open)
	}
	if kept, ok := d.Facts[len(d.Facts)-1].(workflow.CallAnswered); !ok || kept.Step != s.Open[0] || !s.Owes {
		t.Errorf("facts %+v, owes %t", d.Facts, s.Owes)
	}
	decide(durable.Activated{Epoch: 2})
	if len(s.Queue) != 1 || s.Queue[0].Node != 1 || s.Queue[0].Output.Text != "two" {
		t.Errorf("the next activation walks %+v", s.Queue)
	}
}
