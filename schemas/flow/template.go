package flow

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"agentsvc/schemas/flow/scan"
)

// root is where the path of a placeholder begins.
type root byte

const (
	ofInput root = iota
	ofVariables
	ofText // of a node's output
	ofJSON
)

// ref is the path of a placeholder.
type ref struct {
	root root
	node string // for ofText and ofJSON
	path []string
}

// piece is a part of a compiled template: fixed bytes, then a value.
type piece struct {
	fixed string
	ref   *ref // nil: only fixed bytes
	// whole inserts the value as JSON; else its text is inserted, into a JSON string if quoted.
	whole, quoted bool
}

// template is a JSON value or a text with placeholders. The structure is fixed when it is
// compiled, so an inserted value never becomes structure, and is never read as a template.
type template []piece

const maxPath = 32 // parts of the path of a placeholder

var (
	errOpen = errors.New("has {{ without }}")
	errPath = errors.New("must be input.x, variables.x, nodes.<id>.text or nodes.<id>.json.x")
)

// parseRef reads what stands between {{ and }}.
func parseRef(s string) (*ref, error) {
	parts := strings.Split(strings.TrimSpace(s), ".")
	if len(parts) > maxPath {
		return nil, fmt.Errorf("has more than %d parts", maxPath)
	}
	for _, p := range parts {
		if p == "" || strings.ContainsFunc(p, func(r rune) bool {
			return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !unicode.IsMark(r) && !strings.ContainsRune("_-$@", r)
		}) {
			return nil, errPath
		}
	}
	switch {
	case parts[0] == "input":
		return &ref{root: ofInput, path: parts[1:]}, nil
	case parts[0] == "variables":
		return &ref{root: ofVariables, path: parts[1:]}, nil
	case parts[0] == "nodes" && len(parts) == 3 && parts[2] == "text":
		return &ref{root: ofText, node: parts[1]}, nil
	case parts[0] == "nodes" && len(parts) >= 3 && parts[2] == "json":
		return &ref{root: ofJSON, node: parts[1], path: parts[3:]}, nil
	}
	return nil, errPath
}

// textTemplate compiles a template whose result is a text.
func textTemplate(s string) (template, error) {
	var out template
	for {
		i := strings.Index(s, "{{")
		if i < 0 {
			if s != "" {
				out = append(out, piece{fixed: s})
			}
			return out, nil
		}
		end := strings.Index(s[i:], "}}")
		if end < 0 {
			return out, errOpen
		}
		r, err := parseRef(s[i+2 : i+end])
		if err != nil {
			return out, fmt.Errorf("%s: %w", clip(s[i:i+end+2]), err)
		}
		out = append(out, piece{fixed: s[:i], ref: r})
		s = s[i+end+2:]
	}
}

// jsonTemplate compiles a JSON value. Every string that is no key may have placeholders; one
// that is a placeholder alone keeps the type of its value. fault is called for each string
// that is no template.
func jsonTemplate(raw []byte, at *path, fault func(at *path, err error)) template {
	c := &jsonCompiler{fault: fault}
	c.value(raw, at)
	if c.fixed.Len() > 0 {
		c.out = append(c.out, piece{fixed: c.fixed.String()})
	}
	return c.out
}

type jsonCompiler struct {
	out   template
	fixed strings.Builder // behind the last piece
	fault func(at *path, err error)
}

func (c *jsonCompiler) add(p piece) {
	c.fixed.WriteString(p.fixed)
	p.fixed = c.fixed.String()
	c.fixed = strings.Builder{}
	c.out = append(c.out, p)
}

func (c *jsonCompiler) value(raw []byte, at *path) {
	raw = scan.Trim(raw)
	n := 0
	comma := func() {
		if n++; n > 1 {
			c.fixed.WriteByte(',')
		}
	}
	switch scan.KindOf(raw) {
	case scan.Object:
		c.fixed.WriteByte('{')
		scan.Members(raw, func(key string, v []byte) bool {
			comma()
			c.fixed.Write(appendText(nil, key, true))
			c.fixed.WriteByte(':')
			c.value(v, at.key(key))
			return true
		})
		c.fixed.WriteByte('}')
	case scan.List:
		c.fixed.WriteByte('[')
		scan.Items(raw, func(v []byte) bool {
			comma()
			c.value(v, at.item(n-1))
			return true
		})
		c.fixed.WriteByte(']')
	case scan.String:
		s := scan.Text(raw)
		if !strings.Contains(s, "{{") {
			c.fixed.Write(raw)
			return
		}
		parts, err := textTemplate(s)
		if err != nil {
			c.fault(at, err)
			return
		}
		if len(parts) == 1 && parts[0].fixed == "" {
			c.add(piece{ref: parts[0].ref, whole: true})
			return
		}
		c.fixed.WriteByte('"')
		for _, p := range parts {
			c.fixed.Write(appendText(nil, p.fixed, false))
			if p.ref != nil {
				c.add(piece{ref: p.ref, quoted: true})
			}
		}
		c.fixed.WriteByte('"')
	default:
		c.fixed.Write(raw)
	}
}

// render inserts the values. The result has at most MaxRendered bytes.
func (t template) render(d *reader) ([]byte, error) {
	var out []byte
	for _, p := range t {
		out = append(out, p.fixed...)
		if p.ref != nil {
			var err error
			if out, err = d.insert(out, p); err != nil {
				return nil, err
			}
		}
		if len(out) > MaxRendered {
			return nil, errLarge
		}
	}
	return out, d.work(len(out) / 16)
}

// reader reads the data of a run within the budget of one decision.
type reader struct {
	from interface {
		given() (input json.RawMessage, variables map[string]json.RawMessage)
		output(id string) *Output // nil: it has not ended
	}
	ctx  context.Context
	left int // of the budget
	over error
	seen map[*byte]parts
}

func (d *reader) work(n int) error {
	if err := d.ctx.Err(); err != nil {
		return err
	}
	if d.left -= n; d.left < 0 {
		return d.over
	}
	return nil
}

// allVariables returns the variables as one object.
func allVariables(variables map[string]json.RawMessage) []byte {
	b := []byte{'{'}
	for i, k := range slices.Sorted(maps.Keys(variables)) {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(appendText(b, k, true), ':')
		b = append(b, variables[k]...)
	}
	return append(b, '}')
}

// insert appends the value of a placeholder.
func (d *reader) insert(out []byte, p piece) ([]byte, error) {
	if p.ref.root == ofText {
		o := d.from.output(p.ref.node)
		switch {
		case o == nil && p.whole:
			return append(out, "null"...), nil
		case o == nil:
			return out, nil
		case len(out)+len(o.Text) > MaxRendered:
			return nil, errLarge
		case p.whole:
			return appendText(out, o.Text, true), nil
		case p.quoted:
			return appendText(out, o.Text, false), nil
		}
		return append(out, o.Text...), nil
	}
	raw, err := d.lookup(p.ref)
	if err != nil {
		return nil, err
	}
	if len(out)+len(raw) > MaxRendered {
		return nil, errLarge
	}
	kind := scan.KindOf(raw)
	switch {
	case p.whole && len(raw) == 0:
		return append(out, "null"...), nil
	case p.whole:
		return append(out, raw...), nil
	case kind == scan.Null:
		return out, nil
	case kind == scan.String && p.quoted:
		return append(out, raw[1:len(raw)-1]...), nil
	case kind == scan.String:
		return append(out, scan.Text(raw)...), nil
	case p.quoted:
		return appendText(out, string(compact(raw)), false), nil
	}
	return append(out, compact(raw)...), nil
}

// lookup returns the value of a path, nothing if it is missing.
func (d *reader) lookup(r *ref) ([]byte, error) {
	var raw []byte
	path := r.path
	input, variables := d.from.given()
	switch r.root {
	case ofInput:
		raw = input
	case ofVariables:
		if len(path) == 0 {
			all := allVariables(variables)
			return all, d.work(len(all) / 16)
		}
		raw, path = variables[path[0]], path[1:]
	case ofJSON:
		if o := d.from.output(r.node); o != nil {
			raw = o.JSON
		}
	}
	raw = scan.Trim(raw)
	for _, name := range path {
		var err error
		if raw, err = d.member(raw, name); err != nil || raw == nil {
			return nil, err
		}
	}
	return raw, nil
}

// indexed is the length from which the members of a value are kept apart once it was read.
const indexed = 1 << 10

// member returns a member of an object or an item of a list, nil if there is none.
func (d *reader) member(raw []byte, name string) ([]byte, error) {
	kind := scan.KindOf(raw)
	if len(raw) == 0 || kind != scan.Object && kind != scan.List {
		return nil, nil
	}
	position := -1
	if kind == scan.List {
		n, err := strconv.ParseUint(name, 10, 31)
		if err != nil {
			return nil, nil
		}
		position = int(n)
	}
	if len(raw) < indexed {
		if err := d.work(1 + len(raw)/16); err != nil {
			return nil, err
		}
		var v []byte
		if kind == scan.List {
			v, _ = scan.Item(raw, position)
		} else {
			v, _ = scan.Member(raw, name)
		}
		return v, nil
	}
	at := &raw[0] // equal addresses are the same value: data is never changed
	in, ok := d.seen[at]
	if !ok {
		if err := d.work(len(raw) / 16); err != nil {
			return nil, err
		}
		var err error
		if kind == scan.List {
			n := 0
			scan.Items(raw, func([]byte) bool { n++; return true })
			if err = d.work(4 * n); err == nil {
				in.items = make([][]byte, 0, n)
				scan.Items(raw, func(v []byte) bool { in.items = append(in.items, v); return true })
			}
		} else {
			in.members = map[string][]byte{}
			scan.Members(raw, func(key string, v []byte) bool {
				in.members[key] = v
				err = d.work(8)
				return err == nil
			})
		}
		if err != nil {
			return nil, err
		}
		if d.seen == nil {
			d.seen = map[*byte]parts{}
		}
		d.seen[at] = in
	}
	if kind == scan.Object {
		return in.members[name], d.work(1)
	}
	if position < len(in.items) {
		return in.items[position], d.work(1)
	}
	return nil, nil
}

// parts are the members of an object or the items of a list.
type parts struct {
	members map[string][]byte
	items   [][]byte
}

// appendText appends a text as a JSON string, without the quotes unless they are wanted.
func appendText(b []byte, s string, quotes bool) []byte {
	const digits = "0123456789abcdef"
	if quotes {
		b = append(b, '"')
	}
	for _, r := range s { // bytes that are no UTF-8 become U+FFFD
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r == '\n':
			b = append(b, '\\', 'n')
		case r < ' ':
			b = append(b, '\\', 'u', '0', '0', digits[r>>4], digits[r&15])
		default:
			b = utf8.AppendRune(b, r)
		}
	}
	if quotes {
		b = append(b, '"')
	}
	return b
}
