package edge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime/debug"
	"strconv"
	"time"
	"unsafe"

	"github.com/valyala/fasthttp"

	"agentsvc/schemas/problem"
)

// request is one request in progress. It returns to a pool afterwards.
type request struct {
	srv    *Server
	fc     *fasthttp.RequestCtx
	ep     *endpoint
	head   head
	method string
	path   []byte
	query  []byte
	caller *Caller
	creds  Credentials // that the caller was authenticated with
	ctx    context.Context
	id     string
	again  func() error // called before a kept response is replayed; may be nil
	body   []byte
	buf    []byte // pooled; body points into it
	held   int64  // bytes that its body counts for, to heldBy
	heldBy account
	cause  error
	denied bool // the response refuses the caller's origin

	began   bool // the body was read from the stream
	drained bool // and to its end
	stolen  bool // the connection now belongs to a stream

	mark uint64 // for a stream: the Mark from before authentication
}

// strict refuses everything but plain HTTP/1 requests.
func (rq *request) strict(hdr *fasthttp.RequestHeader) *problem.Error {
	switch v := string(hdr.Protocol()); {
	case v == "HTTP/1.1" || v == "HTTP/1.0":
	default:
		return problem.New(problem.CodeHTTPVersionNotSupported, "")
	}
	bad := rq.head.read(hdr.RawHeaders())
	rq.id = rq.srv.requestID(rq.head.requestID)
	if bad != nil {
		return bad
	}
	if uri := hdr.RequestURI(); len(uri) == 1 && uri[0] == '*' && string(hdr.Method()) == "OPTIONS" {
		rq.path = uri
		return nil
	}
	rq.path, rq.query, bad = target(hdr.RequestURI())
	return bad
}

var methods = map[string]string{"GET": "GET", "HEAD": "HEAD", "POST": "POST", "PUT": "PUT", "PATCH": "PATCH", "DELETE": "DELETE", "OPTIONS": "OPTIONS"}

func methodName(m []byte) string { return methods[string(m)] }

// param returns the raw path parameter called name.
func (rq *request) param(name string) []byte {
	for i, p := range rq.ep.params {
		if p == name {
			v, _ := rq.fc.UserValue(paramKeys[i]).(string)
			return []byte(v)
		}
	}
	return nil
}

// bind fills the input struct at base.
func (rq *request) bind(base unsafe.Pointer) error {
	p := rq.ep.plan
	if bad := p.params(rq, base); bad != nil {
		return bad
	}
	if !rq.sends() {
		return nil
	}
	if rq.length() != 0 && !jsonType(rq.head.contentType) {
		return problem.New(problem.CodeUnsupportedMediaType, "The body must be application/json.")
	}
	body, err := rq.readBody()
	if err != nil {
		return err
	}
	if len(body) == 0 {
		if p.optional || !p.hasBody {
			return nil
		}
		return problem.Invalid("body", "is required")
	}
	if bad := p.decode(body, base); bad != nil {
		return bad
	}
	return nil
}

// sends reports whether the method gives a body a meaning. Another body is not read.
func (rq *request) sends() bool { return rq.method != "GET" && rq.method != "HEAD" }

// jsonType accepts application/json, with no charset other than UTF-8.
func jsonType(t []byte) bool {
	mediaType, rest := t, []byte(nil)
	if i := indexByte(t, ';'); i >= 0 {
		mediaType, rest = trimSpace(t[:i]), trimSpace(t[i+1:])
	}
	if !fold(mediaType, "application/json") {
		return false
	}
	return len(rest) == 0 || fold(rest, "charset=utf-8") || fold(rest, `charset="utf-8"`)
}

// length returns the declared size of the body, -1 when it is chunked.
func (rq *request) length() int64 {
	n := rq.fc.Request.Header.ContentLength()
	if n < -1 {
		return 0
	}
	return int64(n)
}

func (rq *request) stream() io.Reader {
	rq.began = true
	return rq.fc.RequestBodyStream()
}

func (rq *request) tooLarge(limit int64) *problem.Error {
	if c, ok := rq.fc.Conn().(*conn); ok {
		c.linger = true
	}
	return problem.New(problem.CodePayloadTooLarge, "The limit is "+strconv.FormatInt(limit, 10)+" bytes.")
}

// readBody reads the whole body, and authenticates the caller again if the body was still
// being sent. The bytes are valid as long as the request.
func (rq *request) readBody() ([]byte, error) {
	limit := rq.ep.MaxBody
	n := rq.length()
	if n > limit {
		return nil, rq.tooLarge(limit)
	}
	stream := rq.stream()
	if n == 0 || stream == nil {
		rq.drained = true
		return nil, nil
	}
	if err := rq.hold(n); err != nil {
		return nil, err
	}
	buf := rq.buf[:0]
	for {
		if len(buf) == cap(buf) {
			// Grow with the bytes that arrive, not with the declared length.
			buf = append(buf, 0)[:len(buf)]
		}
		if len(buf) > small {
			if err := rq.hold(limit); err != nil { // of a body without a declared length
				rq.buf = buf
				return nil, err
			}
		}
		k, err := stream.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+k]
		if int64(len(buf)) > limit {
			rq.buf = buf
			return nil, rq.tooLarge(limit)
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			rq.fc.SetConnectionClose()
			return nil, readProblem(err)
		}
	}
	rq.buf, rq.body = buf, buf
	if n > 0 && int64(len(buf)) < n {
		rq.fc.SetConnectionClose()
		return nil, badRequest("The body ends early.")
	}
	rq.drained = true
	return buf, rq.arrived()
}

// settle keeps the rest of a body from being read as the next request, which fasthttp does
// not do. A short rest is read and dropped; otherwise the connection is closed.
func (rq *request) settle() {
	n := rq.length()
	if rq.drained || n == 0 || !rq.began && n > 0 && n <= readAhead {
		return // a small body was read ahead completely
	}
	fc := rq.fc
	stream := fc.RequestBodyStream()
	if stream == nil || fc.Response.ConnectionClose() {
		fc.SetConnectionClose()
		return
	}
	const little = 256 << 10
	if n <= little {
		_ = fc.Conn().SetReadDeadline(time.Now().Add(lingering))
		if k, err := io.Copy(io.Discard, io.LimitReader(stream, little)); err == nil && k < little {
			return
		}
	}
	if c, ok := fc.Conn().(*conn); ok {
		c.linger = true
	}
	fc.SetConnectionClose()
}

// answer writes status, content type and body.
func (rq *request) answer(status int, contentType string, body []byte) {
	resp := &rq.fc.Response
	resp.SetStatusCode(status)
	if contentType != "" {
		resp.Header.SetContentType(contentType)
	}
	if body != nil {
		resp.SetBodyRaw(body)
	}
}

// Encode returns the JSON that the edge sends for v. A handler that keeps its response for a
// replay stores these bytes.
func Encode(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode answer: %w", err)
	}
	return b, nil
}

// requestID accepts the client's id if it is well-formed, and otherwise makes one.
func (s *Server) requestID(given []byte) string {
	if len(given) == 0 || len(given) > 64 {
		return s.newRequestID()
	}
	for _, c := range given {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '.', c == '_', c == '-':
		default:
			return s.newRequestID()
		}
	}
	return string(given)
}

// newRequestID returns an id that is unique to this process and its start. It is cheap to
// make.
func (s *Server) newRequestID() string {
	var b [32]byte
	return string(strconv.AppendUint(append(b[:0], s.idPrefix...), s.idCounter.Add(1), 36))
}

// stream answers a request with an event stream.
func (s *Server) stream(rq *request, open func() (Subscriber, error)) error {
	if s.draining.Load() {
		return problem.Unavailable("The node is being shut down.", time.Second)
	}
	sub, err := open()
	if err != nil {
		return err
	}
	if rq.method == "HEAD" {
		sub.Gone()
		rq.answer(http.StatusOK, "text/event-stream", nil)
		return nil
	}
	head := append(make([]byte, 0, 384), "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache, no-store\r\nX-Accel-Buffering: no\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\nX-Request-Id: "...)
	head = append(head, rq.id...)
	for _, h := range append(rq.caller.headers, rq.crossOrigin()...) {
		head = append(append(append(append(head, "\r\n"...), h.Name...), ": "...), h.Value...)
	}
	if q := rq.caller.quota; q.Limit > 0 {
		for i, n := range rateValues(q) {
			head = strconv.AppendInt(append(append(append(head, "\r\n"...), rateNames[i]...), ": "...), n, 10)
		}
	}
	head = append(head, "\r\n\r\n: ok\n\n"...)
	owner := Owner{Tenant: rq.caller.Tenant, Key: rq.caller.Key, User: rq.caller.User, Session: rq.caller.Session, Role: rq.caller.Role,
		EmbedKey: rq.caller.Embed.Key, EndUser: rq.caller.Embed.EndUser, KeyEpoch: rq.caller.Embed.Generation, Origin: rq.caller.Embed.Origin, Until: rq.caller.Until, Since: rq.mark}
	log, id := s.cfg.Log, rq.id
	counted, _ := rq.fc.Conn().(*conn)
	if counted != nil {
		counted.abandon = sub.Gone
	}
	rq.stolen = true
	rq.fc.HijackSetNoResponse(true) // otherwise the handler does not run with Connection: close
	rq.fc.Hijack(func(c net.Conn) {
		c = c.(interface{ UnsafeConn() net.Conn }).UnsafeConn()
		if counted != nil {
			counted.abandon, counted.kept = nil, true
			counted.l.asked(counted)
			sub = &counting{Subscriber: sub, l: counted.l, ip: counted.ip}
		}
		defer func() {
			if p := recover(); p != nil {
				log.Error().Str("req", id).Str("err", fmt.Sprintf("panic: %v\n%s", p, debug.Stack())).Msg("stream failed")
			}
		}()
		if err := s.streams.Open(c, head, owner, sub); err != nil && !errors.Is(err, net.ErrClosed) {
			log.Debug().Str("req", id).Err(err).Msg("stream did not begin")
		}
	})
	return nil
}

// acceptsStream reports whether an Accept field permits an event stream.
func acceptsStream(accept []byte) bool {
	if len(accept) == 0 {
		return true
	}
	for rest := accept; len(rest) > 0; {
		var one []byte
		if i := indexByte(rest, ','); i >= 0 {
			one, rest = rest[:i], rest[i+1:]
		} else {
			one, rest = rest, nil
		}
		if i := indexByte(one, ';'); i >= 0 {
			one = one[:i]
		}
		one = trimSpace(one)
		if fold(one, "text/event-stream") || fold(one, "text/*") || string(one) == "*/*" {
			return true
		}
	}
	return false
}
