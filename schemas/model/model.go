// Package model defines the exchange between an agent run and a language model, independent
// of a provider: the conversation, the offered tools, the answer, its cost and its errors.
// Everything here is plain data and pure rules; agentsvc/transport/model speaks to the
// providers.
package model

import (
	"context"
	"encoding/json"
	"strings"
)

// Role is the author of a message.
type Role string

// Values of Role.
const (
	User      Role = "user"
	Assistant Role = "assistant"
	Tool      Role = "tool" // the results of the calls of the assistant message before it
)

// Finish is why the model stopped.
type Finish string

// Values of Finish. Any other reason of a provider becomes FinishOther.
const (
	FinishStop   Finish = "stop"
	FinishCalls  Finish = "tool_calls"
	FinishLength Finish = "length"  // max_output_tokens or the context window
	FinishFilter Finish = "refusal" // the provider or the model refused to continue
	FinishOther  Finish = "other"
)

// Request is the input of one turn.
type Request struct {
	Model           string
	System          string
	Messages        []Message
	Tools           []ToolSpec
	Temperature     *float64
	MaxOutputTokens int             // 0: the provider's default
	ThinkingBudget  int             // in tokens, for providers with a budget; 0: no thinking
	JSONSchema      json.RawMessage // a hint: the answer may not satisfy it
}

// ToolSpec is one offered tool, by its qualified name.
type ToolSpec struct {
	Name        string
	Description string
	Schema      json.RawMessage // of the arguments, an object; empty: no arguments
}

// Message is one entry of the conversation. User and Assistant have Text; an Assistant may
// think before and call tools after it; Tool has Results.
type Message struct {
	Role     Role         `json:"role"`
	Text     string       `json:"text,omitempty"`
	Thinking []Thinking   `json:"thinking,omitempty"`
	Calls    []Call       `json:"calls,omitempty"`
	Results  []CallResult `json:"results,omitempty"`
	// Aside is set on a message of the role user that the service wrote, not the user. It makes
	// no difference to providers.
	Aside bool `json:"aside,omitempty"`
}

// Size returns the bytes that the message takes as JSON, without the names of its fields.
func (m *Message) Size() int {
	n := jsonSize(m.Text)
	for i := range m.Thinking {
		n += jsonSize(m.Thinking[i].Text) + len(m.Thinking[i].Signature) + len(m.Thinking[i].Redacted)
	}
	for i := range m.Calls {
		n += jsonSize(m.Calls[i].ID) + jsonSize(m.Calls[i].Name) + jsonSize(string(m.Calls[i].Args)) + jsonSize(m.Calls[i].Malformed)
	}
	for i := range m.Results {
		n += jsonSize(m.Results[i].CallID) + jsonSize(m.Results[i].Content)
	}
	return n
}

// jsonSize returns the bytes of a text as encoding/json writes it: a control character takes
// six, and so does each character that means something in HTML.
func jsonSize(s string) int {
	n := len(s)
	for _, c := range []byte(s) {
		switch {
		case c == '"', c == '\\', c == '\n', c == '\r', c == '\t', c == '\b', c == '\f':
			n++
		case c < 0x20, c == '<', c == '>', c == '&':
			n += 5
		}
	}
	return n
}

// Thinking is one block of a model's reasoning. Signature and Redacted are specific to the
// provider: a block is sent back unchanged, in its place before the calls.
type Thinking struct {
	Text      string `json:"text,omitempty"`
	Signature string `json:"signature,omitempty"`
	Redacted  string `json:"redacted,omitempty"` // an encrypted block, without Text
}

// Call is a model's request to call a tool.
type Call struct {
	ID   string          `json:"id"`
	Name string          `json:"name"` // as in ToolSpec, or any other name that the model made up
	Args json.RawMessage `json:"args"` // always a JSON object
	// Malformed is the model's text if it is not a JSON object, or nests too deep; then Args is {} and the call
	// must be answered with an error, not run.
	Malformed string `json:"malformed,omitempty"`
}

// CallResult is the result of the Call with this id.
type CallResult struct {
	CallID  string `json:"call_id"`
	Content string `json:"content"`
	IsError bool   `json:"is_error,omitempty"`
}

// Result is a finished turn.
type Result struct {
	Text     string
	Thinking []Thinking
	Calls    []Call
	Finish   Finish
	// TokensIn and TokensOut are the provider's counts or, if it reports none, estimates by
	// EstimateTokens; then Estimated is set.
	TokensIn, TokensOut int64
	Estimated           bool
}

// Message returns the turn as an entry of the conversation.
func (r *Result) Message() Message {
	return Message{Role: Assistant, Text: r.Text, Thinking: r.Thinking, Calls: r.Calls}
}

// ThinkingText returns the readable reasoning of the turn.
func (r *Result) ThinkingText() string {
	if len(r.Thinking) == 1 {
		return r.Thinking[0].Text
	}
	var b strings.Builder
	for _, t := range r.Thinking {
		b.WriteString(t.Text)
	}
	return b.String()
}

// Sink receives the output of a turn as it arrives: in order, from one goroutine, never "".
// It receives valid UTF-8 without U+0000, in total exactly the text and the thinking of the
// Result. A Sink that blocks slows the model down; it must not block forever.
type Sink interface {
	Text(s string)
	Thinking(s string)
}

// Client calls one model provider. Stream returns either a Result or an *Error, never another
// error.
type Client interface {
	Stream(ctx context.Context, req *Request, sink Sink) (*Result, error)
}

// EstimateTokens returns a rough count, four bytes a token, for providers that report none.
func EstimateTokens(s string) int64 { return int64(len(s)+3) / 4 }

// EstimateInput applies EstimateTokens to everything in a request.
func (r *Request) EstimateInput() int64 {
	n := EstimateTokens(r.System)
	for i := range r.Messages {
		m := &r.Messages[i]
		n += EstimateTokens(m.Text)
		for _, c := range m.Calls {
			n += int64(len(c.Name)+len(c.Args)+3) / 4
		}
		for _, res := range m.Results {
			n += EstimateTokens(res.Content)
		}
	}
	for _, t := range r.Tools {
		n += int64(len(t.Name)+len(t.Description)+len(t.Schema)+3) / 4
	}
	return n
}

// Price is the price of a model in US dollars per million tokens.
type Price struct {
	InputPerMTok  float64 `json:"input_per_mtok"`
	OutputPerMTok float64 `json:"output_per_mtok"`
}

// Bounds of what one turn counts. Counts come from servers of tenants, and prices from tenants:
// without a bound their sums would overflow for everybody.
const (
	MaxTurnTokens = 1_000_000_000
	maxTurnCost   = 1e10 // US dollars
)

// BoundTokens returns a count of tokens between 0 and MaxTurnTokens.
func BoundTokens(n int64) int64 { return min(max(n, 0), MaxTurnTokens) }

// Cost returns the cost of a turn in US dollars. It is finite.
func (p Price) Cost(in, out int64) float64 {
	return min((float64(in)*p.InputPerMTok+float64(out)*p.OutputPerMTok)/1e6, maxTurnCost)
}
