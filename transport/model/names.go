package model

import (
	"hash/fnv"
	"strconv"

	schema "agentsvc/schemas/model"
)

// names maps tool names to the form that both protocols accept, [a-zA-Z0-9_-]{1,64}, and
// back. A valid name stays as it is; orders.refund becomes orders_refund, with a hash
// appended if another tool has that name. The mapping depends only on the set of names, so it
// stays the same from turn to turn.
type names struct {
	out, in map[string]string // nil if no name needs a change
}

const maxName = 64

func newNames(req *schema.Request) names {
	var n names
	n.in = make(map[string]string)
	var odd []string
	each(req, func(name string) {
		if plain(name) {
			n.in[name] = name
		} else {
			odd = append(odd, name)
		}
	})
	if len(odd) == 0 {
		return names{}
	}
	n.out = make(map[string]string, len(odd))
	wanted := make(map[string]int, len(odd)) // number of different names that map to it
	for _, name := range odd {
		if _, seen := n.out[name]; !seen {
			p := flat(name)
			n.out[name] = p
			wanted[p]++
		}
	}
	for name, p := range n.out {
		if _, taken := n.in[p]; taken && n.in[p] == p || wanted[p] > 1 || len(name) > maxName {
			h := fnv.New64a()
			h.Write([]byte(name))
			suffix := "_" + strconv.FormatUint(h.Sum64(), 36)
			p = p[:min(len(p), maxName-len(suffix))] + suffix
			n.out[name] = p
		}
	}
	for name, p := range n.out {
		n.in[p] = name
	}
	return n
}

func each(req *schema.Request, f func(string)) {
	for i := range req.Tools {
		f(req.Tools[i].Name)
	}
	for i := range req.Messages {
		for _, c := range req.Messages[i].Calls {
			f(c.Name)
		}
	}
}

func plain(s string) bool {
	if s == "" || len(s) > maxName {
		return false
	}
	for _, c := range []byte(s) {
		if !plainByte(c) {
			return false
		}
	}
	return true
}

func plainByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-'
}

func flat(s string) string {
	if s == "" {
		return "_"
	}
	b := []byte(s[:min(len(s), maxName)])
	for i, c := range b {
		if !plainByte(c) {
			b[i] = '_'
		}
	}
	return string(b)
}

// wire returns the name to send to the provider.
func (n names) wire(name string) string {
	if p, ok := n.out[name]; ok {
		return p
	}
	return name
}

// qualified returns the tool name for a name from the provider; a name made up by the model
// is returned as it is.
func (n names) qualified(p string) string {
	if name, ok := n.in[p]; ok {
		return name
	}
	return p
}
