package edge

import (
	"bytes"
	"fmt"
	"sort"
	"strings"
)

// maxParams is how many parameters a path has at most.
const maxParams = 4

// node is one segment of the routes of one method. A fixed segment goes before
// a parameter, a parameter before the rest of a path.
type node struct {
	fixed map[string]*node
	param *node
	rest  *endpoint
	end   *endpoint
}

// router finds rows by method and path.
type router struct {
	methods map[string]*node
	allowed []string // every method, sorted
}

func (r *router) add(e *endpoint) {
	if r.methods == nil {
		r.methods = map[string]*node{}
	}
	n := r.methods[e.Method]
	if n == nil {
		n = &node{}
		r.methods[e.Method] = n
		r.allowed = append(r.allowed, e.Method)
		sort.Strings(r.allowed)
	}
	segments := strings.Split(strings.TrimPrefix(e.Path, "/"), "/")
	for i, s := range segments {
		name, isParam := strings.CutPrefix(s, "{")
		if !isParam {
			if n.fixed == nil {
				n.fixed = map[string]*node{}
			}
			if n.fixed[s] == nil {
				n.fixed[s] = &node{}
			}
			n = n.fixed[s]
			continue
		}
		name = strings.TrimSuffix(name, "}")
		if tail, ok := strings.CutSuffix(name, "..."); ok {
			if i != len(segments)-1 || n.rest != nil {
				panic(fmt.Sprintf("edge: %s %s: misplaced or second {%s...}", e.Method, e.Path, tail))
			}
			e.params = append(e.params, tail)
			n.rest = e
			return
		}
		e.params = append(e.params, name)
		if n.param == nil {
			n.param = &node{}
		}
		n = n.param
	}
	if n.end != nil {
		panic(fmt.Sprintf("edge: %s %s is the same route as %s", e.Method, e.Path, n.end.Path))
	}
	if len(e.params) > maxParams {
		panic(fmt.Sprintf("edge: %s %s has more than %d parameters", e.Method, e.Path, maxParams))
	}
	n.end = e
}

// find answers the row and fills params with the raw segments.
func (r *router) find(method string, path []byte, params *[maxParams][]byte) *endpoint {
	n := r.methods[method]
	if n == nil {
		return nil
	}
	return n.find(path[1:], params, 0)
}

func (n *node) find(path []byte, params *[maxParams][]byte, depth int) *endpoint {
	segment, rest, more := path, []byte(nil), false
	if i := bytes.IndexByte(path, '/'); i >= 0 {
		segment, rest, more = path[:i], path[i+1:], true
	}
	if next := n.fixed[string(segment)]; next != nil {
		if e := next.step(rest, more, params, depth); e != nil {
			return e
		}
	}
	if n.param != nil && len(segment) > 0 && depth < maxParams {
		params[depth] = segment
		if e := n.param.step(rest, more, params, depth+1); e != nil {
			return e
		}
	}
	if n.rest != nil && depth < maxParams && len(path) > 0 {
		params[depth] = path
		return n.rest
	}
	return nil
}

func (n *node) step(rest []byte, more bool, params *[maxParams][]byte, depth int) *endpoint {
	if !more {
		return n.end
	}
	return n.find(rest, params, depth)
}

// methodsOf lists the methods that path has, nil for an unknown path.
func (r *router) methodsOf(path []byte) []string {
	var params [maxParams][]byte
	var have []string
	for _, m := range r.allowed {
		if r.find(m, path, &params) != nil {
			have = append(have, m)
			if m == "GET" && r.find("HEAD", path, &params) == nil {
				have = append(have, "HEAD")
			}
		}
	}
	return have
}

// unescape decodes percent-escapes; plus says whether + is a space.
func unescape(b []byte, plus bool) (string, bool) {
	if bytes.IndexByte(b, '%') < 0 && (!plus || bytes.IndexByte(b, '+') < 0) {
		return string(b), true
	}
	out := make([]byte, 0, len(b))
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case c == '%':
			if i+2 >= len(b) {
				return "", false
			}
			hi, lo := unhex(b[i+1]), unhex(b[i+2])
			if hi < 0 || lo < 0 {
				return "", false
			}
			out = append(out, byte(hi<<4|lo))
			i += 2
		case c == '+' && plus:
			out = append(out, ' ')
		default:
			out = append(out, c)
		}
	}
	return string(out), true
}

func unhex(c byte) int {
	switch {
	case '0' <= c && c <= '9':
		return int(c - '0')
	case 'a' <= c && c <= 'f':
		return int(c-'a') + 10
	case 'A' <= c && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}
