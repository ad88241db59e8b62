package model

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"

	schema "agentsvc/schemas/model"
)

const (
	anthropicBase      = "https://api.anthropic.com"
	anthropicVersion   = "2023-06-01"
	anthropicMaxTokens = 4096 // the protocol has no default
	minThinkingBudget  = 1024 // the protocol's minimum
	maxBlocks          = 512  // per turn
)

// anthropic is a client of POST {base_url}/v1/messages, streamed.
type anthropic struct{ upstream }

func newAnthropic(hc *http.Client, p Provider) *anthropic {
	base := strings.TrimSuffix(strings.TrimRight(p.BaseURL, "/"), "/v1")
	if base == "" {
		base = anthropicBase
	}
	c := &anthropic{upstream{hc: hc, kind: Anthropic, url: base + "/v1/messages", key: p.APIKey, header: http.Header{
		"Content-Type":      {"application/json"},
		"Accept":            {"text/event-stream"},
		"Anthropic-Version": {anthropicVersion},
	}}}
	if p.APIKey != "" {
		c.header["X-Api-Key"] = []string{string(p.APIKey)}
	}
	return c
}

type anthropicRequest struct {
	Model       string             `json:"model"`
	MaxTokens   int                `json:"max_tokens"`
	System      string             `json:"system,omitempty"`
	Messages    []anthropicMessage `json:"messages"`
	Tools       []anthropicTool    `json:"tools,omitempty"`
	Temperature *float64           `json:"temperature,omitempty"`
	Thinking    *anthropicBudget   `json:"thinking,omitempty"`
	Stream      bool               `json:"stream"`
}

type anthropicBudget struct {
	Type         string `json:"type"`
	BudgetTokens int    `json:"budget_tokens"`
}

type anthropicTool struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	InputSchema json.RawMessage `json:"input_schema"`
}

type anthropicMessage struct {
	Role    string           `json:"role"`
	Content []anthropicBlock `json:"content"`
}

type anthropicBlock struct {
	Type      string          `json:"type"`
	Text      string          `json:"text,omitempty"`
	Thinking  *string         `json:"thinking,omitempty"`
	Signature string          `json:"signature,omitempty"`
	Data      string          `json:"data,omitempty"`
	ID        string          `json:"id,omitempty"`
	Name      string          `json:"name,omitempty"`
	Input     json.RawMessage `json:"input,omitempty"`
	ToolUseID string          `json:"tool_use_id,omitempty"`
	Content   string          `json:"content,omitempty"`
	IsError   bool            `json:"is_error,omitempty"`
}

func (c *anthropic) encode(req *schema.Request, n names) ([]byte, *schema.Error) {
	q := anthropicRequest{Model: req.Model, MaxTokens: req.MaxOutputTokens, System: req.System, Temperature: req.Temperature, Stream: true}
	if q.MaxTokens == 0 {
		q.MaxTokens = anthropicMaxTokens
	}
	ms := schema.Repair(req.Messages)
	if req.ThinkingBudget > 0 && mayThink(ms) {
		budget := max(req.ThinkingBudget, minThinkingBudget)
		if q.MaxTokens <= budget { // thinking counts as output: leave room for the reply
			q.MaxTokens += budget
		}
		q.Thinking = &anthropicBudget{"enabled", budget}
		q.Temperature = nil // not allowed together with thinking
	}
	if len(req.JSONSchema) > 0 {
		if q.System != "" {
			q.System += "\n\n"
		}
		q.System += "Your final answer must be one JSON value and nothing else, without code fences, that satisfies this JSON Schema: " + string(req.JSONSchema)
	}
	for i := range req.Tools {
		t := &req.Tools[i]
		q.Tools = append(q.Tools, anthropicTool{n.wire(t.Name), t.Description, schemaOf(t)})
	}
	q.Messages = c.messages(ms, n)
	return encode(&q)
}

// messages converts the history so that roles alternate and the user begins, as the protocol
// requires.
func (c *anthropic) messages(ms []schema.Message, n names) []anthropicMessage {
	out := make([]anthropicMessage, 0, len(ms)+1)
	add := func(role string, blocks ...anthropicBlock) {
		if k := len(out); k > 0 && out[k-1].Role == role {
			out[k-1].Content = append(out[k-1].Content, blocks...)
			return
		}
		if len(out) == 0 && role != "user" {
			out = append(out, anthropicMessage{"user", []anthropicBlock{{Type: "text", Text: "(The beginning of the conversation is left out.)"}}})
		}
		out = append(out, anthropicMessage{role, blocks})
	}
	for i := range ms {
		m := &ms[i]
		switch m.Role {
		case schema.Tool:
			for _, r := range m.Results {
				add("user", anthropicBlock{Type: "tool_result", ToolUseID: r.CallID, Content: r.Content, IsError: r.IsError})
			}
		case schema.Assistant:
			var blocks []anthropicBlock
			for k := range m.Thinking {
				switch t := &m.Thinking[k]; {
				case t.Redacted != "":
					blocks = append(blocks, anthropicBlock{Type: "redacted_thinking", Data: t.Redacted})
				case t.Signature != "":
					blocks = append(blocks, anthropicBlock{Type: "thinking", Thinking: &t.Text, Signature: t.Signature})
				}
			}
			if s := strings.TrimRight(m.Text, " \t\r\n"); s != "" { // trailing white space is refused
				blocks = append(blocks, anthropicBlock{Type: "text", Text: s})
			}
			for _, call := range m.Calls {
				blocks = append(blocks, anthropicBlock{Type: "tool_use", ID: call.ID, Name: n.wire(call.Name), Input: call.Args})
			}
			if len(blocks) > 0 {
				add("assistant", blocks...)
			}
		default:
			if strings.TrimSpace(m.Text) != "" { // a blank text is refused
				add("user", anthropicBlock{Type: "text", Text: m.Text})
			}
		}
	}
	if len(out) == 0 || out[len(out)-1].Role == "assistant" {
		out = append(out, anthropicMessage{"user", []anthropicBlock{{Type: "text", Text: goOn}}})
	}
	return out
}

// mayThink reports whether the current turn is new or began with thinking. The protocol
// refuses thinking in the middle of a turn whose calls came without it (from another model,
// or from before the manifest enabled it).
func mayThink(ms []schema.Message) bool {
	first := -1
	for i := len(ms) - 1; i >= 0 && ms[i].Role != schema.User; i-- {
		if ms[i].Role == schema.Assistant {
			first = i
		}
	}
	if first < 0 || len(ms[first].Calls) == 0 {
		return true
	}
	for _, t := range ms[first].Thinking {
		if t.Signature != "" || t.Redacted != "" {
			return true
		}
	}
	return false
}

// Stream implements schema.Client.
func (c *anthropic) Stream(ctx context.Context, req *schema.Request, sink schema.Sink) (*schema.Result, error) {
	t := &turn{sink: sink, req: req, names: newNames(req)}
	body, e := c.encode(req, t.names)
	if e != nil {
		return nil, e
	}
	blocks := anthropicBlocks{}
	return c.stream(ctx, body, t, blocks.event)
}

// anthropicBlocks holds the content blocks of a response.
type anthropicBlocks struct {
	list []blockState
}

type blockState struct {
	call   int    // number + 1 of a tool_use
	input  []byte // from the block's start; deltas take precedence
	deltas bool
}

// piece holds the fields of one event, whatever its type.
type piece struct {
	kind               []byte
	index              int64
	blockType          []byte
	text, thinking     []byte
	signature, partial []byte
	id, name, data     []byte
	input              []byte
	stop               []byte
	err                *errorEvent
}

func (a *anthropicBlocks) event(t *turn, data []byte) (done bool, err error) {
	if len(data) == 0 {
		return false, nil
	}
	if !json.Valid(data) {
		return false, errMalformed
	}
	w := &t.w
	w.reset(data)
	p := piece{}
	if !w.object() {
		return false, errMalformed
	}
	for k, ok := w.key(); ok; k, ok = w.key() {
		switch string(k) {
		case "type":
			p.kind = w.str()
		case "index":
			p.index = w.int()
		case "content_block", "delta":
			p.read(w)
		case "message":
			if w.object() {
				for k, ok := w.key(); ok; k, ok = w.key() {
					if string(k) == "usage" {
						t.usage(w)
					} else {
						w.skip()
					}
				}
			}
		case "usage":
			t.usage(w)
		case "error":
			p.err = readError(w)
		default:
			w.skip()
		}
	}
	switch string(p.kind) {
	case "content_block_start":
		return false, a.start(t, &p)
	case "content_block_delta":
		return false, a.delta(t, &p)
	case "content_block_stop":
		return false, a.stop(t, &p)
	case "message_delta":
		if len(p.stop) > 0 {
			t.finish = anthropicFinish(string(p.stop))
		}
	case "message_stop":
		if t.finish == "" {
			return false, &errorEvent{message: "the provider's stream ended without a finish"}
		}
		return true, nil
	case "error":
		if p.err == nil || p.err.message == "" {
			p.err = &errorEvent{message: "the provider reported an error"}
		}
		return false, p.err
	}
	return false, nil
}

// read reads the fields of a content_block or a delta.
func (p *piece) read(w *walk) {
	if !w.object() {
		return
	}
	for k, ok := w.key(); ok; k, ok = w.key() {
		switch string(k) {
		case "type":
			p.blockType = w.str()
		case "text":
			p.text = w.str()
		case "thinking":
			p.thinking = w.str()
		case "signature":
			p.signature = w.str()
		case "partial_json":
			p.partial = w.str()
		case "id":
			p.id = w.str()
		case "name":
			p.name = w.str()
		case "data":
			p.data = w.str()
		case "input":
			p.input = w.raw()
		case "stop_reason":
			p.stop = w.str()
		default:
			w.skip()
		}
	}
}

// usage reads the counts so far. Output is cumulative; tokens read from or written to the
// provider's cache count as input.
func (t *turn) usage(w *walk) {
	if !w.object() {
		return
	}
	var in int64
	for k, ok := w.key(); ok; k, ok = w.key() {
		switch string(k) {
		case "input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens":
			in = schema.BoundTokens(in + schema.BoundTokens(w.int()))
		case "output_tokens":
			t.out = max(t.out, schema.BoundTokens(w.int()))
			t.counted = true
		default:
			w.skip()
		}
	}
	t.in = max(t.in, in)
}

func (a *anthropicBlocks) start(t *turn, p *piece) error {
	if p.index != int64(len(a.list)) || len(a.list) == maxBlocks {
		return errMalformed
	}
	a.list = append(a.list, blockState{})
	b := &a.list[p.index]
	switch string(p.blockType) {
	case "text":
		return t.say(p.text)
	case "thinking":
		t.openThinking()
		t.blocks[len(t.blocks)-1].signature = append([]byte(nil), p.signature...)
		if n := len(p.signature); n > 0 {
			if err := t.begin(n); err != nil {
				return err
			}
		}
		return t.think(p.thinking)
	case "redacted_thinking":
		t.closeThinking()
		at := t.thought.b.Len()
		t.blocks = append(t.blocks, thinking{from: at, to: at, redacted: string(p.data)})
		return t.begin(len(p.data))
	case "tool_use":
		n, err := t.call(string(p.id), string(p.name))
		b.call = n + 1
		if s := string(p.input); err == nil && s != "{}" && s != "null" {
			b.input = []byte(s)
			err = t.begin(len(s))
		}
		return err
	}
	return nil
}

func (a *anthropicBlocks) delta(t *turn, p *piece) error {
	if p.index < 0 || p.index >= int64(len(a.list)) {
		return errMalformed
	}
	b := &a.list[p.index]
	switch string(p.blockType) {
	case "text_delta":
		return t.say(p.text)
	case "thinking_delta":
		return t.think(p.thinking)
	case "signature_delta":
		if n := len(t.blocks); n > 0 {
			t.blocks[n-1].signature = append(t.blocks[n-1].signature, p.signature...)
			return t.begin(len(p.signature))
		}
	case "input_json_delta":
		if b.call > 0 {
			b.deltas = b.deltas || len(p.partial) > 0
			return t.args(b.call-1, p.partial)
		}
	}
	return nil
}

func (a *anthropicBlocks) stop(t *turn, p *piece) error {
	if p.index < 0 || p.index >= int64(len(a.list)) {
		return errMalformed
	}
	t.closeThinking()
	if b := &a.list[p.index]; b.call > 0 && !b.deltas && len(b.input) > 0 {
		b.deltas = true
		t.calls[b.call-1].args.add(b.input) // counted when the block began
		b.input = nil
	}
	return nil
}

func anthropicFinish(s string) schema.Finish {
	switch s {
	case "end_turn", "stop_sequence":
		return schema.FinishStop
	case "tool_use":
		return schema.FinishCalls
	case "max_tokens", "model_context_window_exceeded":
		return schema.FinishLength
	case "refusal":
		return schema.FinishFilter
	}
	return schema.FinishOther
}
