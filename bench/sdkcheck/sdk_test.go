package sdkcheck

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	anthropicsdk "github.com/anthropics/anthropic-sdk-go"
	anthropicoption "github.com/anthropics/anthropic-sdk-go/option"
	openaisdk "github.com/openai/openai-go/v3"
	openaioption "github.com/openai/openai-go/v3/option"

	schema "agentsvc/schemas/model"
	"agentsvc/transport/egress"
	"agentsvc/transport/model"
	"agentsvc/transport/model/fake"
)

func provider(t *testing.T, replies ...fake.Reply) *fake.Server {
	t.Helper()
	s, err := fake.New(replies...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func openAI(s *fake.Server) openaisdk.Client {
	return openaisdk.NewClient(openaioption.WithBaseURL(s.OpenAI()), openaioption.WithAPIKey("k"), openaioption.WithMaxRetries(0))
}

func anthropic(s *fake.Server) anthropicsdk.Client {
	return anthropicsdk.NewClient(anthropicoption.WithBaseURL(s.Anthropic()), anthropicoption.WithAPIKey("k"), anthropicoption.WithMaxRetries(0))
}

var full = fake.Reply{
	Thinking: []string{"let ", "me see"}, Signature: "sig==", Redacted: "ENC",
	Text:  []string{"Hel", "lo ", "wörld 😀"},
	Calls: []fake.Call{{ID: "c1", Name: "orders_refund", Args: []string{`{"id":`, `"o-1"}`}}, {ID: "c2", Name: "kb_search", Args: []string{`{"q":"x"}`}}},
	In:    12, Out: 34,
}

// client is one of ours, on the fake provider.
func client(t *testing.T, s *fake.Server, kind string) schema.Client {
	t.Helper()
	r := model.NewRegistry(model.Config{Guard: egress.New(egress.Config{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})})
	t.Cleanup(r.Close)
	p := model.Provider{Kind: kind, BaseURL: s.OpenAI(), APIKey: "k"}
	if kind == model.Anthropic {
		p.BaseURL = s.Anthropic()
	}
	return r.Client(p)
}

type deaf struct{}

func (deaf) Text(string)     {}
func (deaf) Thinking(string) {}

func ours(t *testing.T, s *fake.Server, kind string, q *schema.Request) *schema.Result {
	t.Helper()
	res, err := client(t, s, kind).Stream(context.Background(), q, deaf{})
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func question() *schema.Request {
	return &schema.Request{Model: "m-1", Messages: []schema.Message{{Role: schema.User, Text: "hi"}}, Tools: []schema.ToolSpec{{Name: "orders.refund"}, {Name: "kb_search"}}}
}

// conversation has everything that a request of ours can have.
func conversation() *schema.Request {
	temperature := 0.25
	return &schema.Request{
		Model: "m-1", System: "Be kind.", Temperature: &temperature, MaxOutputTokens: 3000, JSONSchema: json.RawMessage(`{"type":"object","properties":{"a":{"type":"string"}}}`),
		Tools: []schema.ToolSpec{{Name: "orders.refund", Description: "Refunds.", Schema: json.RawMessage(`{"type":"object","properties":{"id":{"type":"string"}},"required":["id"]}`)}, {Name: "builtin:kb.search"}},
		Messages: []schema.Message{
			{Role: schema.User, Text: "refund o-1"},
			{Role: schema.Assistant, Text: "I will.", Thinking: []schema.Thinking{{Text: "hm", Signature: "sig"}, {Redacted: "xyz"}}, Calls: []schema.Call{{ID: "c1", Name: "orders.refund", Args: json.RawMessage(`{"id":"o-1"}`)}, {ID: "c2", Name: "builtin:kb.search", Args: json.RawMessage(`{}`)}}},
			{Role: schema.Tool, Results: []schema.CallResult{{CallID: "c1", Content: "done"}, {CallID: "c2", Content: "no", IsError: true}}},
			{Role: schema.Assistant, Calls: []schema.Call{{ID: "c3", Name: "builtin:kb.search", Args: json.RawMessage(`{"q":"x"}`)}}},
			{Role: schema.User, Text: "never mind"},
			{Role: schema.Assistant, Text: "Fine."},
			{Role: schema.User, Text: "and now?"},
		},
	}
}

func same(t *testing.T, what string, a, b []byte) {
	t.Helper()
	var x, y any
	if err := errors.Join(json.Unmarshal(a, &x), json.Unmarshal(b, &y)); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(x, y) {
		t.Fatalf("%s:\n%s\n%s", what, a, b)
	}
}

// TestOpenAIReadsOurFake: the official library hears from the fake what our
// client hears.
func TestOpenAIReadsOurFake(t *testing.T) {
	s := provider(t, full)
	c := openAI(s)
	stream := c.Chat.Completions.NewStreaming(context.Background(), openaisdk.ChatCompletionNewParams{
		Model: "m-1", Messages: []openaisdk.ChatCompletionMessageParamUnion{openaisdk.UserMessage("hi")},
		StreamOptions: openaisdk.ChatCompletionStreamOptionsParam{IncludeUsage: openaisdk.Bool(true)},
	})
	acc := openaisdk.ChatCompletionAccumulator{}
	for stream.Next() {
		if !acc.AddChunk(stream.Current()) {
			t.Fatal("a chunk does not fit")
		}
	}
	if err := stream.Err(); err != nil {
		t.Fatal(err)
	}
	mine := ours(t, s, model.OpenAI, question())
	m := acc.Choices[0].Message
	if m.Content != mine.Text || mine.Text != "Hello wörld 😀" || acc.Choices[0].FinishReason != "tool_calls" || mine.Finish != schema.FinishCalls {
		t.Fatalf("%q %q %s", m.Content, mine.Text, acc.Choices[0].FinishReason)
	}
	if acc.Usage.PromptTokens != mine.TokensIn || acc.Usage.CompletionTokens != mine.TokensOut || mine.TokensIn != 12 || mine.Estimated {
		t.Fatalf("%+v %+v", acc.Usage, mine)
	}
	if len(m.ToolCalls) != 2 || len(mine.Calls) != 2 {
		t.Fatalf("%+v %+v", m.ToolCalls, mine.Calls)
	}
	for i, k := range m.ToolCalls {
		if k.ID != mine.Calls[i].ID || k.Function.Name != strings.ReplaceAll(mine.Calls[i].Name, ".", "_") || k.Function.Arguments != string(mine.Calls[i].Args) {
			t.Fatalf("%+v %+v", k, mine.Calls[i])
		}
	}
}

// TestAnthropicReadsOurFake is the same for the other protocol.
func TestAnthropicReadsOurFake(t *testing.T) {
	s := provider(t, full)
	c := anthropic(s)
	stream := c.Messages.NewStreaming(context.Background(), anthropicsdk.MessageNewParams{
		Model: "m-1", MaxTokens: 100, Messages: []anthropicsdk.MessageParam{anthropicsdk.NewUserMessage(anthropicsdk.NewTextBlock("hi"))},
	})
	acc := anthropicsdk.Message{}
	for stream.Next() {
		if err := acc.Accumulate(stream.Current()); err != nil {
			t.Fatal(err)
		}
	}
	if err := stream.Err(); err != nil {
		t.Fatal(err)
	}
	mine := ours(t, s, model.Anthropic, question())
	got := schema.Result{Finish: schema.FinishCalls, TokensIn: acc.Usage.InputTokens, TokensOut: acc.Usage.OutputTokens}
	for _, b := range acc.Content {
		switch b.Type {
		case "text":
			got.Text += b.Text
		case "thinking":
			got.Thinking = append(got.Thinking, schema.Thinking{Text: b.Thinking, Signature: b.Signature})
		case "redacted_thinking":
			got.Thinking = append(got.Thinking, schema.Thinking{Redacted: b.Data})
		case "tool_use":
			got.Calls = append(got.Calls, schema.NewCall(b.ID, strings.ReplaceAll(b.Name, "orders_", "orders."), string(b.Input)))
		}
	}
	if acc.StopReason != "tool_use" || !reflect.DeepEqual(&got, mine) || mine.TokensOut != 34 {
		t.Fatalf("%+v\n%+v", got, *mine)
	}
}

// TestFailuresReadBySDK: what the fake calls a failure is one to the official
// libraries too.
func TestFailuresReadBySDK(t *testing.T) {
	for _, c := range []struct {
		name   string
		reply  fake.Reply
		status int // 0: some error in the stream
	}{
		{"429", fake.Reply{Status: 429, RetryAfter: "1", Message: "slow down", ErrorType: "rate_limit_error"}, 429},
		{"500", fake.Reply{Status: 500, ErrorType: "api_error"}, 500},
		{"400", fake.Reply{Status: 400, Message: "bad", ErrorType: "invalid_request_error"}, 400},
		{"drop", fake.Reply{Text: []string{"a", "b"}, Ending: fake.Drop, After: 1}, 0},
		{"no JSON", fake.Reply{Text: []string{"a"}, Ending: fake.Malformed, After: 1}, 0},
		{"an error event", fake.Reply{Text: []string{"a"}, Ending: fake.ErrorEvent, After: 1, Message: "Overloaded", ErrorType: "overloaded_error"}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := provider(t, c.reply)
			oc, ac := openAI(s), anthropic(s)
			o := oc.Chat.Completions.NewStreaming(context.Background(), openaisdk.ChatCompletionNewParams{Model: "m", Messages: []openaisdk.ChatCompletionMessageParamUnion{openaisdk.UserMessage("hi")}})
			for o.Next() {
			}
			var oe *openaisdk.Error
			if err := o.Err(); err == nil || c.status != 0 && (!errors.As(err, &oe) || oe.StatusCode != c.status || oe.Message != c.reply.Message) {
				t.Errorf("openai: %v", err)
			}
			a := ac.Messages.NewStreaming(context.Background(), anthropicsdk.MessageNewParams{Model: "m", MaxTokens: 1, Messages: []anthropicsdk.MessageParam{anthropicsdk.NewUserMessage(anthropicsdk.NewTextBlock("hi"))}})
			for a.Next() {
			}
			var ae *anthropicsdk.Error
			if err := a.Err(); err == nil || c.status != 0 && (!errors.As(err, &ae) || ae.StatusCode != c.status) {
				t.Errorf("anthropic: %v", err)
			}
		})
	}
}

// TestOpenAIAcceptsWhatWeSend: the official types know every field that we send,
// and the official library puts the same bytes on the wire.
func TestOpenAIAcceptsWhatWeSend(t *testing.T) {
	s := provider(t, fake.Reply{})
	ours(t, s, model.OpenAI, conversation())
	body := s.Requests()[0].Body
	var p openaisdk.ChatCompletionNewParams
	if err := json.Unmarshal(body, &p); err != nil {
		t.Fatal(err)
	}
	if len(p.Messages) != 10 || p.Messages[2].OfAssistant == nil || len(p.Messages[2].OfAssistant.ToolCalls) != 2 || p.Messages[3].OfTool == nil || len(p.Tools) != 2 || p.Tools[0].OfFunction == nil || p.ResponseFormat.OfJSONSchema == nil || !p.StreamOptions.IncludeUsage.Value {
		t.Fatalf("%d messages: %s", len(p.Messages), body)
	}
	c := openAI(s)
	stream := c.Chat.Completions.NewStreaming(context.Background(), p)
	for stream.Next() {
	}
	if err := stream.Err(); err != nil {
		t.Fatal(err)
	}
	theirs := s.Requests()[1]
	// Their assistant message leaves out the null content that ours names.
	same(t, "request", []byte(strings.ReplaceAll(string(body), `"content":null,`, "")), theirs.Body)
	if mine := s.Requests()[0]; mine.Path != theirs.Path || mine.Header.Get("Authorization") != theirs.Header.Get("Authorization") || mine.Header.Get("Content-Type") != theirs.Header.Get("Content-Type") {
		t.Fatalf("%v\n%v", mine.Header, theirs.Header)
	}
}

// TestAnthropicAcceptsWhatWeSend is the same for the other protocol.
func TestAnthropicAcceptsWhatWeSend(t *testing.T) {
	for _, budget := range []int{0, 2000} {
		s := provider(t, fake.Reply{})
		q := conversation()
		q.ThinkingBudget = budget
		ours(t, s, model.Anthropic, q)
		body := s.Requests()[0].Body
		var p anthropicsdk.MessageNewParams
		if err := json.Unmarshal(body, &p); err != nil {
			t.Fatal(err)
		}
		if len(p.Messages) != 7 || len(p.Tools) != 2 || p.Tools[0].OfTool == nil || p.Messages[1].Content[0].OfThinking == nil || p.Messages[2].Content[1].OfToolResult == nil || (p.Thinking.OfEnabled != nil) != (budget > 0) {
			t.Fatalf("%d messages: %s", len(p.Messages), body)
		}
		c := anthropic(s)
		stream := c.Messages.NewStreaming(context.Background(), p)
		for stream.Next() {
		}
		if err := stream.Err(); err != nil {
			t.Fatal(err)
		}
		theirs := s.Requests()[1]
		same(t, "request", normal(t, body), normal(t, theirs.Body))
		if mine := s.Requests()[0]; mine.Path != theirs.Path || mine.Header.Get("X-Api-Key") != theirs.Header.Get("X-Api-Key") || mine.Header.Get("Anthropic-Version") != theirs.Header.Get("Anthropic-Version") {
			t.Fatalf("%v\n%v", mine.Header, theirs.Header)
		}
	}
}

// normal writes the short forms that the protocol allows (a plain string for one
// block of text) in the long form that the library sends.
func normal(t *testing.T, body []byte) []byte {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal(body, &m); err != nil {
		t.Fatal(err)
	}
	long := func(v any) any {
		if s, ok := v.(string); ok {
			return []any{map[string]any{"type": "text", "text": s}}
		}
		return v
	}
	if s, ok := m["system"]; ok {
		m["system"] = long(s)
	}
	for _, x := range m["messages"].([]any) {
		for _, b := range x.(map[string]any)["content"].([]any) {
			if block := b.(map[string]any); block["type"] == "tool_result" {
				block["content"] = long(block["content"])
			}
		}
	}
	b, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
