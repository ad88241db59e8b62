package edge

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/valyala/fasthttp"

	"agentsvc/schemas/problem"
	"agentsvc/schemas/span"
	"agentsvc/transport/edge/sse"
)

// Config holds the server's dependencies and limits. A zero limit means the default beside
// it.
type Config struct {
	Table    *Table
	Auth     Authenticator              // may be nil when every route is public or has its own
	Limits   Limiter                    // nil: nothing is limited
	Replays  Replays                    // nil: Idempotency-Key is ignored
	Classify func(error) *problem.Error // e.g. storage errors as UNAVAILABLE; returns nil for others
	Log      zerolog.Logger
	Metrics  prometheus.Registerer // may be nil
	Spans    Spans                 // nil: nothing is told
	// KeyedFingerprints keeps hashes of bodies out of rows. A node of a build that does not know of it would refuse the repeats
	// of such requests: among other nodes it is set from the release on that follows the first one which knows of it.
	KeyedFingerprints bool
	// Live reports whether the node holds its lease. Without it every route except those
	// marked Always answers UNAVAILABLE at once, before authentication. nil means always
	// live.
	Live func() bool

	TrustedProxies []netip.Prefix // proxies whose X-Forwarded-For is trusted
	MaxConns       int            // 16384
	MaxConnsPerIP  int            // 0: an address may only hold as many as are still free; trusted proxies are exempt
	ReadTimeout    time.Duration  // 10 s for a head with its body
	IdleTimeout    time.Duration  // 60 s between requests
	WriteTimeout   time.Duration  // 30 s for a response
	DrainNotice    time.Duration  // 0: how long a draining node keeps accepting, see Shutdown
	DrainWindow    time.Duration  // 5 s over which Shutdown spreads the cuts of streams
	Slow           time.Duration  // 1 s: a slower request is logged
	Streams        sse.Config
}

// Spans gets a span of each request that was answered. It does not block.
type Spans interface{ Request(r span.Request) }

func (c Config) withDefaults() Config {
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&c.ReadTimeout, 10 * time.Second}, {&c.IdleTimeout, 60 * time.Second}, {&c.WriteTimeout, 30 * time.Second},
		{&c.DrainWindow, 5 * time.Second}, {&c.Slow, time.Second},
	} {
		if *d.field <= 0 {
			*d.field = d.value
		}
	}
	if c.MaxConns <= 0 {
		c.MaxConns = 16384
	}
	if c.Limits == nil {
		c.Limits = noLimits{}
	}
	return c
}

// Server serves a Table.
type Server struct {
	cfg        Config
	http       *fasthttp.Server
	streams    *sse.Streams
	metrics    *metrics
	flights    flights
	answers    large
	bodies     large
	flightWait time.Duration
	requests   sync.Pool

	base      context.Context
	cancel    context.CancelFunc
	leaving   atomic.Pointer[time.Time] // since when Drain is on; nil means off
	draining  atomic.Bool               // Shutdown has begun
	idPrefix  string
	idCounter atomic.Uint64

	mu        sync.Mutex // guards listeners
	listeners []*listener
}

// NewServer returns a server; Serve starts it, Shutdown ends it. The table must not change
// afterwards.
func NewServer(cfg Config) (*Server, error) {
	streams, err := sse.New(cfg.Streams)
	if err != nil {
		return nil, fmt.Errorf("start streams: %w", err)
	}
	s := &Server{cfg: cfg.withDefaults(), streams: streams, idPrefix: rand.Text()[:10] + "-", flightWait: flightWait}
	s.requests.New = func() any { return &request{srv: s} }
	s.base, s.cancel = context.WithCancel(context.Background())
	s.metrics = newMetrics(cfg.Metrics, cfg.Table, streams)
	s.http = &fasthttp.Server{
		Handler:                      s.handle,
		ErrorHandler:                 s.refuse,
		ReadTimeout:                  s.cfg.ReadTimeout,
		IdleTimeout:                  s.cfg.IdleTimeout,
		WriteTimeout:                 s.cfg.WriteTimeout,
		ReadBufferSize:               16 << 10,
		Concurrency:                  s.cfg.MaxConns + maxParting, // the listener refuses earlier, with a problem
		MaxRequestBodySize:           readAhead,                   // readBody enforces the limits
		StreamRequestBody:            true,
		DisablePreParseMultipartForm: true,
		NoDefaultServerHeader:        true,
		NoDefaultContentType:         true,
		KeepHijackedConns:            true,
		CloseOnShutdown:              true,
		SecureErrorLogMessage:        true,
		Logger:                       quiet{s.cfg.Log},
	}
	return s, nil
}

// readAhead is the size up to which a body of a declared length is read before its request is
// served.
const readAhead = 8 << 10

// quiet receives fasthttp's log lines, which are complaints about clients.
type quiet struct{ log zerolog.Logger }

func (q quiet) Printf(format string, args ...any) {
	if e := q.log.Debug(); e.Enabled() {
		e.Str("what", fmt.Sprintf(format, args...)).Msg("connection ended with an error")
	}
}

// Serve serves requests on ln until Shutdown.
func (s *Server) Serve(ln net.Listener) error {
	l := &listener{Listener: ln, max: s.cfg.MaxConns, perIP: s.cfg.MaxConnsPerIP, trusted: s.cfg.TrustedProxies}
	s.mu.Lock()
	s.listeners = append(s.listeners, l)
	s.mu.Unlock()
	if s.draining.Load() {
		return ln.Close()
	}
	return s.http.Serve(l)
}

// Draining reports whether clients should use another node, because of Drain or Shutdown. The
// node is then not ready.
func (s *Server) Draining() bool { return s.leaving.Load() != nil || s.draining.Load() }

// Drain asks clients to use another node, or takes that back. Requests and streams are served
// as before, but each response closes its connection, and Draining is true, which load
// balancers read as not ready.
func (s *Server) Drain(on bool) {
	if !on {
		s.leaving.Store(nil)
		return
	}
	now := time.Now()
	s.leaving.CompareAndSwap(nil, &now)
}

// Streams returns the number of open streams.
func (s *Server) Streams() int { return s.streams.Count() }

// CloseWhere cuts the streams whose owner matches, at once and without a terminal frame.
func (s *Server) CloseWhere(match func(Owner) bool) int { return s.streams.CloseWhere(match) }

// Recheck asks live which owners of open streams are still allowed and cuts the streams of
// the others (sse.Streams.Recheck).
func (s *Server) Recheck(live func(owners []Owner) ([]bool, error)) (cut int, err error) {
	return s.streams.Recheck(live)
}

// Shutdown keeps serving until Config.DrainNotice has passed since the call, or since an
// earlier Drain, so that load balancers notice. Then it stops accepting, lets requests finish
// that arrive within a second, and cuts the streams, spread over Config.DrainWindow or until
// ctx ends. If ctx ends sooner, the notice takes at most a third of the time. One second
// before ctx ends the requests in flight are cancelled and answered as their routes answer a
// cancellation.
func (s *Server) Shutdown(ctx context.Context) error {
	s.Drain(true)
	s.notice(ctx)
	s.draining.Store(true)
	var drained sync.WaitGroup
	drained.Go(func() { s.streams.Drain(ctx, s.cfg.DrainWindow) })
	served := make(chan struct{})
	drained.Go(func() { s.hurry(served) })
	if end, ok := ctx.Deadline(); ok {
		late := time.AfterFunc(time.Until(end)-answering, s.cancel)
		defer late.Stop()
	}
	err := s.http.ShutdownWithContext(ctx)
	close(served)
	drained.Wait()
	s.cancel()
	s.streams.Stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.listeners {
		_ = l.Listener.Close()
		l.wg.Wait()
	}
	return err
}

// hurry cuts connections whose request is incomplete or never began. Otherwise fasthttp would
// wait for them until the time for stopping is over, and the rest of the node could not stop
// in order.
func (s *Server) hurry(served <-chan struct{}) {
	tick := time.NewTicker(sending)
	defer tick.Stop()
	for {
		select {
		case <-served:
			return
		case <-tick.C: // repeat: each reader sets a deadline of its own
		}
		s.mu.Lock()
		for _, l := range s.listeners {
			l.hurry()
		}
		s.mu.Unlock()
	}
}

func (s *Server) notice(ctx context.Context) {
	left := s.cfg.DrainNotice
	if since := s.leaving.Load(); since != nil {
		left -= time.Since(*since)
	}
	if end, ok := ctx.Deadline(); ok {
		left = min(left, time.Until(end)/3)
	}
	if left <= 0 || s.draining.Load() {
		return
	}
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

func (s *Server) handle(fc *fasthttp.RequestCtx) {
	rq := s.requests.Get().(*request)
	rq.fc = fc
	defer s.finish(rq)
	if err := s.serve(rq); err != nil {
		s.fail(rq, err)
	}
}

// finish completes every request, also one whose handler panicked.
func (s *Server) finish(rq *request) {
	fc := rq.fc
	if p := recover(); p != nil {
		fc.Response.Reset()
		s.fail(rq, fmt.Errorf("panic: %v\n%s", p, debug.Stack()))
	}
	if rq.id == "" {
		rq.id = s.newRequestID()
	}
	if rq.caller != nil {
		rq.caller.rq = nil
	}
	if !rq.stolen {
		if s.leaving.Load() != nil {
			fc.SetConnectionClose()
		}
		s.secure(fc, rq.id)
		if rq.caller != nil {
			for _, h := range rq.caller.headers {
				fc.Response.Header.Add(h.Name, h.Value)
			}
		}
		for _, h := range rq.crossOrigin() {
			fc.Response.Header.Add(h.Name, h.Value)
		}
		rq.rateFields()
		rq.settle()
	}
	status := fc.Response.StatusCode()
	took := time.Since(fc.Time())
	s.metrics.observe(rq.ep, status, took, rq.stolen)
	s.log(rq, status, took)
	s.tell(rq, status, took)

	if rq.held > 0 {
		s.bodies.change(rq.heldBy, -rq.held)
	}
	buf := rq.buf
	if cap(buf) > 64<<10 {
		buf = nil
	}
	*rq = request{srv: s, buf: buf[:0]}
	s.requests.Put(rq)
}

func (s *Server) log(rq *request, status int, took time.Duration) {
	var e *zerolog.Event
	switch {
	case rq.cause != nil && status == http.StatusInternalServerError:
		e = s.cfg.Log.Error()
	case status >= http.StatusInternalServerError && status != http.StatusHTTPVersionNotSupported, took > s.cfg.Slow:
		e = s.cfg.Log.Warn()
	default:
		e = s.cfg.Log.Debug()
	}
	if !e.Enabled() {
		return
	}
	if rq.ep != nil {
		e = e.Str("route", rq.ep.ID)
	}
	if rq.caller != nil && !rq.caller.Tenant.IsZero() {
		e = e.Stringer("tenant", rq.caller.Tenant)
	}
	if rq.cause != nil {
		e = e.Err(rq.cause)
	}
	e.Str("req", rq.id).Int("status", status).Dur("took_ms", took).Msg("request")
}

// tell gives the request's span to the collector of traces.
func (s *Server) tell(rq *request, status int, took time.Duration) {
	if s.cfg.Spans == nil {
		return
	}
	told := span.Request{Method: rq.method, Status: status, ID: rq.id, Parent: rq.head.traceparent, Began: rq.fc.Time(), Took: took}
	if rq.ep != nil {
		told.Name, told.Route = rq.ep.ID, rq.ep.Path
	}
	if rq.caller != nil {
		told.Tenant, told.Run = rq.caller.Tenant, rq.caller.Run
	}
	s.cfg.Spans.Request(told)
}

// secure sets the header fields of every response.
func (s *Server) secure(fc *fasthttp.RequestCtx, requestID string) {
	h := &fc.Response.Header
	h.Set("X-Request-Id", requestID)
	h.Set("X-Content-Type-Options", "nosniff")
	if len(h.Peek("Cache-Control")) == 0 {
		h.Set("Cache-Control", "no-store")
	}
}

// serve runs the steps of a request in the order of the package comment.
func (s *Server) serve(rq *request) error {
	fc := rq.fc
	hdr := &fc.Request.Header
	if bad := rq.strict(hdr); bad != nil {
		fc.SetConnectionClose()
		if c, ok := fc.Conn().(*conn); ok {
			c.linger = true
		}
		return bad
	}
	rq.method = methodName(hdr.Method())
	ip := clientIP(remoteIP(fc.Conn()), rq.head.forwarded, s.cfg.TrustedProxies)
	if rq.method == "HEAD" {
		if rq.ep = s.cfg.Table.router.find("HEAD", rq.path, fc); rq.ep == nil {
			rq.ep = s.cfg.Table.router.find("GET", rq.path, fc)
		}
	} else {
		rq.ep = s.cfg.Table.router.find(rq.method, rq.path, fc)
	}
	rq.caller = &Caller{IP: ip, rq: rq}
	rq.ctx = &callCtx{Context: s.base, caller: rq.caller}
	if rq.ep == nil {
		return s.noRoute(rq, ip)
	}
	if err := s.admit(rq, ip); err != nil {
		return err
	}
	if !rq.reads() && s.answers.over(rq.account()) {
		return unread()
	}
	return rq.ep.serve(s, rq)
}

// noRoute answers a path that is not in the table. It is charged like every other call, so
// that probing for routes is limited: with a valid key to its tenant, otherwise to the
// address.
func (s *Server) noRoute(rq *request, ip netip.Addr) error {
	if string(rq.path) == "*" {
		rq.answer(http.StatusNoContent, "", nil)
		return nil
	}
	have := s.cfg.Table.router.methodsOf(rq.path)
	if rq.method == "OPTIONS" && s.cfg.Table.isCrossOrigin(rq.path) {
		rq.preflight()
		return nil
	}
	if rq.method == "OPTIONS" && have != nil {
		rq.fc.Response.Header.Set("Allow", strings.Join(append(have, "OPTIONS"), ", "))
		rq.answer(http.StatusNoContent, "", nil)
		return nil
	}
	if err := s.chargeAstray(rq, ip); err != nil {
		return err
	}
	if have == nil {
		return problem.New(problem.CodeNotFound, "There is no such route.")
	}
	rq.fc.Response.Header.Set("Allow", strings.Join(have, ", "))
	return problem.New(problem.CodeMethodNotAllowed, "")
}

func (s *Server) live() bool { return s.cfg.Live == nil || s.cfg.Live() }
