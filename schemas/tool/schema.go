package tool

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
)

// schemaURL is the made-up address of the schema at hand.
const schemaURL = "svc://tool/schema"

// maxWork bounds what one check may take, in subschemas looked at. A schema of a
// few lines can ask for more than a machine has done since it was built, and it
// comes from a tool server.
const maxWork = 500_000

var (
	errOutside = errors.New("it refers to something outside itself")
	errWork    = errors.New("it takes too much work to check")
	errCycle   = errors.New("it refers to itself for ever")
	errObject  = errors.New("it is no object")
	errDynamic = errors.New("it has dynamic references")
	errLong    = fmt.Errorf("it has more than %d bytes", MaxSchemaBytes)
	errInvalid = errors.New("it is no valid JSON Schema")
)

// closed is the loader of a schema that may refer to nothing outside itself.
type closed struct{}

func (closed) Load(string) (any, error) { return nil, errOutside }

// compiled is a schema and what is left of maxWork. It checks one value.
type compiled struct {
	*jsonschema.Schema
	left int
}

// compile makes a schema ready to check one value. References lead inside of it
// or to the drafts of JSON Schema. The errors hold nothing of the schema: it may
// name files and hosts.
func compile(schema json.RawMessage) (*compiled, error) {
	if len(schema) > MaxSchemaBytes {
		return nil, errLong
	}
	top, err := parse(schema)
	if err != nil {
		return nil, fmt.Errorf("it %w", err)
	}
	if top.kind != '{' {
		return nil, errObject
	}
	if err := fit(top); err != nil {
		return nil, err
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(schema))
	if err != nil {
		return nil, fmt.Errorf("it %w", errNoJSON)
	}
	compiler := jsonschema.NewCompiler()
	compiler.AssertFormat()
	compiler.UseLoader(closed{})
	if err := compiler.AddResource(schemaURL, doc); err != nil {
		return nil, reason(err)
	}
	s, err := compiler.Compile(schemaURL)
	if err != nil {
		return nil, reason(err)
	}
	c := &compiled{s, maxWork}
	c.watch(s, map[*jsonschema.Schema]bool{})
	return c, nil
}

func reason(err error) error {
	if errors.Is(err, errOutside) {
		return errOutside
	}
	return errInvalid
}

// fit refuses what cannot be bounded: numbers of endless digits, and references
// whose target is known only while they are followed.
func fit(v *value) error {
	if v.huge {
		return errInvalid
	}
	for i := range v.members {
		switch m := &v.members[i]; m.key {
		case "$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor":
			return errDynamic
		default:
			if err := fit(&m.value); err != nil {
				return err
			}
		}
	}
	return nil
}

// validate is Schema.Validate that gives up after maxWork.
func (c *compiled) validate(v any) (err error) {
	defer func() {
		switch r := recover(); r {
		case nil:
		case errWork:
			err = errWork
		default:
			panic(r)
		}
	}()
	err = c.Validate(v)
	var invalid *jsonschema.ValidationError
	if errors.As(err, &invalid) && cyclic(invalid) {
		return errCycle
	}
	return err
}

// cyclic reports whether a value failed because the schema leads back to itself
// without going down.
func cyclic(err *jsonschema.ValidationError) bool {
	if _, ok := err.ErrorKind.(*kind.RefCycle); ok {
		return true
	}
	return slices.ContainsFunc(err.Causes, cyclic)
}

// watch counts the work of s and all schemas below it. The library has no bound
// of its own; its one call-out before it descends is the check of a format, so
// every schema gets one.
func (c *compiled) watch(s *jsonschema.Schema, seen map[*jsonschema.Schema]bool) {
	if s == nil || seen[s] {
		return
	}
	seen[s] = true
	below := children(s)
	weight := 1
	for _, b := range below {
		if weight++; b.Enum != nil {
			weight += len(b.Enum.Values)
		}
	}
	each := 1 + len(s.PatternProperties)
	format := s.Format
	s.Format = &jsonschema.Format{Name: "work", Validate: func(v any) error {
		switch v := v.(type) {
		case map[string]any:
			c.spend(weight + each*len(v))
		case []any:
			c.spend(weight + each*len(v))
		case string:
			c.spend(weight + len(v)/32)
		default:
			c.spend(weight)
		}
		if format != nil {
			return format.Validate(v)
		}
		return nil
	}}
	if format != nil {
		s.Format.Name = format.Name
	}
	for _, b := range below {
		c.watch(b, seen)
	}
}

func (c *compiled) spend(n int) {
	if c.left -= n; c.left < 0 {
		panic(errWork)
	}
}

// children are the schemas directly below s.
func children(s *jsonschema.Schema) []*jsonschema.Schema {
	var out []*jsonschema.Schema
	one := func(list ...*jsonschema.Schema) {
		for _, c := range list {
			if c != nil {
				out = append(out, c)
			}
		}
	}
	some := func(v any) { // a schema, several, or neither
		switch v := v.(type) {
		case *jsonschema.Schema:
			one(v)
		case []*jsonschema.Schema:
			one(v...)
		}
	}
	one(s.Ref, s.Not, s.If, s.Then, s.Else, s.PropertyNames, s.UnevaluatedProperties, s.Contains, s.Items2020, s.UnevaluatedItems, s.ContentSchema)
	one(s.AllOf...)
	one(s.AnyOf...)
	one(s.OneOf...)
	one(s.PrefixItems...)
	for _, c := range s.Properties {
		one(c)
	}
	for _, c := range s.PatternProperties {
		one(c)
	}
	for _, c := range s.DependentSchemas {
		one(c)
	}
	for _, c := range s.Dependencies {
		some(c)
	}
	some(s.AdditionalProperties)
	some(s.Items)
	some(s.AdditionalItems)
	return out
}
