package model

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"

	schema "agentsvc/schemas/model"
)

const openAIBase = "https://api.openai.com/v1"

// openAI is a client of POST {base_url}/chat/completions, streamed.
type openAI struct {
	upstream
	ownLimit bool // api.openai.com itself, which requires max_completion_tokens
}

func newOpenAI(hc *http.Client, p Provider) *openAI {
	base := strings.TrimRight(p.BaseURL, "/")
	if base == "" {
		base = openAIBase
	}
	c := &openAI{upstream: upstream{hc: hc, kind: OpenAI, url: base + "/chat/completions", key: p.APIKey, header: http.Header{
		"Content-Type": {"application/json"},
		"Accept":       {"text/event-stream"},
	}}}
	if p.APIKey != "" {
		c.header["Authorization"] = []string{"Bearer " + string(p.APIKey)}
	}
	u, err := url.Parse(base)
	c.ownLimit = err == nil && u.Hostname() == "api.openai.com"
	return c
}

type openAIRequest struct {
	Model               string          `json:"model"`
	Messages            []openAIMessage `json:"messages"`
	Tools               []openAITool    `json:"tools,omitempty"`
	Temperature         *float64        `json:"temperature,omitempty"`
	MaxTokens           int             `json:"max_tokens,omitempty"`
	MaxCompletionTokens int             `json:"max_completion_tokens,omitempty"`
	ResponseFormat      *openAIFormat   `json:"response_format,omitempty"`
	Stream              bool            `json:"stream"`
	StreamOptions       struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
}

type openAIFormat struct {
	Type       string `json:"type"`
	JSONSchema struct {
		Name   string          `json:"name"`
		Schema json.RawMessage `json:"schema"`
	} `json:"json_schema"`
}

type openAIMessage struct {
	Role       string       `json:"role"`
	Content    *string      `json:"content"`
	ToolCalls  []openAICall `json:"tool_calls,omitempty"`
	ToolCallID string       `json:"tool_call_id,omitempty"`
}

type openAICall struct {
	ID       string `json:"id"`
	Type     string `json:"type"`
	Function struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	} `json:"function"`
}

type openAITool struct {
	Type     string         `json:"type"`
	Function openAIFunction `json:"function"`
}

type openAIFunction struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Parameters  json.RawMessage `json:"parameters"`
}

func (c *openAI) encode(req *schema.Request, n names) ([]byte, *schema.Error) {
	q := openAIRequest{Model: req.Model, Temperature: req.Temperature, Stream: true}
	q.StreamOptions.IncludeUsage = true
	if c.ownLimit {
		q.MaxCompletionTokens = req.MaxOutputTokens
	} else {
		q.MaxTokens = req.MaxOutputTokens
	}
	if len(req.JSONSchema) > 0 {
		q.ResponseFormat = &openAIFormat{Type: "json_schema"}
		q.ResponseFormat.JSONSchema.Name = "output"
		q.ResponseFormat.JSONSchema.Schema = req.JSONSchema
	}
	if len(req.Tools) > 0 {
		q.Tools = make([]openAITool, len(req.Tools))
		for i := range req.Tools {
			t := &req.Tools[i]
			q.Tools[i] = openAITool{Type: "function", Function: openAIFunction{n.wire(t.Name), t.Description, schemaOf(t)}}
		}
	}
	q.Messages = make([]openAIMessage, 0, len(req.Messages)+1)
	if req.System != "" {
		q.Messages = append(q.Messages, openAIMessage{Role: "system", Content: &req.System})
	}
	ms := schema.Repair(req.Messages)
	for i := range ms {
		m := &ms[i]
		switch m.Role {
		case schema.Tool:
			for k := range m.Results {
				q.Messages = append(q.Messages, openAIMessage{Role: "tool", Content: &m.Results[k].Content, ToolCallID: m.Results[k].CallID})
			}
		case schema.Assistant:
			o := openAIMessage{Role: "assistant"}
			if m.Text != "" {
				o.Content = &m.Text
			}
			for _, call := range m.Calls {
				oc := openAICall{ID: call.ID, Type: "function"}
				oc.Function.Name, oc.Function.Arguments = n.wire(call.Name), string(call.Args)
				o.ToolCalls = append(o.ToolCalls, oc)
			}
			q.Messages = append(q.Messages, o)
		default:
			q.Messages = append(q.Messages, openAIMessage{Role: "user", Content: &m.Text})
		}
	}
	if len(ms) == 0 { // a run without input: servers require a message beside the instructions
		text := goOn
		q.Messages = append(q.Messages, openAIMessage{Role: "user", Content: &text})
	}
	return encode(&q)
}

// Stream implements schema.Client.
func (c *openAI) Stream(ctx context.Context, req *schema.Request, sink schema.Sink) (*schema.Result, error) {
	t := &turn{sink: sink, req: req, names: newNames(req)}
	body, e := c.encode(req, t.names)
	if e != nil {
		return nil, e
	}
	at := openAIIndex{}
	return c.stream(ctx, body, t, at.event)
}

// openAIIndex maps the index of a tool_calls entry to the turn's call.
type openAIIndex struct {
	call [maxCalls]int16 // number + 1
}

func (x *openAIIndex) event(t *turn, data []byte) (done bool, err error) {
	if string(data) == "[DONE]" {
		if t.finish == "" {
			return false, &errorEvent{message: "the provider's stream ended without a finish"}
		}
		return true, nil
	}
	if len(data) == 0 {
		return false, nil
	}
	if !json.Valid(data) {
		return false, errMalformed
	}
	w := &t.w
	w.reset(data)
	if !w.object() {
		return false, errMalformed
	}
	for k, ok := w.key(); ok; k, ok = w.key() {
		switch string(k) {
		case "choices":
			if w.array() {
				for w.elem() {
					if err := x.choice(t, w); err != nil {
						return false, err
					}
				}
			}
		case "usage":
			if w.object() {
				t.counted = true
				for k, ok := w.key(); ok; k, ok = w.key() {
					switch string(k) {
					case "prompt_tokens":
						t.in = schema.BoundTokens(w.int())
					case "completion_tokens":
						t.out = schema.BoundTokens(w.int())
					default:
						w.skip()
					}
				}
			}
		case "error":
			if w.peek() == 'n' {
				w.skip()
				continue
			}
			e := readError(w)
			if e.message == "" {
				e.message = "the provider reported an error"
			}
			return false, e
		default:
			w.skip()
		}
	}
	return false, nil
}

func (x *openAIIndex) choice(t *turn, w *walk) error {
	if !w.object() {
		return nil
	}
	for k, ok := w.key(); ok; k, ok = w.key() {
		switch string(k) {
		case "delta":
			if err := x.delta(t, w); err != nil {
				return err
			}
		case "finish_reason":
			if s := w.str(); len(s) > 0 {
				t.finish = openAIFinish(string(s))
			}
		case "index":
			if w.int() != 0 { // only one choice was requested
				for _, ok := w.key(); ok; _, ok = w.key() {
					w.skip()
				}
				return nil
			}
		default:
			w.skip()
		}
	}
	return nil
}

func openAIFinish(s string) schema.Finish {
	switch s {
	case "stop", "eos":
		return schema.FinishStop
	case "tool_calls", "function_call":
		return schema.FinishCalls
	case "length":
		return schema.FinishLength
	case "content_filter":
		return schema.FinishFilter
	}
	return schema.FinishOther
}

func (x *openAIIndex) delta(t *turn, w *walk) error {
	if !w.object() {
		return nil
	}
	thought := false // some servers send the same text under both names
	for k, ok := w.key(); ok; k, ok = w.key() {
		var err error
		switch string(k) {
		case "content", "refusal":
			err = t.say(w.str())
		case "reasoning_content", "reasoning":
			if p := w.str(); len(p) > 0 && !thought {
				thought = true
				err = t.think(p)
			}
		case "tool_calls":
			if w.array() {
				for err == nil && w.elem() {
					err = x.toolCall(t, w)
				}
			}
		default:
			w.skip()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// toolCall adds a piece of a call. The first piece has id and name, the others only the
// index. Some servers number all calls 0: there a new id starts a new call.
func (x *openAIIndex) toolCall(t *turn, w *walk) error {
	if !w.object() {
		return nil
	}
	var index int64
	var id, name, args []byte
	for k, ok := w.key(); ok; k, ok = w.key() {
		switch string(k) {
		case "index":
			index = w.int()
		case "id":
			id = w.str()
		case "function":
			if !w.object() {
				continue
			}
			for k, ok := w.key(); ok; k, ok = w.key() {
				switch {
				case string(k) == "name":
					name = w.str()
				case string(k) == "arguments" && w.peek() == '{': // some servers send the object itself
					args = w.raw()
				case string(k) == "arguments":
					args = w.str()
				default:
					w.skip()
				}
			}
		default:
			w.skip()
		}
	}
	if index < 0 || index >= maxCalls {
		return errAnswerTooLong
	}
	n := int(x.call[index]) - 1
	if n < 0 || len(id) > 0 && t.calls[n].id != "" && t.calls[n].id != string(id) {
		var err error
		if n, err = t.call(string(id), string(name)); err != nil {
			return err
		}
		x.call[index] = int16(n + 1)
	} else {
		if t.calls[n].id == "" && len(id) > 0 {
			t.calls[n].id = string(id)
		}
		if t.calls[n].name == "" && len(name) > 0 {
			t.calls[n].name = string(name)
		}
	}
	return t.args(n, args)
}
