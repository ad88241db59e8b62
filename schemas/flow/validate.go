package flow

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"agentsvc/schemas/check"
	"agentsvc/schemas/flow/expr"
	"agentsvc/schemas/flow/scan"
	"agentsvc/schemas/id"
	"agentsvc/schemas/problem"
)

// maxFaults bounds the faults, and the warnings, that one definition is told. If there are more, the
// message of the last one ends with andMore.
const (
	maxFaults = 100
	andMore   = " (there are more than the 100 that are named)"
)

// Report is what Validate found. Paths begin with the name that the caller gave.
type Report struct {
	Faults   []problem.Field // the definition cannot be saved
	Warnings []problem.Field // it can, and is likely not what its author means
}

// Parse validates a definition as it was sent and returns its plan and the warnings, each
// "path: message". Every fault is a field of one VALIDATION problem, with a path that begins
// with at. It may wait for its turn; it returns the error of ctx if that ends meanwhile.
func Parse(ctx context.Context, at string, doc json.RawMessage) (*Plan, []string, error) {
	r, err := Validate(ctx, at, doc)
	if err != nil {
		return nil, nil, err
	}
	if len(r.Faults) > 0 {
		return nil, nil, problem.Validation(r.Faults...)
	}
	p, err := Load(doc)
	if err != nil {
		return nil, nil, err
	}
	warnings := []string{}
	for _, w := range r.Warnings {
		warnings = append(warnings, w.Path+": "+w.Message)
	}
	return p, warnings, nil
}

// validating limits the concurrent validations: one can take a second and tens of megabytes
// for a definition that is made to be expensive.
var validating = make(chan struct{}, 2)

// Validate finds everything that is wrong with a definition. The error is that of ctx.
func Validate(ctx context.Context, at string, doc json.RawMessage) (Report, error) {
	v := &validator{ctx: ctx}
	top := &path{name: at}
	if !v.readable(top, doc) {
		return v.Report, nil
	}
	select {
	case validating <- struct{}{}:
		defer func() { <-validating }()
	case <-ctx.Done():
		return Report{}, ctx.Err()
	}
	v.definition(top, doc)
	return v.Report, ctx.Err()
}

type validator struct {
	Report
	ctx      context.Context
	patterns check.Patterns // of all forms
	celBytes int            // of all expressions

	nodes []*nodeIn
	edges []*edgeIn
	byID  map[string]int // the first node with an id; nil if the nodes cannot be read
	order []int          // of the nodes, sources first; nil if there is a cycle
	past  []bits         // nodes before a node, if there is no cycle
}

// nodeIn is a node as far as it can be read.
type nodeIn struct {
	at   *path
	id   string
	kind NodeType
	cel  *expr.Expr // of a condition
	refs []placed
}

type edgeIn struct {
	at       *path
	from, to int // -1: not known
	when     *expr.Expr
	text     string // of when
}

// placed is a name of a node, where it stands.
type placed struct {
	at *path
	id string
}

func (v *validator) say(at *path, format string, args ...any) {
	v.Faults = noted(v.Faults, at, format, args)
}

// noted is a list with one more fault or warning, within its bound.
func noted(list []problem.Field, at *path, format string, args []any) []problem.Field {
	if len(list) < maxFaults {
		return append(list, problem.Field{Path: at.String(), Message: fmt.Sprintf(format, args...)})
	}
	if last := &list[maxFaults-1]; !strings.HasSuffix(last.Message, andMore) {
		last.Message += andMore
	}
	return list
}

const notNull = "must not be null"

// required says that a field is missing, unless it is null, which object has said.
func (v *validator) required(at *path) {
	p := at.String()
	if !slices.Contains(v.Faults, problem.Field{Path: p, Message: notNull}) {
		v.say(at, "required")
	}
}

func (v *validator) warn(at *path, format string, args ...any) {
	v.Warnings = noted(v.Warnings, at, format, args)
}

// readable checks the document as a whole, before anything is read of it.
func (v *validator) readable(at *path, doc []byte) bool {
	switch {
	case len(doc) > MaxBytes:
		v.say(at, "must have at most %d bytes", MaxBytes)
	case !utf8.Valid(doc):
		v.say(at, "is not UTF-8")
	case !json.Valid(doc):
		v.say(at, "is not JSON")
	case scan.Depth(doc) > maxDepth:
		v.say(at, "nests deeper than %d", maxDepth)
	default:
		return true
	}
	return false
}

// object reads an object: its known members. It reports members that are unknown, stand twice or are
// null, which count as absent.
func (v *validator) object(at *path, raw []byte, known ...string) (map[string][]byte, bool) {
	if scan.KindOf(raw) != scan.Object {
		v.say(at, "must be an object")
		return nil, false
	}
	out := make(map[string][]byte, len(known))
	seen := map[string]bool{}
	scan.Members(raw, func(key string, val []byte) bool {
		switch {
		case !slices.Contains(known, key):
			v.say(at.key(key), "unknown field")
		case seen[key]:
			v.say(at.key(key), "stands twice in one object")
		case scan.KindOf(val) == scan.Null:
			v.say(at.key(key), notNull)
		}
		if seen[key] = true; scan.KindOf(val) != scan.Null {
			out[key] = val
		}
		return true
	})
	return out, true
}

func (v *validator) definition(at *path, doc []byte) {
	if scan.KindOf(doc) == scan.Null {
		v.say(at, "required")
		return
	}
	top, ok := v.object(at, doc, "nodes", "edges", "variables")
	if !ok {
		return
	}
	v.byID = map[string]int{}
	if top["nodes"] == nil {
		v.required(at.key("nodes"))
	}
	complete := v.entries(at.key("nodes"), top["nodes"], MaxNodes, v.node)
	if !complete {
		v.byID = nil
	}
	if complete && len(v.nodes) == 0 && top["nodes"] != nil {
		v.say(at.key("nodes"), "must have at least one node")
	}
	if raw := top["variables"]; raw != nil {
		v.variables(at.key("variables"), raw)
	}
	if !v.entries(at.key("edges"), top["edges"], MaxEdges, v.edge) || !complete || v.ctx.Err() != nil {
		return
	}
	v.graph(at)
	v.references()
	v.branches()
}

// entries reads a list of objects; it reports false if the list cannot be read.
func (v *validator) entries(at *path, raw []byte, most int, read func(at *path, raw []byte)) bool {
	if raw == nil {
		return true
	}
	if scan.KindOf(raw) != scan.List {
		v.say(at, "must be a list")
		return false
	}
	n := 0
	scan.Items(raw, func([]byte) bool { n++; return true })
	if n > most {
		v.say(at, "must have at most %d entries, has %d", most, n)
		return false
	}
	n = 0
	scan.Items(raw, func(item []byte) bool {
		read(at.item(n), item)
		n++
		return v.ctx.Err() == nil
	})
	return true
}

func (v *validator) variables(at *path, raw []byte) {
	if scan.KindOf(raw) != scan.Object {
		v.say(at, "must be an object")
		return
	}
	seen := map[string]bool{}
	scan.Members(raw, func(key string, val []byte) bool {
		if seen[key] {
			v.say(at.key(key), "stands twice in one object")
		}
		seen[key] = true
		if strings.Contains(string(val), "{{") {
			v.warn(at.key(key), "is not a template: {{ stays as it is")
		}
		return true
	})
}

func (v *validator) node(at *path, raw []byte) {
	n := &nodeIn{at: at}
	v.nodes = append(v.nodes, n)
	if scan.KindOf(raw) == scan.Object {
		if t, ok := scan.Member(raw, "type"); ok && scan.KindOf(t) == scan.String {
			n.kind = NodeType(scan.Text(t))
		}
	}
	fields, known := fieldsOf[n.kind]
	allowed := []string{"id", "type"}
	for _, f := range fields {
		allowed = append(allowed, f.name)
	}
	if !known { // one fault is enough: the fields cannot be judged
		for _, fs := range fieldsOf {
			for _, f := range fs {
				allowed = append(allowed, f.name)
			}
		}
	}
	o, ok := v.object(at, raw, allowed...)
	if !ok {
		return
	}
	v.nodeID(n, o["id"])
	if !known {
		if o["type"] == nil {
			v.required(at.key("type"))
		} else {
			v.say(at.key("type"), "must be one of %s", strings.Join(names(NodeTypes), ", "))
		}
		return
	}
	for i := range fields {
		f := &fields[i]
		switch val := o[f.name]; {
		case val != nil:
			v.field(n, at.key(f.name), f, val)
		case f.need:
			v.required(at.key(f.name))
		}
	}
}

func (v *validator) nodeID(n *nodeIn, raw []byte) {
	at := n.at.key("id")
	if raw == nil {
		v.required(at)
		return
	}
	if scan.KindOf(raw) == scan.String {
		n.id = scan.Text(raw)
	}
	if !ValidNodeID(n.id) {
		n.id = ""
		v.say(at, "must be 1 to 64 of A-Z, a-z, 0-9, _ and -")
		return
	}
	if first, twice := v.byID[n.id]; twice {
		v.say(at, "is the id of nodes[%d] already: %s", first, n.id)
		return
	}
	v.byID[n.id] = len(v.nodes) - 1
}

// field checks one field of a node.
func (v *validator) field(n *nodeIn, at *path, f *field, raw []byte) {
	switch f.kind {
	case anUUID:
		if s, ok := v.text(at, raw, 1, 100); ok {
			if _, err := id.Parse(s); err != nil {
				v.say(at, "must be a UUID")
			}
		}
	case aText:
		if s, ok := v.text(at, raw, int(f.least), int(f.most)); ok {
			v.placeholders(n, at, s)
		}
	case aName:
		if s, ok := v.text(at, raw, int(f.least), int(f.most)); ok && strings.ContainsFunc(s, func(r rune) bool {
			return unicode.IsSpace(r) || !unicode.IsPrint(r) || r == '*' || r == '{' || r == '}'
		}) {
			v.say(at, "must be a name, without spaces, patterns and placeholders")
		}
	case aValue, anObject:
		if f.kind == anObject && scan.KindOf(raw) != scan.Object {
			v.say(at, "must be an object")
			return
		}
		v.template(n, at, raw)
	case aSchema:
		v.form(at, raw)
	case aCEL:
		if s, ok := v.text(at, raw, 0, MaxBytes); ok {
			if n.cel = v.compile(at, s); n.cel != nil {
				for _, name := range n.cel.Nodes() {
					n.refs = append(n.refs, placed{at, name})
				}
				if n.cel.Type() == expr.Other {
					v.say(at, "has a result that is %s", expr.Other)
				}
			}
		}
	case oneOf:
		if scan.KindOf(raw) != scan.String || !slices.Contains(f.names, scan.Text(raw)) {
			v.say(at, "must be one of %s", strings.Join(f.names, ", "))
		}
	case anInteger, aNumber, aPositive:
		v.number(at, f, raw)
	}
}

// template checks a JSON template, each string under its own path, and each name in an object
// once.
func (v *validator) template(n *nodeIn, at *path, raw []byte) {
	var walk func(at *path, raw []byte)
	walk = func(at *path, raw []byte) {
		switch scan.KindOf(raw) {
		case scan.Object:
			seen := map[string]bool{}
			scan.Members(raw, func(key string, val []byte) bool {
				if seen[key] {
					v.say(at.key(key), "stands twice in one object")
				}
				seen[key] = true
				walk(at.key(key), val)
				return true
			})
		case scan.List:
			i := 0
			scan.Items(raw, func(val []byte) bool {
				walk(at.item(i), val)
				i++
				return true
			})
		case scan.String:
			v.placeholders(n, at, scan.Text(raw))
		}
	}
	walk(at, raw)
}

// placeholders checks the placeholders of a text and notes the nodes that they name.
func (v *validator) placeholders(n *nodeIn, at *path, s string) {
	parts, err := textTemplate(s)
	if err != nil {
		v.say(at, "%v", err)
	}
	for _, p := range parts {
		if p.ref != nil && p.ref.node != "" {
			n.refs = append(n.refs, placed{at, p.ref.node})
		}
	}
}

func (v *validator) text(at *path, raw []byte, least, most int) (string, bool) {
	if scan.KindOf(raw) != scan.String {
		v.say(at, "must be a string")
		return "", false
	}
	s := scan.Text(raw)
	if n := utf8.RuneCountInString(s); n < least || n > most {
		v.say(at, "must have %d to %d characters", least, most)
		return "", false
	}
	return s, true
}

func (v *validator) number(at *path, f *field, raw []byte) {
	if scan.KindOf(raw) != scan.Number {
		v.say(at, "must be a number")
		return
	}
	n, err := strconv.ParseFloat(string(raw), 64)
	switch {
	case f.kind == anInteger && (err != nil || n != math.Trunc(n) || strings.ContainsAny(string(raw), ".eE")):
		v.say(at, "must be an integer")
	case f.kind == aPositive && (err != nil || n <= 0 || n > f.most):
		v.say(at, "must be above 0 and at most %v", f.most)
	case f.kind != aPositive && (err != nil || n < f.least || n > f.most):
		v.say(at, "must be from %v to %v", f.least, f.most)
	}
}

// form compiles the JSON Schema of a human task's answer.
func (v *validator) form(at *path, raw []byte) {
	if scan.KindOf(raw) != scan.Object {
		v.say(at, "must be an object")
		return
	}
	o := formOptions
	o.Patterns = &v.patterns
	_, err := check.Compile(v.ctx, raw, o)
	var r *check.Refusal
	switch {
	case !errors.As(err, &r):
	case errors.Is(err, check.ErrInvalid) && r.Detail != nil:
		v.say(at, "must be a JSON Schema: %s", clip(strings.Join(strings.Fields(check.WithoutAddress(r.Detail.Error())), " ")))
	default:
		v.say(at, "cannot be used as a schema: %s", r)
	}
	if err == nil && !mayBeObject(raw) {
		v.warn(at, "accepts no object, and edited arguments are one: the task can be approved, answered in words or rejected only")
	}
}

// mayBeObject reports whether the type that a schema names, if any, may be an object.
func mayBeObject(schema []byte) bool {
	var s struct{ Type any }
	if err := json.Unmarshal(schema, &s); err != nil {
		return true
	}
	switch t := s.Type.(type) {
	case string:
		return t == "object"
	case []any:
		return slices.Contains(t, any("object"))
	}
	return true
}

// compile compiles an expression, within the limit of all expressions together.
func (v *validator) compile(at *path, source string) *expr.Expr {
	if v.celBytes += len(source); v.celBytes > maxExpressions {
		if v.celBytes-len(source) <= maxExpressions { // the first one that is too much
			v.say(at, "makes all expressions together longer than %d bytes", maxExpressions)
		}
		return nil
	}
	x, err := expr.Compile(source)
	var f *expr.Fault
	switch {
	case errors.As(err, &f) && f.Offset >= 0:
		v.say(at, "%s (at character %d)", f.Message, f.Offset+1)
	case err != nil:
		v.say(at, "%v", err)
	}
	return x
}

func (v *validator) edge(at *path, raw []byte) {
	e := &edgeIn{at: at, from: -1, to: -1}
	v.edges = append(v.edges, e)
	o, ok := v.object(at, raw, "from", "to", "when")
	if !ok {
		return
	}
	end := func(name string) int {
		raw := o[name]
		switch {
		case raw == nil:
			v.required(at.key(name))
		case scan.KindOf(raw) != scan.String:
			v.say(at.key(name), "must be a string")
		default:
			s := scan.Text(raw)
			if i, ok := v.byID[s]; ok {
				return i
			}
			if v.byID == nil { // whether there is such a node is not known
				return -1
			}
			v.say(at.key(name), "names no node of the definition: %q", clip(s))
		}
		return -1
	}
	e.from, e.to = end("from"), end("to")
	if o["when"] == nil {
		return
	}
	var w When
	if err := w.UnmarshalJSON(o["when"]); err != nil {
		v.say(at.key("when"), "must be an expression, a boolean or a number")
		return
	}
	e.text = string(w)
	e.when = v.compile(at.key("when"), e.text)
}
