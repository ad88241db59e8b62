package check

import (
	"context"
	"encoding/json"
	"errors"
	"math/big"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"

	"agentsvc/schemas/problem"
)

// Limits of one check.
const (
	// maxSteps is the budget of one check. A step takes 20 to 100 ns.
	maxSteps = 4_000_000
	// maxFrames limits how deep a check nests, over schema and value together.
	maxFrames = 4_000
	// maxErrors limits the errors reported for a value.
	maxErrors = 1_000
	// maxTold limits the total bytes of the locations in all errors of a value.
	maxTold = 1 << 20
	// maxName is the length at which a name or text of the value is cut in an error.
	maxName = 64
	// lookAfter is how many steps lie between checks of the context.
	lookAfter = 1 << 12
)

// Errors of Schema.Check that do not concern the value.
var (
	ErrBudget = errors.New("it takes too much work to check")
	ErrCycle  = errors.New("it refers to itself for ever")
)

// Check validates a value that Decode returned. The error is a *jsonschema.ValidationError,
// ErrBudget, ErrCycle, or the error of ctx. At most maxErrors errors of a value are reported.
// Long names and texts of the value are cut in them, as Clip does.
func (s *Schema) Check(ctx context.Context, v any) error {
	_, err := s.check(ctx, v, maxSteps)
	return err
}

// check does this within a budget, and returns the steps taken.
func (s *Schema) check(ctx context.Context, v any, budget int) (steps int, err error) {
	e := &eval{ctx: ctx, left: budget, look: budget - lookAfter, room: room{maxErrors, maxTold}}
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	failed := e.value(s.root, v, nil, false)
	steps = budget - e.left
	switch {
	case e.stopped != nil:
		return steps, e.stopped
	case failed == nil:
		return steps, nil
	}
	causes := []*jsonschema.ValidationError{failed}
	if _, ok := failed.ErrorKind.(*kind.Group); ok {
		causes = failed.Causes
	}
	return steps, &jsonschema.ValidationError{SchemaURL: s.root.Location, ErrorKind: &kind.Schema{Location: s.root.Location}, Causes: causes}
}

// eval is one check in progress.
type eval struct {
	ctx     context.Context
	left    int // steps left
	look    int // check ctx when left falls below this
	room    room
	stopped error // the check ended early; its findings do not count

	meta   *jsonschema.Schema // the outermost resource of the current metaschema
	frames []frame
	depth  int // of the current value within its ancestors, which identifies it
}

// room is what may still be reported.
type room struct {
	errors int
	bytes  int
}

// frame is a schema in progress, and the depth of its value.
type frame struct {
	schema *jsonschema.Schema
	depth  int
}

// place is the current location in the value.
type place struct {
	up    *place
	token string
}

func (p *place) location() []string {
	var out []string
	for ; p != nil; p = p.up {
		out = append(out, Clip(p.token))
	}
	slices.Reverse(out)
	return out
}

// Clip returns a name or text of the value as errors show it: cut if it is long.
func Clip(s string) string {
	return problem.ClipBytes(s, maxName)
}

// quietError is an error without details.
var quietError = &jsonschema.ValidationError{ErrorKind: &kind.Group{}}

// spend takes n steps from the budget; false ends the check.
func (e *eval) spend(n int) bool {
	if e.stopped != nil {
		return false
	}
	if n > e.left {
		e.left, e.stopped = 0, ErrBudget
		return false
	}
	e.left -= n
	if e.left < e.look {
		e.look = e.left - lookAfter
		if err := e.ctx.Err(); err != nil {
			e.stopped = err
			return false
		}
	}
	return true
}

// open holds the parts of a value that no schema has evaluated yet, for unevaluatedProperties
// and unevaluatedItems; nil if they are not needed.
type open struct {
	props map[string]struct{}
	items map[int]struct{}
}

func (e *eval) open(v any) *open {
	o := &open{}
	switch v := v.(type) {
	case map[string]any:
		if e.spend(24 + 8*len(v)) {
			o.props = make(map[string]struct{}, len(v))
			for k := range v {
				o.props[k] = struct{}{}
			}
		}
	case []any:
		if e.spend(24 + 8*len(v)) {
			o.items = make(map[int]struct{}, len(v))
			for i := range v {
				o.items[i] = struct{}{}
			}
		}
	}
	return o
}

// merge marks as evaluated what sub evaluated.
func (e *eval) merge(o, sub *open) {
	if o == nil || sub == nil || !e.spend(len(o.props)+len(o.items)) {
		return
	}
	for k := range o.props {
		if _, ok := sub.props[k]; !ok {
			delete(o.props, k)
		}
	}
	for i := range o.items {
		if _, ok := sub.items[i]; !ok {
			delete(o.items, i)
		}
	}
}

func (o *open) empty() bool { return o == nil || len(o.props) == 0 && len(o.items) == 0 }

// value checks a value other than the caller's.
func (e *eval) value(s *jsonschema.Schema, v any, at *place, quiet bool) *jsonschema.ValidationError {
	e.depth++
	failed := e.schema(s, v, at, nil, quiet)
	e.depth--
	return failed
}

// at is one schema and one value.
type at struct {
	*eval
	s     *jsonschema.Schema
	v     any
	place *place
	open  *open
	quiet bool
	found []*jsonschema.ValidationError
	bad   bool
}

// schema checks v against s. If v is valid, the parts that s evaluated are closed in o.
func (e *eval) schema(s *jsonschema.Schema, v any, where *place, o *open, quiet bool) *jsonschema.ValidationError {
	if !e.spend(1) {
		return quietError
	}
	a := &at{eval: e, s: s, v: v, place: where, quiet: quiet}
	if s.Bool != nil {
		if !*s.Bool {
			return a.fault(&kind.FalseSchema{})
		}
		return nil
	}
	if len(e.frames) >= maxFrames {
		e.stopped = ErrBudget
		return quietError
	}
	for i := len(e.frames) - 1; i >= 0 && e.frames[i].depth == e.depth; i-- {
		if e.frames[i].schema == s {
			e.stopped = ErrCycle
			return quietError
		}
		if i%8 == 0 && !e.spend(1) {
			return quietError
		}
	}
	e.frames = append(e.frames, frame{s, e.depth})
	defer func() { e.frames = e.frames[:len(e.frames)-1] }()
	if e.meta == nil && (s.DynamicAnchor != "" || s.RecursiveAnchor) && strings.HasPrefix(s.Location, "https://json-schema.org/") {
		e.meta = s
		defer func() { e.meta = nil }()
	}
	if o != nil || s.UnevaluatedProperties != nil || s.UnevaluatedItems != nil {
		a.open = e.open(v)
	}

	if failed := a.any(); failed != nil {
		return failed
	}
	if s.Ref != nil {
		failed := a.ref(s.Ref, "$ref")
		if s.DraftVersion < 2019 {
			if failed == nil {
				e.merge(o, a.open)
			}
			return failed
		}
		a.add(failed)
	}
	switch v := v.(type) {
	case map[string]any:
		a.object(v)
	case []any:
		a.array(v)
	case string:
		a.text(v)
	case json.Number:
		a.number(v)
	}
	if a.bad && quiet {
		return quietError
	}
	if s.DraftVersion >= 2019 {
		a.dynamic()
	}
	a.combine()
	if s.DraftVersion >= 2019 {
		a.rest()
	}
	switch {
	case e.stopped != nil || a.bad && len(a.found) == 0:
		return quietError
	case !a.bad:
		e.merge(o, a.open)
		return nil
	case len(a.found) == 1:
		return a.found[0]
	}
	return a.wrap(&kind.Group{}, a.found)
}

// fault makes an error, which counts as reported.
func (a *at) fault(k jsonschema.ErrorKind) *jsonschema.ValidationError {
	if a.quiet || a.room.errors <= 0 || !a.spend(4) {
		return quietError
	}
	where, ok := a.tell()
	if !ok {
		a.room.errors = 0
		return quietError
	}
	a.room.errors--
	return &jsonschema.ValidationError{SchemaURL: a.s.Location, InstanceLocation: where, ErrorKind: k}
}

// wrap makes an error with causes. If there is no room to report it, it returns the first
// cause.
func (a *at) wrap(k jsonschema.ErrorKind, causes []*jsonschema.ValidationError) *jsonschema.ValidationError {
	where, ok := a.tell()
	if !ok {
		return causes[0]
	}
	return &jsonschema.ValidationError{SchemaURL: a.s.Location, InstanceLocation: where, ErrorKind: k, Causes: causes}
}

// tell returns the current location in the value, if there is room to report it.
func (a *at) tell() (where []string, ok bool) {
	where = a.place.location()
	n := 64 + 2*len(a.frames) // an error is indented by its depth
	for _, token := range where {
		n += 16 + len(token)
	}
	if n > a.room.bytes {
		return nil, false
	}
	a.room.bytes -= n
	return where, true
}

func (a *at) say(k jsonschema.ErrorKind) { a.add(a.fault(k)) }

func (a *at) add(failed *jsonschema.ValidationError) {
	if failed == nil {
		return
	}
	a.bad = true
	if failed != quietError {
		a.found = append(a.found, failed)
	}
}

// under checks a part of the value.
func (a *at) under(s *jsonschema.Schema, v any, token string) *jsonschema.ValidationError {
	return a.value(s, v, &place{a.place, token}, a.quiet)
}

// self checks the same value against another schema.
func (a *at) self(s *jsonschema.Schema, quiet bool) *jsonschema.ValidationError {
	return a.schema(s, a.v, a.place, a.open, a.quiet || quiet)
}

func (a *at) ref(s *jsonschema.Schema, keyword string) *jsonschema.ValidationError {
	failed := a.self(s, false)
	if failed == nil || failed == quietError {
		return failed
	}
	causes := []*jsonschema.ValidationError{failed}
	if _, ok := failed.ErrorKind.(*kind.Group); ok {
		causes = failed.Causes
	}
	return a.wrap(&kind.Reference{Keyword: keyword, URL: s.Location}, causes)
}

var errFormat = errors.New("the text is not of this format")

// any checks the keywords for values of every type. It stops at the first fault.
func (a *at) any() *jsonschema.ValidationError {
	s, v := a.s, a.v
	name := typeName(v)
	if s.Types != nil && !s.Types.IsEmpty() {
		var want jsonschema.Types
		want.Add(name)
		fits := *s.Types&want != 0
		if n, ok := v.(json.Number); ok && !fits {
			var integer jsonschema.Types
			integer.Add("integer")
			fits = *s.Types&integer != 0 && isInteger(string(n))
		}
		if !fits {
			return a.fault(&kind.Type{Got: name, Want: s.Types.ToStrings()})
		}
	}
	if s.Const != nil && !a.equal(v, *s.Const) {
		return a.fault(&kind.Const{Got: v, Want: *s.Const})
	}
	if s.Enum != nil && !slices.ContainsFunc(s.Enum.Values, func(w any) bool { return a.equal(v, w) }) {
		return a.fault(&kind.Enum{Got: v, Want: s.Enum.Values})
	}
	if s.Format != nil {
		text, ok := v.(string)
		if ok && !a.spend(1+len(text)/16) {
			return quietError
		}
		var err error
		if s.Format.Name == "regex" {
			if ok {
				err = a.regex(text)
			}
		} else {
			err = s.Format.Validate(v)
		}
		if a.stopped != nil {
			return quietError
		}
		if err != nil {
			if len(text) > maxName { // an error of a long text would quote it
				return a.fault(&kind.Format{Got: Clip(text), Want: s.Format.Name, Err: errFormat})
			}
			return a.fault(&kind.Format{Got: v, Want: s.Format.Name, Err: err})
		}
	}
	return nil
}

// regex reports why Patterns would not compile a text. It only parses the text, and spends
// the budget before the work.
func (e *eval) regex(text string) error {
	if len(text) > MaxPatternBytes {
		return errLongPattern
	}
	if !e.spend(reading(text)) {
		return nil
	}
	parsed, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return err
	}
	size := instructions(parsed)
	if e.spend(size); size > maxPattern {
		return ErrPattern
	}
	return nil
}

func typeName(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case json.Number:
		return "number"
	case string:
		return "string"
	case []any:
		return "array"
	}
	return "object"
}

// equal compares two values as JSON Schema does: numbers by their value.
func (e *eval) equal(v, w any) bool {
	if !e.spend(1) {
		return false
	}
	switch v := v.(type) {
	case map[string]any:
		w, ok := w.(map[string]any)
		if !ok || len(v) != len(w) {
			return false
		}
		for k, x := range v {
			if y, ok := w[k]; !ok || !e.equal(x, y) {
				return false
			}
		}
		return true
	case []any:
		w, ok := w.([]any)
		if !ok || len(v) != len(w) {
			return false
		}
		for i := range v {
			if !e.equal(v[i], w[i]) {
				return false
			}
		}
		return true
	case json.Number:
		w, ok := w.(json.Number)
		return ok && (v == w || e.spend(4+(len(v)+len(w))/32) && canonText(string(v)) == canonText(string(w)))
	case string:
		w, ok := w.(string)
		return ok && len(v) == len(w) && e.spend(len(v)/64) && v == w
	}
	return v == w
}

// missing returns the names that an object lacks.
func (a *at) missing(obj map[string]any, names []string) (missing []string, some bool) {
	if !a.spend(len(names)) {
		return nil, false
	}
	for _, name := range names {
		if _, ok := obj[name]; ok {
			continue
		}
		some = true
		if a.quiet || a.room.errors <= 1 { // the last one is reserved for the fault itself
			return missing, true
		}
		a.room.errors--
		missing = append(missing, Clip(name))
	}
	return missing, some
}

func (a *at) object(obj map[string]any) {
	s := a.s
	if s.MinProperties != nil && len(obj) < *s.MinProperties {
		a.say(&kind.MinProperties{Got: len(obj), Want: *s.MinProperties})
	}
	if s.MaxProperties != nil && len(obj) > *s.MaxProperties {
		a.say(&kind.MaxProperties{Got: len(obj), Want: *s.MaxProperties})
	}
	if missing, some := a.missing(obj, s.Required); some {
		a.say(&kind.Required{Missing: missing})
	}
	for name, dependency := range s.Dependencies {
		if _, ok := obj[name]; !ok || !a.spend(1) {
			continue
		}
		switch dependency := dependency.(type) {
		case []string:
			if missing, some := a.missing(obj, dependency); some {
				a.say(&kind.Dependency{Prop: Clip(name), Missing: missing})
			}
		case *jsonschema.Schema:
			a.add(a.self(dependency, false))
		}
	}
	a.members(obj)
	if s.PropertyNames != nil {
		for name := range obj {
			failed := a.value(s.PropertyNames, name, nil, a.quiet)
			if failed == nil {
				continue
			}
			if failed != quietError {
				failed = a.wrap(&kind.PropertyNames{Property: Clip(name)}, []*jsonschema.ValidationError{failed})
			}
			if a.add(failed); a.stopped != nil || a.quiet {
				return
			}
		}
	}
	for name, dependent := range s.DependentSchemas {
		if _, ok := obj[name]; ok && a.spend(1) {
			a.add(a.self(dependent, false))
		}
	}
	for name, required := range s.DependentRequired {
		if _, ok := obj[name]; !ok {
			continue
		}
		if missing, some := a.missing(obj, required); some {
			a.say(&kind.DependentRequired{Prop: Clip(name), Missing: missing})
		}
	}
}

// members checks the values of an object's properties.
func (a *at) members(obj map[string]any) {
	s := a.s
	if len(s.Properties) == 0 && len(s.PatternProperties) == 0 && s.AdditionalProperties == nil {
		return
	}
	var surplus []string
	var refused bool
	for name, v := range obj {
		if !a.spend(1) || a.quiet && a.bad {
			return
		}
		known := false
		if sub, ok := s.Properties[name]; ok {
			known = true
			a.add(a.under(sub, v, name))
		}
		for pattern, sub := range s.PatternProperties {
			if a.matches(pattern, name) {
				known = true
				a.add(a.under(sub, v, name))
			}
		}
		if !known && s.AdditionalProperties != nil {
			known = true
			switch more := s.AdditionalProperties.(type) {
			case bool:
				if !more {
					refused = true
					if !a.quiet && a.room.errors > 1 { // the last one is reserved for the fault itself
						a.room.errors--
						surplus = append(surplus, Clip(name))
					}
				}
			case *jsonschema.Schema:
				a.add(a.under(more, v, name))
			}
		}
		if known && a.open != nil {
			delete(a.open.props, name)
		}
	}
	if refused {
		a.say(&kind.AdditionalProperties{Properties: surplus})
	}
}

// matches reports whether a pattern matches; it spends the budget before the work.
func (e *eval) matches(re jsonschema.Regexp, text string) bool {
	work := 1 + len(text)
	if p, ok := re.(*Pattern); ok {
		work = p.Work(len(text))
	}
	return e.spend(work) && re.MatchString(text)
}

func (a *at) array(list []any) {
	s := a.s
	if s.MinItems != nil && len(list) < *s.MinItems {
		a.say(&kind.MinItems{Got: len(list), Want: *s.MinItems})
	}
	if s.MaxItems != nil && len(list) > *s.MaxItems {
		a.say(&kind.MaxItems{Got: len(list), Want: *s.MaxItems})
	}
	if s.UniqueItems && len(list) > 1 {
		a.unique(list)
	}
	done := 0 // how many items from the start were evaluated
	each := func(sub *jsonschema.Schema, from, to int) {
		for i := from; i < to && a.stopped == nil && !(a.quiet && a.bad); i++ {
			a.add(a.under(sub, list[i], strconv.Itoa(i)))
		}
		done = max(done, to)
	}
	if s.DraftVersion >= 2020 {
		for i := range min(len(s.PrefixItems), len(list)) {
			each(s.PrefixItems[i], i, i+1)
		}
		if s.Items2020 != nil {
			each(s.Items2020, done, len(list))
		}
	} else {
		switch items := s.Items.(type) {
		case *jsonschema.Schema:
			each(items, 0, len(list))
		case []*jsonschema.Schema:
			for i := range min(len(items), len(list)) {
				each(items[i], i, i+1)
			}
		}
		switch more := s.AdditionalItems.(type) {
		case bool:
			if !more && done < len(list) {
				a.say(&kind.AdditionalItems{Count: len(list) - done})
			}
			done = len(list)
		case *jsonschema.Schema:
			each(more, done, len(list))
		}
	}
	if a.open != nil {
		for i := range done {
			delete(a.open.items, i)
		}
	}
	if s.Contains != nil {
		a.contains(list)
	}
}

func (a *at) contains(list []any) {
	s := a.s
	var matched []int
	for i, v := range list {
		if a.stopped != nil {
			return
		}
		if a.value(s.Contains, v, nil, true) == nil {
			matched = append(matched, i)
			if a.open != nil && s.DraftVersion >= 2020 {
				delete(a.open.items, i)
			}
		}
	}
	switch {
	case s.MinContains != nil && len(matched) < *s.MinContains:
		a.say(&kind.MinContains{Got: matched, Want: *s.MinContains})
	case s.MinContains == nil && len(matched) == 0:
		a.say(&kind.Contains{})
	}
	if s.MaxContains != nil && len(matched) > *s.MaxContains {
		a.say(&kind.MaxContains{Got: matched, Want: *s.MaxContains})
	}
}

// unique finds equal items by comparing a canonical text of each.
func (a *at) unique(list []any) {
	seen := make(map[string]int, len(list))
	for i, v := range list {
		b, ok := a.print(nil, v)
		if !ok {
			return
		}
		if j, twice := seen[string(b)]; twice {
			a.say(&kind.UniqueItems{Duplicates: [2]int{j, i}})
			return
		}
		seen[string(b)] = i
	}
}

// print writes a canonical text: exactly equal values have equal texts.
func (e *eval) print(b []byte, v any) ([]byte, bool) {
	if !e.spend(2) {
		return nil, false
	}
	ok := true
	switch v := v.(type) {
	case map[string]any:
		names := make([]string, 0, len(v))
		for name := range v {
			names = append(names, name)
		}
		slices.Sort(names)
		b = append(b, '{')
		for _, name := range names {
			b = strconv.AppendQuote(b, name)
			if b, ok = e.print(b, v[name]); !ok {
				return nil, false
			}
		}
		return append(b, '}'), true
	case []any:
		b = append(b, '[')
		for _, x := range v {
			if b, ok = e.print(b, x); !ok {
				return nil, false
			}
			b = append(b, ',')
		}
		return append(b, ']'), true
	case string:
		return strconv.AppendQuote(b, v), e.spend(len(v) / 16)
	case json.Number:
		return append(b, canonText(string(v))...), e.spend(2 + len(v)/16)
	case bool:
		return strconv.AppendBool(b, v), true
	}
	return append(b, "null"...), true
}

func (a *at) text(text string) {
	s := a.s
	if s.MinLength != nil || s.MaxLength != nil {
		if !a.spend(len(text) / 64) {
			return
		}
		n := utf8.RuneCountInString(text)
		if s.MinLength != nil && n < *s.MinLength {
			a.say(&kind.MinLength{Got: n, Want: *s.MinLength})
		}
		if s.MaxLength != nil && n > *s.MaxLength {
			a.say(&kind.MaxLength{Got: n, Want: *s.MaxLength})
		}
	}
	if s.Pattern != nil && !a.matches(s.Pattern, text) {
		a.say(&kind.Pattern{Got: Clip(text), Want: s.Pattern.String()})
	}
}

func (a *at) number(n json.Number) {
	s := a.s
	if s.Minimum == nil && s.Maximum == nil && s.ExclusiveMinimum == nil && s.ExclusiveMaximum == nil && s.MultipleOf == nil {
		return
	}
	// Exact arithmetic on numbers of hundreds of digits takes microseconds.
	work := 32 + len(n)
	if strings.ContainsAny(string(n), "eE") {
		work += 300
	}
	if !a.spend(work) {
		return
	}
	r, ok := new(big.Rat).SetString(string(n))
	if !ok {
		a.say(&kind.InvalidJsonValue{Value: n})
		return
	}
	if s.Minimum != nil && r.Cmp(s.Minimum) < 0 {
		a.say(&kind.Minimum{Got: r, Want: s.Minimum})
	}
	if s.Maximum != nil && r.Cmp(s.Maximum) > 0 {
		a.say(&kind.Maximum{Got: r, Want: s.Maximum})
	}
	if s.ExclusiveMinimum != nil && r.Cmp(s.ExclusiveMinimum) <= 0 {
		a.say(&kind.ExclusiveMinimum{Got: r, Want: s.ExclusiveMinimum})
	}
	if s.ExclusiveMaximum != nil && r.Cmp(s.ExclusiveMaximum) >= 0 {
		a.say(&kind.ExclusiveMaximum{Got: r, Want: s.ExclusiveMaximum})
	}
	if s.MultipleOf != nil && s.MultipleOf.Sign() != 0 && a.spend(work) && !new(big.Rat).Quo(r, s.MultipleOf).IsInt() {
		a.say(&kind.MultipleOf{Got: r, Want: s.MultipleOf})
	}
}

// dynamic follows references whose target depends on the path to the schema. Within one
// resource that is the target they name; in the metaschemas it is the outermost one.
func (a *at) dynamic() {
	if to := a.s.RecursiveRef; to != nil {
		if to.RecursiveAnchor && a.meta != nil {
			to = a.meta
		}
		a.add(a.ref(to, "$recursiveRef"))
	}
	if d := a.s.DynamicRef; d != nil {
		to := d.Ref
		if d.Anchor != "" && a.meta != nil && to.DynamicAnchor == d.Anchor && a.meta.DynamicAnchor == d.Anchor {
			to = a.meta
		}
		a.add(a.ref(to, "$dynamicRef"))
	}
}

// combine applies allOf, anyOf, oneOf, not and if.
func (a *at) combine() {
	s := a.s
	if s.Not != nil && a.self(s.Not, true) == nil {
		a.say(&kind.Not{})
	}
	some := func(causes []*jsonschema.ValidationError, k jsonschema.ErrorKind) {
		if len(causes) == 0 {
			a.say(k)
			return
		}
		a.add(a.wrap(k, causes))
	}
	keep := func(causes []*jsonschema.ValidationError, failed *jsonschema.ValidationError) []*jsonschema.ValidationError {
		if failed == quietError {
			return causes
		}
		return append(causes, failed)
	}

	var causes []*jsonschema.ValidationError
	bad := false
	for _, sub := range s.AllOf {
		if failed := a.self(sub, false); failed != nil {
			bad = true
			if causes = keep(causes, failed); a.stopped != nil || a.quiet {
				break
			}
		}
	}
	if bad {
		some(causes, &kind.AllOf{})
	}

	if len(s.AnyOf) > 0 {
		causes, fits, room := []*jsonschema.ValidationError(nil), false, a.room
		for _, sub := range s.AnyOf {
			if failed := a.self(sub, false); failed != nil {
				causes = keep(causes, failed)
			} else {
				fits = true
				if a.open.empty() {
					break
				}
			}
			if a.stopped != nil {
				return
			}
		}
		if fits {
			a.room = room // drop the errors found so far
		} else {
			some(causes, &kind.AnyOf{})
		}
	}

	if len(s.OneOf) > 0 {
		causes, first, room := []*jsonschema.ValidationError(nil), -1, a.room
		for i, sub := range s.OneOf {
			failed := a.self(sub, first >= 0)
			if a.stopped != nil {
				return
			}
			if failed != nil {
				if first < 0 {
					causes = keep(causes, failed)
				}
				continue
			}
			if first >= 0 {
				a.say(&kind.OneOf{Subschemas: []int{first, i}})
				break
			}
			first = i
			a.room = room
		}
		if first < 0 {
			some(causes, &kind.OneOf{})
		}
	}

	if s.If != nil {
		if a.self(s.If, true) == nil {
			if s.Then != nil {
				a.add(a.self(s.Then, false))
			}
		} else if s.Else != nil {
			a.add(a.self(s.Else, false))
		}
	}
}

// rest applies unevaluatedProperties and unevaluatedItems.
func (a *at) rest() {
	if a.open == nil {
		return
	}
	if obj, ok := a.v.(map[string]any); ok && a.s.UnevaluatedProperties != nil {
		for name := range a.open.props {
			a.add(a.under(a.s.UnevaluatedProperties, obj[name], name))
		}
		a.open.props = nil
	}
	if list, ok := a.v.([]any); ok && a.s.UnevaluatedItems != nil {
		for i := range a.open.items {
			a.add(a.under(a.s.UnevaluatedItems, list[i], strconv.Itoa(i)))
		}
		a.open.items = nil
	}
}
