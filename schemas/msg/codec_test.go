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
	"testing"
	"time"

	"github.com/fxamacker/cbor/v2"

	"agentsvc/schemas/id"
	"agentsvc/schemas/problem"
)

// newCodec knows all messages of this package.
func newCodec() *Codec {
	return NewCodec(
		Of[Post]("post"), Of[Posted]("posted"), Of[DeleteThread]("delete_thread"), Of[RunEnded]("run_ended"),
		Of[StartWorkflow]("start_workflow"), Of[InjectEvent]("inject_event"), Of[ChildChanged]("child_changed"),
		Of[StartOne]("start_one"), Of[Started]("started"), Of[Proceed]("proceed"), Of[CancelRun]("cancel_run"), Of[Status]("status"),
		Of[Decide]("decide"), Of[Decided]("decided"), Of[ApprovalsDecided]("approvals_decided"),
	)
}

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
	c := newCodec()
	for _, name := range slices.Sorted(maps.Keys(c.types)) {
		t.Run(name, func(t *testing.T) {
			for _, full := range []bool{false, true} {
				v := reflect.New(c.types[name]).Elem()
				if n := 0; full {
					fill(t, v, &n)
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

// The tests of this package cover every message type. That each is also in the codec of a
// node is tested in cmd/svc.
func TestEveryMessageTypeIsInTheCodec(t *testing.T) {
	// Parts of messages, and what makes them cross.
	parts := []string{"Origin", "Idempotency", "By", "Accepted", "Visitor", "Codec"}
	known := map[string]bool{}
	for typ := range newCodec().names {
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
	c := newCodec()
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
	c := newCodec()
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
	body, err := cbor.Marshal(map[string]any{"approvals_so_far": 3, "later": map[string]any{"deep": []int{1}}})
	if err != nil {
		t.Fatal(err)
	}
	v, err := newCodec().Decode("decided", body)
	if got, ok := v.(Decided); err != nil || !ok || got.ApprovalsSoFar != 3 {
		t.Fatalf("%v, %v", v, err)
	}
}

func TestDecodeOfBrokenBodies(t *testing.T) {
	c := newCodec()
	whole, err := cbor.Marshal(map[string]any{"run": "r"})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"done", "problem", "post"} {
		for _, body := range []string{"", "{}", "\x07", string(whole[:2]), string(whole) + "\x00"} {
			if v, err := c.Decode(name, []byte(body)); err == nil || errors.Is(err, ErrUnknownType) || v != nil {
				t.Errorf("%s of %q: %v, %v", name, body, v, err)
			}
		}
	}
}

// A tenant's data crosses byte by byte, and a body may hold as many elements as fit.
func TestNothingIsLostOnTheWay(t *testing.T) {
	c := newCodec()
	type many struct {
		Numbers []int          `json:"numbers"`
		Names   map[string]int `json:"names"`
	}
	c.Add("many", many{})
	long := many{make([]int, 200_000), map[string]int{}}
	for i := range long.Numbers {
		long.Numbers[i], long.Names[fmt.Sprint(i)] = i, i
	}
	for _, v := range []any{
		Post{Content: "a\xff\x00b\u2028<>&", Input: json.RawMessage(`{"b": 1,  "a":"<"}`)},
		long,
	} {
		name, body, err := c.Encode(v)
		if err != nil {
			t.Fatal(err)
		}
		if back, err := c.Decode(name, body); err != nil || !reflect.DeepEqual(back, v) {
			t.Errorf("%s: became another, %v", name, err)
		}
	}
}

// A problem is told to the client by the node that did not find it in the same words.
func TestAProblemsFieldsReadTheSameOnTheOtherSide(t *testing.T) {
	said := &problem.Error{Code: problem.CodeUnavailable, Detail: "No.", Extensions: map[string]any{
		"count": 3, "share": 0.5, "none": nil, "list": []string{"x", "y"}, "by": map[string]any{"a": "b"},
	}}
	c := newCodec()
	name, body, err := c.Encode(said)
	if err != nil {
		t.Fatal(err)
	}
	back, err := c.Decode(name, body)
	if err != nil {
		t.Fatal(err)
	}
	want, err := json.Marshal(said.Extensions)
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(back.(*problem.Error).Extensions)
	if err != nil || string(got) != string(want) {
		t.Errorf("%s became %s, %v", want, got, err)
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
			newCodec().Add(name, a{})
		}()
	}
	c := newCodec()
	c.Add("a", a{})
	defer func() {
		if recover() == nil {
			t.Error("a type has two names")
		}
	}()
	c.Add("b", b{})
	c.Add("again", a{})
}

// BenchmarkCodec is a message of a tenant's on its way to the thread's owner, and the
// answer.
func BenchmarkCodec(b *testing.B) {
	post := Post{
		Message: id.MessageID{UUID: id.NewAnywhere()}, Run: id.RunID{UUID: id.NewAnywhere()},
		Content: "Where is my order 4711?", Input: json.RawMessage(`{"text":"Where is my order 4711?"}`),
		Origin: Origin{Kind: "api", ID: id.NewAnywhere()}, By: By{Actor: "apikey:" + id.NewAnywhere().String(), IP: "127.0.0.1"},
	}
	kept := post
	kept.Idempotency = &Idempotency{Status: 202, Response: make([]byte, 200)}
	for i := range kept.Idempotency.Digest {
		kept.Idempotency.Digest[i], kept.Idempotency.Fingerprint[i] = byte(i*37), byte(i*91)
	}
	c := newCodec()
	for _, m := range []struct {
		name string
		v    any
	}{{"post", post}, {"post with a key", kept}, {"posted", Posted{Run: post.Run, Message: post.Message}}} {
		b.Run(m.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				name, body, err := c.Encode(m.v)
				if err != nil {
					b.Fatal(err)
				}
				if _, err = c.Decode(name, body); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
