package api

import (
	"bytes"
	"encoding/json"
	"reflect"

	"github.com/danielgtaylor/huma/v2"
)

// Opt is a member of a PATCH body: it distinguishes absent, null and a value. Its tag needs
// omitzero, which also makes the member optional.
type Opt[T any] struct {
	Set   bool // the member was in the body
	Null  bool // and its value was null
	Value T
}

// Some returns an Opt with a value.
func Some[T any](v T) Opt[T] { return Opt[T]{Set: true, Value: v} }

// None returns an Opt that is null.
func None[T any]() Opt[T] { return Opt[T]{Set: true, Null: true} }

// Get returns the value, and whether there is one.
func (o Opt[T]) Get() (T, bool) { return o.Value, o.Set && !o.Null }

// Or returns the value, or old if the member is absent; null gives the zero T.
func (o Opt[T]) Or(old T) T {
	if !o.Set {
		return old
	}
	return o.Value
}

// OrPtr returns a pointer to the value, nil for null, or old if the member is absent.
func (o Opt[T]) OrPtr(old *T) *T {
	switch {
	case !o.Set:
		return old
	case o.Null:
		return nil
	}
	return &o.Value
}

// IsZero makes omitzero omit an absent member.
func (o Opt[T]) IsZero() bool { return !o.Set }

// UnmarshalJSON is called for every member that is present, null included.
func (o *Opt[T]) UnmarshalJSON(b []byte) error {
	if bytes.Equal(b, []byte("null")) {
		*o = Opt[T]{Set: true, Null: true}
		return nil
	}
	var v T
	if err := json.Unmarshal(b, &v); err != nil {
		return err
	}
	*o = Opt[T]{Set: true, Value: v}
	return nil
}

// MarshalJSON writes the value, or null.
func (o Opt[T]) MarshalJSON() ([]byte, error) {
	if !o.Set || o.Null {
		return []byte("null"), nil
	}
	return json.Marshal(o.Value)
}

// Schema returns the schema of T, or null.
func (o Opt[T]) Schema(r huma.Registry) *huma.Schema {
	s := r.Schema(reflect.TypeFor[*T](), true, "")
	if s.Ref == "" {
		c := *s
		c.Nullable = c.Type != ""
		return &c
	}
	return s
}
