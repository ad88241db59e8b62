package flow

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"unicode/utf8"

	"agentsvc/schemas/flow/expr"
	"agentsvc/schemas/flow/scan"
	"agentsvc/schemas/id"
	"agentsvc/schemas/jsontext"
	"agentsvc/schemas/lifecycle"
)

// Limits of a run.
const (
	// MaxRendered is the maximum size of what one node renders.
	MaxRendered = 2 << 20
	// MaxData is the maximum size of a run: its input and first variables, and all that its
	// nodes work with and leave. What is overwritten counts too, because it is stored.
	MaxData = 8 << 20
	// maxWork is the budget of one Start or End: a unit is CEL's unit of cost, or 16 bytes of
	// JSON. It takes up to 1.6 s.
	maxWork = 4_000_000
	// quickWork is the budget of a plan that is Quick, up to 16 ms. A single expression is not cut
	// before it has taken up to 400 ms.
	quickWork = maxWork / 100

	maxShown     = 4_000 // characters of a rendered title: people read it, so it is cut
	maxEventName = 1_000 // bytes of a rendered name of an event: it is compared, so it fails
)

var (
	errLarge = errors.New("renders to more than the limit of one node")
	errData  = errors.New("leaves more data than a run can hold")
	errDeep  = errors.New("nests deeper than " + strconv.Itoa(scan.MaxDepth) + " levels")
	errEvent = errors.New("renders to a name of an event that is too long")
	errWork  = errors.New("takes too much work together with the nodes before it")
)

// Status is how far a node is.
type Status byte

// Values of Status; their letters are stored.
const (
	Pending Status = 'p' // some incoming edge is not settled
	Active  Status = 'a' // it has started and not ended
	Ended   Status = 'e'
	Skipped Status = 's' // all incoming edges are settled and none is taken
)

// Letters of an edge.
const (
	open     = '-' // not settled
	taken    = 't'
	notTaken = 'n'
)

// Output is what a node leaves for later nodes and for the output of the run.
type Output struct {
	Text       string          `json:"text"`
	ChildRunID *id.RunID       `json:"child_run_id"` // nil unless the node is an agent
	JSON       json.RawMessage `json:"json,omitempty"`
}

// Data is what was stored of a run for Resume: its input, its variables as they were last, and
// the outputs of the nodes that ended, by their ids.
type Data struct {
	Input     json.RawMessage
	Variables map[string]json.RawMessage
	Outputs   map[string]Output
}

func (o *Output) size() int { return len(o.Text) + len(o.JSON) }

// State is one run of a plan: the status of its nodes and edges, and its data. It is a value:
// End returns another one and leaves the old one as it was.
type State struct {
	nodes  []Status
	edges  []byte
	left   []int16 // incoming edges of a node that are not settled
	come   []bool  // an incoming edge of the node is taken, or it has none
	active int

	input     json.RawMessage
	variables map[string]json.RawMessage // never changed: a set node makes another map
	outputs   []*Output                  // by node; nil: it has not ended
	bytes     int                        // of the run, see MaxData
}

func (s State) clone() State {
	s.nodes, s.edges, s.left, s.come, s.outputs = slices.Clone(s.nodes), slices.Clone(s.edges), slices.Clone(s.left), slices.Clone(s.come), slices.Clone(s.outputs)
	return s
}

func (p *Plan) state(input json.RawMessage, variables map[string]json.RawMessage) State {
	n := len(p.nodes)
	s := State{nodes: make([]Status, n), edges: make([]byte, len(p.edges)), left: make([]int16, n), come: make([]bool, n), outputs: make([]*Output, n),
		input: input, variables: variables}
	if s.variables == nil {
		s.variables = map[string]json.RawMessage{}
	}
	for i := range s.come {
		s.come[i] = len(p.nodes[i].in) == 0
	}
	s.bytes = len(input)
	for k, v := range variables {
		s.bytes += len(k) + len(v)
	}
	return s
}

// Fact is what became true of one node.
type Fact struct {
	Node   int
	Status Status // Active, Ended or Skipped
	// Input, of a node that became active, is what it works with, all templates rendered: the
	// input of an agent, the arguments of a tool, {"title"}, {"event"}, {"seconds"},
	// {"values"}, {"expression"}.
	Input json.RawMessage
	// Text is the rendered title of a gate or a human task, or the name of the event.
	Text string
	// Output is what the node leaves, if it ended.
	Output Output
}

// Failure is why a run fails while nodes without I/O are decided: EXPRESSION_FAILED, or
// LIMIT_EXCEEDED where a template or the data grew too large or nests too deep.
type Failure struct {
	Node    int
	Code    lifecycle.Failure
	Message string
}

// Error returns the code and the message.
func (f *Failure) Error() string { return string(f.Code) + ": " + f.Message }

// ErrSlow is returned by Start and End of a plan that is Quick for a decision that takes more work.
var ErrSlow = errors.New("the decision takes too much work to be quick")

// ErrNotActive is returned by End for a node that has not started, or has ended already.
var ErrNotActive = errors.New("the node is not active")

// Start begins a run. It starts the nodes without incoming edges and decides, as End does, all
// that follows from them.
func (p *Plan) Start(ctx context.Context, input json.RawMessage, variables map[string]json.RawMessage) (State, []Fact, error) {
	all := make(map[string]json.RawMessage, len(p.def.Variables)+len(variables))
	maps.Copy(all, p.def.Variables)
	maps.Copy(all, variables)
	s := p.state(input, all)
	for i := range s.nodes {
		s.nodes[i], s.left[i] = Pending, int16(len(p.nodes[i].in))
	}
	for i := range s.edges {
		s.edges[i] = open
	}
	w := p.walk(ctx, s)
	if s.bytes > MaxData {
		return w.s, nil, &Failure{p.first[0], lifecycle.FailLimitExceeded, errData.Error()}
	}
	w.queue = append(w.queue, p.first...)
	err := w.run()
	return w.s, w.facts, err
}

// End ends an active node with its output and decides all that follows without I/O: edges are
// settled, nodes start or are skipped, set and condition nodes end. It returns the next state
// and what became true, in order. The facts of one call belong into one commit.
//
// The error is ErrNotActive, that of ctx, or a *Failure: then the run fails, and the state and
// the facts are those up to the node that failed, which is active.
//
// The work is bounded, and can take more than a second for a definition that is made to be
// expensive. It is pure, so a caller with a deadline may do it beside its mailbox.
func (p *Plan) End(ctx context.Context, s State, node int, out Output) (State, []Fact, error) {
	if node < 0 || node >= len(s.nodes) || s.nodes[node] != Active {
		return s, nil, ErrNotActive
	}
	w := p.walk(ctx, s.clone())
	err := w.end(node, out, nil)
	if err == nil {
		err = w.run()
	}
	return w.s, w.facts, err
}

func (p *Plan) walk(ctx context.Context, s State) *walk {
	w := &walk{p: p, s: s}
	w.reader = reader{from: w, ctx: ctx, left: p.work, over: p.over}
	return w
}

// walk decides what follows from one thing that happened.
type walk struct {
	reader
	p     *Plan
	s     State
	facts []Fact
	queue []int // nodes whose incoming edges are all settled
	wrote bool  // the variables are a map of this walk
}

// given returns the parts of a run's data.
func (w *walk) given() (input json.RawMessage, variables map[string]json.RawMessage) {
	return w.s.input, w.s.variables
}

func (w *walk) output(id string) *Output {
	if i, ok := w.p.index[id]; ok {
		return w.s.outputs[i]
	}
	return nil
}

func (w *walk) run() error {
	for len(w.queue) > 0 {
		n := w.queue[0]
		w.queue = w.queue[1:]
		if !w.s.come[n] {
			w.s.nodes[n] = Skipped
			w.facts = append(w.facts, Fact{Node: n, Status: Skipped})
			for _, e := range w.p.nodes[n].out {
				w.settle(e, false)
			}
			continue
		}
		if err := w.start(n); err != nil {
			return err
		}
	}
	return nil
}

// settle gives an edge its final state. Each edge is settled once, so that a run of n nodes
// and m edges takes O(n+m) however its nodes join.
func (w *walk) settle(e int, take bool) {
	to := w.p.edges[e].to
	w.s.edges[e] = notTaken
	if take {
		w.s.edges[e] = taken
		w.s.come[to] = true
	}
	if w.s.left[to]--; w.s.left[to] == 0 {
		w.queue = append(w.queue, to)
	}
}

// start makes a node active, and ends it if it needs no I/O.
func (w *walk) start(n int) error {
	node, step := w.p.Node(n), &w.p.nodes[n]
	f := Fact{Node: n, Status: Active}
	w.s.nodes[n] = Active
	w.s.active++
	var err error
	switch node.Type {
	case Agent, Tool, Set:
		var out []byte
		out, err = step.value.render(&w.reader)
		f.Input = out
		if node.Type == Set && err == nil {
			f.Input = append(append([]byte(`{"values":`), out...), '}')
		}
	case Gate, HumanTask:
		var out []byte
		out, err = step.text.render(&w.reader)
		f.Text = cut(string(out))
		f.Input = append(appendText([]byte(`{"title":`), f.Text, true), '}')
	case WaitEvent:
		var out []byte
		if out, err = step.text.render(&w.reader); err == nil && len(out) > maxEventName {
			err = errEvent
		}
		f.Text = string(out)
		f.Input = append(appendText([]byte(`{"event":`), f.Text, true), '}')
	case Condition:
		f.Input = append(appendText([]byte(`{"expression":`), node.Expression, true), '}')
	case Delay:
		f.Input, err = json.Marshal(map[string]float64{"seconds": node.Seconds})
	}
	w.s.bytes += len(f.Input)
	if node.Type == Gate || node.Type == HumanTask { // people see the input of the run
		w.s.bytes += len(w.s.input)
	}
	switch {
	case err != nil:
	case w.s.bytes > MaxData:
		err = errData
	case scan.Depth(f.Input) > scan.MaxDepth:
		err = errDeep
	}
	if err != nil {
		w.facts = append(w.facts, Fact{Node: n, Status: Active})
		return w.failed(n, lifecycle.FailLimitExceeded, err)
	}
	w.facts = append(w.facts, f)
	switch node.Type {
	case Set:
		w.write(f.Input[len(`{"values":`) : len(f.Input)-1])
		return w.end(n, Output{}, nil)
	case Condition:
		result, err := w.eval(n, step.cel)
		if err != nil {
			return err
		}
		value, err := result.JSON(MaxRendered)
		if err != nil {
			return w.failed(n, lifecycle.FailExpression, fmt.Errorf("expression %w", err))
		}
		return w.end(n, resultOutput(value), &result)
	}
	return nil
}

// cut shortens a title.
func cut(s string) string {
	if utf8.RuneCountInString(s) <= maxShown {
		return s
	}
	return string([]rune(s)[:maxShown]) + "…"
}

// write sets variables.
func (w *walk) write(values []byte) {
	if !w.wrote {
		w.wrote, w.s.variables = true, maps.Clone(w.s.variables)
	}
	scan.Members(values, func(name string, v []byte) bool {
		w.s.variables[name] = bytes.Clone(v) // so that it does not keep the other values
		return true
	})
}

// end settles the edges of a node that ended. result is that of a condition.
func (w *walk) end(n int, out Output, result *expr.Value) error {
	if w.s.bytes += out.size(); w.s.bytes > MaxData {
		return w.failed(n, lifecycle.FailLimitExceeded, errData)
	}
	if scan.Depth(out.JSON) > scan.MaxDepth {
		return w.failed(n, lifecycle.FailLimitExceeded, errDeep)
	}
	w.s.outputs[n] = &out
	takes := make([]bool, len(w.p.nodes[n].out))
	for i, e := range w.p.nodes[n].out {
		var err error
		if takes[i], err = w.takes(n, e, result); err != nil {
			w.s.outputs[n] = nil
			return err
		}
	}
	w.s.nodes[n] = Ended
	w.s.active--
	w.facts = append(w.facts, Fact{Node: n, Status: Ended, Output: out})
	for i, e := range w.p.nodes[n].out {
		w.settle(e, takes[i])
	}
	return nil
}

// takes decides whether an edge of a node that ends is taken.
func (w *walk) takes(n, e int, result *expr.Value) (bool, error) {
	when := w.p.edges[e].when
	if when == nil {
		return true, nil
	}
	v, err := w.eval(n, when)
	if err != nil {
		return false, err
	}
	if result != nil {
		equal, err := result.Equal(v)
		if err != nil {
			return false, w.failed(n, lifecycle.FailExpression, err)
		}
		return equal, nil
	}
	take, ok := v.Bool()
	if !ok {
		return false, w.failed(n, lifecycle.FailExpression, fmt.Errorf("when %s: the result is not a boolean", clip(when.source)))
	}
	return take, nil
}

func (w *walk) eval(n int, l *lazy) (expr.Value, error) {
	x, err := l.get()
	if err != nil {
		return expr.Value{}, w.failed(n, lifecycle.FailExpression, fmt.Errorf("%s: %w", clip(l.source), err))
	}
	v, cost, err := x.Eval(w.ctx, expr.Data{Input: w.s.input, Variables: w.s.variables, Node: func(id string) (string, []byte, bool) {
		o := w.output(id)
		if o == nil {
			return "", nil, false
		}
		return o.Text, o.JSON, true
	}})
	if err == nil {
		err = w.work(cost)
	}
	if err != nil {
		return v, w.failed(n, lifecycle.FailExpression, fmt.Errorf("%s: %w", clip(l.source), err))
	}
	return v, nil
}

func (w *walk) failed(n int, code lifecycle.Failure, err error) error {
	switch {
	case w.ctx.Err() != nil:
		return w.ctx.Err()
	case errors.Is(err, ErrSlow):
		return ErrSlow
	}
	return &Failure{n, code, fmt.Sprintf("node %s: %v", w.p.Node(n).ID, err)}
}

// Status returns the status of a node.
func (s State) Status(node int) Status { return s.nodes[node] }

// Active returns the nodes that have started and not ended, in the order of the definition.
func (s State) Active() []int {
	var out []int
	for i, st := range s.nodes {
		if st == Active {
			out = append(out, i)
		}
	}
	return out
}

// Done reports whether every node has ended or was skipped.
func (s State) Done() bool { return s.active == 0 }

// Size returns how much data the run holds, see MaxData.
func (s State) Size() int { return s.bytes }

// Input returns the input of the run.
func (s State) Input() json.RawMessage { return s.input }

// Variables returns the variables as they are now. The map must not be changed.
func (s State) Variables() map[string]json.RawMessage { return s.variables }

// Outputs returns the outputs of the nodes that ended, by their ids.
func (p *Plan) Outputs(s State) map[string]Output {
	out := map[string]Output{}
	for i, o := range s.outputs {
		if o != nil {
			out[p.def.Nodes[i].ID] = *o
		}
	}
	return out
}

// Output returns the output of a run (service.md, Run output). It has no escapes for HTML, which would
// make six bytes of one: it is as large as what the run holds.
func (p *Plan) Output(s State) (json.RawMessage, error) {
	return jsontext.Marshal(struct {
		Outputs   map[string]Output          `json:"outputs"`
		Variables map[string]json.RawMessage `json:"variables"`
	}{p.Outputs(s), s.variables})
}

// Progress returns the status of all nodes and edges as a text of one letter each, and the size
// of the run, to be stored with it. Resume reads it.
func (s State) Progress() string {
	b := make([]byte, 0, len(s.nodes)+len(s.edges)+10)
	for _, st := range s.nodes {
		b = append(b, byte(st))
	}
	b = append(append(b, '/'), s.edges...)
	return string(strconv.AppendInt(append(b, '/'), int64(s.bytes), 10))
}

// Resume returns the state that had this progress and data.
func (p *Plan) Resume(progress string, data Data) (State, error) {
	size := ""
	if all := len(p.nodes) + 1 + len(p.edges); len(progress) > all && progress[all] == '/' {
		progress, size = progress[:all], progress[all+1:]
	}
	if len(progress) != len(p.nodes)+1+len(p.edges) || progress[len(p.nodes)] != '/' {
		return State{}, fmt.Errorf("resume a workflow: the progress is that of another definition")
	}
	s := p.state(data.Input, data.Variables)
	s.edges = []byte(progress[len(p.nodes)+1:])
	for e, c := range s.edges {
		switch to := p.edges[e].to; c {
		case open:
			s.left[to]++
		case taken:
			s.come[to] = true
		case notTaken:
		default:
			return State{}, fmt.Errorf("resume a workflow: edge %d has the state %q", e, c)
		}
	}
	for n := range s.nodes {
		switch s.nodes[n] = Status(progress[n]); s.nodes[n] {
		case Active:
			s.active++
		case Pending, Ended, Skipped:
		default:
			return State{}, fmt.Errorf("resume a workflow: node %d has the status %q", n, progress[n])
		}
	}
	for id, o := range data.Outputs {
		if n, ok := p.index[id]; ok {
			s.outputs[n] = &o
			s.bytes += o.size()
		}
	}
	if size == "" { // stored before sizes were
		return s, nil
	}
	var err error
	if s.bytes, err = strconv.Atoi(size); err != nil {
		return State{}, fmt.Errorf("resume a workflow: the size of the run: %w", err)
	}
	return s, nil
}
