package msg

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"time"

	"github.com/fxamacker/cbor/v2"

	"agentsvc/schemas/problem"
)

// ErrUnknownType says that a message is of a type that this process does not
// know, or that may not leave it. Nodes of two versions may meet.
var ErrUnknownType = errors.New("msg: unknown type of message")

// Codec turns messages and replies into names and CBOR, and back: those that
// were added, and no others. Fields stand under their json names; those that a reader
// does not know are ignored.
type Codec struct {
	types  map[string]reflect.Type
	names  map[reflect.Type]string
	errors map[string]error
}

// Names of what is no added type.
const (
	nameNil     = ""
	nameProblem = "problem"
	nameError   = "error"
	errorPrefix = "error/"
)

// encoder and decoder are how bodies are written and read. A string crosses as it is,
// whatever its bytes are. How much a body may hold is bounded by its size alone.
var (
	encoder = must(cbor.EncOptions{Time: cbor.TimeRFC3339Nano}.EncMode())
	decoder = must(cbor.DecOptions{
		DefaultMapType:    reflect.TypeFor[map[string]any](),
		FieldNameMatching: cbor.FieldNameMatchingCaseSensitive,
		MaxArrayElements:  math.MaxInt32,
		MaxMapPairs:       math.MaxInt32,
		UTF8:              cbor.UTF8DecodeInvalid,
	}.DecMode())
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// Type is a type of message and the name under which it crosses nodes.
type Type struct {
	Name string
	Zero any
}

// Of returns the Type of T with its name on the wire.
func Of[T any](name string) Type {
	var zero T
	return Type{name, zero}
}

// NewCodec makes a codec of these types and of those of this package that belong to no
// durable kind.
func NewCodec(types ...Type) *Codec {
	c := &Codec{types: map[string]reflect.Type{}, names: map[reflect.Type]string{}, errors: map[string]error{}}
	for name, v := range map[string]any{
		"done": Done{}, "revoked": Revoked{}, "record": Record{}, "recorded": Recorded{},
		"acquire_slot": AcquireSlot{}, "slot_granted": SlotGranted{}, "release_slot": ReleaseSlot{}, "take_slot": TakeSlot{},
	} {
		c.Add(name, v)
	}
	for _, t := range types {
		c.Add(t.Name, t.Zero)
	}
	return c
}

// Add lets values of v's type cross nodes under a name. A name is never used for
// anything else again.
func (c *Codec) Add(name string, v any) {
	t := reflect.TypeOf(v)
	if _, ok := c.types[name]; ok || name == nameNil || name == nameProblem || name == nameError || strings.HasPrefix(name, errorPrefix) {
		panic("msg: name used twice: " + name)
	}
	if _, ok := c.names[t]; ok {
		panic("msg: type added twice: " + name)
	}
	c.types[name], c.names[t] = t, name
}

// AddError lets an error that callers compare with errors.Is cross nodes.
func (c *Codec) AddError(name string, err error) { c.errors[errorPrefix+name] = err }

// wireProblem is a *problem.Error between nodes.
type wireProblem struct {
	Code       problem.Code   `json:"code"`
	Detail     string         `json:"detail,omitempty"`
	RetryAfter time.Duration  `json:"retry_after,omitempty"`
	Extensions map[string]any `json:"extensions,omitempty"`
}

// Encode is a message's or reply's name and body. An error that was not added
// crosses as its text.
func (c *Codec) Encode(v any) (name string, body []byte, err error) {
	switch v := v.(type) {
	case nil:
		return nameNil, nil, nil
	case error:
		return c.encodeError(v)
	}
	name, ok := c.names[reflect.TypeOf(v)]
	if !ok {
		return "", nil, fmt.Errorf("%w: %T", ErrUnknownType, v)
	}
	body, err = encoder.Marshal(v)
	return name, body, err
}

func (c *Codec) encodeError(v error) (name string, body []byte, err error) {
	for name, known := range c.errors {
		if errors.Is(v, known) {
			return name, nil, nil
		}
	}
	if p := (*problem.Error)(nil); errors.As(v, &p) {
		body, err = encoder.Marshal(wireProblem{p.Code, p.Detail, p.RetryAfter, p.Extensions})
		return nameProblem, body, err
	}
	return nameError, []byte(v.Error()), nil
}

// Decode is what Encode was given; errors come back as errors.
func (c *Codec) Decode(name string, body []byte) (any, error) {
	switch name {
	case nameNil:
		return nil, nil
	case nameProblem:
		var p wireProblem
		if err := decoder.Unmarshal(body, &p); err != nil {
			return nil, fmt.Errorf("decode problem: %w", err)
		}
		return &problem.Error{Code: p.Code, Detail: p.Detail, RetryAfter: p.RetryAfter, Extensions: p.Extensions}, nil
	case nameError:
		return errors.New(string(body)), nil
	}
	if known, ok := c.errors[name]; ok {
		return known, nil
	}
	t, ok := c.types[name]
	if !ok {
		return nil, fmt.Errorf("%w: %q", ErrUnknownType, name)
	}
	v := reflect.New(t)
	if err := decoder.Unmarshal(body, v.Interface()); err != nil {
		return nil, fmt.Errorf("decode %s: %w", name, err)
	}
	return v.Elem().Interface(), nil
}
