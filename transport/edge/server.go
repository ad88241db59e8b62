package edge

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/valyala/fasthttp"

	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/quota"
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
	// Live reports whether the node holds its lease. Without it every route except those
	// marked Always answers UNAVAILABLE at once, before authentication. nil means always
	// live.
	Live func() bool

	TrustedProxies []netip.Prefix // proxies whose X-Forwarded-For is trusted
	MaxConns       int            // 16384
	MaxConnsPerIP  int            // 0: an address may only hold as many as are still free; trusted proxies are exempt
	MaxStreams     int            // 0: no limit
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
	rq.caller = &Caller{IP: ip, RequestID: rq.id, rq: rq}
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

// chargeAstray charges a call without a route. If authentication cannot be completed, nothing
// is charged: the answer reveals nothing.
func (s *Server) chargeAstray(rq *request, ip netip.Addr) error {
	creds := rq.credentials(ip)
	if s.cfg.Auth == nil || !creds.present() {
		return s.chargeIP(rq.ctx, ip)
	}
	if !s.live() {
		return nil
	}
	who, err := s.cfg.Auth.Authenticate(rq.ctx, creds)
	switch {
	case err == nil:
		return s.chargeIdentity(rq.ctx, who)
	case refused(err):
		return s.chargeIP(rq.ctx, ip)
	}
	return nil
}

func (s *Server) live() bool { return s.cfg.Live == nil || s.cfg.Live() }

// refused reports whether err is the caller's fault. Every other error says nothing about the
// caller.
func refused(err error) bool {
	var p *problem.Error
	return errors.As(err, &p) && p.Status() < http.StatusInternalServerError
}

func (c Credentials) present() bool { return c.Bearer != "" && c.Tenant != "" || c.Cookie != "" }

func (rq *request) credentials(ip netip.Addr) Credentials {
	h := &rq.head
	c := Credentials{Method: rq.method, IP: ip}
	if h.hasAuth {
		c.Bearer, c.Tenant = string(h.bearer()), string(h.tenant)
	} else if h.cookie != nil {
		if c.Cookie = string(h.cookieValue("svc_session")); c.Cookie != "" {
			c.Tenant = string(h.tenant)
		}
	}
	c.EmbedKey, c.CSRF, c.Origin, c.Referer = string(h.embedKey), string(h.csrf), string(h.origin), string(h.referer)
	c.Path = string(rq.path)
	return c
}

// admit authenticates the caller, checks the role and charges a bucket.
func (s *Server) admit(rq *request, ip netip.Addr) error {
	e := rq.ep
	if !e.Always && !s.live() {
		return problem.Unavailable("The node has lost touch with storage and serves nothing until it is back.", time.Second)
	}
	if e.public() {
		if e.Bucket == BucketNone || e.signed {
			return nil
		}
		return s.chargePublic(rq.ctx, ip)
	}
	rq.creds = rq.credentials(ip)
	who, err := s.authenticate(rq, rq.creds)
	if err != nil {
		return err
	}
	rq.caller.Identity = who
	if bad := e.mayCall(who.Role); bad != nil {
		if e.Bucket != BucketNone {
			// The key is valid, so the call is charged to its tenant; the missing role is the
			// error to report.
			_ = s.chargeIdentity(rq.ctx, who)
		}
		return bad
	}
	if e.Charge != nil {
		if err := e.Charge(rq.ctx, rq.caller); err != nil {
			return err
		}
	}
	if e.Bucket == BucketNone {
		return nil
	}
	return s.chargeIdentity(rq.ctx, who)
}

// mayCall returns the error for a role that does not suffice.
func (e *endpoint) mayCall(has lifecycle.Role) error {
	if e.Role == "" || has.Satisfies(e.Role) {
		return nil
	}
	return problem.New(problem.CodeForbidden, "This needs the role "+string(e.Role)+".")
}

// authenticateAgain identifies the caller anew after a wait whose length others decide: the
// client, who sends the body, another request with the same idempotency key, or the work before a
// place of the tenant. Credentials
// that were revoked meanwhile end there, and a changed role counts. Nothing is charged, and
// credentials that still hold are cached.
func (rq *request) authenticateAgain() error {
	if rq.ep.public() {
		return nil
	}
	rq.creds.Again = true
	who, err := rq.srv.identify(rq, rq.creds)
	if err != nil {
		return err
	}
	if who.Tenant != rq.caller.Tenant || who.Principal != rq.caller.Principal {
		return problem.New(problem.CodeUnauthorized, "The credentials stand for another caller than at the beginning of the request.")
	}
	rq.caller.Identity = who
	return rq.ep.mayCall(who.Role)
}

// arrived is called at the end of a body that was read from the stream.
func (rq *request) arrived() error {
	if n := rq.length(); n >= 0 && n <= readAhead {
		return nil // the body was there before the caller was authenticated
	}
	return rq.authenticateAgain()
}

// authenticate identifies the caller. Only a refused call is charged to its address: other
// clients behind that address cannot lock out a valid key.
func (s *Server) authenticate(rq *request, creds Credentials) (Identity, error) {
	if rq.ep.kind == kindStream {
		rq.mark = s.streams.Mark()
	}
	who, err := s.identify(rq, creds)
	if err != nil && rq.ep.Bucket != BucketNone && refused(err) {
		if err := s.chargeIP(rq.ctx, creds.IP); err != nil {
			return Identity{}, err
		}
	}
	return who, err
}

func (s *Server) identify(rq *request, creds Credentials) (Identity, error) {
	auth := rq.ep.Auth
	if auth == nil {
		auth = s.cfg.Auth
		switch {
		case creds.Bearer != "" && len(rq.head.tenant) == 0:
			return Identity{}, problem.New(problem.CodeTenantRequired, "A call with a key names its tenant in X-Tenant-Id.")
		case creds.present() && auth != nil:
		case rq.head.hasAuth && creds.Bearer == "":
			return Identity{}, problem.New(problem.CodeUnauthorized, "The Authorization header is malformed: it must be \"Bearer\", a space and an API key.")
		default:
			return Identity{}, problem.New(problem.CodeUnauthorized, "The call carries no credentials: send an API key as Authorization: Bearer svc_… with X-Tenant-Id, or the cookie of a session.")
		}
	}
	return auth.Authenticate(rq.ctx, creds)
}

func (s *Server) chargeIP(ctx context.Context, ip netip.Addr) error {
	retry, ok, err := s.cfg.Limits.IP(ctx, bucketIP(ip))
	return charged("ip", retry, ok, err)
}

func (s *Server) chargePublic(ctx context.Context, ip netip.Addr) error {
	retry, ok, err := s.cfg.Limits.Public(ctx, bucketIP(ip))
	return charged("public", retry, ok, err)
}

// chargeIdentity charges an accepted call: a session's call to its user, every other one to
// its tenant.
func (s *Server) chargeIdentity(ctx context.Context, who Identity) error {
	if !who.User.IsZero() {
		retry, ok, err := s.cfg.Limits.User(ctx, who.Tenant, who.User)
		return charged("user", retry, ok, err)
	}
	retry, ok, err := s.cfg.Limits.Tenant(ctx, who.Tenant)
	return charged("tenant", retry, ok, err)
}

// charged returns the problem for a bucket that refused, nil if it admitted the call.
func charged(scope string, retry time.Duration, ok bool, err error) error {
	if err == nil && !ok {
		return problem.RateLimited("Rate limit of scope "+scope+" exceeded.", max(retry, time.Millisecond))
	}
	return err
}

// rateFields adds the header fields of the limit that the request was charged to.
func (rq *request) rateFields() {
	if rq.caller == nil || rq.caller.quota.Limit == 0 {
		return
	}
	var b [20]byte
	for i, n := range rateValues(rq.caller.quota) {
		rq.fc.Response.Header.SetBytesV(rateNames[i], strconv.AppendInt(b[:0], n, 10))
	}
}

// rateNames are the header fields of rateValues.
var rateNames = [...]string{"RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset"}

func rateValues(q quota.Quota) [3]int64 {
	return [...]int64{q.Limit, q.Remaining, int64((q.Reset + time.Second - 1) / time.Second)}
}

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
	if s.cfg.MaxStreams > 0 && s.streams.Count() >= s.cfg.MaxStreams {
		return problem.Unavailable("The node has too many streams.", 5*time.Second)
	}
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
