package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"time"

	"github.com/mark3labs/mcp-go/client/transport"
	"github.com/mark3labs/mcp-go/mcp"

	"agentsvc/transport/egress"
)

// errForgotten means that the session is over and that the server refused the request because
// of it.
var errForgotten = errors.New("the tool server has forgotten the session")

// errProcessedNothing is errForgotten if the request was certainly not processed: the
// protocol says so (404), or it was not sent.
var errProcessedNothing = fmt.Errorf("%w and processed nothing", errForgotten)

// httpBase returns the HTTP client of a gateway. A response may take as long to begin as a
// call; the context ends it.
func (g *Gateway) httpBase() *http.Client {
	return g.cfg.Guard.Client(egress.Options{
		RequireTLS:    g.cfg.RequireTLS,
		MaxBody:       maxAnswer,
		HeaderTimeout: g.cfg.Timeout + 5*time.Second,
		IdlePerHost:   maxInFlight,
	})
}

// tripper sends the requests of one session: it adds the credential, checks the status before
// the library does, and bounds the response.
type tripper struct {
	base http.RoundTripper
	to   *url.URL
	// farewell returns the op of the request that the library sends on its own to end the
	// session.
	farewell func(context.Context) *op
}

// RoundTrip implements http.RoundTripper.
func (t *tripper) RoundTrip(r *http.Request) (*http.Response, error) {
	o := opOf(r.Context())
	if o == nil {
		o = t.farewell(r.Context())
	}
	if o.requests.Add(-1) < 0 {
		return nil, &Error{Kind: TooLarge, Message: "the tool server let the answer be fetched in too many pieces", MaybeRan: true}
	}
	ctx := httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{WroteHeaders: o.wrote})
	r = r.WithContext(ctx)
	r.Header = r.Header.Clone()
	r.Header.Set("User-Agent", "svc")
	if o.header != "" && r.URL.Scheme == t.to.Scheme && r.URL.Host == t.to.Host {
		r.Header.Set(o.header, o.value)
	}
	resp, err := t.base.RoundTrip(r)
	if err != nil {
		return nil, o.tripped(ctx, err)
	}
	if err := o.status(r, resp); err != nil {
		resp.Body.Close()
		return nil, err
	}
	events := mediaType(resp) == "text/event-stream"
	resp.Header = needed(resp.Header)
	resp.Body = &answerBody{rc: resp.Body, ctx: ctx, o: o, scan: scanner{events: events}}
	return resp, nil
}

// needed returns the fields that the library reads of a successful response. The others would be kept while the body is read.
func needed(all http.Header) http.Header {
	out := http.Header{}
	for _, name := range []string{"Content-Type", http.CanonicalHeaderKey(transport.HeaderKeySessionID)} {
		if v := all.Get(name); v != "" {
			out.Set(name, v)
		}
	}
	return out
}

// tripped returns the error for a request without a response.
func (o *op) tripped(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, egress.ErrRefused):
		return &Error{Kind: Refused, Message: "the outbound guard refused the tool server's address", Err: o.cause(err)}
	case errors.Is(err, egress.ErrTooLarge):
		return tooLarge()
	case errors.Is(err, egress.ErrSuspended):
		return suspended(o.wasSent())
	}
	return &Error{Kind: Unreachable, Message: dialError(err), MaybeRan: o.wasSent(), Err: o.cause(err)}
}

func tooLarge() *Error {
	return &Error{Kind: TooLarge, Message: "the tool server's answer is larger than allowed", MaybeRan: true, Err: egress.ErrTooLarge}
}

func mediaType(resp *http.Response) string {
	m, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err != nil {
		return ""
	}
	return m
}

// status checks the status of a response. It leaves to the library: results, forgotten
// sessions, and every response to server/discover, because servers that predate it may answer
// anything.
func (o *op) status(r *http.Request, resp *http.Response) error {
	code := resp.StatusCode
	probing := o.exchange() == string(mcp.MethodServerDiscover)
	session := r.Header.Get(transport.HeaderKeySessionID) != ""
	switch {
	case code >= 300 && code < 400:
		// 307 and 308 redirect before any work; the older codes may come after work was done.
		undone := code == http.StatusTemporaryRedirect || code == http.StatusPermanentRedirect
		return &Error{Kind: Redirect, Message: fmt.Sprintf("the tool server answered with a redirect (%d), which is not followed", code), MaybeRan: !undone}
	case code == http.StatusUnauthorized, code == http.StatusForbidden:
		return &Error{Kind: Unauthorized, Message: fmt.Sprintf("the tool server refused the credential (%d)", code)}
	case code >= 400 && probing, r.Method == http.MethodDelete:
		return nil
	case code == http.StatusNotFound && session:
		return nil // the library marks the session
	case code >= 500:
		return &Error{Kind: Unreachable, Message: fmt.Sprintf("the tool server answered with status %d", code), MaybeRan: true}
	case code >= 400:
		rpc := o.rejection(resp)
		// Some servers answer 400 where the protocol requires 404.
		if rpc != nil && session && code == http.StatusBadRequest && rpc.code == -32000 {
			return &Error{Kind: Protocol, Message: "the tool server no longer takes the session", Err: errForgotten}
		}
		m := fmt.Sprintf("the tool server answered with status %d", code)
		if rpc != nil {
			m += ": " + rpc.String()
		}
		return &Error{Kind: Protocol, Message: m, MaybeRan: code == http.StatusRequestTimeout}
	case code == http.StatusOK && resp.Header.Get("Content-Type") != "":
		if m := mediaType(resp); m != "application/json" && m != "text/event-stream" {
			return &Error{Kind: Protocol, Message: fmt.Sprintf("the tool server answered with content type %q", o.said(resp.Header.Get("Content-Type"))), MaybeRan: true}
		}
	}
	return nil
}

// rpcError is a server's JSON-RPC error, safe to show.
type rpcError struct {
	code int
	text string
}

// String implements fmt.Stringer.
func (e *rpcError) String() string { return fmt.Sprintf("%s (%d)", e.text, e.code) }

// undone reports whether the error occurs before any work.
func (e *rpcError) undone() bool {
	switch e.code {
	case mcp.PARSE_ERROR, mcp.INVALID_REQUEST, mcp.METHOD_NOT_FOUND, mcp.INVALID_PARAMS:
		return true
	}
	return false
}

// rejection reads the JSON-RPC error of a failed response; nil if there is none.
func (o *op) rejection(resp *http.Response) *rpcError {
	b, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err != nil {
		return nil
	}
	var m struct {
		Error *struct {
			Code    int    `json:"code"`
			Message string `json:"message"`
		} `json:"error"`
	}
	if json.Unmarshal(b, &m) != nil || m.Error == nil {
		return nil
	}
	return &rpcError{m.Error.Code, o.said(m.Error.Message)}
}

// answerBody bounds a response and keeps its error, of which the library would report only
// that the response ended.
type answerBody struct {
	rc   io.ReadCloser
	ctx  context.Context // the context of this one request
	o    *op
	scan scanner
}

// Read implements io.Reader.
func (b *answerBody) Read(p []byte) (int, error) {
	n, err := b.rc.Read(p)
	if b.o.left.Add(-int64(n)) < 0 || errors.Is(err, egress.ErrTooLarge) {
		b.o.fail(tooLarge())
		return 0, tooLarge()
	}
	if !b.scan.fits(p[:n]) {
		e := &Error{Kind: TooLarge, Message: "the tool server's answer holds more values than allowed", MaybeRan: true}
		b.o.fail(e)
		return 0, e
	}
	if b.scan.size > smallAnswer {
		if err := b.o.enter(b.ctx); err != nil {
			return 0, err
		}
	}
	if err != nil && err != io.EOF && b.ctx.Err() == nil {
		e := &Error{Kind: Unreachable, Message: "the connection to the tool server broke", MaybeRan: true, Err: b.o.cause(err)}
		if errors.Is(err, egress.ErrSuspended) { // HTTP/2 writes while it reads
			e = suspended(true)
		}
		b.o.fail(e)
		return n, e
	}
	return n, err
}

// Close implements io.Closer.
func (b *answerBody) Close() error { return b.rc.Close() }
