package flow

import (
	"slices"
	"strings"

	"agentsvc/schemas/flow/expr"
)

// bits is a set of nodes.
type bits [(MaxNodes + 63) / 64]uint64

func (b *bits) add(i int)      { b[i/64] |= 1 << (i % 64) }
func (b *bits) has(i int) bool { return b[i/64]>>(i%64)&1 == 1 }

// graph checks that the nodes and edges form a directed acyclic graph in which every node can
// be reached.
func (v *validator) graph(at *path) {
	n := len(v.nodes)
	out, incoming := make([][]int, n), make([]int, n)
	type pair struct {
		from, to int
		when     string
	}
	first := map[pair]int{}
	for i, e := range v.edges {
		if e.from < 0 || e.to < 0 {
			continue
		}
		out[e.from] = append(out[e.from], i)
		incoming[e.to]++
		p := pair{e.from, e.to, e.text}
		if j, twice := first[p]; twice {
			v.warn(e.at, "repeats edges[%d]", j)
		} else {
			first[p] = i
		}
	}
	left := slices.Clone(incoming)
	var order []int
	for i := range n {
		if left[i] == 0 {
			order = append(order, i)
		}
	}
	v.past = make([]bits, n)
	for k := 0; k < len(order); k++ {
		for _, e := range out[order[k]] {
			to := v.edges[e].to
			for w, b := range v.past[order[k]] {
				v.past[to][w] |= b
			}
			v.past[to].add(order[k])
			if left[to]--; left[to] == 0 {
				order = append(order, to)
			}
		}
	}
	if len(order) == n {
		v.order = order
		return
	}
	cyclic := v.cycles(out)
	reached := make([]bool, n)
	var queue []int
	for i := range n {
		if reached[i] = incoming[i] == 0; reached[i] {
			queue = append(queue, i)
		}
	}
	for ; len(queue) > 0; queue = queue[1:] {
		for _, e := range out[queue[0]] {
			if to := v.edges[e].to; !reached[to] {
				reached[to] = true
				queue = append(queue, to)
			}
		}
	}
	for i := range n {
		if !reached[i] && !cyclic[i] {
			v.say(v.nodes[i].at, "cannot be reached: every path to it begins in a cycle")
		}
	}
}

// cycles reports one cycle, with the nodes on it, for each set of nodes that reach each other,
// and returns the nodes in these sets.
func (v *validator) cycles(out [][]int) []bool {
	n := len(v.nodes)
	cyclic := make([]bool, n)
	for _, set := range components(n, func(i int, f func(int)) {
		for _, e := range out[i] {
			f(v.edges[e].to)
		}
	}) {
		if closing, ids := v.cycle(slices.Min(set), out); closing != nil {
			for _, i := range set {
				cyclic[i] = true
			}
			if len(ids) > 12 {
				ids = append(append(slices.Clone(ids[:10]), "…"), ids[len(ids)-2:]...)
			}
			v.say(closing.at, "closes a cycle: %s", strings.Join(ids, " → "))
		}
	}
	return cyclic
}

// cycle returns the shortest cycle through a node: the edge that closes it and the ids on the
// way. There is none if the node is alone in its component, without an edge to itself.
func (v *validator) cycle(start int, out [][]int) (*edgeIn, []string) {
	from := map[int]int{} // the edge by which a node was reached
	for queue := []int{start}; len(queue) > 0; queue = queue[1:] {
		for _, e := range out[queue[0]] {
			to := v.edges[e].to
			if to == start {
				ids := []string{v.nodes[start].id}
				for at := queue[0]; at != start; at = v.edges[from[at]].from {
					ids = append(ids, v.nodes[at].id)
				}
				ids = append(ids, v.nodes[start].id)
				slices.Reverse(ids)
				return v.edges[e], ids
			}
			if _, seen := from[to]; !seen {
				from[to] = e
				queue = append(queue, to)
			}
		}
	}
	return nil, nil
}

// components returns the strongly connected components of a graph (Tarjan's algorithm).
func components(n int, next func(i int, f func(to int))) [][]int {
	index, low, on := make([]int, n), make([]int, n), make([]bool, n)
	var stack []int
	var out [][]int
	count := 0
	var visit func(i int)
	visit = func(i int) { // at most MaxNodes deep
		count++
		index[i], low[i] = count, count
		stack, on[i] = append(stack, i), true
		next(i, func(to int) {
			if index[to] == 0 {
				visit(to)
				low[i] = min(low[i], low[to])
			} else if on[to] {
				low[i] = min(low[i], index[to])
			}
		})
		if low[i] != index[i] {
			return
		}
		at := slices.Index(stack, i)
		set := slices.Clone(stack[at:])
		for _, j := range set {
			on[j] = false
		}
		stack = stack[:at]
		out = append(out, set)
	}
	for i := range n {
		if index[i] == 0 {
			visit(i)
		}
	}
	return out
}

// references checks the nodes that templates and expressions name.
func (v *validator) references() {
	for i, n := range v.nodes {
		for _, r := range n.refs {
			v.reference(r, i, false)
		}
	}
	for _, e := range v.edges {
		if e.when == nil {
			continue
		}
		for _, name := range e.when.Nodes() {
			v.reference(placed{e.at.key("when"), name}, e.from, true)
		}
	}
}

// reference checks one name of a node: in a field of node i, or in the when of an edge behind
// it, where node i has ended.
func (v *validator) reference(r placed, i int, ended bool) {
	j, ok := v.byID[r.id]
	switch {
	case !ok:
		v.say(r.at, "names no node of the definition: %q", clip(r.id))
	case v.order == nil || i < 0:
		// what runs before what is not known
	case i == j && ended:
	case i == j:
		v.say(r.at, "names its own node, which cannot have run before")
	case v.past[j].has(i):
		v.say(r.at, "names %s, which cannot have run before: it comes after %s", r.id, v.nodes[i].id)
	case !v.past[i].has(j):
		v.warn(r.at, "names %s, which may not have run before: no path leads from it to %s", r.id, v.nodes[i].id)
	}
}

// branches checks the when of edges against what stands before them, and finds nodes that no
// edge can start.
func (v *validator) branches() {
	dead := map[*edgeIn]bool{}
	behind := map[int]int{} // a condition and its edges
	for _, e := range v.edges {
		if e.from < 0 {
			continue
		}
		of := v.nodes[e.from]
		if of.kind != Condition {
			if e.when == nil {
				continue
			}
			if t := e.when.Type(); !t.Meets(expr.Bool) {
				v.say(e.at.key("when"), "must be a boolean expression, is %s", t)
			}
			dead[e] = e.when.Never()
			continue
		}
		behind[e.from]++
		switch {
		case e.text == "":
			v.warn(e.at, "is always taken: without when it does not look at the result of %s", of.id)
		case e.when != nil && of.cel != nil && !e.when.Type().Meets(of.cel.Type()):
			v.say(e.at.key("when"), "is %s and never equals the result of %s, which is %s", e.when.Type(), of.id, of.cel.Type())
		}
	}
	for i, n := range v.nodes {
		if n.kind == Condition && behind[i] == 0 {
			v.warn(n.at, "decides nothing: no edge leads from it")
		}
	}
	if v.order == nil {
		return
	}
	alive := make([]int, len(v.nodes)) // incoming edges that can be taken
	total := make([]int, len(v.nodes))
	out := make([][]*edgeIn, len(v.nodes))
	for _, e := range v.edges {
		if e.from >= 0 && e.to >= 0 {
			out[e.from] = append(out[e.from], e)
			total[e.to]++
		}
	}
	for _, i := range v.order {
		starts := total[i] == 0 || alive[i] > 0
		if !starts {
			v.warn(v.nodes[i].at, "never starts: none of its incoming edges can be taken")
		}
		for _, e := range out[i] {
			if starts && !dead[e] {
				alive[e.to]++
			}
		}
	}
}
