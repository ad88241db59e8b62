package flow

import (
	"encoding/json"
	"fmt"
	"sync"

	"agentsvc/schemas/flow/expr"
	"agentsvc/schemas/flow/scan"
)

// Plan is a definition ready to run: nodes and edges by index, templates parsed. It never
// changes and is safe for concurrent use.
type Plan struct {
	def   *Definition
	index map[string]int
	nodes []step
	edges []link
	first []int // nodes without incoming edges
	work  int   // the budget of one Start or End
	over  error // of a Start or End that exceeds it
}

// Quick returns the plan with a hundredth of the budget of work: Start and End return ErrSlow
// where that is too little. The caller then repeats them with p, where they hold up no others.
func (p *Plan) Quick() *Plan {
	q := *p
	q.work, q.over = quickWork, ErrSlow
	return &q
}

// exprBytes is what a compiled expression takes in memory, about.
const exprBytes = 12 << 10

// Weight estimates how many bytes of memory the plan takes, once its runs have compiled all its
// expressions. doc is the length of its document.
func (p *Plan) Weight(doc int) int {
	n := 8*doc + 1<<10*(len(p.nodes)+1)
	for i := range p.nodes {
		if p.nodes[i].cel != nil {
			n += exprBytes
		}
		n += 64 * (len(p.nodes[i].value) + len(p.nodes[i].text))
	}
	for i := range p.edges {
		if p.edges[i].when != nil {
			n += exprBytes
		}
	}
	return n
}

// step is a compiled node.
type step struct {
	out, in []int // edges
	value   template
	text    template
	cel     *lazy
}

// link is a compiled edge.
type link struct {
	from, to int
	when     *lazy // nil: taken whenever its source has ended
}

// lazy is an expression that is compiled at its first use: a run that takes one branch needs
// few of them.
type lazy struct {
	source string
	get    func() (*expr.Expr, error)
}

func newLazy(source string) *lazy {
	return &lazy{source, sync.OnceValues(func() (*expr.Expr, error) { return expr.Compile(source) })}
}

// Load returns the plan of a definition that Parse accepted when it was stored. It does not
// check the rules again: a later rule does not stop existing workflows. The error is internal.
func Load(doc json.RawMessage) (*Plan, error) {
	var d Definition
	if err := json.Unmarshal(doc, &d); err != nil {
		return nil, fmt.Errorf("read a workflow's definition: %w", err)
	}
	p, err := compile(&d)
	if err != nil {
		return nil, fmt.Errorf("read a workflow's definition: %w", err)
	}
	return p, nil
}

func compile(d *Definition) (*Plan, error) {
	p := &Plan{def: d, index: make(map[string]int, len(d.Nodes)), nodes: make([]step, len(d.Nodes)), edges: make([]link, len(d.Edges)), work: maxWork, over: errWork}
	for i := range d.Nodes {
		p.index[d.Nodes[i].ID] = i
	}
	if len(p.index) != len(d.Nodes) {
		return nil, fmt.Errorf("two nodes have one id")
	}
	for i, e := range d.Edges {
		from, ok := p.index[e.From]
		to, also := p.index[e.To]
		if !ok || !also {
			return nil, fmt.Errorf("edge %d names an unknown node", i)
		}
		p.edges[i] = link{from: from, to: to}
		if e.When != "" {
			p.edges[i].when = newLazy(string(e.When))
		}
		p.nodes[from].out = append(p.nodes[from].out, i)
		p.nodes[to].in = append(p.nodes[to].in, i)
	}
	for i := range d.Nodes {
		if len(p.nodes[i].in) == 0 {
			p.first = append(p.first, i)
		}
		if err := p.nodes[i].compile(&d.Nodes[i]); err != nil {
			return nil, fmt.Errorf("node %s: %w", d.Nodes[i].ID, err)
		}
	}
	return p, nil
}

func (s *step) compile(n *Node) (err error) {
	fault := func(_ *path, e error) { err = e }
	at := &path{}
	switch n.Type {
	case Agent:
		s.value = jsonTemplate(n.Input, at, fault)
	case Tool:
		if s.value = jsonTemplate(n.Args, at, fault); scan.KindOf(n.Args) == scan.Null { // omitted, or null
			s.value = template{{fixed: "{}"}}
		}
	case Set:
		s.value = jsonTemplate(n.Values, at, fault)
	case Gate, HumanTask:
		s.text, err = textTemplate(n.Title)
	case WaitEvent:
		s.text, err = textTemplate(n.Event)
	case Condition:
		s.cel = newLazy(n.Expression)
	case Delay:
	default:
		return fmt.Errorf("has the unknown type %q", n.Type)
	}
	return err
}

// Len returns the number of nodes.
func (p *Plan) Len() int { return len(p.nodes) }

// Node returns a node by its index: the position in the definition.
func (p *Plan) Node(i int) *Node { return &p.def.Nodes[i] }

// Index returns the index of a node.
func (p *Plan) Index(id string) (int, bool) {
	i, ok := p.index[id]
	return i, ok
}

// Definition returns what the plan was made of. It must not be changed.
func (p *Plan) Definition() *Definition { return p.def }
