package edge

import (
	"encoding"
	"encoding/json"
	"fmt"
	"path"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/validation"

	"agentsvc/schemas/id"
)

// requiredMark stands before the name of a missing member in huma's message, so that the name
// can be split off as the field path.
const requiredMark = "\x00"

func init() {
	// Field names match case-sensitively (open-parts.md, Questions settled).
	huma.ValidateStrictCasing = true
	validation.MsgExpectedRequiredProperty = requiredMark + "%s"
	validation.MsgExpectedRFC4122UUID = "expected a UUID%.0v" // without the library's cause
}

var (
	uuidType     = reflect.TypeFor[id.UUID]()
	timeType     = reflect.TypeFor[time.Time]()
	providerType = reflect.TypeFor[huma.SchemaProvider]()
	textType     = reflect.TypeFor[encoding.TextUnmarshaler]()
	unmarshaler  = reflect.TypeFor[json.Unmarshaler]()
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

// nulls adds a complaint for each null in v that the schema does not allow. A schema without
// a type accepts any JSON, and raw JSON of type t is null where it is missing. t is nil where
// the Go type is unknown.
func (r *registry) nulls(s *huma.Schema, t reflect.Type, v any, path string, errs *[]error) {
	pointer := t != nil && t.Kind() == reflect.Pointer
	if v == nil {
		if free := s.Ref == "" && s.Type == "" || isRaw(t); !free && !s.Nullable && s.Extensions[nullableRef] != true {
			*errs = append(*errs, &huma.ErrorDetail{Location: path, Message: "must not be null"})
		}
		return
	}
	if s.Ref != "" {
		s = r.SchemaFromRef(s.Ref)
	}
	if pointer {
		t = t.Elem()
	}
	if t != nil && reflect.PointerTo(t).Implements(unmarshaler) {
		t = nil
	}
	switch v := v.(type) {
	case map[string]any:
		for name, member := range v {
			of := s.Properties[name]
			if of == nil {
				of, _ = s.AdditionalProperties.(*huma.Schema)
			}
			if of == nil {
				continue
			}
			at := cut(name, 64)
			if path != "" {
				at = path + "." + at
			}
			r.nulls(of, memberType(t, name), member, at, errs)
		}
	case []any:
		if s.Items == nil {
			return
		}
		if t != nil && t.Kind() == reflect.Slice {
			t = t.Elem()
		} else {
			t = nil
		}
		for i, item := range v {
			r.nulls(s.Items, t, item, path+"["+strconv.Itoa(i)+"]", errs)
		}
	}
}

// isRaw reports whether t holds JSON as it arrived.
func isRaw(t reflect.Type) bool {
	return t != nil && t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8
}

// memberType returns the type of the member of t with that name, nil if there is none.
func memberType(t reflect.Type, name string) reflect.Type {
	switch {
	case t == nil:
	case t.Kind() == reflect.Map:
		return t.Elem()
	case t.Kind() == reflect.Struct:
		for _, f := range reflect.VisibleFields(t) {
			if tag, _, _ := strings.Cut(f.Tag.Get("json"), ","); tag == name || tag == "" && f.Name == name {
				return f.Type
			}
		}
	}
	return nil
}

// checkable panics on a schema with which huma could panic on bad input.
func (r *registry) checkable(s *huma.Schema, where string, seen map[*huma.Schema]bool) {
	for s != nil && s.Ref != "" {
		s = r.SchemaFromRef(s.Ref)
	}
	if s == nil || seen[s] {
		return
	}
	seen[s] = true
	if s.UniqueItems {
		panic("edge: " + where + ": uniqueItems cannot be checked on values of strangers")
	}
	r.checkable(s.Items, where, seen)
	for name, p := range s.Properties {
		r.checkable(p, where+"."+name, seen)
	}
	if a, ok := s.AdditionalProperties.(*huma.Schema); ok {
		r.checkable(a, where, seen)
	}
}
