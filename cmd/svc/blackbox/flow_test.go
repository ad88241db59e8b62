package blackbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"agentsvc/cmd/svc/client"
)

// Stories of workflows with nodes of all types, told to the real binary over HTTP with tool
// servers that outlive it. The crash tests tell them over kills, and the storms while a cluster
// is shaken. Their laws are in flow_verdict_test.go.

// flowStory is a workflow, and what clients and people do about each run of it. In its texts ID
// stands for the name of the run, TALKER for an agent that only talks, and ASKER for one whose
// calls of orders.refund wait for people. A tool node n calls for the order ID-n.
type flowStory struct {
	name  string
	nodes []object
	edges [][]string // from, to, and when
	// decides has what people decide, by the title of a gate or a human task, or the tool of
	// a gated call.
	decides map[string]flowDecision
	// does is what a client does at a moment: "start", or "<node> waits".
	does map[string]flowDeed
	// ends has the ways in which a run may end, as status and code, and the output of each.
	ends map[string]object
}

type flowDeed func(context.Context, *flows, *flowTale) error

// flowDecision is a decision, and the answer to it.
type flowDecision struct{ action, feedback, edited, answer string }

// crowds are the decisions that a gate gets fifty at a time, in turn.
var crowds = map[string][]string{crowded50: {"approve"}, crowdDiffers: {"approve", "reject", "respond"}}

var (
	approves = flowDecision{"approve", "", "", "approved"}
	rejects  = flowDecision{"reject", "no", "", "rejected"}
	responds = flowDecision{"respond", "fine", "", "responded"}
)

const (
	longTalk     = "/delay 30ms\n/tokens 300\n/say over {{input.id}}" // outlives its run
	shortly      = 0.005                                              // minutes
	never        = "an event that never comes"
	unknownCall  = "failed TOOL_FAILED" // a call that may not be repeated was cut by a crash
	cancelledRun = "cancelled CANCELLED"
	deskRefund   = "desk." + keyedTool
	raceEvent    = "an event and its timeout"
	raceCancel   = "a cancel and the last end"
	raceApproval = "an approval and a cancel"
	fiftyAtOnce  = "fifty decisions"
	fiftyDiffer  = "fifty decisions that differ"
	crowded50    = "fifty approvals at once"
	crowdDiffers = "fifty decisions at once, a third of each kind"
	eitherAnswer = "approved or ALREADY_DECIDED"
)

// Outputs of nodes.
var (
	leftNothing = leftText("")
	leftCalled  = leftJSON(`{"done":true}`, object{"done": true})
)

func leftText(text string) object { return object{"text": text, "child_run_id": nil} }

func leftJSON(text string, doc any) object {
	return object{"text": text, "child_run_id": nil, "json": doc}
}

func leftByChild(text string) object { return object{"text": text, "child_run_id": "CHILD"} }

// Nodes.
func flowNode(id, kind string, fields ...any) object {
	n := object{"id": id, "type": kind}
	for i := 0; i < len(fields); i += 2 {
		n[fields[i].(string)] = fields[i+1]
	}
	return n
}

func talkNode(id, input string) object {
	return flowNode(id, "agent", "agent_id", "TALKER", "input", input)
}

func callNode(id, tool string) object {
	args := object{"order": "{{input.id}}-" + id}
	if tool == deskRefund {
		args["amount"] = 5
	}
	return flowNode(id, "tool", "tool", tool, "args", args)
}

func delayNode(id string, seconds float64) object { return flowNode(id, "delay", "seconds", seconds) }

func eventNode(id, event string, fields ...any) object {
	return flowNode(id, "wait_event", append(fields, "event", event)...)
}

func gateNode(id string, fields ...any) object {
	return flowNode(id, "gate", append(fields, "title", "gate "+id)...)
}

func taskNode(id string) object { return flowNode(id, "human_task", "title", "task "+id) }

func setNode(id string, values object) object { return flowNode(id, "set", "values", values) }

func conditionNode(id, expression string) object {
	return flowNode(id, "condition", "expression", expression)
}

var flowStories = []flowStory{
	{
		name: "all types",
		nodes: []object{
			setNode("v", object{"who": "{{input.id}}", "n": 7}), talkNode("a", "/delay 2ms\n/say hello {{variables.who}}"), delayNode("d", 0.03), eventNode("e", "go", "timeout_minutes", 60),
			conditionNode("c", "nodes.e.json.n"), gateNode("g"), callNode("t", markTool), callNode("p", deskRefund), taskNode("h"), setNode("x", object{"never": 1}),
			talkNode("b", "/say {{nodes.a.text}} again"), setNode("z", object{"all": "{{nodes.b.text}} {{nodes.e.json.n}} {{nodes.h.text}} {{nodes.t.json.done}}"}),
		},
		edges: [][]string{{"v", "a"}, {"v", "d"}, {"v", "e"}, {"v", "h"}, {"a", "b"}, {"e", "c"}, {"c", "g", "7"}, {"c", "x", "8"}, {"g", "t"}, {"d", "p"},
			{"b", "z"}, {"t", "z"}, {"p", "z"}, {"h", "z"}, {"x", "z"}},
		decides: map[string]flowDecision{"gate g": approves, "task h": responds, deskRefund: approves},
		does:    map[string]flowDeed{"e waits": func(ctx context.Context, w *flows, x *flowTale) error { return w.sends(ctx, x, "go", `{"n":7}`, "1") }},
		ends: map[string]object{"succeeded": {
			"outputs": object{"v": leftNothing, "a": leftByChild("hello ID"), "d": leftNothing, "e": leftJSON("", object{"n": 7}), "c": leftJSON("7", 7), "g": leftNothing, "t": leftCalled,
				"p": leftCalled, "h": leftText("fine"), "b": leftByChild("hello ID again"), "z": leftNothing},
			"variables": object{"who": "ID", "n": 7, "all": "hello ID again 7 fine true"},
		}},
	},
	{
		name: "events, repeated, some early",
		nodes: []object{eventNode("e1", "tick"), eventNode("e2", "tick"), eventNode("e3", "tick"), eventNode("o", "{{input.id}}"), delayNode("d", 0.02), eventNode("l", "late"),
			setNode("z", object{"sum": "{{nodes.e1.json.n}}{{nodes.e2.json.n}}{{nodes.e3.json.n}}{{nodes.o.text}}{{nodes.l.text}}"})},
		edges: [][]string{{"e1", "e2"}, {"e2", "e3"}, {"e3", "z"}, {"o", "z"}, {"d", "l"}, {"l", "z"}},
		does:  map[string]flowDeed{"start": ticks},
		ends: map[string]object{"succeeded": {
			"outputs": object{"e1": leftJSON("", object{"n": 1}), "e2": leftJSON("", object{"n": 2}), "e3": leftJSON("", object{"n": 3}), "o": leftText("."), "d": leftNothing, "l": leftText("!"),
				"z": leftNothing},
			"variables": object{"sum": "123.!"},
		}},
	},
	{
		name:  "a call that may not be repeated",
		nodes: []object{callNode("s", stampTool), setNode("z", object{"done": "{{nodes.s.json.done}}"})},
		edges: [][]string{{"s", "z"}},
		ends:  map[string]object{"succeeded": {"outputs": object{"s": leftCalled, "z": leftNothing}, "variables": object{"done": true}}, unknownCall: nil},
	},
	{
		name: "side by side",
		nodes: []object{
			setNode("v", object{"n": 3}), delayNode("d1", 0.01), delayNode("d2", 0.02), delayNode("d3", 0.03), delayNode("d4", 0.04), talkNode("a1", "/say one {{input.id}}"),
			talkNode("a2", "/say two {{input.id}}"), talkNode("a3", "/say three {{input.id}}"), callNode("t1", markTool), callNode("t2", markTool), conditionNode("c", "variables.n > 5"),
			callNode("x1", markTool), talkNode("x2", "/say never {{input.id}}"), setNode("z", object{"said": "{{nodes.a1.text}}, {{nodes.a2.text}}, {{nodes.a3.text}}{{nodes.x2.text}}"}),
		},
		edges: [][]string{{"v", "d1"}, {"v", "d2"}, {"v", "d3"}, {"v", "d4"}, {"v", "a1"}, {"v", "a2"}, {"v", "a3"}, {"v", "t1"}, {"v", "t2"}, {"v", "c"}, {"c", "x1", "true"}, {"x1", "x2"},
			{"d1", "z"}, {"d2", "z"}, {"d3", "z"}, {"d4", "z"}, {"a1", "z"}, {"a2", "z"}, {"a3", "z"}, {"t1", "z"}, {"t2", "z"}, {"x2", "z"}},
		ends: map[string]object{"succeeded": {
			"outputs": object{"v": leftNothing, "d1": leftNothing, "d2": leftNothing, "d3": leftNothing, "d4": leftNothing, "a1": leftByChild("one ID"), "a2": leftByChild("two ID"),
				"a3": leftByChild("three ID"), "t1": leftCalled, "t2": leftCalled, "c": leftJSON("false", false), "z": leftNothing},
			"variables": object{"n": 3, "said": "one ID, two ID, three ID"},
		}},
	},
	{
		name:    "a gate is rejected",
		nodes:   []object{gateNode("g"), taskNode("h"), talkNode("a", longTalk), eventNode("e", never), delayNode("d", 3600)},
		decides: map[string]flowDecision{"gate g": rejects},
		ends:    map[string]object{"failed GATE_REJECTED": nil},
	},
	{
		name:  "a gate expires",
		nodes: []object{gateNode("g", "sla_minutes", shortly), callNode("p", deskRefund), talkNode("a", longTalk)},
		ends:  map[string]object{"failed GATE_REJECTED": nil},
	},
	{
		name:    "a gated call is rejected",
		nodes:   []object{callNode("p", deskRefund), delayNode("d", 3600)},
		decides: map[string]flowDecision{deskRefund: rejects},
		ends:    map[string]object{"failed TOOL_FAILED": nil},
	},
	{
		name:    "a gated call is edited",
		nodes:   []object{callNode("p", deskRefund)},
		decides: map[string]flowDecision{deskRefund: {"edit", "", `{"order":"ID-p","amount":-5}`, "edited"}},
		ends:    map[string]object{"succeeded": {"outputs": object{"p": leftCalled}, "variables": object{}}},
	},
	{
		name:  "no event comes in time",
		nodes: []object{eventNode("e", never, "timeout_minutes", shortly), taskNode("h"), delayNode("d", 3600)},
		ends:  map[string]object{"failed EVENT_TIMEOUT": nil},
	},
	{
		name:  "a child fails",
		nodes: []object{talkNode("a", "/fail {{input.id}}"), talkNode("b", longTalk), gateNode("g")},
		ends:  map[string]object{"failed CHILD_FAILED": nil},
	},
	{
		name:  "a child asks people",
		nodes: []object{flowNode("a", "agent", "agent_id", "ASKER", "input", "/call "+keyedTool+` {"order":"{{input.id}}-a","amount":5}`), delayNode("d", 3600)},
		ends:  map[string]object{"failed CHILD_WAITING_APPROVAL": nil},
	},
	{
		name:  "cancelled while all wait",
		nodes: []object{gateNode("g"), taskNode("h"), talkNode("a", longTalk), eventNode("e", never), delayNode("d", 3600), callNode("p", deskRefund)},
		does: map[string]flowDeed{"g waits": func(ctx context.Context, w *flows, x *flowTale) error {
			pauseFor(ctx, rand.N(60*time.Millisecond)) // its child and its call may have begun or not
			return w.cancels(ctx, x)
		}},
		ends: map[string]object{cancelledRun: nil},
	},
	{
		name:    fiftyAtOnce,
		nodes:   []object{gateNode("g"), setNode("z", object{"passed": true})},
		edges:   [][]string{{"g", "z"}},
		decides: map[string]flowDecision{"gate g": {action: crowded50}},
		ends:    map[string]object{"succeeded": {"outputs": object{"g": leftNothing, "z": leftNothing}, "variables": object{"passed": true}}},
	},
	{
		name:    fiftyDiffer,
		nodes:   []object{gateNode("g"), setNode("z", object{"passed": true})},
		edges:   [][]string{{"g", "z"}},
		decides: map[string]flowDecision{"gate g": {action: crowdDiffers}},
		ends:    map[string]object{"succeeded": {"outputs": object{"g": leftNothing, "z": leftNothing}, "variables": object{"passed": true}}, "failed GATE_REJECTED": nil},
	},
	{
		name:  raceEvent,
		nodes: []object{eventNode("e", "go", "timeout_minutes", shortly)},
		does: map[string]flowDeed{"e waits": func(ctx context.Context, w *flows, x *flowTale) error {
			w.await(ctx, x, time.Duration(shortly*float64(time.Minute)))
			a, err := w.send(ctx, x, "go", `{"n":1}`, "1", x.id)
			x.accepted = a.status == http.StatusAccepted
			x.must(x.accepted || a.code() == "RUN_TERMINAL", "the event was answered %s", a)
			return err
		}},
		ends: map[string]object{"succeeded": {"outputs": object{"e": leftJSON("", object{"n": 1})}, "variables": object{}}, "failed EVENT_TIMEOUT": nil},
	},
	{
		name:  raceCancel,
		nodes: []object{delayNode("d", 0.2), setNode("z", object{"over": true})},
		edges: [][]string{{"d", "z"}},
		does: map[string]flowDeed{"d waits": func(ctx context.Context, w *flows, x *flowTale) error {
			w.await(ctx, x, 200*time.Millisecond)
			return w.cancels(ctx, x)
		}},
		ends: map[string]object{"succeeded": {"outputs": object{"d": leftNothing, "z": leftNothing}, "variables": object{"over": true}}, cancelledRun: nil},
	},
	{
		name:    raceApproval,
		nodes:   []object{gateNode("g"), setNode("z", object{"over": true})},
		edges:   [][]string{{"g", "z"}},
		decides: map[string]flowDecision{"gate g": {"approve", "", "", eitherAnswer}},
		does: map[string]flowDeed{"g waits": func(ctx context.Context, w *flows, x *flowTale) error {
			pauseFor(ctx, rand.N(10*time.Millisecond))
			return w.cancels(ctx, x)
		}},
		ends: map[string]object{"succeeded": {"outputs": object{"g": leftNothing, "z": leftNothing}, "variables": object{"over": true}}, cancelledRun: nil},
	},
}

// ticks sends the events of the story of events: each twice at the same time, and again later.
func ticks(ctx context.Context, w *flows, x *flowTale) error {
	err := errors.Join(w.sends(ctx, x, "late", `"!"`, "late"), w.sends(ctx, x, x.id, `"."`, ""))
	for i := 1; i <= 3 && err == nil; i++ {
		if i > 1 {
			err = w.sends(ctx, x, "tick", `{"n":1}`, "1")
		}
		payload, both := fmt.Sprintf(`{"n":%d}`, i), make([]error, 2)
		var wg sync.WaitGroup
		for n := range both {
			wg.Go(func() {
				a, err := w.send(ctx, x, "tick", payload, fmt.Sprint(i), "")
				x.must(err != nil || a.status == http.StatusAccepted || i == 3 && a.code() == "RUN_TERMINAL", "event %d was answered %s", i, a) // the run may end of the other one
				both[n] = err
			})
		}
		wg.Wait()
		err = errors.Join(err, both[0], both[1])
	}
	return err
}

// flows is a tenant with the workflows of all stories.
type flows struct {
	*scene
	yard *yard
	book *book             // of the laws of workflows
	ids  map[string]string // workflows by story
	told atomic.Int64      // tales so far
	// aims are nanoseconds by which the request of a race is sent earlier, by story, so that
	// each end is seen.
	aims map[string]*atomic.Int64
}

// newFlows publishes the workflows of a tenant that may use the yard.
func (w *scene) newFlows(t *testing.T, ctx context.Context, y *yard, book *book, talker string) *flows {
	t.Helper()
	f := &flows{scene: w, yard: y, book: book, ids: map[string]string{}, aims: map[string]*atomic.Int64{raceEvent: {}, raceCancel: {}}}
	named := strings.NewReplacer("TALKER", talker, "ASKER", w.agents["one"])
	for i := range flowStories {
		s := &flowStories[i]
		edges := []object{}
		for _, e := range s.edges {
			edge := object{"from": e[0], "to": e[1]}
			if len(e) > 2 {
				edge["when"] = e[2]
			}
			edges = append(edges, edge)
		}
		text, err := json.Marshal(object{"nodes": s.nodes, "edges": edges})
		if err != nil {
			t.Fatal(err)
		}
		var made struct{ Workflow struct{ ID string } }
		w.first.ask(t, ctx, 201, "POST", "/v1/workflows", object{"name": s.name, "definition": json.RawMessage(named.Replace(string(text)))}, &made)
		w.first.ask(t, ctx, 200, "POST", "/v1/workflows/"+made.Workflow.ID+"/versions/1/publish", nil, nil)
		f.ids[s.name] = made.Workflow.ID
	}
	return f
}

// newFlowScene is a tenant with the workflows on a single node, which is running.
func newFlowScene(t *testing.T, n *node) *flows {
	t.Helper()
	w := newScene(t, n)
	ctx := within(t, time.Minute)
	y := newYard(t, nil)
	server := w.first.server(t, ctx, "yard", y.url, "none")
	w.first.grant(t, ctx, object{"source": "mcp", "mcp_server_id": server, "tool_pattern": "yard.*", "effect": "allow"})
	return w.newFlows(t, ctx, y, newBook(), w.first.publish(t, "Talks", simulatedModel))
}

// flowTale is a story as it was told once.
type flowTale struct {
	*flowStory
	id, run string
	frames  []client.Frame // heard while it happened, over reconnects
	err     error          // why it was not told to its end

	cancelled string   // what the cancel answered, empty: it was not cancelled
	accepted  bool     // the event of a race was accepted
	approved  string   // what the approval of a race answered
	counted   []string // the answers of those of fifty decisions that count

	mu    sync.Mutex // guards wrong
	wrong []string   // answers that must not be
}

// nextFlow is a tale of the story whose turn it is.
func (w *flows) nextFlow() *flowTale {
	n := w.told.Add(1)
	return &flowTale{flowStory: &flowStories[int(n-1)%len(flowStories)], id: fmt.Sprintf("flow%d", n)}
}

// newFlow is a tale of a story.
func (w *flows) newFlow(name string) *flowTale {
	i := slices.IndexFunc(flowStories, func(s flowStory) bool { return s.name == name })
	return &flowTale{flowStory: &flowStories[i], id: fmt.Sprintf("flow%d", w.told.Add(1))}
}

// title is what requests of the tale are noted under.
func (x *flowTale) title() string { return x.id + ", " + x.name }

func (x *flowTale) must(ok bool, format string, args ...any) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !ok {
		x.wrong = append(x.wrong, fmt.Sprintf(format, args...))
	}
}

// await waits until about the moment of a race.
func (w *flows) await(ctx context.Context, x *flowTale, moment time.Duration) {
	pauseFor(ctx, moment-time.Duration(w.aims[x.name].Load())+10*time.Millisecond-rand.N(20*time.Millisecond))
}

// learns has the request of a race that came first be sent later the next time, and one that
// came second earlier.
func (w *flows) learns(x *flowTale) {
	const step = int64(4 * time.Millisecond)
	if aim := w.aims[x.name]; aim != nil && (x.accepted || x.cancelled == "cancelled") {
		aim.Add(-step)
	} else if aim != nil {
		aim.Add(step)
	}
}

// tellFlow plays a story to its end.
func (w *flows) tellFlow(ctx context.Context, x *flowTale) {
	var started struct {
		RunID string `json:"run_id"`
	}
	if x.err = w.post(ctx, w.first, "/v1/workflows/"+w.ids[x.name]+"/runs", x.id, object{"input": object{"id": x.id}}, &started); x.err != nil {
		return
	}
	x.run = started.RunID
	var wg sync.WaitGroup
	var mu sync.Mutex // guards errs
	var errs []error
	goes := func(do flowDeed) {
		if do == nil {
			return
		}
		wg.Go(func() {
			if err := do(ctx, w, x); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			}
		})
	}
	goes(x.does["start"])
	frames, err := w.hear(ctx, x.run, func(f client.Frame) error {
		var d struct {
			Node     string `json:"node_id"`
			Status   string
			Approval string `json:"approval_id"`
		}
		if err := json.Unmarshal(f.Data, &d); err != nil {
			return err
		}
		switch {
		case f.Type == "approval.required":
			goes(func(ctx context.Context, w *flows, x *flowTale) error { return w.decideFlow(ctx, x, d.Approval) })
		case f.Type == "node.completed" && d.Status == "waiting":
			goes(x.does[d.Node+" waits"])
		}
		return nil
	})
	wg.Wait()
	x.frames, x.err = frames, errors.Join(append(errs, err)...)
	w.learns(x)
}

// decideFlow decides an approval as the story says.
func (w *flows) decideFlow(ctx context.Context, x *flowTale, approval string) error {
	a, err := w.first.careful(ctx, "GET", "/v1/approvals/"+approval, "", nil)
	if err != nil {
		return err
	}
	var v flowApproval
	if err := a.decode(&v); err != nil || a.status != http.StatusOK {
		return fmt.Errorf("read approval: %s", a)
	}
	d, ok := x.decides[v.about()]
	if !ok {
		return nil
	}
	k := &asking{order: x.id + v.about(), approval: approval}
	if actions := crowds[d.action]; actions != nil {
		return w.crowdFlow(ctx, x, k, actions)
	}
	got, err := w.verb(ctx, k, w.first, d.action, strings.ReplaceAll(d.edited, "ID", x.id), d.feedback, "")
	if err != nil {
		return err
	}
	x.must(got == d.answer || d.answer == eitherAnswer && strings.Contains(eitherAnswer, got), "%s of %s was answered %s", d.action, v.about(), got)
	if d.answer == eitherAnswer {
		x.approved = got
	}
	return nil
}

// crowdFlow decides on a gate by fifty requests at a time, of two people.
func (w *flows) crowdFlow(ctx context.Context, x *flowTale, k *asking, actions []string) error {
	got, errs := make([]string, 50), make([]error, 50)
	begin := make(chan struct{})
	var wg sync.WaitGroup
	first := rand.IntN(len(actions)) // else one of them would come first more often
	for i := range got {
		action, feedback := actions[(first+i/2)%len(actions)], ""
		if action != "approve" {
			feedback = "so be it"
		}
		wg.Go(func() {
			<-begin
			got[i], errs[i] = w.verb(ctx, k, []*caller{w.first, w.second}[i%2], action, "", feedback, fmt.Sprint(i))
		})
	}
	close(begin)
	wg.Wait()
	for _, g := range got {
		if g != "ALREADY_DECIDED" {
			x.counted = append(x.counted, g)
		}
	}
	return errors.Join(errs...)
}

// send sends an event until it is answered for good. A key is that of the request; without one
// only the event's id says that a repeat is one.
func (w *flows) send(ctx context.Context, x *flowTale, name, payload, id, key string) (answer, error) {
	body := object{"name": name, "payload": json.RawMessage(payload)}
	if id != "" {
		body["id"] = id
	}
	return w.first.careful(ctx, "POST", "/v1/workflows/runs/"+x.run+"/events", key, body)
}

// sends sends an event that the run must accept. One without an id has a key.
func (w *flows) sends(ctx context.Context, x *flowTale, name, payload, id string) error {
	key := ""
	if id == "" {
		key = x.id + name
	}
	a, err := w.send(ctx, x, name, payload, id, key)
	x.must(err != nil || a.status == http.StatusAccepted, "the event %s was answered %s", name, a)
	return err
}

func (w *flows) cancels(ctx context.Context, x *flowTale) error {
	var d struct{ Status string }
	if err := w.post(ctx, w.first, "/v1/runs/"+x.run+"/cancel", x.id+"cancel", nil, &d); err != nil {
		return err
	}
	x.cancelled = d.Status
	return nil
}
