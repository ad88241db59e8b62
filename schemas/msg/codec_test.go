package msg

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"agentsvc/schemas/problem"
)

// fill sets every field to something that is not zero.
func fill(t *testing.T, v reflect.Value, n *int) {
	t.Helper()
	*n++
	switch {
	case v.Type() == reflect.TypeFor[time.Time]():
		v.Set(reflect.ValueOf(time.Date(2026, 1, 2, 3, 4, 5, *n*1000, time.UTC)))
		return
	case v.Type() == reflect.TypeFor[json.RawMessage]():
		v.SetBytes(fmt.Appendf(nil, `{"n":%d}`, *n))
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if !v.Type().Field(i).IsExported() {
				t.Fatalf("%s has the field %s, which cannot cross", v.Type(), v.Type().Field(i).Name)
			}
			fill(t, v.Field(i), n)
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(t, v.Elem(), n)
	case reflect.Array:
		for i := range v.Len() {
			fill(t, v.Index(i), n)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range 2 {
			fill(t, v.Index(i), n)
		}
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(t, key, n)
		fill(t, value, n)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.String:
		v.SetString(fmt.Sprintf("text %d <&>", *n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(int64(*n%100 + 1))
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(*n%100 + 1))
	case reflect.Float32, reflect.Float64:
		v.SetFloat(float64(*n) + .5)
	default:
		t.Fatalf("%s has a field of kind %s, which cannot cross", v.Type(), v.Kind())
	}
}

func TestEveryTypeCrossesWithAllItsFields(t *testing.T) {
	c := NewCodec()
	for _, name := range slices.Sorted(maps.Keys(c.types)) {
		t.Run(name, func(t *testing.T) {
			for _, full := range []bool{false, true} {
				v := reflect.New(c.types[name]).Elem()
				if n := 0; full {
					fill(t, v, &n)
				}
				// A RawMessage of nothing is null on the wire.
				if !full && strings.Contains(fmt.Sprintf("%#v", v.Interface()), "json.RawMessage") {
					continue
				}
				got, body, err := c.Encode(v.Interface())
				if err != nil || got != name {
					t.Fatalf("%q, %v", got, err)
				}
				back, err := c.Decode(got, body)
				if err != nil || !reflect.DeepEqual(back, v.Interface()) {
					t.Fatalf("%+v became %+v, %v", v.Interface(), back, err)
				}
			}
		})
	}
}

// Whoever adds a message type and forgets the codec has a node that cannot send it.
func TestEveryMessageTypeIsInTheCodec(t *testing.T) {
	// Parts of messages, and what makes them cross.
	parts := []string{"Origin", "Idempotency", "By", "Accepted", "NewThread", "Codec"}
	known := map[string]bool{}
	for typ := range NewCodec().names {
		known[typ.Name()] = true
	}
	parsed, err := parser.ParseFile(token.NewFileSet(), "msg.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range parsed.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.TYPE {
			continue
		}
		for _, s := range g.Specs {
			name := s.(*ast.TypeSpec).Name.Name
			if !known[name] && !slices.Contains(parts, name) {
				t.Errorf("%s is not in the codec", name)
			}
		}
	}
}

func TestNilAndErrorsCross(t *testing.T) {
	c := NewCodec()
	moved, lost := errors.New("moved"), errors.New("lost")
	c.AddError("moved", moved)
	c.AddError("lost", lost)
	cross := func(t *testing.T, v any) any {
		t.Helper()
		name, body, err := c.Encode(v)
		if err != nil {
			t.Fatal(err)
		}
		back, err := c.Decode(name, body)
		if err != nil {
			t.Fatal(err)
		}
		return back
	}
	if v := cross(t, nil); v != nil {
		t.Errorf("nil became %v", v)
	}
	if err, _ := cross(t, fmt.Errorf("row 7: %w", lost)).(error); !errors.Is(err, lost) || errors.Is(err, moved) {
		t.Errorf("a known error became %v", err)
	}
	if err, _ := cross(t, errors.New("some words")).(error); err == nil || err.Error() != "some words" {
		t.Errorf("an unknown error became %v", err)
	}
	said := &problem.Error{Code: problem.CodeUnavailable, Detail: "Later.", RetryAfter: 1500 * time.Millisecond, Extensions: map[string]any{"status": "approved"}}
	if p := cross(t, fmt.Errorf("ask: %w", said)); !reflect.DeepEqual(p, said) {
		t.Errorf("a problem became %+v", p)
	}
}

func TestWhatWasNotAddedDoesNotCross(t *testing.T) {
	type stranger struct{ N int }
	c := NewCodec()
	for _, v := range []any{stranger{}, &Done{}, 7, "text", make(chan int)} {
		if _, _, err := c.Encode(v); !errors.Is(err, ErrUnknownType) {
			t.Errorf("%T: %v", v, err)
		}
	}
	for _, name := range []string{"stranger", "Done", "error/nothing", "problem/x"} {
		if v, err := c.Decode(name, []byte("{}")); !errors.Is(err, ErrUnknownType) || v != nil {
			t.Errorf("%s: %v, %v", name, v, err)
		}
	}
}

func TestDecodeIgnoresFieldsThatItDoesNotKnow(t *testing.T) {
	v, err := NewCodec().Decode("decided", []byte(`{"approvals_so_far":3,"later":{"deep":[1]}}`))
	if got, ok := v.(Decided); err != nil || !ok || got.ApprovalsSoFar != 3 {
		t.Fatalf("%v, %v", v, err)
	}
}

func TestDecodeOfBrokenBodies(t *testing.T) {
	c := NewCodec()
	for _, name := range []string{"done", "problem", "error", "post"} {
		for _, body := range []string{"", "{", "[", `7`} {
			if v, err := c.Decode(name, []byte(body)); err == nil || errors.Is(err, ErrUnknownType) || v != nil {
				t.Errorf("%s of %q: %v, %v", name, body, v, err)
			}
		}
	}
}

func TestANameIsUsedOnce(t *testing.T) {
	type a struct{}
	type b struct{}
	for _, name := range []string{"post", "", "problem", "error", "error/x"} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%q was taken", name)
				}
			}()
			NewCodec().Add(name, a{})
		}()
	}
	c := NewCodec()
	c.Add("a", a{})
	defer func() {
		if recover() == nil {
			t.Error("a type has two names")
		}
	}()
	c.Add("b", b{})
	c.Add("again", a{})
}
