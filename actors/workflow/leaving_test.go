package workflow_test

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"agentsvc/actors/durable"
	"agentsvc/actors/workflow"
	"agentsvc/schemas/flow"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/tool"
)

// A run that leaves its node begins no call, and keeps the answer of the call that it finishes:
// the next activation goes on from it.
func TestARunThatLeavesBeginsNoCall(t *testing.T) {
	plan, err := flow.Load(json.RawMessage(`{"nodes": [{"id": "t", "type": "tool", "tool": "shop.once", "args": {}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	begun, _, err := plan.Start(t.Context(), json.RawMessage("null"), nil)
	if err != nil {
		t.Fatal(err)
	}
	of := func(call *workflow.Call) workflow.State {
		return workflow.State{Status: lifecycle.RunRunning, Plan: plan, Flow: begun, Seq: 3, Steps: 1, Open: []*workflow.Step{{Call: call}}}
	}
	var mc workflow.Machine
	decide := func(s workflow.State, m any) durable.Decision[workflow.State] {
		t.Helper()
		d, err := mc.Decide(s, m, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	if d := decide(of(nil), durable.Leaving{Msg: workflow.Planned{Plan: tool.Planned{Tool: "shop.once"}}}); d.Changed {
		t.Errorf("it begins a call: %+v", d.Facts)
	}
	if d := decide(of(nil), durable.Leaving{Msg: msg.ApprovalsDecided{}}); d.Changed || d.Question != nil {
		t.Error("it hears a decision")
	}
	called := of(&workflow.Call{Called: true})
	d := decide(called, durable.Leaving{Msg: workflow.ToolAnswered{Outcome: tool.Outcome{Content: "1", Shown: json.RawMessage("1")}}})
	if _, ok := d.Facts[0].(workflow.CallAnswered); !ok || len(d.Facts) != 1 || len(mc.Owed(d.Next)) != 0 {
		t.Fatalf("%+v, owes %v", d.Facts, mc.Owed(d.Next))
	}
	next := decide(d.Next, durable.Activated{Epoch: 2})
	if owed := mc.Owed(next.Next); len(next.Next.Queue) != 1 || len(owed) != 1 || owed[0].Key() != "walk/0" {
		t.Errorf("the next activation owes %v", owed)
	}
}

// A node that is about to stop finishes the call that it has begun, although it may not be
// repeated, and the run goes on elsewhere.
func TestACallIsFinishedByANodeThatLeaves(t *testing.T) {
	w := newWorld(t)
	held := make(chan struct{})
	w.mu.Lock()
	w.held = held
	w.mu.Unlock()
	r := w.begin(`{"nodes": [{"id": "g", "type": "tool", "tool": "shop.once", "args": {"n": 1}}, {"id": "z", "type": "set", "values": {"z": "{{nodes.g.json.n}}"}}], "edges": [{"from": "g", "to": "z"}]}`, `null`, ``)
	w.eventually("it is called", func() bool { return len(w.calls("shop.once", r)) == 1 })
	finished := w.leaves()
	close(held)
	if err := <-finished; err != nil {
		t.Fatal(err)
	}
	if got := w.status(r); got != "running" {
		t.Errorf("it is %s", got)
	}
	w.restart(0, false)
	if got := w.ended(r); got != "succeeded" {
		t.Errorf("it is %s", got)
	}
	if got := slices.Collect(maps.Values(w.calls("shop.once", r))); !slices.Equal(got, []int{1}) {
		t.Errorf("calls %v", got)
	}
	if got := w.text(`SELECT output -> 'variables' FROM runs WHERE id = $1`, r); got != `{"z":1}` {
		t.Error(got)
	}
}

// leaves makes the node leave, and returns what says that it has finished.
func (w *world) leaves() <-chan error {
	w.t.Helper()
	finished := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		finished <- w.node.Finish(ctx)
	}()
	w.eventually("the node leaves", w.node.Finishing)
	return finished
}

// remembered returns how many messages to runs of workflows changed what their activations remember, and no row.
func remembered(t *testing.T) float64 {
	t.Helper()
	families, err := prometheus.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if l := m.GetLabel(); f.GetName() == "svc_durable_decisions_total" && l[0].GetValue() == msg.KindWorkflow && l[1].GetValue() == "remembered" {
				return m.GetCounter().GetValue()
			}
		}
	}
	t.Fatal("the metric is gone")
	return 0
}

// An answer that waits behind the walk of another node's end is in no row: a node that is about to stop
// finishes that walk, and keeps the answer.
func TestAnAnswerBehindAWalkLeavesWithItsRun(t *testing.T) {
	w := newWorld(t)
	answered, large := make(chan struct{}), `"`+strings.Repeat("x", 300_000)+`"`
	w.mu.Lock()
	w.held = answered
	w.mu.Unlock()
	r := w.begin(`{"nodes": [{"id": "e", "type": "wait_event", "event": "go"}, {"id": "t", "type": "tool", "tool": "shop.once", "args": {"n": 1}},
		{"id": "z", "type": "set", "values": {"z": "{{nodes.t.json.n}}"}}], "edges": [{"from": "e", "to": "z"}, {"from": "t", "to": "z"}]}`, `null`, ``)
	w.eventually("it is called", func() bool { return len(w.calls("shop.once", r)) == 1 })

	// Of large walks a tenant has one at a time: while that of another run is being committed, that of the event waits.
	other, start := w.started(`{"nodes": [{"id": "s", "type": "set", "values": {"x": "{{input}}"}}]}`, large, ``)
	w.tags.mu.Lock()
	w.tags.holds, w.tags.held, w.tags.release = other, make(chan struct{}), make(chan struct{})
	w.tags.mu.Unlock()
	w.ask(other, start)
	<-w.tags.held
	before := remembered(t)
	w.inject(r, "go", large, "")
	close(answered)
	w.eventually("the answer is queued", func() bool { return remembered(t) > before })

	finished := w.leaves()
	close(w.tags.release)
	if err := <-finished; err != nil {
		t.Fatal(err)
	}
	w.restart(0, false)
	for _, r := range []id.RunID{r, other} {
		if got := w.ended(r); got != "succeeded" {
			t.Errorf("it is %s: %s", got, w.text(`SELECT error_message FROM runs WHERE id = $1`, r))
		}
	}
	if got := slices.Collect(maps.Values(w.calls("shop.once", r))); !slices.Equal(got, []int{1}) {
		t.Errorf("calls %v", got)
	}
}
