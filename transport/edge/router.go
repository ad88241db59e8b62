package edge

import (
	"bytes"
	"fmt"
	"sort"
	"strings"

	fasthttprouter "github.com/fasthttp/router"
	"github.com/valyala/fasthttp"
)

// maxParams is the greatest number of parameters in a path.
const maxParams = 4

// paramKeys are the router's own names for parameters; a row keeps its names to itself. Two
// rows that differ only in parameter names are therefore the same route, which the router
// refuses.
var paramKeys = [maxParams]string{"0", "1", "2", "3"}

type rowKey struct{}

// router finds rows by method and path. A fixed segment takes precedence over a parameter, a
// parameter over the rest of a path. It does nothing else: redirects, cleaned paths or
// answers of its own could map two paths to one resource, or answer without a bucket and a
// problem.
type router struct {
	mux     *fasthttprouter.Router
	allowed []string             // every method, sorted
	bare    map[string]*endpoint // rows with EmptyRest, by method and the path before the rest: the mux does not find them there
}

func (r *router) add(e *endpoint) {
	if r.mux == nil {
		r.mux = fasthttprouter.New()
	}
	segments := strings.Split(e.Path, "/")
	for i, s := range segments {
		name, isParam := strings.CutPrefix(s, "{")
		if !isParam {
			continue
		}
		if len(e.params) == maxParams {
			panic(fmt.Sprintf("edge: %s %s has more than %d parameters", e.Method, e.Path, maxParams))
		}
		key := paramKeys[len(e.params)]
		name = strings.TrimSuffix(name, "}")
		if tail, ok := strings.CutSuffix(name, "..."); ok {
			if i != len(segments)-1 {
				panic(fmt.Sprintf("edge: %s %s: misplaced {%s...}", e.Method, e.Path, tail))
			}
			name, key = tail, key+":*"
		}
		e.params = append(e.params, name)
		segments[i] = "{" + key + "}"
	}
	if i := sort.SearchStrings(r.allowed, e.Method); i == len(r.allowed) || r.allowed[i] != e.Method {
		r.allowed = append(r.allowed, e.Method)
		sort.Strings(r.allowed)
	}
	if e.EmptyRest {
		if r.bare == nil {
			r.bare = map[string]*endpoint{}
		}
		before, _, _ := strings.Cut(e.Path, "{")
		r.bare[e.Method+" "+before] = e
	}
	r.mux.Handle(e.Method, strings.Join(segments, "/"), func(fc *fasthttp.RequestCtx) { fc.SetUserValue(rowKey{}, e) })
}

// find returns the row and stores its parameters as user values of fc.
func (r *router) find(method string, path []byte, fc *fasthttp.RequestCtx) *endpoint {
	if r.mux == nil {
		return nil
	}
	found, _ := r.mux.Lookup(method, string(path), fc)
	if found == nil {
		return r.bare[method+" "+string(path)]
	}
	found(fc)
	e, _ := fc.UserValue(rowKey{}).(*endpoint)
	for i := range e.params {
		if v, _ := fc.UserValue(paramKeys[i]).(string); v == "" {
			return nil // a parameter has at least one character
		}
	}
	return e
}

// methodsOf returns the methods of path, nil for an unknown path.
func (r *router) methodsOf(path []byte) []string {
	var have []string
	for _, m := range r.allowed {
		var scratch fasthttp.RequestCtx
		if r.find(m, path, &scratch) != nil {
			have = append(have, m)
			if m == "GET" && r.find("HEAD", path, &scratch) == nil {
				have = append(have, "HEAD")
			}
		}
	}
	return have
}

// unescape decodes percent-escapes; with plus it decodes + as a space.
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
