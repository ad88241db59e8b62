// Package fake is a model provider for tests. It serves the OpenAI chat completions and the
// Anthropic messages protocol over real HTTP on loopback, answers by a script, misbehaves in
// all the ways a provider can, and records the requests. The official client libraries
// understand it and its record of our clients (bench/sdkcheck), so that our clients are
// tested against the protocols and not against themselves.
package fake

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"agentsvc/schemas/pause"
)

// Ending is how an answer ends.
type Ending int

// Endings.
const (
	Whole      Ending = iota // complete
	Drop                     // the connection is closed in the middle
	Early                    // the stream ends in order, but without a finish
	Malformed                // an event is not JSON
	ErrorEvent               // the provider sends Message as an error and closes
	Silence                  // nothing more is sent until the client leaves
)

// Call is a tool call to make, its arguments cut into pieces.
type Call struct {
	ID, Name string
	Args     []string
}

// Reply is one response. The zero Reply is empty and complete.
type Reply struct {
	// Status other than 0 and 200 makes the response an error with Message.
	Status     int
	Message    string
	RetryAfter string
	ErrorType  string

	Thinking  []string // deltas
	Signature string   // signature of the thinking (Anthropic)
	Redacted  string   // a redacted thinking block (Anthropic)
	Text      []string // deltas
	Calls     []Call
	Finish    string // in the protocol's own words; "" chooses one that fits
	In, Out   int
	NoUsage   bool

	Delay  time.Duration // before each delta
	Ending Ending
	After  int // number of deltas before an Ending other than Whole
}

// Request is a request from a client.
type Request struct {
	Path   string
	Header http.Header
	Body   json.RawMessage
	Done   <-chan error // receives once why the response ended; nil unless the client left
}

// Server is a fake provider. Its zero value is not usable; see New.
type Server struct {
	http *http.Server
	url  string
	end  chan struct{}

	mu        sync.Mutex // guards the fields below
	answer    func(*Request) Reply
	queue     []Reply
	otherwise Reply
	requests  []*Request
	arrived   chan struct{} // closed and renewed at each request
}

// New starts a provider that gives the replies in order, one per request, and repeats the
// last one.
func New(replies ...Reply) (*Server, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &Server{url: "http://" + ln.Addr().String(), end: make(chan struct{}), arrived: make(chan struct{})}
	s.Script(replies...)
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, r *http.Request) { s.serve(w, r, &openAI{}) })
	mux.HandleFunc("POST /v1/messages", func(w http.ResponseWriter, r *http.Request) { s.serve(w, r, &anthropic{}) })
	s.http = &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		defer close(s.end)
		_ = s.http.Serve(ln)
	}()
	return s, nil
}

// OpenAI returns the base_url for the OpenAI protocol.
func (s *Server) OpenAI() string { return s.url + "/v1" }

// Anthropic returns the base_url for the Anthropic protocol.
func (s *Server) Anthropic() string { return s.url }

// Close stops the provider and cuts open responses.
func (s *Server) Close() {
	_ = s.http.Close()
	<-s.end
}

// Script replaces the remaining replies.
func (s *Server) Script(replies ...Reply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = append([]Reply(nil), replies...)
	s.otherwise = Reply{}
	if n := len(replies); n > 0 {
		s.otherwise = replies[n-1]
	}
}

// Answer makes f produce the reply to each request, instead of a script. f may be called
// concurrently.
func (s *Server) Answer(f func(*Request) Reply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = f
}

// Requests returns the requests so far.
func (s *Server) Requests() []*Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*Request(nil), s.requests...)
}

// Arrived returns a channel that is closed at the next request.
func (s *Server) Arrived() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.arrived
}

func (s *Server) take(r *Request) Reply {
	reply, answer := s.next(r)
	if answer != nil {
		return answer(r)
	}
	return reply
}

func (s *Server) next(r *Request) (Reply, func(*Request) Reply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, r)
	close(s.arrived)
	s.arrived = make(chan struct{})
	if len(s.queue) == 0 || s.answer != nil {
		return s.otherwise, s.answer
	}
	reply := s.queue[0]
	s.queue = s.queue[1:]
	return reply, nil
}

// protocol encodes replies. An item is one event's data.
type protocol interface {
	begin(w *stream)
	delta(w *stream, kind kind, n int, s string)
	end(w *stream, r *Reply)
	failure(w *stream, message, kind string)
	malformed(w *stream)
	body(message, kind string) any
}

type kind int

const (
	thinking kind = iota
	signature
	redacted
	text
	callStart
	callArgs
)

// stream writes events.
type stream struct {
	w      http.ResponseWriter
	model  string
	reply  *Reply
	usage  bool // requested, in the protocol that has such a request
	err    error
	buffer []byte
}

func (w *stream) event(name string, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		w.err = err
		return
	}
	w.write(name, string(b))
}

func (w *stream) write(name, data string) {
	b := w.buffer[:0]
	if name != "" {
		b = append(append(append(b, "event: "...), name...), '\n')
	}
	b = append(append(append(b, "data: "...), data...), "\n\n"...)
	w.buffer = b
	if _, err := w.w.Write(b); err != nil {
		w.err = err
	}
	_ = http.NewResponseController(w.w).Flush()
}

type item struct {
	kind kind
	n    int
	s    string
}

func items(r *Reply) []item {
	var list []item
	for _, s := range r.Thinking {
		list = append(list, item{thinking, 0, s})
	}
	if r.Signature != "" {
		list = append(list, item{signature, 0, r.Signature})
	}
	if r.Redacted != "" {
		list = append(list, item{redacted, 0, r.Redacted})
	}
	for _, s := range r.Text {
		list = append(list, item{text, 0, s})
	}
	for n, c := range r.Calls {
		list = append(list, item{callStart, n, ""})
		for _, s := range c.Args {
			list = append(list, item{callArgs, n, s})
		}
	}
	return list
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request, p protocol) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	done := make(chan error, 1)
	var why error
	defer func() { done <- why }()
	reply := s.take(&Request{Path: r.URL.Path, Header: r.Header.Clone(), Body: body, Done: done})
	if reply.Status != 0 && reply.Status != http.StatusOK {
		if reply.RetryAfter != "" {
			w.Header().Set("Retry-After", reply.RetryAfter)
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(reply.Status)
		_ = json.NewEncoder(w).Encode(p.body(reply.Message, reply.ErrorType))
		return
	}
	var asked struct {
		Model         string `json:"model"`
		StreamOptions struct {
			IncludeUsage bool `json:"include_usage"`
		} `json:"stream_options"`
	}
	if why = json.Unmarshal(body, &asked); why != nil {
		http.Error(w, why.Error(), http.StatusBadRequest)
		return
	}
	out := &stream{w: w, model: asked.Model, reply: &reply, usage: asked.StreamOptions.IncludeUsage}
	w.Header().Set("Content-Type", "text/event-stream")
	p.begin(out)
	list := items(&reply)
	for i, it := range list {
		if reply.Ending != Whole && i == reply.After {
			break
		}
		if reply.Delay > 0 {
			if !pause.For(r.Context(), reply.Delay) {
				why = r.Context().Err()
				return
			}
		}
		p.delta(out, it.kind, it.n, it.s)
		if why = out.err; why != nil {
			return
		}
	}
	switch reply.Ending {
	case Whole:
		p.end(out, &reply)
	case Drop:
		panic(http.ErrAbortHandler)
	case Malformed:
		p.malformed(out)
	case ErrorEvent:
		p.failure(out, reply.Message, reply.ErrorType)
	case Silence:
		<-r.Context().Done()
		why = r.Context().Err()
	case Early:
	}
	if why == nil {
		why = out.err
	}
}

type object = map[string]any

// openAI is the chat completions protocol.
type openAI struct{}

func (openAI) chunk(w *stream, delta object, finish any) {
	w.event("", object{"id": "chatcmpl-fake", "object": "chat.completion.chunk", "created": 1700000000, "model": w.model,
		"choices": []any{object{"index": 0, "delta": delta, "finish_reason": finish}}})
}

func (p openAI) begin(w *stream) { p.chunk(w, object{"role": "assistant", "content": ""}, nil) }

func (p openAI) delta(w *stream, k kind, n int, s string) {
	switch k {
	case thinking:
		p.chunk(w, object{"reasoning_content": s}, nil)
	case text:
		p.chunk(w, object{"content": s}, nil)
	case callStart:
		c := w.reply.Calls[n]
		p.chunk(w, object{"tool_calls": []any{object{"index": n, "id": c.ID, "type": "function", "function": object{"name": c.Name, "arguments": ""}}}}, nil)
	case callArgs:
		p.chunk(w, object{"tool_calls": []any{object{"index": n, "function": object{"arguments": s}}}}, nil)
	}
}

func (p openAI) end(w *stream, r *Reply) {
	finish := r.Finish
	if finish == "" {
		if finish = "stop"; len(r.Calls) > 0 {
			finish = "tool_calls"
		}
	}
	p.chunk(w, object{}, finish)
	if w.usage && !r.NoUsage {
		w.event("", object{"id": "chatcmpl-fake", "object": "chat.completion.chunk", "created": 1700000000, "model": w.model, "choices": []any{},
			"usage": object{"prompt_tokens": r.In, "completion_tokens": r.Out, "total_tokens": r.In + r.Out}})
	}
	w.write("", "[DONE]")
}

func (p openAI) failure(w *stream, message, kind string) { w.event("", p.body(message, kind)) }

func (openAI) malformed(w *stream) { w.write("", `{"choices":[{"delta":{"content":"x"`) }

func (openAI) body(message, kind string) any {
	return object{"error": object{"message": message, "type": kind, "param": nil, "code": nil}}
}

// anthropic is the messages protocol.
type anthropic struct {
	index int
	open  string // type of the open block
}

func (p *anthropic) begin(w *stream) {
	usage := object{"input_tokens": w.reply.In, "output_tokens": 1}
	if w.reply.NoUsage {
		usage = object{}
	}
	w.event("message_start", object{"type": "message_start", "message": object{"id": "msg_fake", "type": "message", "role": "assistant",
		"model": w.model, "content": []any{}, "stop_reason": nil, "stop_sequence": nil, "usage": usage}})
	w.event("ping", object{"type": "ping"})
}

func (p *anthropic) block(w *stream, kind string, start object) {
	p.stop(w)
	start["type"] = kind
	w.event("content_block_start", object{"type": "content_block_start", "index": p.index, "content_block": start})
	p.open = kind
}

func (p *anthropic) stop(w *stream) {
	if p.open == "" {
		return
	}
	w.event("content_block_stop", object{"type": "content_block_stop", "index": p.index})
	p.index++
	p.open = ""
}

func (p *anthropic) deltaOf(w *stream, kind, field, s string) {
	w.event("content_block_delta", object{"type": "content_block_delta", "index": p.index, "delta": object{"type": kind, field: s}})
}

func (p *anthropic) delta(w *stream, k kind, n int, s string) {
	switch k {
	case thinking, signature:
		if p.open != "thinking" {
			p.block(w, "thinking", object{"thinking": "", "signature": ""})
		}
		if k == signature {
			p.deltaOf(w, "signature_delta", "signature", s)
			return
		}
		p.deltaOf(w, "thinking_delta", "thinking", s)
	case redacted:
		p.block(w, "redacted_thinking", object{"data": s})
	case text:
		if p.open != "text" {
			p.block(w, "text", object{"text": ""})
		}
		p.deltaOf(w, "text_delta", "text", s)
	case callStart:
		c := w.reply.Calls[n]
		p.block(w, "tool_use", object{"id": c.ID, "name": c.Name, "input": object{}})
	case callArgs:
		p.deltaOf(w, "input_json_delta", "partial_json", s)
	}
}

func (p *anthropic) end(w *stream, r *Reply) {
	p.stop(w)
	finish := r.Finish
	if finish == "" {
		if finish = "end_turn"; len(r.Calls) > 0 {
			finish = "tool_use"
		}
	}
	usage := object{"output_tokens": r.Out}
	if r.NoUsage {
		usage = object{}
	}
	w.event("message_delta", object{"type": "message_delta", "delta": object{"stop_reason": finish, "stop_sequence": nil}, "usage": usage})
	w.event("message_stop", object{"type": "message_stop"})
}

func (p *anthropic) failure(w *stream, message, kind string) {
	w.event("error", p.body(message, kind))
}

func (*anthropic) malformed(w *stream) {
	w.write("content_block_delta", `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta"`)
}

func (*anthropic) body(message, kind string) any {
	return object{"type": "error", "error": object{"type": kind, "message": message}}
}
