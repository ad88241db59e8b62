package edge

import (
	"cmp"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
	"unsafe"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/validation"

	"agentsvc/schemas/problem"
)

// plan describes how an input struct is filled. It is made once, when its route is added.
type plan struct {
	reg    *registry
	path   []param
	query  []param
	header []param

	hasBody  bool
	optional bool // an empty body is fine
	bodyOff  uintptr
	bodyType reflect.Type
	schema   *huma.Schema
	shape    *shape
}

// param is one field that is filled from the path, the query or a header.
type param struct {
	name     string
	lower    string // for headers
	required bool
	schema   *huma.Schema
	off      uintptr
	set      setter
	typ      reflect.Type
	repeated bool         // the field is a list: each occurrence adds an item
	missing  problem.Code // of the 404 for a path that can name nothing
}

// setter parses text into the field at p. It returns the value to check against the schema,
// or a complaint.
type setter func(p unsafe.Pointer, text string) (checked any, complaint string)

// newPlan reads the tags of t. It panics on anything it does not understand: that is a
// programmer's error.
func newPlan(reg *registry, t reflect.Type, route string) *plan {
	if t.Kind() != reflect.Struct {
		panic(fmt.Sprintf("edge: %s: input %s is no struct", route, t))
	}
	p := &plan{reg: reg, shape: noFields}
	p.fields(t, 0, route)
	return p
}

func (p *plan) fields(t reflect.Type, base uintptr, route string) {
	for i := range t.NumField() {
		f := t.Field(i)
		off := base + f.Offset
		where := fmt.Sprintf("%s: %s.%s", route, t, f.Name)
		if f.Anonymous && f.Type.Kind() == reflect.Struct && f.Tag == "" {
			p.fields(f.Type, off, route)
			continue
		}
		if !f.IsExported() {
			panic("edge: " + where + " is not exported")
		}
		if f.Name == "Body" {
			p.body(f, off, route)
			continue
		}
		placed := false
		for in, list := range map[string]*[]param{"path": &p.path, "query": &p.query, "header": &p.header} {
			name, ok := f.Tag.Lookup(in)
			if !ok {
				continue
			}
			s := huma.SchemaFromField(p.reg, f, "")
			if in != "path" && f.Tag.Get("required") != "true" {
				s.Nullable = false
			}
			s.Nullable = false
			*list = append(*list, param{
				repeated: f.Type.Kind() == reflect.Slice,
				name:     name, lower: strings.ToLower(name), required: in == "path" || f.Tag.Get("required") == "true",
				schema: s, off: off, set: setterOf(f.Type, where), typ: f.Type, missing: cmp.Or(problem.Code(f.Tag.Get("missing")), problem.CodeNotFound),
			})
			placed = true
		}
		if !placed {
			panic("edge: " + where + " comes from nowhere: it needs a path, query or header tag")
		}
	}
}

func (p *plan) body(f reflect.StructField, off uintptr, route string) {
	p.hasBody, p.bodyOff, p.bodyType = true, off, f.Type
	p.optional = f.Tag.Get("required") == "false"
	p.schema = p.reg.Schema(f.Type, true, upper(route)+"Request")
	root := *p.reg.shape(p.schema, false, route, map[shapeKey]*shape{})
	root.null = p.reg.complaint(root.schema, nil) // a body that is null is no object
	p.shape = &root
}

func setterOf(t reflect.Type, where string) setter {
	if t.Kind() == reflect.Pointer {
		elem := t.Elem()
		inner := setterOf(elem, where)
		return func(p unsafe.Pointer, text string) (any, string) {
			v := reflect.New(elem)
			checked, complaint := inner(v.UnsafePointer(), text)
			if complaint == "" {
				reflect.NewAt(t, p).Elem().Set(v)
			}
			return checked, complaint
		}
	}
	if t == timeType {
		return func(p unsafe.Pointer, text string) (any, string) {
			at, err := time.Parse(time.RFC3339, text)
			if err != nil {
				return nil, "expected string to be RFC 3339 date-time"
			}
			*(*time.Time)(p) = at.UTC()
			return text, ""
		}
	}
	if reflect.PointerTo(t).Implements(textType) {
		complaint := "is malformed"
		if isID(t) {
			complaint = "expected a UUID"
		}
		return func(p unsafe.Pointer, text string) (any, string) {
			if err := reflect.NewAt(t, p).Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(text)); err != nil {
				return nil, complaint
			}
			return text, ""
		}
	}
	switch t.Kind() {
	case reflect.Slice:
		elem := t.Elem()
		inner := setterOf(elem, where)
		return func(p unsafe.Pointer, text string) (any, string) {
			v := reflect.New(elem)
			checked, complaint := inner(v.UnsafePointer(), text)
			if complaint == "" {
				list := reflect.NewAt(t, p).Elem()
				list.Set(reflect.Append(list, v.Elem()))
			}
			return checked, complaint
		}
	case reflect.String:
		return func(p unsafe.Pointer, text string) (any, string) {
			*(*string)(p) = text
			return text, ""
		}
	case reflect.Bool:
		return func(p unsafe.Pointer, text string) (any, string) {
			if text != "true" && text != "false" {
				return nil, "expected boolean"
			}
			*(*bool)(p) = text == "true"
			return text == "true", ""
		}
	case reflect.Int, reflect.Int64, reflect.Int32:
		bits := t.Bits()
		return func(p unsafe.Pointer, text string) (any, string) {
			n, err := strconv.ParseInt(text, 10, bits)
			if err != nil {
				return nil, "expected integer"
			}
			reflect.NewAt(t, p).Elem().SetInt(n)
			return n, ""
		}
	case reflect.Float64:
		return func(p unsafe.Pointer, text string) (any, string) {
			n, err := strconv.ParseFloat(text, 64)
			if err != nil || n != n || n > 1e308 || n < -1e308 {
				return nil, "expected number"
			}
			*(*float64)(p) = n
			return n, ""
		}
	}
	panic("edge: " + where + ": a parameter cannot be a " + t.String())
}

// params fills the fields that do not come from the body. base points to the input struct.
func (p *plan) params(rq *request, base unsafe.Pointer) *problem.Error {
	for i := range p.path {
		f := &p.path[i]
		text, ok := unescape(rq.param(f.name), false)
		if ok {
			var checked any
			var complaint string
			if checked, complaint = f.set(unsafe.Add(base, f.off), text); complaint == "" && clean(text) && p.check(f, checked) == "" {
				continue
			}
		}
		// An id that cannot exist is answered like an unknown id (open-parts.md, Errors).
		return f.nothing(text)
	}
	var wrong []problem.Field
	if len(p.query) > 0 {
		wrong = p.readQuery(rq.query, base, wrong)
	}
	for i := range p.header {
		f := &p.header[i]
		text, given := rq.head.value(f.lower)
		switch {
		case given && (f.required || clean(text)): // open-parts.md: an unusable Last-Event-ID counts as none
			wrong = p.fill(f, base, text, wrong)
		case f.required:
			wrong = append(wrong, problem.Field{Path: f.name, Message: "is required"})
		}
	}
	if len(wrong) > 0 {
		return problem.Validation(wrong...)
	}
	return nil
}

// nothing returns the 404 for a path parameter that cannot name anything.
func (f *param) nothing(text string) *problem.Error {
	if !clean(text) {
		return problem.New(f.missing, "There is nothing at this path.")
	}
	what, kind := strings.ReplaceAll(f.name, "_", " "), "value"
	if isID(f.typ) {
		what, kind = thing(f.typ.Name()), "id"
	}
	return problem.New(f.missing, fmt.Sprintf("%s: %q is not a valid %s", what, problem.ClipBytes(text, 64), kind))
}

// thing returns in words what an id type names: EndUserID is "end user".
func thing(idType string) string {
	var b strings.Builder
	for i, r := range strings.TrimSuffix(idType, "ID") {
		if i > 0 && unicode.IsUpper(r) {
			b.WriteByte(' ')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

func (p *plan) readQuery(query []byte, base unsafe.Pointer, wrong []problem.Field) []problem.Field {
	var seen uint64
	var items [64]int // of repeated parameters
	for len(query) > 0 {
		var pair []byte
		if i := indexByte(query, '&'); i >= 0 {
			pair, query = query[:i], query[i+1:]
		} else {
			pair, query = query, nil
		}
		key, value := pair, []byte(nil)
		if i := indexByte(pair, '='); i >= 0 {
			key, value = pair[:i], pair[i+1:]
		}
		name, ok := unescape(key, true)
		if !ok {
			continue // unknown parameters are ignored
		}
		for i := range p.query {
			f := &p.query[i]
			if f.name != name {
				continue
			}
			if items[i]++; f.repeated && f.schema.MaxItems != nil && items[i] > *f.schema.MaxItems {
				if items[i] == *f.schema.MaxItems+1 {
					wrong = append(wrong, problem.Field{Path: name, Message: "is given more than " + strconv.Itoa(*f.schema.MaxItems) + " times"})
				}
				break
			}
			if seen&(1<<i) != 0 && !f.repeated {
				wrong = append(wrong, problem.Field{Path: name, Message: "is given twice"})
				break
			}
			seen |= 1 << i
			text, ok := unescape(value, true)
			if !ok {
				wrong = append(wrong, problem.Field{Path: name, Message: "is not escaped correctly"})
				break
			}
			wrong = p.fill(f, base, text, wrong)
		}
	}
	for i := range p.query {
		if p.query[i].required && seen&(1<<i) == 0 {
			wrong = append(wrong, problem.Field{Path: p.query[i].name, Message: "is required"})
		}
	}
	return wrong
}

func indexByte(b []byte, c byte) int {
	for i := range b {
		if b[i] == c {
			return i
		}
	}
	return -1
}

func (p *plan) fill(f *param, base unsafe.Pointer, text string, wrong []problem.Field) []problem.Field {
	if !clean(text) {
		return append(wrong, problem.Field{Path: f.name, Message: "holds characters that are no text"})
	}
	checked, complaint := f.set(unsafe.Add(base, f.off), text)
	if complaint == "" {
		complaint = p.check(f, checked)
	}
	if complaint != "" {
		wrong = append(wrong, problem.Field{Path: f.name, Message: complaint})
	}
	return wrong
}

// clean reports whether text is UTF-8 without U+0000, which no Postgres column can hold.
func clean(text string) bool { return utf8.ValidString(text) && strings.IndexByte(text, 0) < 0 }

// check returns the complaint about a parsed parameter, "" if there is none.
func (p *plan) check(f *param, v any) string {
	schema := f.schema
	if f.repeated {
		schema = schema.Items
	}
	return p.reg.complaint(schema, v)
}

// noFields is the shape of the body of a route that takes no body.
var noFields = &shape{schema: &huma.Schema{Type: huma.TypeObject}, null: validation.MsgExpectedObject, closed: true}

// decode validates the body b and fills the input's Body, if it has one.
func (p *plan) decode(b []byte, base unsafe.Pointer) *problem.Error {
	if bad := p.reg.check(p.shape, b); bad != nil {
		return bad
	}
	if !p.hasBody {
		return nil
	}
	err := json.Unmarshal(b, reflect.NewAt(p.bodyType, unsafe.Add(base, p.bodyOff)).Interface())
	if err == nil {
		return nil
	}
	return p.misfits(b, err)
}

// misfits returns a complaint for what the schema accepts and the Go type does not, such as
// an integer out of range or a date that does not exist. A decoder stops at the first misfit,
// so each member of the body is decoded by itself.
func (p *plan) misfits(b []byte, err error) *problem.Error {
	var members map[string]json.RawMessage
	if p.bodyType.Kind() != reflect.Struct || json.Unmarshal(b, &members) != nil {
		return misfit(err)
	}
	var details []string
	for _, name := range slices.Sorted(maps.Keys(members)) {
		one, _ := json.Marshal(map[string]json.RawMessage{name: members[name]})
		if err := json.Unmarshal(one, reflect.New(p.bodyType).Interface()); err != nil && len(details) < maxComplaints {
			details = append(details, misfit(err).Detail)
		}
	}
	if len(details) < 2 {
		return misfit(err)
	}
	return problem.New(problem.CodeValidation, strings.Join(details, "; "))
}

func misfit(err error) *problem.Error {
	var own *problem.Error
	if errors.As(err, &own) {
		return own
	}
	var typed *json.UnmarshalTypeError
	if errors.As(err, &typed) && typed.Field != "" {
		return problem.Invalid(problem.ClipBytes(typed.Field, 256), "expected a value that fits "+kindName(typed.Type))
	}
	return problem.Invalid("body", "holds a value that does not fit its field")
}

func kindName(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "an integer"
	case reflect.Float32, reflect.Float64:
		return "a number"
	}
	return "its field"
}
