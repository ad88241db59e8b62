package blackbox

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"agentsvc/cmd/svc/client"
)

// The laws of runs of workflows. Each is looked at for every tale that it speaks of.
const (
	lawFlowEnds   = "25: a run of a workflow ends as its story says"
	lawFlowOutput = "25: output, variables and sums of a workflow's run are exact"
	lawNodeOnce   = "26: each node is one step, starts once, after those before it, and ends once"
	lawChildOnce  = "27: each agent node has one child run, which ends with its parent"
	lawNodeCalls  = "28: a tool node calls under one key, and once where it has none"
	lawEvents     = "29: each event of a workflow's run counts once, and none is lost"
	lawAsked      = "30: each approval is of a run and a node that has started, and none is pending after the run's end"
	lawFlowFrames = "31: what was heard of a workflow's run over crashes is what is replayed, from each frame on"
	lawOneOutcome = "32: of a cancel, an event, its timeout, a decision and the last node's end one comes first, and all answers agree"
)

var flowLaws = []string{lawFlowEnds, lawFlowOutput, lawNodeOnce, lawChildOnce, lawNodeCalls, lawEvents, lawAsked, lawFlowFrames, lawOneOutcome}

// flowApproval is what the API shows of an approval of a node.
type flowApproval struct {
	gatedView
	RunID           string `json:"run_id"`
	RequestedAction struct {
		Tool string
		Args json.RawMessage
	} `json:"requested_action"`
}

// about is the title of a gate or a human task, or the tool of a gated call.
func (v *flowApproval) about() string {
	var args struct{ Title string }
	if strings.HasPrefix(v.RequestedAction.Tool, "workflow:") && json.Unmarshal(v.RequestedAction.Args, &args) == nil {
		return args.Title
	}
	return v.RequestedAction.Tool
}

// listedRun is a run as lists show it.
type listedRun struct {
	client.RunView
	Input  json.RawMessage
	Parent *string `json:"parent_run_id"`
}

// flowEvidence is what is known of a tale after its end.
type flowEvidence struct {
	run       *runAnswer
	approvals []flowApproval
	replay    []client.Frame
	rests     [][]client.Frame // what a client hears that resumes after a frame
	after     []int            // which frame, for each of rests
	children  []listedRun
}

// runs lists all runs of the tenant.
func (w *scene) runs(ctx context.Context) (all []listedRun, err error) {
	for cursor := ""; ; {
		var page struct {
			Items      []listedRun
			NextCursor *string `json:"next_cursor"`
		}
		a, err := w.first.careful(ctx, "GET", "/v1/runs?limit=100"+cursor, "", nil)
		if err == nil {
			err = a.decode(&page)
		}
		if err != nil {
			return nil, fmt.Errorf("list of runs: %w %s", err, a)
		}
		if all = append(all, page.Items...); page.NextCursor == nil {
			return all, nil
		}
		cursor = "&cursor=" + *page.NextCursor
	}
}

// approvalsOf lists approvals: of a run, or all.
func (w *scene) approvalsOf(ctx context.Context, query string) (all []flowApproval, err error) {
	for cursor := ""; ; {
		var page struct {
			Items      []flowApproval
			NextCursor *string `json:"next_cursor"`
		}
		a, err := w.first.careful(ctx, "GET", "/v1/approvals?limit=100"+query+cursor, "", nil)
		if err == nil {
			err = a.decode(&page)
		}
		if err != nil {
			return nil, fmt.Errorf("list of approvals: %w %s", err, a)
		}
		if all = append(all, page.Items...); page.NextCursor == nil {
			return all, nil
		}
		cursor = "&cursor=" + *page.NextCursor
	}
}

// judgeFlows holds the laws against tales.
func (w *flows) judgeFlows(t *testing.T, tales []*flowTale) {
	t.Helper()
	ctx := within(t, time.Minute)
	found := make([]*flowEvidence, len(tales))
	each(8, len(tales), func(i int) {
		x := tales[i]
		if w.book.rule(lawFlowEnds, x.err == nil, "%s, run %s: %v", x.title(), x.run, x.err); x.err != nil {
			return
		}
		e, err := w.witness(ctx, x)
		if err != nil {
			t.Errorf("%s, run %s: %v", x.title(), x.run, err)
			return
		}
		found[i] = e
	})
	// A run that ends cancels its children after its own end. Those that stay open break a law.
	var children map[string][]listedRun
	var listed map[string]bool
	for limit, open := time.Now().Add(endsWithin), true; open; {
		all, err := w.runs(ctx)
		if err != nil {
			t.Fatal(err)
		}
		children, listed, open = map[string][]listedRun{}, map[string]bool{}, false
		for _, r := range all {
			listed[r.ID] = true
			if r.Parent != nil {
				children[*r.Parent] = append(children[*r.Parent], r)
				open = open || !terminalStatus[r.Status]
			}
		}
		open = open && time.Now().Before(limit) && pauseFor(ctx, 100*time.Millisecond)
	}
	approvals, err := w.approvalsOf(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	for i := range approvals {
		w.book.rule(lawAsked, listed[approvals[i].RunID], "approval %s is of run %s, which is not there", approvals[i].ID, approvals[i].RunID)
	}
	calls := w.callsByOrder(t)
	keys := map[string]string{}
	for i, e := range found {
		if e != nil {
			e.children = children[tales[i].run]
			w.holdFlow(tales[i], e, calls, keys)
		}
	}
}

// callsByOrder are the calls of both tool servers.
func (w *flows) callsByOrder(t *testing.T) map[string][]yardCall {
	t.Helper()
	out := map[string][]yardCall{}
	for _, c := range w.yard.calls() {
		out[c.order] = append(out[c.order], c)
	}
	for order, calls := range w.log.byOrder(t) {
		for _, c := range calls {
			var args struct {
				Key string `json:"idempotency_key"`
			}
			_ = json.Unmarshal([]byte(c.Args), &args)
			out[order] = append(out[order], yardCall{at: c.At, tool: "desk." + c.Tool, order: order, key: args.Key, args: c.Args})
		}
	}
	return out
}

// witness reads what there is of a run that has ended.
func (w *flows) witness(ctx context.Context, x *flowTale) (*flowEvidence, error) {
	e := &flowEvidence{run: new(runAnswer)}
	a, err := w.first.careful(ctx, "GET", "/v1/runs/"+x.run, "", nil)
	if err == nil {
		err = a.decode(e.run)
	}
	if err != nil || a.status != http.StatusOK {
		return nil, fmt.Errorf("GET run: %w %s", err, a)
	}
	if e.approvals, err = w.approvalsOf(ctx, "&run_id="+x.run); err != nil {
		return nil, err
	}
	if e.replay, err = w.hear(ctx, x.run, nil); err != nil {
		return nil, err
	}
	for _, after := range []int{len(e.replay) / 3, len(e.replay) * 2 / 3} {
		var rest []client.Frame
		last := e.replay[after].ID
		for ended := false; !ended; {
			if ended, err = w.first.FollowOnce(ctx, x.run, "?replay=full", &last, func(f client.Frame) error { rest = append(rest, f); return nil }); !ended && !pauseFor(ctx, 20*time.Millisecond) {
				return nil, fmt.Errorf("stream after %s: %w %w", last, ctx.Err(), err)
			}
		}
		e.rests, e.after = append(e.rests, rest), append(e.after, after)
	}
	return e, nil
}

// holdFlow holds the laws against one tale.
func (w *flows) holdFlow(x *flowTale, e *flowEvidence, calls map[string][]yardCall, keys map[string]string) {
	rule := func(law string, ok bool, format string, args ...any) {
		w.book.rule(law, ok, "%s, run %s: %s", x.title(), x.run, fmt.Sprintf(format, args...))
	}
	run := &e.run.Run
	end := run.Status
	if run.Error != nil {
		end += " " + run.Error.Code
	}
	want, known := x.ends[end]
	rule(lawFlowEnds, known, "it is %s, want one of %v", end, slices.Collect(maps.Keys(x.ends)))
	rule(lawFlowEnds, len(x.wrong) == 0, "%s", strings.Join(x.wrong, "; "))
	x.holdFrames(e, rule)
	if known {
		x.holdOutput(e, want, rule)
	}
	x.holdNodes(e, rule)
	x.holdChildren(e, rule)
	x.holdCalls(e, calls, keys, rule)
	x.holdApprovals(e, rule)
	x.holdOutcome(e, end, rule)
}

type ruling func(law string, ok bool, format string, args ...any)

func (x *flowTale) holdFrames(e *flowEvidence, rule ruling) {
	heard, replay := facts(x.frames), facts(e.replay)
	rule(lawFlowFrames, slices.Equal(heard, replay), "heard\n%s\n--- replayed\n%s", strings.Join(heard, "\n"), strings.Join(replay, "\n"))
	for i, rest := range e.rests {
		rule(lawFlowFrames, slices.Equal(facts(rest), replay[e.after[i]+1:]), "after %s\n%s\n--- replayed\n%s", e.replay[e.after[i]].ID, strings.Join(facts(rest), "\n"), strings.Join(replay, "\n"))
	}
	last, ok := -1, len(e.replay) > 0 && (e.replay[0].Type == "run.started" || e.run.Run.StartedAt == nil)
	for i, f := range e.replay {
		var seq int
		_, err := fmt.Sscanf(f.ID, "%d", &seq)
		ok = ok && err == nil && seq > last && f.Terminal() == (i == len(e.replay)-1)
		last = seq
	}
	status := e.run.Run.Status
	rule(lawFlowFrames, ok && (e.replay[len(e.replay)-1].Type == "run.completed") == (status == "succeeded"), "it is %s:\n%s", status, strings.Join(replay, "\n"))
}

// holdOutput looks at the output of a run, in which the ids of children are CHILD.
func (x *flowTale) holdOutput(e *flowEvidence, want object, rule ruling) {
	run := &e.run.Run
	if want == nil {
		rule(lawFlowOutput, len(run.Output) == 0 || string(run.Output) == "null", "it has the output %s", run.Output)
		return
	}
	var got, expected map[string]any
	text, err := json.Marshal(want)
	if err == nil {
		err = json.Unmarshal([]byte(strings.ReplaceAll(string(text), "ID", x.id)), &expected)
	}
	if err == nil {
		err = json.Unmarshal(run.Output, &got)
	}
	outputs, _ := got["outputs"].(map[string]any)
	for _, o := range outputs {
		if o, _ := o.(map[string]any); o != nil && o["child_run_id"] != nil {
			o["child_run_id"] = "CHILD"
		}
	}
	wants, _ := expected["outputs"].(map[string]any)
	for _, n := range x.nodes {
		if id := n["id"].(string); n["type"] == "wait_event" {
			rule(lawEvents, reflect.DeepEqual(outputs[id], wants[id]), "node %s has the output %v, want %v", id, outputs[id], wants[id])
			delete(outputs, id)
			delete(wants, id)
		}
	}
	rule(lawFlowOutput, err == nil && reflect.DeepEqual(got, expected), "the output is %s, want %s, %v", run.Output, text, err)
	var in, out int64
	for _, c := range e.children {
		in, out = in+c.TokensIn, out+c.TokensOut
	}
	rule(lawFlowOutput, run.TokensIn == in && run.TokensOut == out, "it has %d and %d tokens, its children %d and %d", run.TokensIn, run.TokensOut, in, out)
}

// waitsFor are the types whose nodes wait once they have started.
var waitsFor = []string{"gate", "human_task", "wait_event", "delay"}

// lifetime is what frames say of a node.
type lifetime struct{ began, started, paused, called, answered, ended int }

func (x *flowTale) holdNodes(e *flowEvidence, rule ruling) {
	types, before := map[string]string{}, map[string][]string{}
	for _, n := range x.nodes {
		types[n["id"].(string)] = n["type"].(string)
	}
	for _, edge := range x.edges {
		before[edge[1]] = append(before[edge[1]], edge[0])
	}
	lives, byIdx, over, order := map[string]*lifetime{}, map[int]string{}, map[string]bool{}, ""
	of := func(node string) *lifetime {
		if lives[node] == nil {
			lives[node] = &lifetime{}
		}
		return lives[node]
	}
	skipped := map[string]bool{}
	for _, f := range e.replay {
		var d struct {
			Node, Status, Name, Kind string
			NodeID                   string `json:"node_id"`
			NodeType                 string `json:"node_type"`
			Idx                      int
		}
		_ = json.Unmarshal(f.Data, &d)
		switch f.Type {
		case "step.started":
			of(d.Name).began++
			byIdx[d.Idx] = d.Name
		case "node.started":
			of(d.NodeID).started++
			for _, b := range before[d.NodeID] {
				if !over[b] {
					order += fmt.Sprintf("%s starts before %s has ended; ", d.NodeID, b)
				}
			}
			if types[d.NodeID] != d.NodeType {
				order += fmt.Sprintf("%s is %s; ", d.NodeID, d.NodeType)
			}
		case "tool.called":
			of(byIdx[d.Idx]).called++
		case "tool.result":
			of(byIdx[d.Idx]).answered++
		case "node.completed":
			if d.Status == "waiting" {
				of(d.NodeID).paused++
				continue
			}
			of(d.NodeID).ended++
			over[d.NodeID] = true
			skipped[d.NodeID] = d.Status == "skipped"
		}
	}
	replay := strings.Join(facts(e.replay), "\n")
	rule(lawNodeOnce, order == "", "%s\n%s", order, replay)
	steps := map[string]*stepView{}
	for i := range e.run.Steps {
		s := &e.run.Steps[i]
		rule(lawNodeOnce, s.Idx == i && steps[s.Name] == nil && types[s.Name] != "" && s.Status != "running" && s.Status != "waiting", "step %d is %+v", i, *s)
		steps[s.Name] = s
	}
	for id, l := range lives {
		s := steps[id]
		if skipped[id] {
			rule(lawNodeOnce, *l == lifetime{ended: 1} && s == nil, "%s, which is skipped: %+v, step %v\n%s", id, *l, s, replay)
			continue
		}
		pauses := 0
		if slices.Contains(waitsFor, types[id]) || slices.ContainsFunc(e.approvals, func(a flowApproval) bool { return s != nil && a.StepIdx == s.Idx }) {
			pauses = 1
		}
		rule(lawNodeOnce, s != nil && l.began == 1 && l.started == 1 && l.ended == 1 && l.paused == pauses && l.called <= 1 && l.answered == l.called, "%s: %+v\n%s", id, *l, replay)
	}
	if e.run.Run.Status == "succeeded" {
		rule(lawNodeOnce, len(lives) == len(x.nodes), "%d of %d nodes have ended\n%s", len(lives), len(x.nodes), replay)
	}
}

func (x *flowTale) holdChildren(e *flowEvidence, rule ruling) {
	agents, named := map[string]bool{}, map[string]bool{}
	for _, n := range x.nodes {
		agents[n["id"].(string)] = n["type"] == "agent"
	}
	begun := 0
	for _, s := range e.run.Steps {
		if agents[s.Name] {
			begun++
		}
	}
	var got struct {
		Outputs map[string]struct {
			Child *string `json:"child_run_id"`
		}
	}
	_ = json.Unmarshal(e.run.Run.Output, &got)
	for _, o := range got.Outputs {
		if o.Child != nil {
			named[*o.Child] = true
		}
	}
	inputs := map[string]bool{}
	for _, c := range e.children {
		rule(lawChildOnce, !inputs[string(c.Input)] && terminalStatus[c.Status], "child %s of %s is %s, or one of two", c.ID, c.Input, c.Status)
		inputs[string(c.Input)] = true
		if e.run.Run.Status == "succeeded" {
			rule(lawChildOnce, named[c.ID] && c.Status == "succeeded", "child %s, which is %s, is not that of any node: %s", c.ID, c.Status, e.run.Run.Output)
		}
	}
	rule(lawChildOnce, len(e.children) <= begun && (e.run.Run.Status != "succeeded" || len(e.children) == begun && len(named) == begun), "%d agent nodes began, it has %d children: %s", begun, len(e.children), e.run.Run.Output)
}

func (x *flowTale) holdCalls(e *flowEvidence, calls map[string][]yardCall, keys map[string]string, rule ruling) {
	steps, called := map[string]*stepView{}, map[int]int{}
	for i := range e.run.Steps {
		steps[e.run.Steps[i].Name] = &e.run.Steps[i]
	}
	for _, f := range e.replay {
		var d struct{ Idx int }
		if _ = json.Unmarshal(f.Data, &d); f.Type == "tool.called" {
			called[d.Idx]++
		}
	}
	for _, n := range x.nodes {
		id := n["id"].(string)
		order := x.id + "-" + id
		got, s := calls[order], steps[id]
		if n["type"] != "tool" || s == nil {
			rule(lawNodeCalls, len(got) == 0, "%s, which calls nothing: %+v", order, got)
			continue
		}
		same := true
		for _, c := range got {
			same = same && c.args == got[0].args && c.tool == n["tool"]
		}
		rule(lawNodeCalls, same, "%s: %+v", order, got)
		rule(lawNodeCalls, len(got) == 0 || called[s.Idx] == 1, "%s was called %d times and has %d frames tool.called", order, len(got), called[s.Idx])
		var failed struct{ Error string }
		_ = json.Unmarshal(s.Output, &failed)
		switch {
		case s.Status == "succeeded":
			rule(lawNodeCalls, len(got) > 0, "%s is answered and was never called", order)
		case called[s.Idx] == 0:
			rule(lawNodeCalls, len(got) == 0, "%s was called without a receipt: %+v", order, got)
		default: // it ended with its run, or its answer was lost
			rule(lawNodeCalls, failed.Error == "UNKNOWN_OUTCOME", "the step of %s: %s", order, s.Output)
		}
		if n["tool"] == stampTool {
			rule(lawNodeCalls, len(got) <= 1, "%s: %+v", order, got)
		} else if len(got) > 0 {
			key := got[0].key
			rule(lawNodeCalls, key != "" && keys[key] == "", "%s and %s have the key %q", order, keys[key], key)
			keys[key] = order
		}
		if len(got) > 0 && n["tool"] == deskRefund {
			amount := `"amount":5,`
			if d := x.decides[deskRefund]; d.edited != "" {
				amount = `"amount":-5,`
			}
			rule(lawNodeCalls, strings.Contains(got[0].args, amount), "%s was called with %s, want %s", order, got[0].args, amount)
		}
	}
}

func (x *flowTale) holdApprovals(e *flowEvidence, rule ruling) {
	asks := map[string]bool{}
	for _, n := range x.nodes {
		asks[n["id"].(string)] = n["type"] == "gate" || n["type"] == "human_task"
	}
	byStep := map[int]*flowApproval{}
	for i := range e.approvals {
		a := &e.approvals[i]
		rule(lawAsked, a.StepIdx < len(e.run.Steps) && byStep[a.StepIdx] == nil && a.Status != "pending", "approval %s of step %d is %s, or one of two", a.ID, a.StepIdx, a.Status)
		byStep[a.StepIdx] = a
	}
	for _, s := range e.run.Steps {
		a := byStep[s.Idx]
		rule(lawAsked, !asks[s.Name] || a != nil, "node %s has no approval", s.Name)
		if a == nil {
			continue
		}
		want := map[string][]string{"approve": {"approved"}, "reject": {"rejected"}, "respond": {"responded"}, "edit": {"edited"}, crowded50: {"approved"}, crowdDiffers: {"approved", "rejected", "responded"}, "": {"cancelled", "expired"}}[x.decides[a.about()].action]
		if e.run.Run.Status != "succeeded" { // others may have ended the run before
			want = append(want[:len(want):len(want)], "cancelled")
		}
		rule(lawAsked, slices.Contains(want, a.Status), "the approval of node %s is %s, want %v", s.Name, a.Status, want)
	}
}

// holdOutcome looks at what came first where several things may end a node or a run.
func (x *flowTale) holdOutcome(e *flowEvidence, end string, rule ruling) {
	status := e.run.Run.Status
	if x.cancelled != "" {
		rule(lawOneOutcome, x.cancelled == status, "the cancel was answered %s, it is %s", x.cancelled, status)
	}
	switch {
	case x.name == raceEvent:
		rule(lawOneOutcome, x.accepted == (status == "succeeded"), "that the event was accepted was answered %t, it is %s", x.accepted, end)
	case x.decides["gate g"].answer == eitherAnswer && len(e.approvals) == 1:
		is := e.approvals[0].Status
		rule(lawOneOutcome, (x.approved == "approved") == (is == "approved") && (is == "approved" || status == "cancelled"), "the approval was answered %q and is %s, it is %s", x.approved, is, end)
	case crowds[x.decides["gate g"].action] != nil && len(e.approvals) == 1:
		is := e.approvals[0].Status
		rule(lawOneOutcome, len(x.counted) == 1 && x.counted[0] == is && (is == "approved") == (status == "succeeded"), "of fifty decisions %v count, the approval is %s, the run %s", x.counted, is, end)
	}
}

// tellFlows tells each story so many times, some at a time.
func (w *flows) tellFlows(ctx context.Context, times, atOnce int) []*flowTale {
	tales := make([]*flowTale, times*len(flowStories))
	for i := range tales {
		tales[i] = w.nextFlow()
	}
	each(atOnce, len(tales), func(i int) { w.tellFlow(ctx, tales[i]) })
	return tales
}

// flowsNotVoid fails t for each law, and each end of a story, that was not met. The
// unknown outcome of a call takes a crash.
func (w *flows) flowsNotVoid(t *testing.T, tales []*flowTale, crashes bool) {
	t.Helper()
	w.book.notVoid(t, flowLaws...)
	var mu sync.Mutex // guards ends
	ends := map[string]int{}
	each(8, len(tales), func(i int) {
		r := new(runAnswer)
		if a, err := w.first.careful(t.Context(), "GET", "/v1/runs/"+tales[i].run, "", nil); err != nil || a.decode(r) != nil {
			return
		}
		end := tales[i].name + ": " + r.Run.Status
		if r.Run.Error != nil {
			end += " " + r.Run.Error.Code
		}
		mu.Lock()
		defer mu.Unlock()
		ends[end]++
	})
	for _, s := range flowStories {
		met := 0
		for end := range s.ends {
			met += ends[s.name+": "+end]
		}
		if met == 0 {
			t.Errorf("%s: no such story ended, the test is void", s.name)
		}
	}
	if n := ends["a call that may not be repeated: "+unknownCall]; n > 0 && !crashes {
		t.Errorf("without a crash the outcomes of %d calls are unknown", n)
	}
	for _, end := range slices.Sorted(maps.Keys(ends)) {
		t.Logf("%4d %s", ends[end], end)
	}
}

// Every story, without a crash.
func TestStoriesOfWorkflows(t *testing.T) {
	t.Parallel()
	n := newSceneNode(t, calm)
	n.start()
	w := newFlowScene(t, n)
	tales := w.tellFlows(within(t, 30*time.Second), 2, len(flowStories))
	w.judgeFlows(t, tales)
	w.book.report(t)
	w.flowsNotVoid(t, tales, false)
	r := newRulings()
	w.examine(r)
	r.report(t)
}

// Each race of a workflow many times over: each end is seen, and all answers agree.
func TestRacesOfWorkflows(t *testing.T) {
	t.Parallel()
	n := newSceneNode(t, calm)
	n.start()
	w := newFlowScene(t, n)
	ctx := within(t, time.Minute)
	names := []string{raceEvent, raceCancel, raceApproval, fiftyAtOnce, fiftyDiffer}
	won := map[string]int{}
	few := func() (missing []string) {
		for _, end := range []string{raceEvent + ": true ", raceEvent + ": false ", raceCancel + ": false cancelled", raceCancel + ": false succeeded",
			fiftyDiffer + ": approved", fiftyDiffer + ": rejected", fiftyDiffer + ": responded"} {
			if won[end] < 3 {
				missing = append(missing, end)
			}
		}
		return missing
	}
	for round := 0; round < 2 || len(few()) > 0; round++ {
		tales := make([]*flowTale, 12*len(names))
		for i := range tales {
			tales[i] = w.newFlow(names[i%len(names)])
		}
		each(12, len(tales), func(i int) { w.tellFlow(ctx, tales[i]) })
		w.judgeFlows(t, tales)
		if w.book.report(t); t.Failed() || ctx.Err() != nil {
			break
		}
		for _, x := range tales {
			if x.name == fiftyDiffer {
				won[x.name+": "+x.counted[0]]++
				continue
			}
			won[fmt.Sprint(x.name, ": ", x.accepted, " ", x.cancelled)]++
		}
	}
	w.book.notVoid(t, lawOneOutcome)
	if missing := few(); len(missing) > 0 {
		t.Errorf("%v were met less than three times, the test is void: %v", missing, won)
	}
	t.Log(won)
}
