// Package model holds what an agent run and a language model say to each other,
// in words of no provider: the conversation, the tools on offer, the answer, its
// cost and the ways to fail. Everything here is plain data and pure rules; who
// speaks to a provider is agentsvc/transport/model.
package model

import (
	"context"
	"encoding/json"
	"strings"
)

// Role says who speaks a message.
type Role string

// Values of Role.
const (
	User      Role = "user"
	Assistant Role = "assistant"
	Tool      Role = "tool" // the results of the calls of the assistant message before it
)

// Finish says why the model stopped.
type Finish string

// Values of Finish. What a provider says beyond these reads as FinishOther.
const (
	FinishStop   Finish = "stop"
	FinishCalls  Finish = "tool_calls"
	FinishLength Finish = "length"  // max_output_tokens or the context window
	FinishFilter Finish = "refusal" // the provider or the model declined to go on
	FinishOther  Finish = "other"
)

// Request is one turn asked of a model.
type Request struct {
	Model           string
	System          string
	Messages        []Message
	Tools           []ToolSpec
	Temperature     *float64
	MaxOutputTokens int             // 0: the provider's default
	ThinkingBudget  int             // tokens; 0: no thinking. For providers that take a budget
	JSONSchema      json.RawMessage // what the answer should satisfy; a hint, the answer may not
}

// ToolSpec is one tool on offer, by its qualified name.
type ToolSpec struct {
	Name        string
	Description string
	Schema      json.RawMessage // of the arguments, an object; empty: no arguments
}

// Message is one entry of the conversation. User and Assistant speak Text, an
// Assistant may think before and call tools after it, and Tool carries Results.
type Message struct {
	Role     Role         `json:"role"`
	Text     string       `json:"text,omitempty"`
	Thinking []Thinking   `json:"thinking,omitempty"`
	Calls    []Call       `json:"calls,omitempty"`
	Results  []CallResult `json:"results,omitempty"`
}

// Thinking is one block of a model's reasoning. Signature and Redacted are the
// provider's own: a block is given back unchanged, in its place before the calls.
type Thinking struct {
	Text      string `json:"text,omitempty"`
	Signature string `json:"signature,omitempty"`
	Redacted  string `json:"redacted,omitempty"` // an encrypted block, without Text
}

// Call is a model's wish to call a tool.
type Call struct {
	ID   string          `json:"id"`
	Name string          `json:"name"` // as in ToolSpec, or whatever else the model made up
	Args json.RawMessage `json:"args"` // always a JSON object
	// Malformed is what the model wrote where that was no JSON object; Args is {}
	// then and the call must be answered with an error, not run.
	Malformed string `json:"malformed,omitempty"`
}

// CallResult answers the Call with this id.
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
	// TokensIn and TokensOut are what the provider counted or, where it does not
	// say, EstimateTokens of what went each way; Estimated tells the two apart.
	TokensIn, TokensOut int64
	Estimated           bool
}

// Message is the turn as an entry of the conversation that goes on.
func (r *Result) Message() Message {
	return Message{Role: Assistant, Text: r.Text, Thinking: r.Thinking, Calls: r.Calls}
}

// ThinkingText is the readable reasoning of the turn.
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

// Sink hears a turn while it is spoken: in order of arrival, from one goroutine,
// never with "". All it hears is valid UTF-8 without U+0000, and together it is
// exactly the text and the thinking of the Result. A Sink that blocks slows the
// model down; it must not block for ever.
type Sink interface {
	Text(s string)
	Thinking(s string)
}

// Client asks one model provider. Stream returns a Result or an *Error, never
// both and never another error.
type Client interface {
	Stream(ctx context.Context, req *Request, sink Sink) (*Result, error)
}

// EstimateTokens is a rough count, four bytes a token, for where nobody counts.
func EstimateTokens(s string) int64 { return int64(len(s)+3) / 4 }

// EstimateInput is EstimateTokens over everything a request says.
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

// Price of a model, in US dollars for a million tokens.
type Price struct {
	InputPerMTok  float64 `json:"input_per_mtok"`
	OutputPerMTok float64 `json:"output_per_mtok"`
}

// Cost of a turn in US dollars.
func (p Price) Cost(in, out int64) float64 {
	return (float64(in)*p.InputPerMTok + float64(out)*p.OutputPerMTok) / 1e6
}
