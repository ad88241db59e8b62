package check

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"agentsvc/schemas/turn"
)

// Limits of a schema.
const (
	// MaxBytes is the maximum size of a schema.
	MaxBytes = 128 << 10
	// maxSchemas limits the subschemas of one schema, including other values in their places.
	// The compiler takes quadratic time in it.
	maxSchemas = 3_000
	maxValues  = 30_000 // per schema, including those of enums and examples
	maxIDs     = 100    // subschemas with an $id
	// maxStray limits the references to places that no keyword defines as a schema: for each
	// the compiler copies its state.
	maxStray      = 100
	maxStrayTotal = 20_000 // total values in their targets
	// maxVisits limits how many subschemas may apply to one value, without descending into
	// it. References that double exceed it at once.
	maxVisits = 5_000
	maxChain  = 200 // of subschemas that refer to each other, without descending
)

// Schema is a compiled JSON Schema. It is safe for concurrent use.
type Schema struct {
	root   *jsonschema.Schema
	weight int // estimated bytes in memory
}

// Options control how a schema is compiled.
type Options struct {
	// Formats asserts formats, whatever the draft says.
	Formats bool
	// Dynamic allows $dynamicRef in a schema that is one resource. There it refers to the
	// place it names.
	Dynamic bool
	// Patterns shares a bound with other patterns of the same document; nil gives the schema
	// a bound of its own.
	Patterns *Patterns
}

// Refusal is why a schema cannot be used. Neither Error nor Reason quotes it.
type Refusal struct {
	// At is the place of the fault: a JSON Pointer into the schema, "" for the whole.
	At string
	// Reason continues a sentence that begins with "it".
	Reason error
	// Detail is the compiler's error, which quotes the schema; nil if Reason is complete.
	Detail error
}

// Error returns the reason.
func (r *Refusal) Error() string { return r.Reason.Error() }

// Unwrap returns the reason.
func (r *Refusal) Unwrap() error { return r.Reason }

// Reasons of a Refusal.
var (
	ErrLong    = fmt.Errorf("it has more than %d bytes", MaxBytes)
	ErrObject  = errors.New("it is no object")
	ErrInvalid = errors.New("it is no valid JSON Schema")
	ErrOutside = errors.New("it cannot refer to anything outside itself")
	ErrDynamic = errors.New("it has dynamic references")
	ErrLarge   = errors.New("it has too many subschemas or values")
	ErrIDs     = fmt.Errorf("it has more than %d subschemas with an $id", maxIDs)
	ErrRefs    = errors.New("its references lead to too many places that are no schemas of their own")
	ErrDouble  = fmt.Errorf("its references multiply: more than %d subschemas apply to one value", maxVisits)
	ErrChain   = fmt.Errorf("its references form a chain of more than %d", maxChain)
	ErrNumber  = errors.New("it holds a number of too many digits")
	ErrRegexp  = errors.New("it has a pattern that is too expensive: its repeats and classes expand too far")
	ErrTooDeep = fmt.Errorf("it nests deeper than %d levels", maxDepth)
	ErrSyntax  = errors.New("it is not JSON")
)

// address is the internal address of the schema being compiled.
const address = "svc:schema"

// WithoutAddress removes the internal address of a schema from an error's text.
func WithoutAddress(s string) string { return strings.ReplaceAll(s, address, "") }

// closed is the loader of a schema that may not refer to anything outside itself.
type closed struct{}

func (closed) Load(string) (any, error) { return nil, ErrOutside }

// compiling limits the concurrent compilations: one takes up to tens of megabytes, and a third of
// a second if it is made to be expensive. The tenants of turn.With take turns.
var compiling = turn.New(2, 1)

// Compile compiles a schema. The error is a *Refusal, or that of ctx.
func Compile(ctx context.Context, doc json.RawMessage, o Options) (*Schema, error) {
	if len(doc) > MaxBytes {
		return nil, &Refusal{Reason: ErrLong}
	}
	done, err := begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	return compile(doc, o)
}

// begin waits for the tenant's turn to compile, and done ends it.
func begin(ctx context.Context) (done func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	t := turn.Tenant(ctx)
	if err := compiling.Take(ctx, t); err != nil {
		return nil, err
	}
	return func() { compiling.Give(t) }, nil
}

func compile(doc json.RawMessage, o Options) (*Schema, error) {
	v, err := Decode(doc)
	switch {
	case errors.Is(err, ErrNoJSON):
		return nil, &Refusal{Reason: ErrSyntax}
	case errors.Is(err, ErrDeep):
		return nil, &Refusal{Reason: ErrTooDeep}
	case errors.Is(err, ErrHuge):
		return nil, &Refusal{Reason: ErrNumber}
	case err != nil:
		return nil, &Refusal{Reason: ErrLarge}
	}
	top, ok := v.(map[string]any)
	if !ok {
		return nil, &Refusal{Reason: ErrObject}
	}
	if err := judge(top, o); err != nil {
		return nil, err
	}
	if o.Patterns == nil {
		o.Patterns = &Patterns{}
	}
	before := o.Patterns.used
	c := jsonschema.NewCompiler()
	if o.Formats {
		c.AssertFormat()
	}
	c.UseLoader(closed{})
	c.UseRegexpEngine(func(expr string) (jsonschema.Regexp, error) {
		p, err := o.Patterns.Compile(expr)
		if err != nil {
			return nil, err // avoid a nil *Pattern in an interface
		}
		return p, nil
	})
	if err := c.AddResource(address, v); err != nil {
		return nil, refusal(err)
	}
	root, err := c.Compile(address)
	if err != nil {
		return nil, refusal(err)
	}
	s := &Schema{root: root}
	n, err := measure(root)
	if err != nil {
		return nil, err
	}
	s.weight = 4*len(doc) + 1500*n + 120*(o.Patterns.used-before)
	return s, nil
}

// refusal converts an error of the compiler.
func refusal(err error) *Refusal {
	r := &Refusal{Reason: ErrInvalid, Detail: err}
	var invalid *jsonschema.SchemaValidationError
	var pattern *jsonschema.InvalidRegexError
	var load *jsonschema.LoadURLError
	switch {
	case errors.As(err, &load):
		r.Reason = ErrOutside
	case errors.As(err, &pattern):
		r.At = pointer(pattern.URL)
		if errors.Is(pattern.Err, ErrPattern) {
			r.Reason = ErrRegexp
		}
		r.Detail = pattern.Err
	case errors.As(err, &invalid):
		r.Detail = invalid.Err
		var first *jsonschema.ValidationError
		if errors.As(invalid.Err, &first) {
			at := first.InstanceLocation
			for len(first.Causes) > 0 {
				if first = first.Causes[0]; len(first.InstanceLocation) > len(at) {
					at = first.InstanceLocation
				}
			}
			for _, token := range at {
				r.At += "/" + escape.Replace(token)
			}
			if strings.Contains(first.Error(), ErrPattern.Error()) {
				r.Reason = ErrRegexp
			}
		}
	}
	return r
}

var (
	escape   = strings.NewReplacer("~", "~0", "/", "~1")
	unescape = strings.NewReplacer("~1", "/", "~0", "~")
)

// pointer returns the JSON Pointer of a schema's address.
func pointer(location string) string {
	_, at, _ := strings.Cut(location, "#")
	if plain, err := url.PathUnescape(at); err == nil {
		return plain
	}
	return at
}

// Path returns the place in the form people write it: properties.a.items.
func (r *Refusal) Path() string {
	var b strings.Builder
	for _, token := range strings.Split(strings.TrimPrefix(r.At, "/"), "/") {
		if r.At == "" {
			break
		}
		token = unescape.Replace(token)
		if _, err := strconv.Atoi(token); err == nil {
			b.WriteString("[" + token + "]")
		} else if len(token) > 64 || strings.ContainsAny(token, ".[]\" ") {
			b.WriteString("[" + strconv.Quote(token[:min(len(token), 64)]) + "]")
		} else {
			b.WriteString("." + token)
		}
	}
	return b.String()
}

// Keywords of all drafts, by the kind of value they hold.
var (
	data      = []string{"enum", "const", "default", "examples", "required", "type", "dependentRequired", "$vocabulary"}
	mapsOf    = []string{"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"}
	schemasOf = []string{"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "items", "prefixItems", "additionalItems", "contains", "additionalProperties",
		"propertyNames", "unevaluatedItems", "unevaluatedProperties", "contentSchema"}
	dynamic = []string{"$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor"}
)

// judgement collects what decides whether a schema is accepted.
type judgement struct {
	top     map[string]any
	o       Options
	schemas int
	values  int

	resources []string          // pointers of subschemas with an id, "" first
	refs      map[string]string // each with the place where it occurs first
	known     map[string]bool   // pointers of subschemas
	dynamic   string            // place of a dynamic reference
	found     bool              // there is one
}

// judge refuses a schema that cannot be compiled within the limits.
func judge(top map[string]any, o Options) error {
	j := &judgement{top: top, o: o, resources: []string{""}, refs: map[string]string{}, known: map[string]bool{}}
	if err := j.schema(top, ""); err != nil {
		return err
	}
	if j.found && (!o.Dynamic || len(j.resources) > 1) {
		return &Refusal{At: j.dynamic, Reason: ErrDynamic}
	}
	stray, total := 0, 0
	for ref, at := range j.refs {
		_, to, ok := strings.Cut(ref, "#")
		if plain, err := url.PathUnescape(to); err == nil {
			to = plain
		}
		if !ok || to == "" || to[0] != '/' {
			continue
		}
		// The reference starts at one of the resources. It does not matter which one if every
		// possible target is cheap.
		for _, from := range j.resources {
			if j.known[from+to] {
				continue
			}
			target := lookup(j.top, from+to)
			if target == nil {
				continue
			}
			stray++
			if total += count(target); stray > maxStray || total > maxStrayTotal {
				return &Refusal{At: at, Reason: ErrRefs}
			}
		}
	}
	return nil
}

// schema judges a value in the place of a schema.
func (j *judgement) schema(v any, at string) error {
	if j.schemas++; j.schemas > maxSchemas {
		return &Refusal{At: at, Reason: ErrLarge}
	}
	obj, ok := v.(map[string]any)
	if !ok {
		return j.data(v)
	}
	j.known[at] = true
	for name, v := range obj {
		to := at + "/" + escape.Replace(name)
		var err error
		switch ref, isText := v.(string); {
		case slices.Contains(dynamic, name):
			if !j.found {
				j.found, j.dynamic = true, to
			}
			if isText && strings.HasSuffix(name, "Ref") {
				j.refs[ref] = to
			}
			err = j.data(v)
		case name == "$ref" && isText:
			if _, twice := j.refs[ref]; !twice {
				j.refs[ref] = to
			}
			err = j.data(v)
		case (name == "$id" || name == "id") && isText:
			if at != "" {
				j.resources = append(j.resources, at)
			}
			if len(j.resources) > maxIDs {
				return &Refusal{At: to, Reason: ErrIDs}
			}
			err = j.data(v)
		case slices.Contains(data, name):
			err = j.data(v)
		case slices.Contains(mapsOf, name):
			err = j.each(v, to)
		case slices.Contains(schemasOf, name):
			if _, list := v.([]any); list {
				err = j.each(v, to)
			} else {
				err = j.schema(v, to)
			}
		default:
			err = j.other(v, to)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// each judges the schemas in an object or a list.
func (j *judgement) each(v any, at string) error {
	switch v := v.(type) {
	case map[string]any:
		for name, sub := range v {
			if err := j.schema(sub, at+"/"+escape.Replace(name)); err != nil {
				return err
			}
		}
		return nil
	case []any:
		for i, sub := range v {
			if err := j.schema(sub, at+"/"+strconv.Itoa(i)); err != nil {
				return err
			}
		}
		return nil
	}
	return j.data(v)
}

// data judges a value that no keyword defines as a schema. A reference may still lead to it.
func (j *judgement) data(v any) error {
	if j.values += count(v); j.values > maxValues {
		return &Refusal{Reason: ErrLarge}
	}
	return nil
}

// other judges the value of an unknown keyword: a reference may lead into it, and it may hold
// further references.
func (j *judgement) other(v any, at string) error {
	if err := j.data(v); err != nil {
		return err
	}
	j.refer(v, at)
	switch {
	case j.schemas > maxSchemas:
		return &Refusal{At: at, Reason: ErrLarge}
	case len(j.resources) > maxIDs:
		return &Refusal{At: at, Reason: ErrIDs}
	}
	return nil
}

// refer records the references in a value that is not a schema yet.
func (j *judgement) refer(v any, at string) {
	switch v := v.(type) {
	case map[string]any:
		j.schemas++
		for name, sub := range v {
			ref, isText := sub.(string)
			switch {
			case slices.Contains(dynamic, name):
				j.found, j.dynamic = true, at
			case isText && name == "$ref":
				j.refs[ref] = at
			case isText && (name == "$id" || name == "id"):
				j.resources = append(j.resources, at)
			}
			j.refer(sub, at+"/"+escape.Replace(name))
		}
	case []any:
		for i, sub := range v {
			j.refer(sub, at+"/"+strconv.Itoa(i))
		}
	}
}

// count returns how many values v holds, including itself.
func count(v any) int {
	n := 1
	switch v := v.(type) {
	case map[string]any:
		for _, sub := range v {
			n += count(sub)
		}
	case []any:
		for _, sub := range v {
			n += count(sub)
		}
	}
	return n
}

// lookup returns the target of a JSON Pointer, nil if there is none.
func lookup(v any, at string) any {
	for token := range strings.SplitSeq(strings.TrimPrefix(at, "/"), "/") {
		token = unescape.Replace(token)
		switch in := v.(type) {
		case map[string]any:
			v = in[token]
		case []any:
			i, err := strconv.Atoi(token)
			if err != nil || i < 0 || i >= len(in) {
				return nil
			}
			v = in[i]
		default:
			return nil
		}
	}
	return v
}

// measure counts the subschemas of a compiled schema, and refuses one in which too many of
// them apply to one value.
func measure(root *jsonschema.Schema) (int, error) {
	m := &measurer{reach: map[*jsonschema.Schema]reach{}}
	if err := m.visit(root); err != nil {
		return 0, err
	}
	return len(m.reach), nil
}

// reach is the work that a schema requires for one value.
type reach struct {
	visits, chain int
	open          bool // in progress
}

type measurer struct {
	reach map[*jsonschema.Schema]reach
	todo  []*jsonschema.Schema
}

func (m *measurer) visit(root *jsonschema.Schema) error {
	m.todo = append(m.todo, root)
	for len(m.todo) > 0 {
		s := m.todo[len(m.todo)-1]
		m.todo = m.todo[:len(m.todo)-1]
		if _, seen := m.reach[s]; seen {
			continue
		}
		if _, err := m.measure(s, 0); err != nil {
			return err
		}
	}
	return nil
}

// measure follows the schemas that apply to the same value. depth bounds the recursion.
func (m *measurer) measure(s *jsonschema.Schema, depth int) (reach, error) {
	at := pointer(s.Location)
	r, seen := m.reach[s]
	switch {
	case seen && r.open:
		return r, &Refusal{At: at, Reason: ErrCycle}
	case seen:
		return r, nil
	case depth > maxChain:
		return r, &Refusal{At: at, Reason: ErrChain}
	}
	m.reach[s] = reach{open: true}
	same, below := children(s)
	r = reach{visits: 1}
	for _, sub := range same {
		of, err := m.measure(sub, depth+1)
		if err != nil {
			return r, err
		}
		r.chain = max(r.chain, of.chain+1)
		if r.visits += of.visits; r.visits > maxVisits {
			return r, &Refusal{At: at, Reason: ErrDouble}
		}
		if r.chain > maxChain {
			return r, &Refusal{At: at, Reason: ErrChain}
		}
	}
	m.reach[s] = r
	m.todo = append(m.todo, below...)
	return r, nil
}

// children returns the schemas that s applies to its own value, and those that it applies to
// parts of it.
func children(s *jsonschema.Schema) (same, below []*jsonschema.Schema) {
	add := func(to *[]*jsonschema.Schema, list ...*jsonschema.Schema) {
		for _, c := range list {
			if c != nil {
				*to = append(*to, c)
			}
		}
	}
	some := func(to *[]*jsonschema.Schema, v any) { // v is a schema, several, or neither
		switch v := v.(type) {
		case *jsonschema.Schema:
			add(to, v)
		case []*jsonschema.Schema:
			add(to, v...)
		}
	}
	add(&same, s.Ref, s.RecursiveRef, s.Not, s.If, s.Then, s.Else)
	if s.DynamicRef != nil {
		add(&same, s.DynamicRef.Ref)
	}
	add(&same, s.AllOf...)
	add(&same, s.AnyOf...)
	add(&same, s.OneOf...)
	for _, c := range s.DependentSchemas {
		add(&same, c)
	}
	for _, c := range s.Dependencies {
		some(&same, c)
	}
	add(&below, s.PropertyNames, s.UnevaluatedProperties, s.Contains, s.Items2020, s.UnevaluatedItems, s.ContentSchema)
	add(&below, s.PrefixItems...)
	for _, c := range s.Properties {
		add(&below, c)
	}
	for _, c := range s.PatternProperties {
		add(&below, c)
	}
	some(&below, s.AdditionalProperties)
	some(&below, s.Items)
	some(&below, s.AdditionalItems)
	return same, below
}
