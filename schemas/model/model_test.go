package model

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func TestCost(t *testing.T) {
	for _, c := range []struct {
		p       Price
		in, out int64
		want    float64
	}{
		{Price{}, 1000, 1000, 0},
		{Price{InputPerMTok: 3, OutputPerMTok: 15}, 1_000_000, 0, 3},
		{Price{InputPerMTok: 3, OutputPerMTok: 15}, 0, 1_000_000, 15},
		{Price{InputPerMTok: 3, OutputPerMTok: 15}, 2000, 1000, 0.021},
		{Price{InputPerMTok: 1e6}, MaxTurnTokens, 0, 1e9},
		{Price{InputPerMTok: 1e308, OutputPerMTok: 1e308}, MaxTurnTokens, MaxTurnTokens, maxTurnCost}, // stored before prices had a bound
	} {
		if got := c.p.Cost(c.in, c.out); got < c.want-1e-12 || got > c.want+1e-12 {
			t.Errorf("%+v %d %d: %v", c.p, c.in, c.out, got)
		}
	}
}

func TestFailure(t *testing.T) {
	for kind, want := range map[Kind]string{Unavailable: "MODEL_UNAVAILABLE", Refused: "MODEL_ERROR", Broken: "MODEL_ERROR", Cancelled: "CANCELLED"} {
		if got := (&Error{Kind: kind}).Failure(); string(got) != want {
			t.Errorf("%s: %s", kind, got)
		}
	}
	cause := errors.New("cause")
	e := &Error{Kind: Refused, Status: 400, Message: "no", Err: cause}
	if !errors.Is(e, cause) || e.Error() != "model refused (400): no" {
		t.Error(e)
	}
}

func TestClean(t *testing.T) {
	for in, want := range map[string]string{"": "", "plain é": "plain é", "a\x00b\x00": "ab", "a\xffb": "a\uFFFDb"} {
		if got := Clean(in); got != want {
			t.Errorf("%q: %q", in, got)
		}
	}
}

func TestNewCall(t *testing.T) {
	nested := func(depth int) string { return strings.Repeat(`{"a":`, depth) + "1" + strings.Repeat("}", depth) }
	for _, c := range []struct{ in, args, malformed string }{
		{"", "{}", ""},
		{" \n", "{}", ""},
		{` {"a": 1} `, `{"a": 1}`, ""},
		{`{"a":"x\u0000y"}`, `{"a":"xy"}`, ""},
		{`{"a":"\\u0000"}`, `{"a":"\\u0000"}`, ""},
		{`{"a":"\ud83d\ude00 \uD83D \ude00 \u00e9"}`, `{"a":"\ud83d\ude00 \ufffd \ufffd \u00e9"}`, ""},
		{`{"a":"\ud83d\u0041"}`, `{"a":"\ufffd\u0041"}`, ""},
		{`{"\u0000k":1}`, `{"k":1}`, ""},
		{`[1]`, "{}", "[1]"},
		{`null`, "{}", "null"},
		{`{"a":`, "{}", `{"a":`},
		{`{"a":1}{"b":2}`, "{}", `{"a":1}{"b":2}`},
		{"tell me\x00", "{}", "tell me"},
		{nested(500), nested(500), ""},
		{nested(501), "{}", nested(501)},
	} {
		got := NewCall("id", "t", c.in)
		if string(got.Args) != c.args || got.Malformed != c.malformed {
			t.Errorf("%s: %s %q", c.in, got.Args, got.Malformed)
		}
	}
}

// FuzzCleanJSON: valid JSON stays valid, and clean.
func FuzzCleanJSON(f *testing.F) {
	for _, s := range []string{`{"a":"\u0000\\u0000\ud800\ud83d\ude00"}`, "\"\xff\"", `"\\\u0000"`, `"\ud800\u"`, `"\`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		got := CleanJSON(bytes.Clone(b))
		if !json.Valid(b) {
			return
		}
		var s any
		if err := json.Unmarshal(got, &s); err != nil || !utf8.Valid(got) {
			t.Fatalf("%q became %q: %v", b, got, err)
		}
		if again := CleanJSON(got); !bytes.Equal(again, got) {
			t.Fatalf("%q became %q and then %q", b, got, again)
		}
		back, _ := json.Marshal(s)
		if strings.Contains(strings.ReplaceAll(string(back), `\\`, ""), `\u0000`) {
			t.Fatalf("%q became %q", b, got)
		}
	})
}

func call(id string) Call { return Call{ID: id, Name: "t", Args: json.RawMessage("{}")} }

func TestRepair(t *testing.T) {
	missing := func(id string) CallResult { return CallResult{CallID: id, Content: NoResult, IsError: true} }
	user := Message{Role: User, Text: "hi"}
	asks := Message{Role: Assistant, Calls: []Call{call("a"), call("b")}}
	ra, rb := CallResult{CallID: "a", Content: "1"}, CallResult{CallID: "b", Content: "2"}
	both := Message{Role: Tool, Results: []CallResult{ra, rb}}
	for _, c := range []struct {
		name     string
		in, want []Message
	}{
		{"in order", []Message{user, asks, both, {Role: Assistant, Text: "ok"}}, []Message{user, asks, both, {Role: Assistant, Text: "ok"}}},
		{"a message for each result", []Message{asks, {Role: Tool, Results: []CallResult{ra}}, {Role: Tool, Results: []CallResult{rb}}}, []Message{asks, both}},
		{"in another order", []Message{asks, {Role: Tool, Results: []CallResult{rb, ra}}}, []Message{asks, both}},
		{"one is missing", []Message{asks, {Role: Tool, Results: []CallResult{rb}}, user}, []Message{asks, {Role: Tool, Results: []CallResult{missing("a"), rb}}, user}},
		{"a human spoke instead", []Message{asks, user}, []Message{asks, {Role: Tool, Results: []CallResult{missing("a"), missing("b")}}, user}},
		{"cut before the results", []Message{both, user}, []Message{user}},
		{"a stranger among the results", []Message{asks, {Role: Tool, Results: []CallResult{ra, rb, {CallID: "x"}}}}, []Message{asks, both}},
		{"cut after the calls", []Message{asks}, []Message{asks, {Role: Tool, Results: []CallResult{missing("a"), missing("b")}}}},
		{"silence", []Message{user, {Role: Assistant}, {Role: User}}, []Message{user}},
	} {
		t.Run(c.name, func(t *testing.T) {
			before, _ := json.Marshal(c.in)
			got := Repair(c.in)
			if !reflect.DeepEqual(got, c.want) {
				t.Fatalf("%+v", got)
			}
			if after, _ := json.Marshal(c.in); !bytes.Equal(before, after) {
				t.Fatal("the input was changed")
			}
		})
	}
}

// TestRepairIsALaw: any history comes out in order, and in order it stays.
func TestRepairIsALaw(t *testing.T) {
	id := rapid.SampledFrom([]string{"a", "b", "c"})
	message := rapid.Custom(func(t *rapid.T) Message {
		m := Message{Role: rapid.SampledFrom([]Role{User, Assistant, Tool}).Draw(t, "role"), Text: rapid.SampledFrom([]string{"", "x"}).Draw(t, "text")}
		for _, i := range rapid.SliceOfNDistinct(id, 0, 2, rapid.ID[string]).Draw(t, "ids") {
			switch m.Role {
			case Assistant:
				m.Calls = append(m.Calls, call(i))
			case Tool:
				m.Results = append(m.Results, CallResult{CallID: i})
			}
		}
		return m
	})
	rapid.Check(t, func(t *rapid.T) {
		got := Repair(rapid.SliceOf(message).Draw(t, "history"))
		if !inOrder(got) {
			t.Fatalf("%+v", got)
		}
	})
}

func TestResult(t *testing.T) {
	r := Result{Text: "x", Thinking: []Thinking{{Text: "a", Signature: "s"}, {Redacted: "r"}, {Text: "b"}}, Calls: []Call{call("1")}}
	if r.ThinkingText() != "ab" {
		t.Error(r.ThinkingText())
	}
	if m := r.Message(); m.Role != Assistant || m.Text != "x" || len(m.Thinking) != 3 || len(m.Calls) != 1 {
		t.Errorf("%+v", m)
	}
	q := Request{System: "1234", Messages: []Message{{Text: "12345"}, {Calls: []Call{call("1")}, Results: []CallResult{{Content: "1"}}}}, Tools: []ToolSpec{{Name: "abcd"}}}
	if n := q.EstimateInput(); n != 1+2+1+1+1 {
		t.Error(n)
	}
}
