package edge

import (
	"encoding"
	"fmt"
	"path"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/validation"

	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/problem"
)

func init() {
	// Field names match case-sensitively (open-parts.md, Questions settled).
	huma.ValidateStrictCasing = true
	validation.MsgExpectedRFC4122UUID = "expected a UUID%.0v" // without the library's cause
}

var (
	uuidType     = reflect.TypeFor[id.UUID]()
	timeType     = reflect.TypeFor[time.Time]()
	providerType = reflect.TypeFor[huma.SchemaProvider]()
	textType     = reflect.TypeFor[encoding.TextUnmarshaler]()
)

const schemaPrefix = "#/components/schemas/"

// nullableRef marks a reference that may also be null; resolve writes it out in full for the
// document.
const nullableRef = "x-nullable"

// registry makes the schemas. It differs from huma's in typed ids, enums that belong to a
// type, arrays that are never null, nullable required pointers to structs, and names that are
// unique across packages.
type registry struct {
	schemas map[string]*huma.Schema
	types   map[string]reflect.Type
	names   map[reflect.Type]string
	enums   map[reflect.Type][]any
}

func newRegistry() *registry {
	return &registry{
		schemas: map[string]*huma.Schema{},
		types:   map[string]reflect.Type{},
		names:   map[reflect.Type]string{},
		enums:   map[reflect.Type][]any{},
	}
}

func isID(t reflect.Type) bool {
	if t == uuidType {
		return true
	}
	return t.Kind() == reflect.Struct && t.NumField() == 1 && t.Field(0).Anonymous && t.Field(0).Type == uuidType
}

// Schema implements huma.Registry.
func (r *registry) Schema(t reflect.Type, allowRef bool, hint string) *huma.Schema {
	pointer := t.Kind() == reflect.Pointer
	base := t
	for base.Kind() == reflect.Pointer {
		base = base.Elem()
	}
	if isID(base) {
		n := 36
		s := &huma.Schema{Type: huma.TypeString, Format: "uuid", MinLength: &n, MaxLength: &n, Nullable: pointer}
		s.PrecomputeMessages()
		return s
	}
	if values, ok := r.enums[base]; ok {
		s := &huma.Schema{Type: huma.TypeString, Enum: values, Nullable: pointer}
		s.PrecomputeMessages()
		return s
	}
	ptr := reflect.PointerTo(base)
	if base.Kind() != reflect.Struct || base == timeType || ptr.Implements(providerType) || ptr.Implements(textType) {
		s := huma.SchemaFromType(r, t)
		if s != nil && s.Type == huma.TypeArray {
			s.Nullable = false
		}
		return s
	}
	name, ok := r.names[base]
	if !ok {
		name = r.name(base, hint)
		r.names[base], r.types[name] = name, base
		r.schemas[name] = &huma.Schema{}
		*r.schemas[name] = *huma.SchemaFromType(r, base)
		r.optional(base, r.schemas[name])
	}
	if !allowRef {
		return r.schemas[name]
	}
	ref := &huma.Schema{Ref: schemaPrefix + name}
	if pointer {
		ref.Extensions = map[string]any{nullableRef: true}
	}
	return ref
}

// optional makes the optional struct members of t not nullable, as huma does with other
// optional members, unless they have the tag null:"true" (huma allows nullable:"true" for
// scalars only). A required pointer that is never nil has the tag null:"false".
func (r *registry) optional(t reflect.Type, s *huma.Schema) {
	for _, f := range reflect.VisibleFields(t) {
		name, how, _ := strings.Cut(f.Tag.Get("json"), ",")
		of := s.Properties[name]
		never := f.Tag.Get("null") == "false" || strings.Contains(how, "omitempty") && f.Tag.Get("null") != "true"
		if of != nil && f.Type.Kind() == reflect.Pointer && never {
			delete(of.Extensions, nullableRef)
		}
	}
}

var notInName = regexp.MustCompile(`[^A-Za-z0-9]+`)

// name returns the type's own name. If two packages have the same name, the later one is
// prefixed with its package.
func (r *registry) name(t reflect.Type, hint string) string {
	name := t.Name()
	if name == "" {
		name = hint
	}
	generic, args, _ := strings.Cut(name, "[")
	name = generic
	for _, a := range strings.FieldsFunc(args, func(c rune) bool { return c == '[' || c == ']' || c == ',' || c == '*' }) {
		name += upper(a[strings.LastIndexAny(a, "./")+1:])
	}
	name = notInName.ReplaceAllString(upper(name), "")
	taken := func(name string) bool { return r.types[name] != nil || r.schemas[name] != nil } // some schemas have no type
	if name == "" || taken(name) {
		name = upper(path.Base(t.PkgPath())) + name
	}
	for n, unique := 2, name; ; n++ {
		if !taken(unique) {
			return unique
		}
		unique = fmt.Sprintf("%s%d", name, n)
	}
}

func upper(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

// SchemaFromRef implements huma.Registry.
func (r *registry) SchemaFromRef(ref string) *huma.Schema {
	return r.schemas[strings.TrimPrefix(ref, schemaPrefix)]
}

// TypeFromRef implements huma.Registry.
func (r *registry) TypeFromRef(ref string) reflect.Type {
	return r.types[strings.TrimPrefix(ref, schemaPrefix)]
}

// Map implements huma.Registry.
func (r *registry) Map() map[string]*huma.Schema { return r.schemas }

// RegisterTypeAlias implements huma.Registry; the edge has no aliases.
func (r *registry) RegisterTypeAlias(t, _ reflect.Type) {
	panic(fmt.Sprintf("edge: no alias for %s: types have one schema", t))
}

// shape is a schema made ready to check values of strangers: its references are followed, and
// what null means is settled.
type shape struct {
	schema   *huma.Schema // checks the value itself, and counts what it holds
	null     string       // the complaint about null; empty: null is accepted
	members  map[string]*shape
	required []string
	closed   bool   // no members but those
	other    *shape // of other members, or of items; nil: any value
}

// shapeKey identifies a shape: one schema has two where a reference to it may be null.
type shapeKey struct {
	schema *huma.Schema
	null   string
}

// shape makes the shape of a schema. Null is accepted where the schema says so; huma accepts it
// for every optional member. It panics on rules that it could not check.
func (r *registry) shape(s *huma.Schema, optional bool, where string, made map[shapeKey]*shape) *shape {
	of := s
	for of.Ref != "" {
		of = r.SchemaFromRef(of.Ref)
	}
	null := ""
	if !free(s) && !s.Nullable && s.Extensions[nullableRef] != true {
		null = "must not be null"
	} else if !optional {
		null = r.complaint(of, nil)
	}
	key := shapeKey{of, null}
	if made[key] != nil {
		return made[key]
	}
	if of.UniqueItems || len(of.DependentRequired) > 0 || of.OneOf != nil || of.AnyOf != nil || of.AllOf != nil || of.Not != nil {
		panic("edge: " + where + ": uniqueItems, dependentRequired and combined schemas cannot be checked on values of strangers")
	}
	sh := &shape{schema: of, null: null, required: of.Required, members: map[string]*shape{}}
	made[key] = sh
	required := map[string]bool{}
	for _, name := range of.Required {
		required[name] = true
	}
	for name, member := range of.Properties {
		sh.members[name] = r.shape(member, !required[name], where+"."+name, made)
	}
	switch more := of.AdditionalProperties.(type) {
	case bool:
		sh.closed = !more
	case *huma.Schema:
		sh.other = r.shape(more, false, where, made)
	}
	if of.Items != nil {
		sh.other = r.shape(of.Items, false, where, made)
	}
	return sh
}

// free reports whether s accepts every value. A schema whose rules are the handler's shows a
// component in its place, which is an object.
func free(s *huma.Schema) bool {
	return s.Ref == "" && s.Type == "" && s.Extensions[api.ShownAs] == nil
}

// checks are what huma needs to check a value.
type checks struct {
	path   huma.PathBuffer // stays empty: the caller knows the path
	result huma.ValidateResult
}

var checksPool = sync.Pool{New: func() any { return new(checks) }}

// complaint returns what is wrong with a value that holds no others: of several broken rules the
// last one, which is the most specific. It is empty if all is right.
func (r *registry) complaint(s *huma.Schema, v any) string {
	c := checksPool.Get().(*checks)
	defer checksPool.Put(c)
	huma.Validate(r, s, &c.path, huma.ModeWriteToServer, v, &c.result)
	n := len(c.result.Errors)
	if n == 0 {
		return ""
	}
	message := c.result.Errors[n-1].(*huma.ErrorDetail).Message
	clear(c.result.Errors) // they hold the value
	c.result.Reset()
	return problem.ClipBytes(message, 256)
}
