package workflow_test

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"agentsvc/actors/durable"
	"agentsvc/actors/workflow"
	"agentsvc/cluster"
	"agentsvc/persistence/engine"
	"agentsvc/schemas/flow"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/testkit"
	"agentsvc/schemas/tool"
)

// A chain of tool nodes takes one commit per node: it ends a call and begins the next one. Two
// more accept the run and begin the first call.
func TestAToolNodeIsOneCommit(t *testing.T) {
	w := newPatientWorld(t)
	var nodes, edges []string
	for i := range 5 {
		nodes = append(nodes, `{"id": "n`+strconv.Itoa(i)+`", "type": "tool", "tool": "shop.once", "args": {"last": "{{nodes.n`+strconv.Itoa(max(i-1, 0))+`.json.last}}", "n": `+strconv.Itoa(i)+`}}`)
		if i > 0 {
			edges = append(edges, `{"from": "n`+strconv.Itoa(i-1)+`", "to": "n`+strconv.Itoa(i)+`"}`)
		}
	}
	nodes[0] = `{"id": "n0", "type": "tool", "tool": "shop.once", "args": {"last": "first", "n": 0}}`
	r := w.begin(`{"nodes": [`+strings.Join(nodes, ",")+`], "edges": [`+strings.Join(edges, ",")+`]}`, `null`, ``)
	if got := w.ended(r); got != "succeeded" {
		t.Fatal(got)
	}
	if n := w.tags.commits(); n != 5+2 {
		t.Errorf("%d commits", n)
	}
	if got := w.text(`SELECT output -> 'outputs' -> 'n4' -> 'json' FROM runs WHERE id = $1`, r); got != `{"last":"first","n":4}` {
		t.Error(got)
	}
	if calls := w.calls("shop.once", r); len(calls) != 5 {
		t.Errorf("calls %v", calls)
	}
	w.exact(r)
}

// newPatientWorld is a world whose walks wait for the plan of a call however busy the machine is.
func newPatientWorld(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.stop()
	w.node = cluster.New(cluster.Config{Member: w.member})
	w.host(w.node, w.tags, workflow.Config{}.Patient(testkit.Patience))
	testkit.Start(t, w.node)
	w.stop = w.sweep(w.node)
	return w
}

// While a run walks, its mailbox answers: an event is kept, and a cancel ends the run, and the walk with it.
func TestARunIsOrderedWhileItWalks(t *testing.T) {
	w := newPatientWorld(t)
	walks, over := make(chan struct{}), make(chan error, 1)
	w.planning = func(ctx context.Context) { // the walk ends by its context only
		close(walks)
		<-ctx.Done()
		over <- ctx.Err()
	}
	r := w.begin(`{"nodes": [{"id": "s", "type": "set", "values": {"x": 1}}, {"id": "t", "type": "tool", "tool": "shop.once", "args": {}}], "edges": [{"from": "s", "to": "t"}]}`, `null`, ``)
	<-walks
	w.inject(r, "go", `1`, "")
	if got := w.text(`SELECT count(*) FROM workflow_events WHERE run_id = $1`, r); got != "1" {
		t.Errorf("%s events are kept", got)
	}
	if got, ok := w.ask(r, msg.CancelRun{}).(msg.Status); !ok || got.Status != lifecycle.RunCancelled {
		t.Errorf("the cancel is answered %+v", got)
	}
	if err := <-over; !errors.Is(err, context.Canceled) { // not because its time is over
		t.Errorf("the walk has ended by %v", err)
	}
	if got := w.ended(r); got != "cancelled CANCELLED" {
		t.Error(got)
	}
	if got := w.nodes(r); got != "" {
		t.Errorf("the walk has left %s", got)
	}
	w.exact(r)
}

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
	of := workflow.Step{Call: &workflow.Call{}}
	if !finishes(workflow.CallTool{Step: &of}) {
		t.Error("the node does not wait for a call")
	}
	of.Call.Plan.Skill = &tool.SkillCall{Previews: true} // the next node's call finds the run of the skill
	if finishes(workflow.CallTool{Step: &of}) || finishes(workflow.Preview{Step: &of}) {
		t.Error("the node waits for a call that waits for a browser skill")
	}
	if !finishes(walk) {
		t.Error("the node does not wait for the walk")
	}
	if !finishes(workflow.Walk{Of: &s, Queue: []workflow.End{{Node: 2}}}) {
		t.Error("the node does not wait for the walk of a timer, behind which answers are queued")
	}
	timer := s
	timer.Open = s.Open[2:]
	if finishes(workflow.Walk{Of: &timer, Queue: []workflow.End{{Node: 2}}}) {
		t.Error("the node waits for the walk of a timer alone, which comes again")
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

// The answer of the only call brings its walk along: one decision ends the node. If the run has walked since, or the
// call's end is not the only one, the walk is dropped and owed anew, and on a node that the run leaves the answer is kept.
func TestAnAnswerBringsItsWalk(t *testing.T) {
	t.Parallel()
	plan, err := flow.Load(json.RawMessage(`{"nodes": [{"id": "a", "type": "tool", "tool": "shop.once", "args": {}}, {"id": "b", "type": "wait_event", "event": "go"}],
		"edges": [{"from": "a", "to": "b"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	begun, _, err := plan.Start(t.Context(), json.RawMessage("null"), nil)
	if err != nil {
		t.Fatal(err)
	}
	next, facts, err := plan.End(t.Context(), begun, 0, flow.ToolOutput("1"))
	if err != nil {
		t.Fatal(err)
	}
	walked := &workflow.Walked{N: 3, Flow: next, Parts: []workflow.Part{{End: workflow.End{Node: 0, Output: flow.ToolOutput("1")}}}}
	for _, f := range facts {
		walked.Parts[0].Facts = append(walked.Parts[0].Facts, workflow.Fact{Fact: f})
	}
	begins := workflow.State{Status: lifecycle.RunRunning, Plan: plan, Flow: begun, Seq: 7, Steps: 1, Walks: 3, Open: []*workflow.Step{{Idx: 0, Node: 0, Call: &workflow.Call{Called: true}}}}
	since, beside := begins, begins
	since.Walks, beside.Queue = 4, []workflow.End{{Node: 1}}
	answer := workflow.ToolAnswered{Outcome: tool.Outcome{Content: "1", Shown: json.RawMessage("1")}, Walked: walked}
	for _, c := range []struct {
		name  string
		s     workflow.State
		m     any
		open  string // the open steps
		queue int
		facts bool
	}{
		{"the only call", begins, answer, "1", 0, true},
		{"the run has walked since", since, answer, "0", 1, false},
		{"another node has ended", beside, answer, "0", 2, false},
		{"the run leaves", begins, durable.Leaving{Msg: answer}, "0", 0, true},
	} {
		d, err := workflow.Machine{}.Decide(c.s, c.m, time.Now())
		if err != nil || !d.Changed {
			t.Fatalf("%s: changed %t, %v", c.name, d.Changed, err)
		}
		var open []string
		for _, o := range d.Next.Open {
			open = append(open, strconv.Itoa(o.Node))
		}
		if got := strings.Join(open, " "); got != c.open || len(d.Next.Queue) != c.queue || (len(d.Facts) > 0) != c.facts {
			t.Errorf("%s: open %s, queue %+v, facts %+v", c.name, got, d.Next.Queue, d.Facts)
		}
		if o := d.Next.Open[0]; c.name == "the run leaves" && (o.Call.Answer == nil || o.Call.Answer.Content != "1") {
			t.Errorf("%s: %+v", c.name, o.Call)
		}
	}
}
