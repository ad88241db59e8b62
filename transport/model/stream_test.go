package model

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	schema "agentsvc/schemas/model"
	"agentsvc/schemas/testkit"
	"agentsvc/transport/egress"
	"agentsvc/transport/model/fake"
)

// A server that has refused the rest of a body waits half a second before it closes.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"))
}

// heard is a sink that keeps everything, and signals its first token.
type heard struct {
	text, thinking strings.Builder
	order          []string
	first          chan struct{}
}

func (h *heard) note(kind, s string) {
	if s == "" {
		panic("a sink was called with nothing")
	}
	if len(h.order) == 0 && h.first != nil {
		close(h.first)
	}
	h.order = append(h.order, kind+s)
}
func (h *heard) Text(s string)     { h.text.WriteString(s); h.note("", s) }
func (h *heard) Thinking(s string) { h.thinking.WriteString(s); h.note("~", s) }

var loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}

const key = "sk-very-secret"

// pauses records what Retrying would have slept.
type pauses struct{ list []time.Duration }

func (p *pauses) sleep(ctx context.Context, d time.Duration) error {
	p.list = append(p.list, d)
	return ctx.Err()
}

type rig struct {
	*fake.Server
	r *Registry
	p *pauses
}

func newRig(t testing.TB, replies ...fake.Reply) *rig {
	t.Helper()
	s, err := fake.New(replies...)
	if err != nil {
		t.Fatal(err)
	}
	p := &pauses{}
	r := NewRegistry(Config{Guard: egress.New(egress.Config{Allow: loopback}), RequireTLS: true, Sleep: p.sleep, Rand: func() float64 { return 0.5 }})
	t.Cleanup(func() { r.Close(); s.Close() })
	return &rig{s, r, p}
}

func (r *rig) client(kind string) schema.Client {
	p := Provider{Kind: kind, BaseURL: r.OpenAI(), APIKey: key}
	if kind == Anthropic {
		p.BaseURL = r.Server.Anthropic()
	}
	return r.r.Client(p)
}

func ask(text string, tools ...string) *schema.Request {
	q := &schema.Request{Model: "m-1", Messages: []schema.Message{{Role: schema.User, Text: text}}}
	for _, t := range tools {
		q.Tools = append(q.Tools, schema.ToolSpec{Name: t})
	}
	return q
}

func protocols(t *testing.T, f func(t *testing.T, kind string)) {
	for _, kind := range []string{OpenAI, Anthropic} {
		t.Run(kind, func(t *testing.T) { f(t, kind) })
	}
}

func TestAnswers(t *testing.T) {
	args := json.RawMessage(`{"order_id":"o-1","amount":12.5}`)
	for _, c := range []struct {
		name  string
		reply fake.Reply
		tools []string
		want  schema.Result
		order []string
	}{
		{"text, delta by delta", fake.Reply{Text: []string{"Hel", "lo ", "wörld"}, In: 7, Out: 3}, nil,
			schema.Result{Text: "Hello wörld", Finish: schema.FinishStop, TokensIn: 7, TokensOut: 3}, []string{"Hel", "lo ", "wörld"}},
		{"thinking comes first and is apart", fake.Reply{Thinking: []string{"let ", "me"}, Text: []string{"ok"}, In: 1, Out: 2}, nil,
			schema.Result{Text: "ok", Thinking: []schema.Thinking{{Text: "let me"}}, Finish: schema.FinishStop, TokensIn: 1, TokensOut: 2}, []string{"~let ", "~me", "ok"}},
		{"a call, its arguments in pieces, its name given back", fake.Reply{Calls: []fake.Call{{ID: "c1", Name: "orders_refund", Args: []string{`{"order_id":"o`, `-1","amount":`, `12.5}`}}}, In: 1, Out: 1}, []string{"orders.refund"},
			schema.Result{Calls: []schema.Call{{ID: "c1", Name: "orders.refund", Args: args}}, Finish: schema.FinishCalls, TokensIn: 1, TokensOut: 1}, nil},
		{"text and parallel calls", fake.Reply{Text: []string{"one moment"}, Calls: []fake.Call{{ID: "c1", Name: "a", Args: []string{`{"x":1}`}}, {ID: "c2", Name: "b"}}, In: 1, Out: 1}, []string{"a", "b"},
			schema.Result{Text: "one moment", Calls: []schema.Call{{ID: "c1", Name: "a", Args: json.RawMessage(`{"x":1}`)}, {ID: "c2", Name: "b", Args: json.RawMessage(`{}`)}}, Finish: schema.FinishCalls, TokensIn: 1, TokensOut: 1}, []string{"one moment"}},
		{"arguments that are no JSON are malformed, not lost", fake.Reply{Calls: []fake.Call{{ID: "c1", Name: "a", Args: []string{`{"x":`}}}, In: 1, Out: 1}, []string{"a"},
			schema.Result{Calls: []schema.Call{{ID: "c1", Name: "a", Args: json.RawMessage(`{}`), Malformed: `{"x":`}}, Finish: schema.FinishCalls, TokensIn: 1, TokensOut: 1}, nil},
		{"a tool that the model made up", fake.Reply{Calls: []fake.Call{{ID: "c1", Name: "format_disk"}}, In: 1, Out: 1}, []string{"a.b"},
			schema.Result{Calls: []schema.Call{{ID: "c1", Name: "format_disk", Args: json.RawMessage(`{}`)}}, Finish: schema.FinishCalls, TokensIn: 1, TokensOut: 1}, nil},
		{"calls without ids get their own", fake.Reply{Calls: []fake.Call{{Name: "a"}, {Name: "a"}}, In: 1, Out: 1}, []string{"a"},
			schema.Result{Calls: []schema.Call{{ID: "call_1_0", Name: "a", Args: json.RawMessage(`{}`)}, {ID: "call_1_1", Name: "a", Args: json.RawMessage(`{}`)}}, Finish: schema.FinishCalls, TokensIn: 1, TokensOut: 1}, nil},
		{"U+0000 is dropped from text and arguments", fake.Reply{Text: []string{"a\x00b", "\x00"}, Calls: []fake.Call{{ID: "c", Name: "a", Args: []string{"{\"x\":\"\\u0000y\",", `"z":"\\u0000 \ud800"}`}}}, In: 1, Out: 1}, []string{"a"},
			schema.Result{Text: "ab", Calls: []schema.Call{{ID: "c", Name: "a", Args: json.RawMessage(`{"x":"y","z":"\\u0000 \ufffd"}`)}}, Finish: schema.FinishCalls, TokensIn: 1, TokensOut: 1}, []string{"ab"}},
		{"nothing at all", fake.Reply{In: 1, Out: 0}, nil, schema.Result{Finish: schema.FinishStop, TokensIn: 1, TokensOut: 0}, nil},
		{"usage is estimated where it is missing", fake.Reply{Text: []string{"12345678"}, NoUsage: true}, nil,
			schema.Result{Text: "12345678", Finish: schema.FinishStop, TokensIn: 1, TokensOut: 2, Estimated: true}, []string{"12345678"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			protocols(t, func(t *testing.T, kind string) {
				r := newRig(t, c.reply)
				var h heard
				got, err := r.client(kind).Stream(context.Background(), ask("hi", c.tools...), &h)
				if err != nil {
					t.Fatal(err)
				}
				want := c.want
				if kind == Anthropic && c.name == "nothing at all" {
					want.TokensOut = 1 // what its first event counts
				}
				if !reflect.DeepEqual(*got, want) {
					t.Fatalf("got  %+v\nwant %+v", *got, want)
				}
				if !reflect.DeepEqual(h.order, c.order) {
					t.Fatalf("heard %q, want %q", h.order, c.order)
				}
				if h.text.String() != got.Text || h.thinking.String() != got.ThinkingText() {
					t.Fatalf("heard %q and %q", h.text.String(), h.thinking.String())
				}
			})
		})
	}
}

func TestFinishes(t *testing.T) {
	for _, c := range []struct {
		kind, wire string
		want       schema.Finish
	}{
		{OpenAI, "stop", schema.FinishStop}, {OpenAI, "length", schema.FinishLength}, {OpenAI, "content_filter", schema.FinishFilter}, {OpenAI, "tool_calls", schema.FinishCalls}, {OpenAI, "??", schema.FinishOther},
		{Anthropic, "end_turn", schema.FinishStop}, {Anthropic, "stop_sequence", schema.FinishStop}, {Anthropic, "max_tokens", schema.FinishLength}, {Anthropic, "model_context_window_exceeded", schema.FinishLength},
		{Anthropic, "refusal", schema.FinishFilter}, {Anthropic, "tool_use", schema.FinishCalls}, {Anthropic, "pause_turn", schema.FinishOther},
	} {
		t.Run(c.kind+" "+c.wire, func(t *testing.T) {
			res, err := newRig(t, fake.Reply{Finish: c.wire}).client(c.kind).Stream(context.Background(), ask("x"), &heard{})
			if err != nil || res.Finish != c.want {
				t.Fatalf("%+v %v", res, err)
			}
		})
	}
}

// TestCallsCutOff: a turn that the provider ended before the first argument of its last call does not ask
// for that call without arguments.
func TestCallsCutOff(t *testing.T) {
	complete := fake.Call{ID: "c1", Name: "a"}
	for _, c := range []struct {
		kind, wire string
		calls      []fake.Call
		cut        string // id of the call that is malformed
	}{
		{OpenAI, "length", []fake.Call{complete}, "c1"}, {OpenAI, "content_filter", []fake.Call{complete}, "c1"}, {OpenAI, "??", []fake.Call{complete}, "c1"},
		{Anthropic, "max_tokens", []fake.Call{complete}, "c1"}, {Anthropic, "refusal", []fake.Call{complete}, "c1"}, {Anthropic, "pause_turn", []fake.Call{complete}, "c1"},
		{OpenAI, "length", []fake.Call{complete, {ID: "c2", Name: "b"}}, "c2"}, {Anthropic, "max_tokens", []fake.Call{complete, {ID: "c2", Name: "b"}}, "c2"},
		{OpenAI, "length", []fake.Call{complete, {ID: "c2", Name: "b", Args: []string{`{}`}}}, ""}, {Anthropic, "max_tokens", []fake.Call{complete, {ID: "c2", Name: "b", Args: []string{`{}`}}}, ""},
		{OpenAI, "stop", []fake.Call{complete}, ""}, {OpenAI, "tool_calls", []fake.Call{complete}, ""},
		{Anthropic, "end_turn", []fake.Call{complete}, ""}, {Anthropic, "tool_use", []fake.Call{complete}, ""},
	} {
		t.Run(fmt.Sprintf("%s %s %d", c.kind, c.wire, len(c.calls)), func(t *testing.T) {
			res, err := newRig(t, fake.Reply{Text: []string{"and now"}, Calls: c.calls, Finish: c.wire}).client(c.kind).Stream(context.Background(), ask("x", "a", "b"), &heard{})
			if err != nil || len(res.Calls) != len(c.calls) {
				t.Fatalf("%+v %v", res, err)
			}
			for _, call := range res.Calls {
				if (call.Malformed != "") != (call.ID == c.cut) {
					t.Errorf("%+v", call)
				}
			}
		})
	}
}

// TestFailures is open-parts.md, Questions settled: "A model call that fails
// before its first token by connection, 429 or 5xx is tried three times in all
// with growing pauses (Retry-After respected), then MODEL_UNAVAILABLE; a refusal
// (other 4xx) or a broken stream is MODEL_ERROR".
func TestFailures(t *testing.T) {
	s := time.Second
	ok := fake.Reply{Text: []string{"fine"}}
	for _, c := range []struct {
		name    string
		replies []fake.Reply
		kind    schema.Kind // "" for success
		status  int
		message string
		asked   int
		paused  []time.Duration
		before  bool
	}{
		{"429, then an answer", []fake.Reply{{Status: 429}, ok}, "", 0, "", 2, []time.Duration{s / 2}, false},
		{"429 with Retry-After", []fake.Reply{{Status: 429, RetryAfter: "7"}, ok}, "", 0, "", 2, []time.Duration{7 * s}, false},
		{"Retry-After is respected up to a minute", []fake.Reply{{Status: 503, RetryAfter: "3600"}, ok}, "", 0, "", 2, []time.Duration{60 * s}, false},
		{"a Retry-After below the pause does not shorten it", []fake.Reply{{Status: 503}, {Status: 503, RetryAfter: "1"}, ok}, "", 0, "", 3, []time.Duration{s / 2, 2 * s}, false},
		{"a senseless Retry-After", []fake.Reply{{Status: 429, RetryAfter: "-3"}, {Status: 429, RetryAfter: "soon"}, ok}, "", 0, "", 3, []time.Duration{s / 2, 2 * s}, false},
		{"three times in all, then unavailable: 429", []fake.Reply{{Status: 429, Message: "slow down"}}, schema.Unavailable, 429, "slow down", 3, []time.Duration{s / 2, 2 * s}, true},
		{"three times in all, then unavailable: 500", []fake.Reply{{Status: 500}}, schema.Unavailable, 500, "the model provider answered 500", 3, []time.Duration{s / 2, 2 * s}, true},
		{"three times in all, then unavailable: 529", []fake.Reply{{Status: 529, Message: "Overloaded"}}, schema.Unavailable, 529, "Overloaded", 3, []time.Duration{s / 2, 2 * s}, true},
		{"connection lost before the first token", []fake.Reply{{Ending: fake.Drop}, ok}, "", 0, "", 2, []time.Duration{s / 2}, false},
		{"connection lost before the first token, three times", []fake.Reply{{Ending: fake.Drop}}, schema.Unavailable, 0, "no connection to the model provider", 3, []time.Duration{s / 2, 2 * s}, true},
		{"overloaded said in the stream before the first token", []fake.Reply{{Ending: fake.ErrorEvent, ErrorType: "overloaded_error", Message: "Overloaded"}, ok}, "", 0, "", 2, []time.Duration{s / 2}, false},
		{"refusal 400", []fake.Reply{{Status: 400, Message: "bad model"}}, schema.Refused, 400, "bad model", 1, nil, true},
		{"refusal 401 never shows the key", []fake.Reply{{Status: 401, Message: "no such key: " + key}}, schema.Refused, 401, "no such key: [redacted]", 1, nil, true},
		{"refusal 404", []fake.Reply{{Status: 404, Message: "no such model"}}, schema.Refused, 404, "no such model", 1, nil, true},
		{"refusal 413", []fake.Reply{{Status: 413}}, schema.Refused, 413, "the model provider answered 413", 1, nil, true},
		{"a redirect is not followed", []fake.Reply{{Status: 307}}, schema.Refused, 307, "the model provider answered 307", 1, nil, true},
		{"refusal said in the stream", []fake.Reply{{Ending: fake.ErrorEvent, ErrorType: "invalid_request_error", Message: "too long"}}, schema.Refused, 400, "too long", 1, nil, true},
		{"broken: dropped after the first token", []fake.Reply{{Text: []string{"a", "b"}, Ending: fake.Drop, After: 1}}, schema.Broken, 0, "broke off", 1, nil, false},
		{"broken: dropped in the thinking", []fake.Reply{{Thinking: []string{"a", "b"}, Ending: fake.Drop, After: 1}}, schema.Broken, 0, "broke off", 1, nil, false},
		{"broken: ended without a finish", []fake.Reply{{Text: []string{"a"}, Ending: fake.Early, After: 1}}, schema.Broken, 0, "without a finish", 1, nil, false},
		{"broken: no JSON", []fake.Reply{{Text: []string{"a"}, Ending: fake.Malformed, After: 1}}, schema.Broken, 0, "malformed", 1, nil, false},
		{"broken: error after the first token", []fake.Reply{{Text: []string{"a"}, Ending: fake.ErrorEvent, ErrorType: "overloaded_error", Message: "Overloaded", After: 1}}, schema.Broken, 529, "Overloaded", 1, nil, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			protocols(t, func(t *testing.T, kind string) {
				r := newRig(t, c.replies...)
				var h heard
				res, err := r.client(kind).Stream(context.Background(), ask("hi"), &h)
				if n := len(r.Requests()); n != c.asked || !reflect.DeepEqual(r.p.list, c.paused) {
					t.Errorf("asked %d times with pauses %v", n, r.p.list)
				}
				if c.kind == "" {
					if err != nil || res.Text != "fine" || h.text.String() != "fine" {
						t.Fatalf("%+v %v", res, err)
					}
					return
				}
				var e *schema.Error
				if !errors.As(err, &e) || res != nil {
					t.Fatalf("%+v %v", res, err)
				}
				if e.Kind != c.kind || e.Status != c.status || e.BeforeFirstToken != c.before || !strings.Contains(e.Message, c.message) {
					t.Fatalf("%+v", e)
				}
				want := "MODEL_ERROR"
				if c.kind == schema.Unavailable {
					want = "MODEL_UNAVAILABLE"
				}
				if string(e.Failure()) != want {
					t.Fatalf("failure %s", e.Failure())
				}
			})
		})
	}
}

func TestNobodyThere(t *testing.T) {
	r := newRig(t)
	c := r.r.Client(Provider{Kind: OpenAI, BaseURL: "http://" + testkit.Reserved(t), APIKey: key})
	_, err := c.Stream(context.Background(), ask("x"), &heard{})
	var e *schema.Error
	if !errors.As(err, &e) || e.Kind != schema.Unavailable || len(r.p.list) != 2 || strings.Contains(e.Message, "127.0.0.1") {
		t.Fatalf("%v after %v", err, r.p.list)
	}
}

func TestTheGuardStandsBeforeModels(t *testing.T) {
	r := newRig(t, fake.Reply{})
	closed := NewRegistry(Config{Guard: egress.New(egress.Config{}), Sleep: r.p.sleep})
	_, err := closed.Client(Provider{Kind: OpenAI, BaseURL: r.OpenAI(), APIKey: key}).Stream(context.Background(), ask("x"), &heard{})
	var e *schema.Error
	if !errors.As(err, &e) || e.Kind != schema.Refused || len(r.p.list) != 0 || len(r.Requests()) != 0 {
		t.Fatalf("%v", err)
	}
}

// TestCancelClosesTheConnection: the provider learns at once that the caller has left.
func TestCancelClosesTheConnection(t *testing.T) {
	protocols(t, func(t *testing.T, kind string) {
		r := newRig(t, fake.Reply{Text: []string{"a", "b"}, Ending: fake.Silence, After: 1})
		h := heard{first: make(chan struct{})}
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		end := make(chan error, 1)
		go func() {
			_, err := r.client(kind).Stream(ctx, ask("hi"), &h)
			end <- err
		}()
		<-h.first
		cancel()
		var e *schema.Error
		if err := <-end; !errors.As(err, &e) || e.Kind != schema.Cancelled || e.BeforeFirstToken || !errors.Is(err, context.Canceled) || len(r.p.list) != 0 {
			t.Fatalf("%v", err)
		}
		select {
		case why := <-r.Requests()[0].Done:
			if why == nil {
				t.Fatal("the provider ended by itself")
			}
		case <-time.After(time.Minute):
			t.Fatal("the provider still sees the connection")
		}
	})
}

func TestCancelWhilePausing(t *testing.T) {
	r := newRig(t, fake.Reply{Status: 503, RetryAfter: "30"})
	ctx, cancel := context.WithCancel(context.Background())
	re := &Retrying{Client: newOpenAI(r.r.hc, Provider{BaseURL: r.OpenAI()})}
	end := make(chan error, 1)
	arrived := r.Arrived()
	go func() { _, err := re.Stream(ctx, ask("x"), &heard{}); end <- err }()
	<-arrived
	cancel()
	var e *schema.Error
	if err := <-end; !errors.As(err, &e) || e.Kind != schema.Cancelled {
		t.Fatal(err)
	}
}

func TestConnectionsAreUsedAgain(t *testing.T) {
	protocols(t, func(t *testing.T, kind string) {
		r := newRig(t, fake.Reply{Text: []string{"a"}})
		var dials atomic.Int32
		r.r = NewRegistry(Config{Guard: egress.New(egress.Config{Allow: loopback, Observe: func(netip.AddrPort, error) error { dials.Add(1); return nil }})})
		defer r.r.Close()
		const turns = 20
		for range turns {
			if _, err := r.client(kind).Stream(context.Background(), ask("x"), &heard{}); err != nil {
				t.Fatal(err)
			}
		}
		if n := dials.Load(); n > 5 { // a busy machine may lose some: drain waits for a moment only
			t.Fatalf("%d connections for %d turns", n, turns)
		}
	})
}

func conversation() *schema.Request {
	temperature := 0.2
	return &schema.Request{
		Model: "m-1", System: "Be kind.", Temperature: &temperature, MaxOutputTokens: 100, ThinkingBudget: 2000, JSONSchema: json.RawMessage(`{"type":"object"}`),
		Tools: []schema.ToolSpec{{Name: "orders.refund", Description: "Refunds.", Schema: json.RawMessage(`{"type":"object","properties":{"id":{"type":"string"}}}`)}, {Name: "builtin:kb.search"}},
		Messages: []schema.Message{
			{Role: schema.User, Text: "refund o-1"},
			{Role: schema.Assistant, Text: "I will. ", Thinking: []schema.Thinking{{Text: "hm", Signature: "sig"}, {Redacted: "xyz"}, {Text: "unsigned"}}, Calls: []schema.Call{{ID: "c1", Name: "orders.refund", Args: json.RawMessage(`{"id":"o-1"}`)}, {ID: "c2", Name: "builtin:kb.search", Args: json.RawMessage(`{}`)}}},
			{Role: schema.Tool, Results: []schema.CallResult{{CallID: "c1", Content: "done"}, {CallID: "c2", Content: `{"error":"X"}`, IsError: true}}},
			{Role: schema.User, Text: "and?"},
		},
	}
}

const wantOpenAI = `{"model":"m-1","messages":[{"role":"system","content":"Be kind."},{"role":"user","content":"refund o-1"},` +
	`{"role":"assistant","content":"I will. ","tool_calls":[{"id":"c1","type":"function","function":{"name":"orders_refund","arguments":"{\"id\":\"o-1\"}"}},{"id":"c2","type":"function","function":{"name":"builtin_kb_search","arguments":"{}"}}]},` +
	`{"role":"tool","content":"done","tool_call_id":"c1"},{"role":"tool","content":"{\"error\":\"X\"}","tool_call_id":"c2"},{"role":"user","content":"and?"}],` +
	`"tools":[{"type":"function","function":{"name":"orders_refund","description":"Refunds.","parameters":{"type":"object","properties":{"id":{"type":"string"}}}}},{"type":"function","function":{"name":"builtin_kb_search","parameters":{"type":"object","properties":{}}}}],` +
	`"temperature":0.2,"max_tokens":100,"response_format":{"type":"json_schema","json_schema":{"name":"output","schema":{"type":"object"}}},"stream":true,"stream_options":{"include_usage":true}}`

const wantAnthropic = `{"model":"m-1","max_tokens":2100,"system":"Be kind.\n\nYour final answer must be one JSON value and nothing else, without code fences, that satisfies this JSON Schema: {\"type\":\"object\"}",` +
	`"messages":[{"role":"user","content":[{"type":"text","text":"refund o-1"}]},{"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"sig"},{"type":"redacted_thinking","data":"xyz"},{"type":"text","text":"I will."},` +
	`{"type":"tool_use","id":"c1","name":"orders_refund","input":{"id":"o-1"}},{"type":"tool_use","id":"c2","name":"builtin_kb_search","input":{}}]},` +
	`{"role":"user","content":[{"type":"tool_result","tool_use_id":"c1","content":"done"},{"type":"tool_result","tool_use_id":"c2","content":"{\"error\":\"X\"}","is_error":true},{"type":"text","text":"and?"}]}],` +
	`"tools":[{"name":"orders_refund","description":"Refunds.","input_schema":{"type":"object","properties":{"id":{"type":"string"}}}},{"name":"builtin_kb_search","input_schema":{"type":"object","properties":{}}}],` +
	`"thinking":{"type":"enabled","budget_tokens":2000},"stream":true}`

func TestRequestsOnTheWire(t *testing.T) {
	protocols(t, func(t *testing.T, kind string) {
		r := newRig(t, fake.Reply{})
		if _, err := r.client(kind).Stream(context.Background(), conversation(), &heard{}); err != nil {
			t.Fatal(err)
		}
		got := r.Requests()[0]
		want, path, header, value := wantOpenAI, "/v1/chat/completions", "Authorization", "Bearer "+key
		if kind == Anthropic {
			want, path, header, value = wantAnthropic, "/v1/messages", "X-Api-Key", key
			if got.Header.Get("Anthropic-Version") != "2023-06-01" {
				t.Error("no version")
			}
		}
		if string(got.Body) != want {
			t.Errorf("got  %s\nwant %s", got.Body, want)
		}
		if got.Path != path || got.Header.Get(header) != value || got.Header.Get("Content-Type") != "application/json" || got.Header.Get("Idempotency-Key") != "" {
			t.Errorf("%s %v", got.Path, got.Header)
		}
	})
}

func TestThinkingIsGivenBack(t *testing.T) {
	r := newRig(t, fake.Reply{Thinking: []string{"I ", "see"}, Signature: "sig==", Redacted: "ENC", Text: []string{"ok"}, Calls: []fake.Call{{ID: "t1", Name: "a"}}}, fake.Reply{})
	q := ask("x", "a")
	q.ThinkingBudget = 1500
	res, err := r.client(Anthropic).Stream(context.Background(), q, &heard{})
	if err != nil {
		t.Fatal(err)
	}
	if want := []schema.Thinking{{Text: "I see", Signature: "sig=="}, {Redacted: "ENC"}}; !reflect.DeepEqual(res.Thinking, want) {
		t.Fatalf("%+v", res.Thinking)
	}
	q.Messages = append(q.Messages, res.Message(), schema.Message{Role: schema.Tool, Results: []schema.CallResult{{CallID: "t1", Content: "r"}}})
	if _, err := r.client(Anthropic).Stream(context.Background(), q, &heard{}); err != nil {
		t.Fatal(err)
	}
	body := string(r.Requests()[1].Body)
	if !strings.Contains(body, `[{"type":"thinking","thinking":"I see","signature":"sig=="},{"type":"redacted_thinking","data":"ENC"},{"type":"text","text":"ok"},{"type":"tool_use","id":"t1","name":"a","input":{}}]`) || !strings.Contains(body, `"budget_tokens":1500`) {
		t.Fatal(body)
	}
	t.Run("a turn begun without thinking goes on without", func(t *testing.T) {
		q.Messages[1].Thinking = nil
		if _, err := r.client(Anthropic).Stream(context.Background(), q, &heard{}); err != nil {
			t.Fatal(err)
		}
		if body := string(r.Requests()[2].Body); strings.Contains(body, "budget_tokens") {
			t.Fatal(body)
		}
	})
}

func TestAwkwardHistories(t *testing.T) {
	for _, c := range []struct {
		name string
		ms   []schema.Message
		want string // Anthropic's messages
	}{
		{"empty", nil, `[{"role":"user","content":[{"type":"text","text":"(Go on.)"}]}]`},
		{"blank", []schema.Message{{Role: schema.User, Text: "  "}}, `[{"role":"user","content":[{"type":"text","text":"(Go on.)"}]}]`},
		{"cut at the front", []schema.Message{{Role: schema.Tool, Results: []schema.CallResult{{CallID: "x"}}}, {Role: schema.Assistant, Text: "a"}, {Role: schema.User, Text: "b"}},
			`[{"role":"user","content":[{"type":"text","text":"(The beginning of the conversation is left out.)"}]},{"role":"assistant","content":[{"type":"text","text":"a"}]},{"role":"user","content":[{"type":"text","text":"b"}]}]`},
		{"a call answered by a human", []schema.Message{{Role: schema.User, Text: "a"}, {Role: schema.Assistant, Calls: []schema.Call{{ID: "c", Name: "t", Args: json.RawMessage("{}")}}}, {Role: schema.User, Text: "do not"}},
			`[{"role":"user","content":[{"type":"text","text":"a"}]},{"role":"assistant","content":[{"type":"tool_use","id":"c","name":"t","input":{}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"c","content":"{\"error\":\"NO_RESULT\",\"message\":\"The call was not carried out.\"}","is_error":true},{"type":"text","text":"do not"}]}]`},
		{"two messages in a row", []schema.Message{{Role: schema.User, Text: "a"}, {Role: schema.User, Text: "b"}}, `[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]`},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := newAnthropic(nil, Provider{})
			b, err := json.Marshal(a.messages(schema.Repair(c.ms), names{}))
			if err != nil || string(b) != c.want {
				t.Fatalf("got  %s\nwant %s", b, c.want)
			}
		})
	}
}

// A run without input has only instructions, or not even these: the provider gets a user's message all the same.
func TestARequestWithoutMessages(t *testing.T) {
	for _, system := range []string{"", "Sum up yesterday's tickets."} {
		for _, ms := range [][]schema.Message{nil, {{Role: schema.User}}} {
			body, e := newOpenAI(nil, Provider{}).encode(&schema.Request{Model: "m", System: system, Messages: ms}, names{})
			var got openAIRequest
			if e != nil || json.Unmarshal(body, &got) != nil || len(got.Messages) == 0 {
				t.Fatalf("%v %s", e, body)
			}
			if last := got.Messages[len(got.Messages)-1]; last.Role != "user" || *last.Content != "(Go on.)" || (len(got.Messages) == 2) != (system != "") {
				t.Errorf("%s", body)
			}
		}
	}
}

func TestProviders(t *testing.T) {
	g := egress.New(egress.Config{})
	r := NewRegistry(Config{Guard: g, OpenAI: Provider{APIKey: "k", BaseURL: "https://proxy.example/v1/"}})
	for _, c := range []struct {
		name string
		ok   bool
	}{{"simulated", true}, {"openai", true}, {"anthropic", true}, {"acme", false}, {"", false}} {
		if _, ok := r.Builtin(c.name); ok != c.ok {
			t.Errorf("%q: %v", c.name, ok)
		}
	}
	p, _ := r.Builtin("openai")
	if u := newOpenAI(nil, p); u.url != "https://proxy.example/v1/chat/completions" || u.ownLimit {
		t.Errorf("%+v", u)
	}
	if u := newOpenAI(nil, Provider{APIKey: "k"}); u.url != "https://api.openai.com/v1/chat/completions" || !u.ownLimit {
		t.Errorf("%+v", u)
	}
	if _, has := newOpenAI(nil, Provider{BaseURL: "http://x"}).header["Authorization"]; has {
		t.Error("a key was made up")
	}
	for base, want := range map[string]string{"": "https://api.anthropic.com/v1/messages", "https://a.example": "https://a.example/v1/messages", "https://a.example/v1/": "https://a.example/v1/messages"} {
		if u := newAnthropic(nil, Provider{BaseURL: base}); u.url != want {
			t.Errorf("%s: %s", base, u.url)
		}
	}
	for _, p := range []Provider{{Kind: "acme"}, {Kind: Anthropic}} {
		_, err := r.Client(p).Stream(context.Background(), ask("x"), &heard{})
		var e *schema.Error
		if !errors.As(err, &e) || e.Kind != schema.Refused {
			t.Errorf("%+v: %v", p, err)
		}
	}
	if b, _ := json.Marshal(struct{ K Secret }{key}); strings.Contains(string(b), key) {
		t.Errorf("%s", b)
	}
}

func TestRetryAfterAsADate(t *testing.T) {
	h := http.Header{"Retry-After": {"Wed, 21 Oct 2015 07:28:10 GMT"}, "Date": {"Wed, 21 Oct 2015 07:28:00 GMT"}}
	if d := retryAfter(h); d != 10*time.Second {
		t.Fatal(d)
	}
}
