package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/rs/zerolog"

	"agentsvc/schemas/id"
	"agentsvc/schemas/tool"
	"agentsvc/transport/egress"
)

const (
	maxInFlight  = 256       // calls of one client
	maxClients   = 4_096     // of one gateway
	maxListBytes = 256 << 20 // all cached lists
)

// Config of a Gateway.
type Config struct {
	Guard *egress.Guard
	// RequireTLS refuses plain http except to ranges that the guard allows.
	RequireTLS bool
	Timeout    time.Duration // of one call; 0 is 60 s
	TTL        time.Duration // of a cached list and an idle client; 0 is 5 min
	// Stdio are the commands that the operator allows (SVC_STDIO_SERVERS), by name.
	Stdio map[string][]string
	// Env is all that a stdio server gets of our environment, beside its credential:
	// PATH and HOME, usually. Nil is a plain PATH.
	Env []string
	Log zerolog.Logger
	Now func() time.Time // nil is time.Now
}

// Target says which server is spoken to and as whom.
type Target struct {
	Tenant    id.TenantID
	Server    id.ServerID
	Slug      string
	Transport tool.Transport
	Endpoint  string
	AuthKind  tool.AuthKind
	// Version is of the server's row and its connection; another one is another
	// client.
	Version    time.Time
	Connection *id.ConnectionID // nil: none
	// Credential opens the connection's secret. It is called for each exchange, the
	// end of a session that is long idle included, and what it gives is dropped after
	// it. nil where there is none.
	Credential func(ctx context.Context) (string, error)
}

// key is what has a client of its own.
type key struct {
	tenant     id.TenantID
	server     id.ServerID
	connection id.ConnectionID // zero: none
	version    int64
}

func (t *Target) key() key {
	k := key{tenant: t.Tenant, server: t.Server, version: t.Version.UnixNano()}
	if t.Connection != nil {
		k.connection = *t.Connection
	}
	return k
}

// Gateway speaks to tool servers. It is safe for concurrent use; Close ends its
// goroutines.
type Gateway struct {
	cfg  Config
	http *http.Client

	ctx  context.Context // of everything that outlives a caller
	stop context.CancelFunc
	work sync.WaitGroup // flights, closing sessions, the sweeper
	ops  sync.WaitGroup // callers inside

	mu      sync.Mutex // guards the fields below; taken before an entry's mu
	closed  bool
	entries map[key]*entry
	bytes   int // of cached lists

	forks forker
}

// New makes a Gateway and starts its sweeper.
func New(cfg Config) *Gateway {
	if cfg.Timeout <= 0 {
		cfg.Timeout = time.Minute
	}
	if cfg.TTL <= 0 {
		cfg.TTL = 5 * time.Minute
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	g := &Gateway{cfg: cfg, entries: map[key]*entry{}}
	g.ctx, g.stop = context.WithCancel(context.Background())
	g.http = g.httpBase()
	g.work.Go(g.sweeper)
	return g
}

// entry is one pooled client.
type entry struct {
	key    key
	places chan struct{} // one of each call in flight

	busy int       // callers and flights inside; guarded by the gateway's mu, as are the next two
	used time.Time // when the last one left
	gone bool      // no longer in the pool: closed when nobody is inside

	mu         sync.Mutex // guards the fields below, and refs and retired of sessions
	cur        *session   // nil: none yet, or lost
	connecting *flight[*session]
	list       *catalog // nil: none, or dropped
	listing    *flight[*catalog]
}

// catalog is one answer of tools/list.
type catalog struct {
	specs []tool.Spec
	index map[string]int
	at    time.Time
	bytes int
}

// flight is work that several wait for.
type flight[T any] struct {
	done chan struct{}
	val  T
	err  error
}

func (f *flight[T]) wait(ctx context.Context) (T, error) {
	select {
	case <-f.done:
		return f.val, f.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}

// enter finds or makes the target's client and holds it until leave.
func (g *Gateway) enter(t *Target) (*entry, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil, &Error{Kind: Cancelled, Message: "the tool gateway is closed"}
	}
	k := t.key()
	e := g.entries[k]
	if e == nil {
		for old, o := range g.entries {
			if old.tenant == k.tenant && old.server == k.server && old.connection == k.connection && old.version < k.version {
				g.drop(o)
			}
		}
		if len(g.entries) >= maxClients {
			g.dropLongestIdle()
		}
		e = &entry{key: k, places: make(chan struct{}, maxInFlight)}
		g.entries[k] = e
		clients.Inc()
	}
	e.busy++
	g.ops.Add(1)
	return e, nil
}

func (g *Gateway) leave(e *entry) {
	defer g.ops.Done() // last: Close goes on to wait for what is begun here
	g.mu.Lock()
	defer g.mu.Unlock()
	g.letGo(e)
}

// letGo ends one hold on a client. g.mu is held.
func (g *Gateway) letGo(e *entry) {
	e.busy--
	e.used = g.cfg.Now()
	if e.gone && e.busy == 0 {
		g.empty(e)
	}
}

// drop takes a client out of the pool. g.mu is held.
func (g *Gateway) drop(e *entry) {
	if e.gone {
		return
	}
	e.gone = true
	delete(g.entries, e.key)
	clients.Dec()
	if e.busy == 0 {
		g.empty(e)
	}
}

// empty ends what a client holds. g.mu is held.
func (g *Gateway) empty(e *entry) {
	e.mu.Lock()
	defer e.mu.Unlock()
	g.account(e, nil)
	if e.cur != nil {
		g.retire(e.cur)
		e.cur = nil
	}
}

// account replaces the cached list. g.mu and e.mu are held.
func (g *Gateway) account(e *entry, c *catalog) {
	if e.list != nil {
		g.bytes -= e.list.bytes
	}
	e.list = c
	if c != nil {
		g.bytes += c.bytes
	}
	listBytes.Set(float64(g.bytes))
}

func (g *Gateway) dropLongestIdle() {
	var idle *entry
	for _, e := range g.entries {
		if e.busy == 0 && (idle == nil || e.used.Before(idle.used)) {
			idle = e
		}
	}
	if idle != nil {
		g.drop(idle)
	}
}

// retire closes a session once nobody uses it. Its entry's mu is held.
func (g *Gateway) retire(s *session) {
	if s.retired {
		return
	}
	s.retired = true
	if s.refs == 0 {
		g.work.Go(s.close)
	}
}

// sweeper drops idle clients until the gateway closes.
func (g *Gateway) sweeper() {
	tick := time.NewTicker(max(g.cfg.TTL/10, 10*time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			g.sweep()
		case <-g.ctx.Done():
			return
		}
	}
}

// sweep drops clients that nobody used for the TTL.
func (g *Gateway) sweep() {
	g.mu.Lock()
	defer g.mu.Unlock()
	since := g.cfg.Now().Add(-g.cfg.TTL)
	for _, e := range g.entries {
		if e.busy == 0 && !e.used.After(since) {
			g.drop(e)
		}
	}
}

// Forget drops the clients and lists of a server.
func (g *Gateway) Forget(tenant id.TenantID, server id.ServerID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for k, e := range g.entries {
		if k.tenant == tenant && k.server == server {
			g.drop(e)
		}
	}
}

// Close refuses new calls, waits for those under way until ctx ends, then cancels
// them, and ends every session and process.
func (g *Gateway) Close(ctx context.Context) {
	g.mu.Lock()
	g.closed = true
	for _, e := range g.entries {
		g.drop(e)
	}
	g.mu.Unlock()
	left := make(chan struct{})
	go func() {
		g.ops.Wait()
		close(left)
	}()
	select {
	case <-left:
	case <-ctx.Done():
	}
	g.stop()
	<-left // cancelled, they leave at once
	g.work.Wait()
	g.forks.close()
	g.http.CloseIdleConnections()
}

// newOp opens the target's credential for one operation.
func (g *Gateway) newOp(ctx context.Context, t Target, budget int64) (*op, error) {
	o := newOp(budget)
	if t.AuthKind == tool.AuthNone || t.AuthKind == "" {
		return o, nil
	}
	if t.Credential == nil {
		return nil, &Error{Kind: NoCredential, Message: "there is no connection with a credential for the tool server"}
	}
	secret, err := t.Credential(ctx)
	if err != nil {
		return nil, &Error{Kind: NoCredential, Message: "the connection's credential could not be opened", Err: err}
	}
	if !sendable(secret) {
		return nil, &Error{Kind: NoCredential, Message: "the connection's credential is empty or holds characters that no header may hold"}
	}
	o.mask = newMask(secret)
	if t.AuthKind == tool.AuthAPIKey {
		o.header, o.value = "X-Api-Key", secret
	} else {
		o.header, o.value = "Authorization", "Bearer "+secret
	}
	return o, nil
}

func sendable(s string) bool {
	for _, c := range []byte(s) {
		if c < 0x20 || c == 0x7f {
			return false
		}
	}
	return s != ""
}

// life gives an operation its time: the call's, the caller's and the gateway's
// own, whichever ends first.
func (g *Gateway) life(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, g.cfg.Timeout)
	unhook := context.AfterFunc(g.ctx, cancel)
	return ctx, func() { unhook(); cancel() }
}

// ended tells apart why a caller's operation stopped.
func (g *Gateway) ended(parent context.Context, maybeRan bool) *Error {
	if g.ctx.Err() != nil {
		return &Error{Kind: Cancelled, Message: "the tool gateway is closed", MaybeRan: maybeRan, Err: context.Canceled}
	}
	return ended(parent, maybeRan)
}

// Tools lists what the server offers, at most TTL old. The slice is shared: it
// must not be changed.
func (g *Gateway) Tools(ctx context.Context, t Target) ([]tool.Spec, error) {
	return g.tools(ctx, t, false)
}

// Fresh lists what the server offers now, past the cache, and refreshes it.
func (g *Gateway) Fresh(ctx context.Context, t Target) ([]tool.Spec, error) {
	return g.tools(ctx, t, true)
}

func (g *Gateway) tools(parent context.Context, t Target, fresh bool) ([]tool.Spec, error) {
	e, err := g.enter(&t)
	if err != nil {
		return nil, err
	}
	defer g.leave(e)
	ctx, cancel := g.life(parent)
	defer cancel()
	c, err := g.catalog(ctx, e, t, fresh)
	if err != nil {
		return nil, g.outside(parent, ctx, err)
	}
	return c.specs, nil
}

// outside makes what a caller hears of a failure before its call was sent.
func (g *Gateway) outside(parent, ctx context.Context, err error) error {
	var e *Error
	if errors.As(err, &e) {
		before := *e // shared by all who waited
		before.MaybeRan = false
		return &before
	}
	if ctx.Err() != nil {
		return g.ended(parent, false)
	}
	return &Error{Kind: Protocol, Message: "the tool server's answer could not be understood"}
}

// catalog gives the list, cached or asked for, by one of all who want it.
func (g *Gateway) catalog(ctx context.Context, e *entry, t Target, fresh bool) (*catalog, error) {
	if !fresh {
		e.mu.Lock()
		c := g.cached(e)
		e.mu.Unlock()
		if c != nil {
			return c, nil
		}
	}
	g.mu.Lock()
	e.mu.Lock()
	f := e.listing
	if c := e.list; f == nil && c != nil && !fresh && g.young(c) {
		e.mu.Unlock()
		g.mu.Unlock()
		return c, nil // it has just landed
	}
	if f == nil {
		f = &flight[*catalog]{done: make(chan struct{})}
		e.listing = f
		e.busy++
		g.work.Go(func() {
			f.val, f.err = g.ask(e, t)
			g.keep(e, f)
		})
	}
	e.mu.Unlock()
	g.mu.Unlock()
	return f.wait(ctx)
}

// cached is the list while it is young. e.mu is held.
func (g *Gateway) cached(e *entry) *catalog {
	if e.list == nil || !g.young(e.list) {
		return nil
	}
	lists.WithLabelValues("cached").Inc()
	return e.list
}

func (g *Gateway) young(c *catalog) bool { return g.cfg.Now().Before(c.at.Add(g.cfg.TTL)) }

// keep lands a listing.
func (g *Gateway) keep(e *entry, f *flight[*catalog]) {
	outcome := "asked"
	if f.err != nil {
		outcome = "failed"
	}
	lists.WithLabelValues(outcome).Inc()
	g.mu.Lock()
	defer g.mu.Unlock()
	e.mu.Lock()
	e.listing = nil
	if f.err == nil {
		g.account(e, f.val)
	}
	e.mu.Unlock()
	close(f.done)
	g.letGo(e)
	for g.bytes > maxListBytes {
		before := len(g.entries)
		g.dropLongestIdle()
		if len(g.entries) == before {
			break // all of them are in use
		}
	}
}

// flightTime bounds work that belongs to no one caller.
func (g *Gateway) flightTime() (context.Context, context.CancelFunc) {
	return context.WithTimeout(g.ctx, min(g.cfg.Timeout, helloTimeout))
}

// ask lists the tools page by page.
func (g *Gateway) ask(e *entry, t Target) (*catalog, error) {
	ctx, cancel := g.flightTime()
	defer cancel()
	o, err := g.newOp(ctx, t, maxList)
	if err != nil {
		return nil, err
	}
	for again := true; ; again = false {
		s, err := g.session(ctx, e, t)
		if err != nil {
			return nil, g.outside(g.ctx, ctx, err)
		}
		c, err := g.pages(ctx, s, t, o)
		if g.lost(e, s, err) && again {
			g.release(e, s)
			continue
		}
		g.release(e, s)
		return c, err
	}
}

func (g *Gateway) pages(ctx context.Context, s *session, t Target, o *op) (*catalog, error) {
	c := &catalog{at: g.cfg.Now(), index: map[string]int{}}
	seen := map[string]bool{}
	var r mcp.ListToolsRequest
	for range maxPages {
		kept, err := s.client.ListToolsByPage(with(ctx, o), r)
		if err != nil {
			e := o.toError(g.ctx, ctx, err)
			e.MaybeRan = false
			return nil, e
		}
		usable := map[string]bool{}
		for _, k := range kept.Tools {
			usable[k.Name] = true
		}
		p, err := readPage(o.answer())
		if err != nil {
			return nil, &Error{Kind: Protocol, Message: "the tool server's list could not be understood"}
		}
		for _, raw := range p.Tools {
			l, ok := accept(raw)
			_, double := c.index[l.Name]
			if !ok || double || !usable[l.Name] || len(c.specs) == maxTools {
				continue
			}
			spec := l.spec(t, o.mask)
			c.index[l.Name] = len(c.specs)
			c.specs = append(c.specs, spec)
			c.bytes += len(spec.Name) + len(spec.Description) + len(spec.Schema) + 256
		}
		if p.Next == "" || len(c.specs) == maxTools {
			break
		}
		if seen[p.Next] {
			return nil, &Error{Kind: Protocol, Message: "the tool server's list does not end"}
		}
		seen[p.Next] = true
		r.Params.Cursor = mcp.Cursor(p.Next)
	}
	c.specs = slices.Clip(c.specs)
	if n := o.leftOut(); n > 0 {
		g.cfg.Log.Info().Stringer("tenant", t.Tenant).Stringer("server", t.Server).Int("tools", len(c.specs)).Int("left_out", n).Msg("tools of a server left out")
	}
	return c, nil
}

// session gives the client's session, begun by one of all who need it. It is held
// until release.
func (g *Gateway) session(ctx context.Context, e *entry, t Target) (*session, error) {
	for range 3 {
		if s := g.current(e); s != nil {
			return s, nil
		}
		g.mu.Lock()
		e.mu.Lock()
		f := e.connecting
		if f == nil && e.cur == nil {
			f = &flight[*session]{done: make(chan struct{})}
			e.connecting = f
			e.busy++
			g.work.Go(func() {
				ctx, cancel := g.flightTime()
				defer cancel()
				f.val, f.err = g.connect(ctx, t)
				g.mu.Lock()
				defer g.mu.Unlock()
				e.mu.Lock()
				e.connecting = nil
				if f.err == nil {
					e.cur = f.val
				}
				e.mu.Unlock()
				close(f.done)
				g.letGo(e)
			})
		}
		e.mu.Unlock()
		g.mu.Unlock()
		if f == nil {
			continue // somebody else's has just begun
		}
		if _, err := f.wait(ctx); err != nil {
			return nil, err
		}
	}
	return nil, &Error{Kind: Unreachable, Message: "the tool server ends each session at once"}
}

// current takes hold of the session that the client has, nil if there is none
// that is alive.
func (g *Gateway) current(e *entry) *session {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.cur
	if s == nil {
		return nil
	}
	if !s.alive() {
		e.cur = nil
		g.retire(s)
		return nil
	}
	s.refs++
	return s
}

func (g *Gateway) release(e *entry, s *session) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s.refs--
	if s.retired && s.refs == 0 {
		g.work.Go(s.close)
	}
}

// lost retires a session that the server has forgotten, and says so.
func (g *Gateway) lost(e *entry, s *session, err error) bool {
	if !errors.Is(err, errForgotten) && s.alive() {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.cur == s {
		e.cur = nil
	}
	g.retire(s)
	return errors.Is(err, errForgotten)
}

// Call calls a tool with exactly these arguments, an object. Whether they fit the
// tool's schema is the caller's to check.
func (g *Gateway) Call(parent context.Context, t Target, name string, args json.RawMessage) (Answer, error) {
	began := time.Now()
	a, err := g.call(parent, t, name, args)
	countCall(time.Since(began), a, err)
	return a, err
}

func (g *Gateway) call(parent context.Context, t Target, name string, args json.RawMessage) (Answer, error) {
	e, err := g.enter(&t)
	if err != nil {
		return Answer{}, err
	}
	defer g.leave(e)
	ctx, cancel := g.life(parent)
	defer cancel()
	select {
	case e.places <- struct{}{}:
		defer func() { <-e.places }()
	case <-ctx.Done():
		return Answer{}, g.ended(parent, false)
	}
	c, err := g.catalog(ctx, e, t, false)
	if err != nil {
		return Answer{}, g.outside(parent, ctx, err)
	}
	i, known := c.index[name]
	if !known {
		return Answer{}, &Error{Kind: UnknownTool, Message: "the tool server has no such tool"}
	}
	for again := true; ; again = false {
		s, err := g.session(ctx, e, t)
		if err != nil {
			return Answer{}, g.outside(parent, ctx, err)
		}
		a, err := g.once(parent, ctx, s, t, name, args)
		if g.lost(e, s, err) && again && g.repeatable(err, c.specs[i]) {
			g.release(e, s)
			continue
		}
		g.release(e, s)
		return a, err
	}
}

// repeatable says whether a call that met a forgotten session is made once more.
// After a 404 nothing was processed, the protocol says; after a 400 that only
// looks like it, the tool has to say that a repeat does no harm.
func (g *Gateway) repeatable(err error, s tool.Spec) bool {
	return errors.Is(err, errProcessedNothing) || s.ReadOnly || s.Idempotent
}

func (g *Gateway) once(parent, ctx context.Context, s *session, t Target, name string, args json.RawMessage) (Answer, error) {
	o, err := g.newOp(ctx, t, maxAnswer)
	if err != nil {
		return Answer{}, g.outside(parent, ctx, err)
	}
	var r mcp.CallToolRequest
	r.Params.Name = name
	if len(args) > 0 {
		r.Params.Arguments = args
	}
	if _, err = s.client.CallTool(with(ctx, o), r); err != nil && o.answer() == nil {
		e := o.toError(parent, ctx, err)
		if g.ctx.Err() != nil && (e.Kind == Timeout || e.Kind == Cancelled) {
			e = g.ended(parent, e.MaybeRan)
		}
		return Answer{}, e
	}
	a, err := decodeResult(o.answer())
	var e *Error
	switch {
	case errors.As(err, &e):
		return Answer{}, e
	case err != nil:
		return Answer{}, &Error{Kind: Protocol, Message: "the tool server's answer could not be understood", MaybeRan: true, Err: o.cause(err)}
	}
	a.Content = o.hide(a.Content)
	return a, nil
}

// Mask replaces the connection's credential in the strings of v, and in parts of
// them, by "[redacted]".
func (g *Gateway) Mask(ctx context.Context, t Target, v json.RawMessage) (json.RawMessage, error) {
	o, err := g.newOp(ctx, t, 0)
	if err != nil {
		return nil, err
	}
	if !json.Valid(v) {
		return nil, &Error{Kind: Protocol, Message: "not JSON"}
	}
	return o.mask.json(v), nil
}
