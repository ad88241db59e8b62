package model

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	schema "agentsvc/schemas/model"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/redact"
	"agentsvc/transport/egress"
)

// upstream is one provider's endpoint.
type upstream struct {
	hc     *http.Client
	kind   string
	url    string
	key    Secret
	header http.Header
	rooms  *rooms // for turns that hold much; nil: without a bound
}

var readers = sync.Pool{New: func() any {
	return &sseReader{br: bufio.NewReaderSize(nil, 16<<10), data: make([]byte, 0, 4<<10)}
}}

// event adds the data of one event to the turn; done means that it was the last.
type event func(t *turn, data []byte) (done bool, err error)

// errorEvent is an error that a provider sends within its stream.
type errorEvent struct {
	status  int // the status it would have had as a response; 0: unknown
	message string
}

func (e *errorEvent) Error() string { return e.message }

// post sends body and returns a response with status 200, whose body the caller closes. asked is the caller's context: the
// turn is cancelled when it ends, and has failed when only ctx, the limit of this request, has ended.
func (u *upstream) post(ctx, asked context.Context, body []byte, t *turn) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, u.url, bytes.NewReader(body))
	if err != nil {
		return nil, &schema.Error{Kind: schema.Refused, Message: "the provider's base_url is no URL", BeforeFirstToken: true, Err: err}
	}
	for k, v := range u.header {
		r.Header[k] = v
	}
	resp, err := u.hc.Do(r)
	if err != nil {
		return nil, u.failed(asked, t, err)
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		return nil, u.refused(asked, resp)
	}
	resp.Header = nil // nothing reads it, and a turn may take long
	return resp, nil
}

// stream posts body and reads the whole response into t.
func (u *upstream) stream(ctx context.Context, body []byte, t *turn, on event) (*schema.Result, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	began := time.Now()
	t.onBegin = func() { firstToken.WithLabelValues(u.kind).Observe(time.Since(began).Seconds()) }
	resp, err := u.post(ctx, ctx, body, t)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	t.room = newRoom(ctx, u.rooms)
	defer func() { t.room.leave(t.begun) }()
	rd := readers.Get().(*sseReader)
	defer func() {
		rd.br.Reset(nil)
		rd.room = nil
		if cap(rd.data) <= 64<<10 && cap(rd.long) <= 64<<10 {
			readers.Put(rd)
		}
	}()
	rd.br.Reset(resp.Body)
	rd.begun, rd.room = false, t.room
	for {
		data, err := rd.next()
		if err == io.EOF && t.finish != "" {
			return t.result(), nil
		}
		var done bool
		if err == nil {
			done, err = on(t, data)
		}
		if err != nil {
			return nil, u.failed(ctx, t, err)
		}
		if done {
			drain(resp.Body, cancel)
			return t.result(), nil
		}
	}
}

// drain reads the few bytes between the last event and the end of the response, so that the
// connection can be reused. It gives up soon if they are late.
func drain(body io.Reader, cancel context.CancelFunc) {
	late := time.AfterFunc(100*time.Millisecond, cancel)
	defer late.Stop()
	_, _ = io.CopyN(io.Discard, body, 4<<10)
}

// failed returns the error for a request without a usable response.
func (u *upstream) failed(ctx context.Context, t *turn, err error) *schema.Error {
	e := &schema.Error{Kind: schema.Broken, BeforeFirstToken: !t.begun, Err: err}
	var said *errorEvent
	switch {
	case errors.As(err, &said):
		e.Message = u.show(said.message)
		e.Err = &errorEvent{said.status, e.Message} // the cause may be logged
		e.Status = said.status
		if t.begun || said.status == 0 {
			break
		}
		e.Kind = kindOf(said.status)
	case ctx.Err() != nil:
		e.Kind, e.Message, e.Err = schema.Cancelled, "the turn was cancelled", context.Cause(ctx)
	case errors.Is(err, egress.ErrSuspended): // not a failure of the provider, and not worth a retry before the lease is back
		e.Kind, e.Message = schema.Cancelled, "the turn was cancelled: this node is cut off and sends nothing"
	case errors.Is(err, egress.ErrRefused):
		e.Kind, e.Message = schema.Refused, "the outbound guard refuses the provider's address"
	case errors.Is(err, errMalformed), errors.Is(err, errAnswerTooLong), errors.Is(err, errLineTooLong), errors.Is(err, egress.ErrTooLarge):
		e.Message = "the provider's stream is malformed or too large"
	case err == io.EOF:
		e.Message = "the provider's stream ended without a finish"
	case t.begun:
		e.Message = "the provider's stream broke off"
	default:
		e.Kind, e.Message = schema.Unavailable, "no connection to the model provider"
	}
	return e
}

func kindOf(status int) schema.Kind {
	if status == http.StatusTooManyRequests || status >= 500 {
		return schema.Unavailable
	}
	return schema.Refused
}

// refused returns the error for a response that is not a stream.
func (u *upstream) refused(ctx context.Context, resp *http.Response) *schema.Error {
	e := &schema.Error{Kind: kindOf(resp.StatusCode), Status: resp.StatusCode, BeforeFirstToken: true}
	e.RetryAfter = retryAfter(resp.Header)
	b, err := io.ReadAll(io.LimitReader(resp.Body, 16<<10))
	if err != nil && (ctx.Err() != nil || errors.Is(err, egress.ErrSuspended)) {
		return u.failed(ctx, &turn{}, err)
	}
	e.Message = u.show(errorMessage(b))
	if e.Message == "" {
		e.Message = "the model provider answered " + strconv.Itoa(resp.StatusCode)
	}
	return e
}

// errorMessage finds the message in the formats that providers use.
func errorMessage(b []byte) string {
	if !json.Valid(b) {
		return string(b)
	}
	w := walk{b: b}
	if !w.object() {
		return ""
	}
	var found string
	for k, ok := w.key(); ok; k, ok = w.key() {
		switch string(k) {
		case "error":
			if w.peek() == '"' {
				found = string(w.str())
			} else if e := readError(&w); e.message != "" {
				found = e.message
			}
		case "message", "detail":
			if s := w.str(); found == "" {
				found = string(s)
			}
		default:
			w.skip()
		}
	}
	return found
}

// readError reads { type, code, message } at the walk's position; for an error event it
// derives the status from type and code.
func readError(w *walk) *errorEvent {
	e := &errorEvent{}
	if w.peek() == '"' {
		e.message = string(w.str())
		return e
	}
	if !w.object() {
		return e
	}
	for k, ok := w.key(); ok; k, ok = w.key() {
		switch string(k) {
		case "message":
			e.message = string(w.str())
		case "type", "code", "status":
			var status int
			if w.peek() == '"' {
				s := string(w.str())
				status, _ = strconv.Atoi(s)
				if named, ok := errorTypes[s]; ok {
					status = named
				}
			} else {
				status = int(w.int())
			}
			if status >= 400 && status < 600 {
				e.status = status
			}
		default:
			w.skip()
		}
	}
	return e
}

var errorTypes = map[string]int{
	"invalid_request_error": 400, "authentication_error": 401, "billing_error": 402, "permission_error": 403, "not_found_error": 404,
	"request_too_large": 413, "rate_limit_error": 429, "rate_limit_exceeded": 429, "insufficient_quota": 429,
	"api_error": 500, "server_error": 500, "timeout_error": 504, "overloaded_error": 529, "context_length_exceeded": 400,
}

const maxMessage = 500

// visible removes invalid UTF-8 and control characters other than white space.
func visible(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && !unicode.IsSpace(r) {
			return -1
		}
		return r
	}, schema.Clean(s))
}

// show makes a provider's message safe to show: it becomes one line without control
// characters; then the API key is removed, in any encoding; then it is cut short.
func (u *upstream) show(s string) string {
	line := strings.Join(strings.Fields(visible(s)), " ")
	return problem.ClipBytes(redact.NewKnown(string(u.key)).Text(line), maxMessage)
}

// retryAfter reads the header in seconds or as a date; a date is compared with the provider's
// own clock.
func retryAfter(h http.Header) time.Duration {
	v := strings.TrimSpace(h.Get("Retry-After"))
	if v == "" {
		return 0
	}
	if s, err := strconv.ParseFloat(v, 64); err == nil {
		if !(s > 0) {
			return 0
		}
		return time.Duration(min(s, 24*3600) * float64(time.Second))
	}
	at, err := http.ParseTime(v)
	if err != nil {
		return 0
	}
	now, err := http.ParseTime(h.Get("Date"))
	if err != nil {
		return 0
	}
	return max(0, min(at.Sub(now), 24*time.Hour))
}

// encode encodes a request body.
func encode(v any) ([]byte, *schema.Error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, &schema.Error{Kind: schema.Refused, Message: "the request cannot be encoded", BeforeFirstToken: true, Err: err}
	}
	return b, nil
}

var noArguments = json.RawMessage(`{"type":"object","properties":{}}`)

func schemaOf(t *schema.ToolSpec) json.RawMessage {
	if len(t.Schema) == 0 {
		return noArguments
	}
	return t.Schema
}
