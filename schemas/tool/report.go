package tool

import (
	"encoding/json"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"

	"agentsvc/schemas/problem"
)

const maxComplaints = 8

// report describes the complaints of a schema, without the values concerned.
func report(args *value, err *jsonschema.ValidationError) *ArgsError {
	r := reporter{args: args}
	r.add(err)
	slices.Sort(r.found)
	found := slices.Compact(r.found)
	if n := len(found) - maxComplaints; n > 0 {
		return &ArgsError{found[:maxComplaints:maxComplaints], n}
	}
	return &ArgsError{Complaints: found}
}

type reporter struct {
	args  *value
	found []string
}

func (r *reporter) say(at, message string) {
	r.found = append(r.found, path(at)+": "+message)
}

// add collects the leaf errors of err.
func (r *reporter) add(err *jsonschema.ValidationError) {
	at := r.path(err.InstanceLocation)
	switch k := err.ErrorKind.(type) {
	case *kind.Schema, *kind.Group, *kind.AllOf, *kind.Reference:
		for _, c := range err.Causes {
			r.add(c)
		}
	case *kind.AnyOf:
		r.choice(at, err)
	case *kind.OneOf:
		if k.Subschemas != nil {
			r.say(at, "fits several forms of which it must fit exactly one")
			return
		}
		r.choice(at, err)
	case *kind.Required:
		for _, name := range k.Missing {
			r.say(under(at, name), "is required")
		}
	case *kind.Dependency:
		r.needs(at, k.Prop, k.Missing)
	case *kind.DependentRequired:
		r.needs(at, k.Prop, k.Missing)
	case *kind.AdditionalProperties:
		for _, name := range k.Properties {
			r.say(under(at, name), "is not an argument of this tool")
		}
	case *kind.PropertyNames:
		r.say(under(at, k.Property), "is no name that is allowed here")
	default:
		r.say(at, message(k))
	}
}

func (r *reporter) needs(at, prop string, missing []string) {
	for _, name := range missing {
		r.say(under(at, name), "is required where "+strconv.Quote(problem.ClipBytes(prop, 64))+" is there")
	}
}

// choice reports a value that matches none of several forms. If the forms differ in the type,
// it reports one sentence; if the type leaves a single form, that form's own errors say more.
func (r *reporter) choice(at string, err *jsonschema.ValidationError) {
	var types []string
	var got string
	var rest []*jsonschema.ValidationError
	for _, c := range err.Causes {
		k, ok := same(c).ErrorKind.(*kind.Type)
		if ok && len(c.InstanceLocation) == len(err.InstanceLocation) {
			got = k.Got
			types = append(types, k.Want...)
			continue
		}
		rest = append(rest, c)
	}
	switch {
	case len(rest) == 1:
		r.add(rest[0])
	case len(rest) == 0 && len(types) > 0:
		r.say(at, message(&kind.Type{Got: got, Want: types}))
	default:
		r.say(at, "fits none of the forms that are allowed here")
	}
}

// same replaces an error by its only cause, repeatedly.
func same(err *jsonschema.ValidationError) *jsonschema.ValidationError {
	for len(err.Causes) == 1 {
		switch err.ErrorKind.(type) {
		case *kind.Group, *kind.AllOf, *kind.Reference:
			err = err.Causes[0]
		default:
			return err
		}
	}
	return err
}

// message says what a value must be. It uses only the schema's part of the error.
func message(k jsonschema.ErrorKind) string {
	switch k := k.(type) {
	case *kind.Type:
		return "must be " + strings.Join(k.Want, " or ") + ", not " + k.Got
	case *kind.Enum:
		var b strings.Builder
		for i, v := range k.Want {
			if i > 0 {
				b.WriteString(", ")
			}
			b.WriteString(literal(v))
			if b.Len() > 200 {
				b.WriteString(", …")
				break
			}
		}
		return "must be one of " + b.String()
	case *kind.Const:
		return "must be " + literal(k.Want)
	case *kind.Format:
		return "must be of the format " + strconv.Quote(problem.ClipBytes(k.Want, 64))
	case *kind.Pattern:
		return "must match the pattern " + strconv.Quote(problem.ClipBytes(k.Want, 200))
	case *kind.MinLength:
		return "must have at least " + strconv.Itoa(k.Want) + " characters"
	case *kind.MaxLength:
		return "must have at most " + strconv.Itoa(k.Want) + " characters"
	case *kind.Minimum:
		return "must be at least " + number(k.Want)
	case *kind.Maximum:
		return "must be at most " + number(k.Want)
	case *kind.ExclusiveMinimum:
		return "must be more than " + number(k.Want)
	case *kind.ExclusiveMaximum:
		return "must be less than " + number(k.Want)
	case *kind.MultipleOf:
		return "must be a multiple of " + number(k.Want)
	case *kind.MinItems:
		return "must have at least " + strconv.Itoa(k.Want) + " items"
	case *kind.MaxItems:
		return "must have at most " + strconv.Itoa(k.Want) + " items"
	case *kind.AdditionalItems:
		return "has " + strconv.Itoa(k.Count) + " items too many"
	case *kind.UniqueItems:
		return "must not have equal items: " + strconv.Itoa(k.Duplicates[0]) + " and " + strconv.Itoa(k.Duplicates[1])
	case *kind.MinProperties:
		return "must have at least " + strconv.Itoa(k.Want) + " members"
	case *kind.MaxProperties:
		return "must have at most " + strconv.Itoa(k.Want) + " members"
	case *kind.Contains:
		return "has no item of the kind that it must have"
	case *kind.MinContains:
		return "must have at least " + strconv.Itoa(k.Want) + " items of a kind"
	case *kind.MaxContains:
		return "must have at most " + strconv.Itoa(k.Want) + " items of a kind"
	case *kind.FalseSchema:
		return "is not allowed here"
	case *kind.Not:
		return "is of a form that is excluded"
	}
	return "is not valid"
}

// literal formats a value of the schema.
func literal(v any) string {
	const most = 100
	if s, ok := v.(string); ok {
		v = problem.ClipBytes(s, most)
	}
	if size(v, 4*most) > 4*most {
		return "a given value"
	}
	b, err := json.Marshal(v)
	if err != nil {
		return "a given value"
	}
	return problem.ClipBytes(string(b), most)
}

// size returns the approximate length of a value as JSON. It stops counting above most.
func size(v any, most int) int {
	n := 2
	switch v := v.(type) {
	case string:
		n += len(v)
	case json.Number:
		n += len(v)
	case []any:
		for i := 0; i < len(v) && n <= most; i++ {
			n += size(v[i], most-n)
		}
	case map[string]any:
		for name, of := range v {
			if n += 2 + len(name); n > most {
				break
			}
			n += size(of, most-n)
		}
	}
	return n
}

func number(n *big.Rat) string {
	if n.IsInt() {
		return problem.ClipBytes(n.Num().String(), 40)
	}
	f, _ := n.Float64()
	return strconv.FormatFloat(f, 'g', -1, 64)
}

// path returns the place of a location in the arguments, which tell whether 0 is an item or a
// key.
func (r *reporter) path(location []string) string {
	at, v := "", r.args
	for _, token := range location {
		if i, err := strconv.Atoi(token); err == nil && v != nil && v.kind == '[' {
			at, v = item(at, i), v.item(i)
		} else {
			at, v = under(at, token), v.told(token)
		}
	}
	return at
}
