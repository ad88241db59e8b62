package simulated

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"go.uber.org/goleak"

	schema "agentsvc/schemas/model"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type heard struct {
	order []string
	first chan struct{}
}

func (h *heard) add(s string) {
	if h.first != nil && len(h.order) == 0 {
		close(h.first)
	}
	h.order = append(h.order, s)
}
func (h *heard) Text(s string)     { h.add(s) }
func (h *heard) Thinking(s string) { h.add("~" + s) }

func ask(text string, after ...schema.Message) *schema.Request {
	return &schema.Request{
		Tools:    []schema.ToolSpec{{Name: "orders.refund"}, {Name: "orders.lookup"}, {Name: "crm.lookup"}, {Name: "builtin:kb.search"}},
		Messages: append([]schema.Message{{Role: schema.User, Text: "/say of an earlier turn"}, {Role: schema.Assistant, Text: "ok"}, {Role: schema.User, Text: text}}, after...),
	}
}

func called(ids ...string) []schema.Message {
	a, r := schema.Message{Role: schema.Assistant}, schema.Message{Role: schema.Tool}
	for _, id := range ids {
		a.Calls = append(a.Calls, schema.Call{ID: id, Name: "orders.refund", Args: json.RawMessage("{}")})
		r.Results = append(r.Results, schema.CallResult{CallID: id, Content: `{"ok":"` + id + `"}`, IsError: strings.HasPrefix(id, "bad")})
	}
	return []schema.Message{a, r}
}

// TestDirectives is open-parts.md, Agents, the paragraph on `simulated`.
func TestDirectives(t *testing.T) {
	for _, c := range []struct {
		name  string
		req   *schema.Request
		text  string
		think string
		calls string // NAME args; …
		fail  string
		kind  schema.Kind
	}{
		{name: "a short answer that quotes the user's text", req: ask("Where is it?"), text: `This is a simulated model. You said: "Where is it?"`},
		{name: "a long text is quoted in part", req: ask(strings.Repeat("é", 400)), text: `This is a simulated model. You said: "` + strings.Repeat("é", 200) + `…"`},
		{name: "nothing said", req: ask(""), text: "This is a simulated model. You said nothing."},
		{name: "no message", req: &schema.Request{}, text: "This is a simulated model. You said nothing."},
		{name: "/say", req: ask("/say Hello there"), text: "Hello there"},
		{name: "/say among other text", req: ask("please\n/say Hello\r\nthanks"), text: "Hello"},
		{name: "in order", req: ask("/say a\n/json {\"b\": 1}\n/say c"), text: "a\n{\"b\": 1}\nc"},
		{name: "/tokens", req: ask("/tokens 3"), text: "these words come"},
		{name: "/tokens of one", req: ask("/tokens 1"), text: "these"},
		{name: "/think and a plain text", req: ask("/think hmm well\nHi"), think: "hmm well", text: `This is a simulated model. You said: "Hi"`},
		{name: "/think twice", req: ask("/think a\n/think b\n/say c"), think: "a\nb", text: "c"},
		{name: "/json", req: ask(`/json {"a":[1,2]}`), text: `{"a":[1,2]}`},
		{name: "/fail", req: ask("/fail out of order"), fail: "out of order", kind: schema.Refused},
		{name: "/fail without a message", req: ask("/fail"), fail: "simulated failure", kind: schema.Refused},
		{name: "/fail after text breaks the stream", req: ask("/say a\n/fail b"), fail: "b", kind: schema.Broken},
		{name: "/call", req: ask(`/call orders.refund {"id": "o-1"}`), calls: `orders.refund {"id": "o-1"}`},
		{name: "/call without arguments", req: ask("/call orders.refund"), calls: "orders.refund {}"},
		{name: "/call by bare name", req: ask("/call refund\n/call kb.search"), calls: "orders.refund {}; builtin:kb.search {}"},
		{name: "/call by an ambiguous bare name", req: ask("/call lookup"), calls: "lookup {}"},
		{name: "/call of what is not on offer", req: ask("/call format.disk {}"), calls: "format.disk {}"},
		{name: "calls in a row are parallel", req: ask("/call orders.refund {\"n\":1}\n/delay 0s\n/call orders.lookup {\"n\":2}\n/say done"), calls: `orders.refund {"n":1}; orders.lookup {"n":2}`},
		{name: "text before a call is in its turn", req: ask("/say wait\n/call orders.refund"), text: "wait", calls: "orders.refund {}"},
		{name: "what follows the calls is said after their results", req: ask("/say wait\n/call orders.refund\n/say done", called("a")...), text: "done"},
		{name: "without text afterwards the results are quoted", req: ask("/call orders.refund", called("a", "bad")...), text: `This is a simulated model. A tool answered: {"ok":"a"} A tool failed: {"ok":"bad"}`},
		{name: "a thought afterwards is no text", req: ask("/call orders.refund\n/think hm", called("a")...), think: "hm", text: `This is a simulated model. A tool answered: {"ok":"a"}`},
		{name: "calls after calls", req: ask("/call orders.refund\n/say next\n/call orders.lookup\n/say end", called("a")...), text: "next", calls: "orders.lookup {}"},
		{name: "and their results", req: ask("/call orders.refund\n/say next\n/call orders.lookup\n/say end", append(called("a"), called("b")...)...), text: "end"},
		{name: "only the last results are quoted", req: ask("/call orders.refund\n/say next\n/call orders.lookup", append(called("a"), called("b")...)...), text: `This is a simulated model. A tool answered: {"ok":"b"}`},
		{name: "/fail after a call", req: ask("/call orders.refund\n/fail boom", called("a")...), fail: "boom", kind: schema.Refused},
		{name: "a human's answer in place of the tool", req: ask("/call orders.refund\n/say done", append(called("a"), schema.Message{Role: schema.User, Text: "leave it"})...), text: `This is a simulated model. You said: "leave it"`},
		{name: "an unknown word is the user's text", req: ask("/etc/passwd"), text: `This is a simulated model. You said: "/etc/passwd"`},
		{name: "a directive stands at the start of its line", req: ask(" /say a"), text: `This is a simulated model. You said: " /say a"`},
		{name: "malformed: /tokens", req: ask("/tokens many"), text: "This is a simulated model. /tokens needs a whole number above 0."},
		{name: "malformed: /tokens 0", req: ask("/tokens 0"), text: "This is a simulated model. /tokens needs a whole number above 0."},
		{name: "malformed: /delay", req: ask("/delay soon"), text: "This is a simulated model. /delay needs a duration such as 50ms."},
		{name: "malformed: /delay below zero", req: ask("/delay -1s"), text: "This is a simulated model. /delay needs a duration such as 50ms."},
		{name: "malformed: /json", req: ask("/json {a"), text: "This is a simulated model. /json needs a JSON value on the same line."},
		{name: "malformed: /call", req: ask("/call"), text: "This is a simulated model. /call needs the name of a tool."},
		{name: "malformed: /call arguments", req: ask("/call orders.refund {a"), text: "This is a simulated model. /call needs its arguments as one JSON object on the same line."},
		{name: "malformed: /call with a list", req: ask("/call orders.refund [1]"), text: "This is a simulated model. /call needs its arguments as one JSON object on the same line."},
		{name: "malformed: /say", req: ask("/say"), text: "This is a simulated model. /say needs a text."},
		{name: "malformed: /think", req: ask("/think "), text: "This is a simulated model. /think needs a text."},
	} {
		t.Run(c.name, func(t *testing.T) {
			var h heard
			res, err := Client{}.Stream(context.Background(), c.req, &h)
			if c.fail != "" {
				var e *schema.Error
				if !errors.As(err, &e) || e.Message != c.fail || e.Kind != c.kind || string(e.Failure()) != "MODEL_ERROR" {
					t.Fatalf("%+v %v", res, err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var calls []string
			ids := map[string]bool{}
			for _, k := range res.Calls {
				calls = append(calls, k.Name+" "+string(k.Args))
				ids[k.ID] = true
			}
			if res.Text != c.text || res.ThinkingText() != c.think || strings.Join(calls, "; ") != c.calls || len(ids) != len(calls) {
				t.Fatalf("%+v", res)
			}
			if want := map[bool]schema.Finish{true: schema.FinishCalls, false: schema.FinishStop}[len(calls) > 0]; res.Finish != want {
				t.Fatal(res.Finish)
			}
			var text, think strings.Builder
			for _, s := range h.order {
				if strings.HasPrefix(s, "~") {
					think.WriteString(s[1:])
				} else {
					text.WriteString(s)
				}
			}
			if text.String() != res.Text || think.String() != res.ThinkingText() {
				t.Fatalf("heard %q", h.order)
			}
			again, err := Client{}.Stream(context.Background(), c.req, &heard{})
			if err != nil || !reflect.DeepEqual(res, again) {
				t.Fatal("not deterministic")
			}
		})
	}
}

func TestTokens(t *testing.T) {
	for in, want := range map[string]int64{"/tokens 7": 7, "/tokens 100000": 100_000, "/tokens 999999999": 100_000, "/say a b c": 3} {
		var h heard
		res, err := Client{}.Stream(context.Background(), ask(in), &h)
		if err != nil || res.TokensOut != want || int64(len(h.order)) != want {
			t.Errorf("%s: %d heard, %d counted, %v", in, len(h.order), res.TokensOut, err)
		}
	}
	q := ask("/tokens 100")
	q.MaxOutputTokens = 10
	if res, err := (Client{}).Stream(context.Background(), q, &heard{}); err != nil || res.TokensOut != 10 || res.Finish != schema.FinishLength {
		t.Errorf("%+v %v", res, err)
	}
}

func TestDelay(t *testing.T) {
	t.Run("goes between the tokens", func(t *testing.T) {
		began := time.Now()
		if _, err := (Client{}).Stream(context.Background(), ask("/delay 10ms\n/say a b c"), &heard{}); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(began); d < 20*time.Millisecond {
			t.Fatalf("three tokens in %s", d)
		}
	})
	t.Run("is at most 60 s", func(t *testing.T) {
		if d, ok := parseLine("/delay 10h"); !ok || d.pause != time.Minute {
			t.Fatal(d)
		}
	})
	t.Run("ends with the turn", func(t *testing.T) {
		h := heard{first: make(chan struct{})}
		ctx, cancel := context.WithCancel(context.Background())
		end := make(chan error, 1)
		go func() {
			_, err := Client{}.Stream(ctx, ask("/delay 60s\n/say a b"), &h)
			end <- err
		}()
		<-h.first
		cancel()
		var e *schema.Error
		if err := <-end; !errors.As(err, &e) || e.Kind != schema.Cancelled || e.BeforeFirstToken || len(h.order) != 1 {
			t.Fatal(err)
		}
	})
	t.Run("a cancelled turn does not begin", func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		var e *schema.Error
		if _, err := (Client{}).Stream(ctx, ask("a"), &heard{}); !errors.As(err, &e) || e.Kind != schema.Cancelled || !e.BeforeFirstToken {
			t.Fatal(err)
		}
	})
	t.Run("no delay, and it still hears a cancel", func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		s := &stopper{cancel: cancel}
		if _, err := (Client{}).Stream(ctx, ask("/tokens 100000"), s); err == nil || s.n > 100 {
			t.Fatalf("%d tokens after the cancel, %v", s.n, err)
		}
	})
}

type stopper struct {
	n      int
	cancel func()
}

func (s *stopper) Text(string)   { s.n++; s.cancel() }
func (*stopper) Thinking(string) {}

func TestIsCheap(t *testing.T) {
	req := ask("Where is my order?")
	if n := testing.AllocsPerRun(100, func() { _, _ = Client{}.Stream(context.Background(), req, quiet{}) }); n > 4 {
		t.Fatalf("%v allocations for an answer", n)
	}
}

type quiet struct{}

func (quiet) Text(string)     {}
func (quiet) Thinking(string) {}

// FuzzSimulated: no message makes it panic, hang or say what cannot be stored.
func FuzzSimulated(f *testing.F) {
	for _, s := range []string{"hi", "/say a\n/call b {}\n/say c", "/tokens 5\n/think x", "/json [", "/fail\n/", "/delay 0\n/call\x00 {\"a\":\"\\u0000\"}"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if strings.Contains(s, "/delay") && strings.ContainsAny(s, "msh") {
			return
		}
		res, err := Client{}.Stream(context.Background(), ask(s), &heard{})
		if err != nil {
			return
		}
		b, err := json.Marshal(res)
		if err != nil || !utf8.Valid(b) || !utf8.ValidString(res.Text) || strings.ContainsRune(res.Text, 0) {
			t.Fatalf("%q %v", b, err)
		}
	})
}
