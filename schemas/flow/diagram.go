package flow

import (
	"strconv"
	"strings"
)

// shapes are the brackets of each type in a diagram. Each type has its own: an agent is a box,
// a tool a box with double sides, a gate a hexagon, a human task a trapezoid, a condition a
// rhombus, set a parallelogram, wait_event a box with round sides, delay one with round corners.
var shapes = map[NodeType][2]string{
	Agent: {"[", "]"}, Tool: {"[[", "]]"}, Gate: {"{{", "}}"}, HumanTask: {"[\\", "/]"},
	Condition: {"{", "}"}, Set: {"[/", "/]"}, WaitEvent: {"([", "])"}, Delay: {"(", ")"},
}

// Mermaid draws a definition as a Mermaid flowchart.
func Mermaid(d *Definition) string {
	var b strings.Builder
	b.WriteString("flowchart TD\n")
	index := map[string]int{}
	for i, n := range d.Nodes {
		index[n.ID] = i
		shape, ok := shapes[n.Type]
		if !ok {
			shape = [2]string{"[", "]"}
		}
		b.WriteString("    n" + strconv.Itoa(i) + shape[0] + `"` + label(n.ID))
		if says := n.says(); says != "" {
			b.WriteString("<br/>" + label(says))
		}
		b.WriteString(`"` + shape[1] + "\n")
	}
	for _, e := range d.Edges {
		from, ok := index[e.From]
		to, also := index[e.To]
		if !ok || !also {
			continue
		}
		b.WriteString("    n" + strconv.Itoa(from) + " -->")
		if e.When != "" {
			b.WriteString(`|"` + label(string(e.When)) + `"|`)
		}
		b.WriteString(" n" + strconv.Itoa(to) + "\n")
	}
	return b.String()
}

// says is the second line of a node.
func (n *Node) says() string {
	switch n.Type {
	case Tool:
		return n.Tool
	case Gate, HumanTask:
		return n.Title
	case Condition:
		return n.Expression
	case WaitEvent:
		return "waits for " + n.Event
	case Delay:
		return "waits " + strconv.FormatFloat(n.Seconds, 'f', -1, 64) + " s"
	}
	return string(n.Type)
}

// label is a text inside a diagram: one line, short, with the characters that Mermaid and HTML
// read as their own written as entities.
func label(s string) string {
	s = clip(strings.Join(strings.Fields(s), " "))
	var b strings.Builder
	for _, r := range s {
		if strings.ContainsRune("\"#&<>`{}[]()|;\\", r) || r < ' ' {
			b.WriteString("#" + strconv.Itoa(int(r)) + ";")
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}
