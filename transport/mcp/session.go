package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/mark3labs/mcp-go/client"
	"github.com/mark3labs/mcp-go/client/transport"
	"github.com/mark3labs/mcp-go/mcp"

	"agentsvc/schemas/tool"
)

const (
	// helloTimeout bounds beginning a session or listing tools. A model's turn waits for
	// both, and must not wait for a dead server as long as for a slow tool.
	helloTimeout   = 15 * time.Second
	probeTimeout   = 3 * time.Second // servers that predate server/discover may ignore it
	goodbyeTimeout = 5 * time.Second
)

// session is one initialized connection with a server.
type session struct {
	client  *client.Client
	wire    *wire
	proc    *process // stdio only
	version string

	refs    int  // guarded by the entry's mu, as is retired
	retired bool // closed once refs is 0
}

func (s *session) alive() bool { return s.proc == nil || !s.proc.dead() }

// close ends the session, gracefully if possible.
func (s *session) close() {
	s.wire.cancelling.Wait()
	if s.proc != nil {
		s.proc.stop() // closing its input is the protocol's goodbye
	}
	_ = s.client.Close() // its error does not matter
}

var silent = slog.New(slog.DiscardHandler)

// connect begins a session.
func (g *Gateway) connect(ctx context.Context, t Target) (*session, error) {
	o, err := g.newOp(ctx, t, maxHello)
	if err != nil {
		return nil, err
	}
	s, err := g.open(t, o)
	if err == nil {
		if err = s.initialize(g.ctx, with(ctx, o)); err != nil {
			err = o.toError(ctx, ctx, err)
			if s.proc != nil {
				err = s.proc.explain(o, err)
			}
			s.close()
			s = nil
		}
	}
	outcome := "ok"
	if err != nil {
		outcome = "failed"
	}
	sessions.WithLabelValues(string(t.Transport), outcome).Inc()
	return s, err
}

// open makes the client without contacting the server.
func (g *Gateway) open(t Target, o *op) (*session, error) {
	s := &session{}
	var conn transport.Interface
	switch t.Transport {
	case tool.Stdio:
		command := g.cfg.Stdio[t.Endpoint]
		if len(command) == 0 {
			return nil, &Error{Kind: Refused, Message: "no stdio command of this name is allowed"}
		}
		p, err := g.start(command, t, o)
		if err != nil {
			return nil, err
		}
		inner := transport.NewIO(p.out, p.in, nil)
		inner.SetRequestHandler(refuse)
		s.proc = p
		s.wire = &wire{gateway: g, inner: inner, proc: p}
		conn = s.wire
	default:
		u, err := url.Parse(t.Endpoint)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil {
			return nil, &Error{Kind: Refused, Message: "the tool server's endpoint is not a URL that may be used"}
		}
		trip := &tripper{base: g.http.Transport, to: u, farewell: g.farewell(t)}
		inner, err := transport.NewStreamableHTTP(t.Endpoint,
			transport.WithHTTPBasicClient(&http.Client{Transport: trip, CheckRedirect: g.http.CheckRedirect}),
			transport.WithHTTPLogger(silent))
		if err != nil {
			return nil, &Error{Kind: Refused, Message: "the tool server's endpoint is not a URL that may be used"}
		}
		inner.SetRequestHandler(refuse)
		s.wire = &wire{gateway: g, inner: inner}
		conn = &httpWire{s.wire, inner}
	}
	// One round trip: a call for which the server wants input is not sent again.
	s.client = client.NewClient(conn, client.WithDiscoverTimeout(probeTimeout), client.WithMaxInputRoundTrips(1))
	return s, nil
}

// initialize performs the handshake. life bounds the transport, ctx the exchange.
func (s *session) initialize(life, ctx context.Context) error {
	if err := s.client.Start(life); err != nil {
		return err
	}
	var r mcp.InitializeRequest
	r.Params.ClientInfo = mcp.Implementation{Name: "svc", Version: "1"}
	res, err := s.client.Initialize(ctx, r)
	if err != nil {
		return err
	}
	s.version = res.ProtocolVersion
	return nil
}

// farewell returns a function that opens the credential again to end a session, which the
// library does on its own.
func (g *Gateway) farewell(t Target) func(context.Context) *op {
	return func(ctx context.Context) *op {
		o, err := g.newOp(ctx, t, 64<<10)
		if err != nil {
			o = newOp(64 << 10) // without a credential: the server ends the session itself in time
		}
		return o
	}
}

// refuse answers a server's requests to its client: ping, as the protocol requires, and an
// error for everything else. After a few requests per call it stops answering.
func refuse(ctx context.Context, r transport.JSONRPCRequest) (*transport.JSONRPCResponse, error) {
	if o := opOf(ctx); o != nil && o.asked.Add(-1) < 0 {
		return nil, nil
	}
	if r.Method == string(mcp.MethodPing) {
		return transport.NewJSONRPCResultResponse(r.ID, []byte("{}")), nil
	}
	return transport.NewJSONRPCErrorResponse(r.ID, mcp.METHOD_NOT_FOUND, "not offered by this client", nil), nil
}

// wire stands between the library's client and its transport. It keeps raw results, so that
// they are decoded once, by code with limits, and it keeps server requests away from the
// client.
type wire struct {
	gateway    *Gateway
	inner      transport.Interface
	proc       *process
	cancelling sync.WaitGroup
}

// httpWire is the wire of Streamable HTTP, which must know the protocol version.
type httpWire struct {
	*wire
	inner transport.HTTPConnection
}

// SetProtocolVersion implements transport.HTTPConnection.
func (w *httpWire) SetProtocolVersion(v string) { w.inner.SetProtocolVersion(v) }

// Start implements transport.Interface.
func (w *wire) Start(ctx context.Context) error { return w.inner.Start(ctx) }

// Close implements transport.Interface.
func (w *wire) Close() error { return w.inner.Close() }

// GetSessionId implements transport.Interface.
func (w *wire) GetSessionId() string { return w.inner.GetSessionId() }

// SetNotificationHandler implements transport.Interface. It ignores notifications.
func (w *wire) SetNotificationHandler(func(mcp.JSONRPCNotification)) {}

// SendNotification implements transport.Interface.
func (w *wire) SendNotification(ctx context.Context, n mcp.JSONRPCNotification) error {
	return w.inner.SendNotification(ctx, n)
}

// SendRequest implements transport.Interface.
func (w *wire) SendRequest(ctx context.Context, r transport.JSONRPCRequest) (*transport.JSONRPCResponse, error) {
	o := opOf(ctx)
	o.begin(r.Method)
	var resp *transport.JSONRPCResponse
	var err error
	if w.proc != nil {
		resp, err = w.proc.ask(ctx, o, r, w.inner)
	} else {
		resp, err = w.inner.SendRequest(ctx, r)
	}
	if err != nil {
		if w.proc != nil && w.proc.out.broke.Load() {
			return nil, tooLarge()
		}
		if ctx.Err() != nil && r.Method == string(mcp.MethodToolsCall) && o.wasSent() {
			w.cancel(o, r.ID)
		}
		return nil, err
	}
	if r.Method == string(mcp.MethodServerDiscover) {
		if resp.Error == nil && !discovered(resp.Result) {
			return transport.NewJSONRPCErrorResponse(r.ID, mcp.METHOD_NOT_FOUND, "no answer to server/discover", nil), nil
		}
		return resp, nil // the client falls back automatically
	}
	if resp.Error != nil {
		e := &rpcError{resp.Error.Code, o.said(resp.Error.Message)}
		o.fail(&Error{Kind: Protocol, Message: "the tool server refused the request: " + e.String(), MaybeRan: !e.undone()})
		return resp, nil
	}
	if resp.ID.String() != r.ID.String() {
		return nil, &Error{Kind: Protocol, Message: "the tool server answered another request", MaybeRan: true}
	}
	switch r.Method {
	case string(mcp.MethodToolsCall):
		o.took(resp.Result)
		resp.Result = []byte(`{"content":[]}`)
	case string(mcp.MethodToolsList):
		var out int
		o.took(resp.Result)
		if resp.Result, out, err = accepted(resp.Result); err != nil {
			return nil, err
		}
		o.leaveOut(out)
	}
	return resp, nil
}

// discovered reports whether a result really answers server/discover. Servers that predate it
// may answer {} to any unknown method, and the library would take them for modern ones.
func discovered(raw json.RawMessage) bool {
	var d struct {
		Versions []string `json:"supportedVersions"`
	}
	return json.Unmarshal(raw, &d) == nil && slices.Contains(d.Versions, mcp.LATEST_PROTOCOL_VERSION)
}

// cancel tells a server with sessions that the caller no longer waits; closing the request
// alone does not tell it. For stdio the library does it.
func (w *wire) cancel(o *op, id mcp.RequestId) {
	if w.proc != nil || w.inner.GetSessionId() == "" {
		return
	}
	goodbye := newOp(64 << 10)
	goodbye.header, goodbye.value, goodbye.mask = o.header, o.value, o.mask
	w.cancelling.Go(func() {
		ctx, stop := context.WithTimeout(with(w.gateway.ctx, goodbye), goodbyeTimeout)
		defer stop()
		_ = w.inner.SendNotification(ctx, mcp.JSONRPCNotification{ // best effort
			JSONRPC: mcp.JSONRPC_VERSION,
			Notification: mcp.Notification{
				Method: string(mcp.MethodNotificationCancelled),
				Params: mcp.NotificationParams{AdditionalFields: map[string]any{"requestId": id, "reason": "the caller no longer waits"}},
			},
		})
	})
}

// toError converts an error of the library. parent is the caller's context, ctx the
// operation's own.
func (o *op) toError(parent, ctx context.Context, err error) *Error {
	if e := o.failed(); e != nil {
		return e
	}
	var e *Error
	switch {
	case errors.As(err, &e):
		return e
	case errors.Is(err, transport.ErrSessionTerminated):
		return &Error{Kind: Protocol, Message: "the tool server no longer takes the session", Err: errProcessedNothing}
	case ctx.Err() != nil:
		return ended(parent, o.wasSent())
	case errors.Is(err, errDead): // it was not written
		return &Error{Kind: Unreachable, Message: "the tool server's process ended"}
	case errors.Is(err, transport.ErrTransportClosed):
		return &Error{Kind: Unreachable, Message: "the tool server's process ended", MaybeRan: o.wasSent()}
	}
	return &Error{Kind: Protocol, Message: "the tool server's answer could not be understood", MaybeRan: o.wasSent(), Err: o.cause(err)}
}
