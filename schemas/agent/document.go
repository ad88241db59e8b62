package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"agentsvc/schemas/check"
	"agentsvc/schemas/problem"
)

// maxDepth limits how deep a manifest may nest; an output_schema needs part of it.
const maxDepth = 64

// maxComplaints limits the fields of one problem.
const maxComplaints = 20

// object is a JSON object with its names exactly as written: encoding/json would accept
// "Model" for "model", and the last of two equal names.
type object struct {
	names  []string
	values map[string]any
}

// read decodes a document into objects, []any, string, json.Number, bool and nil.
func read(doc []byte) (any, error) {
	if !utf8.Valid(doc) {
		return nil, errors.New("is not UTF-8")
	}
	if json.Valid(doc) {
		if err := check.Fits(doc); errors.Is(err, check.ErrMany) {
			return nil, err
		}
	}
	dec := json.NewDecoder(bytes.NewReader(doc))
	dec.UseNumber()
	v, err := value(dec, 0)
	if err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("has data after the end of the JSON document")
	}
	return v, nil
}

func value(dec *json.Decoder, depth int) (any, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("nests deeper than %d", maxDepth)
	}
	tok, err := dec.Token()
	if err != nil {
		return nil, errors.New("is not JSON")
	}
	switch tok {
	case json.Delim('{'):
		o := object{values: map[string]any{}}
		for dec.More() {
			key, err := dec.Token()
			if err != nil {
				return nil, errors.New("is not JSON")
			}
			name := key.(string) // the decoder allows only a string here
			if _, twice := o.values[name]; twice {
				return nil, fmt.Errorf("names %q twice in one object", clip(name))
			}
			v, err := value(dec, depth+1)
			if err != nil {
				return nil, err
			}
			o.names = append(o.names, name)
			o.values[name] = v
		}
		if _, err := dec.Token(); err != nil {
			return nil, errors.New("is not JSON")
		}
		return o, nil
	case json.Delim('['):
		list := []any{}
		for dec.More() {
			v, err := value(dec, depth+1)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		if _, err := dec.Token(); err != nil {
			return nil, errors.New("is not JSON")
		}
		return list, nil
	default:
		return tok, nil
	}
}

// clip shortens what a message quotes.
func clip(s string) string { return problem.Clip(s, 40) }

// complaints collects errors, one for each path; its methods read a value as the type that it
// should have. A missing value is absent: ok is false and no error is added. So is null, of which
// object complains.
type complaints struct {
	fields   []problem.Field
	patterns check.Patterns // of guardrails and output_schema, which share one bound
	nulls    bool           // null counts as absent in every field
}

// nullable are the fields that may be null.
var nullable = []string{"thinking"}

func (c *complaints) say(at, format string, args ...any) {
	if len(c.fields) < maxComplaints && !slices.ContainsFunc(c.fields, func(f problem.Field) bool { return f.Path == at }) {
		c.fields = append(c.fields, problem.Field{Path: at, Message: fmt.Sprintf(format, args...)})
	}
}

func (c *complaints) problem() error {
	if len(c.fields) == 0 {
		return nil
	}
	return problem.Validation(c.fields...)
}

func (c *complaints) object(at string, v any, known ...string) (object, bool) {
	if v == nil {
		return object{}, false
	}
	o, ok := v.(object)
	if !ok {
		c.say(at, "must be an object")
		return object{}, false
	}
	for _, name := range o.names {
		switch {
		case len(known) == 0:
		case !slices.Contains(known, name):
			c.say(at+"."+clip(name), "unknown field")
		case o.values[name] == nil && !c.nulls && !slices.Contains(nullable, name):
			c.say(at+"."+name, "must not be null")
		}
	}
	return o, true
}

func (c *complaints) list(at string, v any, most int) []any {
	if v == nil {
		return nil
	}
	list, ok := v.([]any)
	if !ok {
		c.say(at, "must be a list")
		return nil
	}
	if len(list) > most {
		c.say(at, "must have at most %d entries", most)
		return nil
	}
	return list
}

func item(at string, i int) string { return at + "[" + strconv.Itoa(i) + "]" }

func (c *complaints) text(at string, v any, least, most int) (string, bool) {
	if v == nil {
		return "", false
	}
	s, ok := v.(string)
	if !ok {
		c.say(at, "must be a string")
		return "", false
	}
	if n := utf8.RuneCountInString(s); n < least || n > most {
		if least == 0 {
			c.say(at, "must have at most %d characters", most)
		} else {
			c.say(at, "must have %d to %d characters", least, most)
		}
		return "", false
	}
	return s, true
}

func (c *complaints) oneOf(at string, v any, values ...string) (string, bool) {
	if v == nil {
		return "", false
	}
	if s, ok := v.(string); ok && slices.Contains(values, s) {
		return s, true
	}
	c.say(at, "must be one of %s", strings.Join(values, ", "))
	return "", false
}

func (c *complaints) integer(at string, v any, least, most int64) {
	if v == nil {
		return
	}
	n, ok := v.(json.Number)
	if !ok {
		c.say(at, "must be an integer")
		return
	}
	i, err := strconv.ParseInt(n.String(), 10, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		c.say(at, "must be an integer")
		return
	}
	if err != nil || i < least || i > most {
		c.say(at, "must be from %d to %d", least, most)
	}
}

// number reads a number from least to most; above excludes least itself.
func (c *complaints) number(at string, v any, least, most float64, above bool) {
	if v == nil {
		return
	}
	n, ok := v.(json.Number)
	if !ok {
		c.say(at, "must be a number")
		return
	}
	f, err := n.Float64()
	switch {
	case above && (err != nil || f <= least || f > most):
		c.say(at, "must be above %v and at most %v", least, most)
	case !above && (err != nil || f < least || f > most):
		c.say(at, "must be from %v to %v", least, most)
	}
}

// needs adds a complaint for each of the fields that o lacks.
func (c *complaints) needs(at string, o object, fields ...string) {
	for _, f := range fields {
		if o.values[f] == nil {
			c.say(at+"."+f, "required")
		}
	}
}
