package notice

import "agentsvc/schemas/msg"

// maxNames is how many objects of one topic are named; when more have changed only that is
// known.
const maxNames = maxRate

// names are changed objects, each once.
type names struct {
	changed  map[msg.Change]Topics
	count    map[Topics]int
	lost     Topics // more of these have changed than are named
	managers int    // how often the managers of org nodes may have changed
}

func newNames() *names { return &names{changed: map[msg.Change]Topics{}, count: map[Topics]int{}} }

func (n *names) empty() bool { return len(n.changed) == 0 && n.lost == 0 }

func (n *names) add(c msg.Change) {
	t := topic(c.Kind)
	if c.Kind == "org_node" {
		n.managers++
	}
	if t == 0 || n.lost&t != 0 {
		return
	}
	if _, there := n.changed[c]; there {
		return
	}
	if n.count[t] == maxNames {
		n.lose(t)
		return
	}
	n.changed[c] = t
	n.count[t]++
}

// lose forgets the names of topics.
func (n *names) lose(t Topics) {
	n.lost |= t
	for c, of := range n.changed {
		if of&t != 0 {
			delete(n.changed, c)
			n.count[of]--
		}
	}
}

func (n *names) merge(o *names) {
	n.lose(o.lost)
	n.managers += o.managers
	for c := range o.changed {
		n.add(c)
	}
}
