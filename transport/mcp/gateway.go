package mcp

import (
	"context"
	"net/http"
	"sync"
	"time"

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

// Config holds the settings of a Gateway.
type Config struct {
	Guard *egress.Guard
	// RequireTLS refuses plain http except to ranges that the guard allows.
	RequireTLS bool
	Timeout    time.Duration // per call; 0 means 60 s
	TTL        time.Duration // of a cached list and an idle client; 0 means 5 min
	// Stdio holds the commands that the operator allows (SVC_STDIO_SERVERS), by name.
	Stdio map[string][]string
	// Env is the whole environment of a stdio server besides its credential, usually PATH and
	// HOME. Nil means a plain PATH.
	Env []string
	// Large gives out the places of the node for large answers of calls and lists, of which
	// each tenant has a part. nil: there is no bound.
	Large Places
	// Live reports whether this process still holds its lease, like egress.Config.Live for
	// connections. While it does not, no stdio server is started and nothing is written to
	// one. It must be cheap. nil means always.
	Live func() bool
	Log  zerolog.Logger
	Now  func() time.Time // nil is time.Now
}

// Places are those of a node for large answers; tenants take turns (turn.Places).
type Places interface {
	// Take waits for a place, which the caller gives back, unless there is an error.
	Take(ctx context.Context, t id.TenantID) error
	Give(t id.TenantID)
}

// Target identifies a server and the credential to use.
type Target struct {
	Tenant    id.TenantID
	Server    id.ServerID
	Slug      string
	Transport tool.Transport
	Endpoint  string
	AuthKind  tool.AuthKind
	// Version is the version of the server's row and its connection; another version gets
	// another client.
	Version    time.Time
	Connection *id.ConnectionID // nil: none
	// Credential opens the connection's secret. It is called for each exchange, also for
	// ending an idle session, and its result is dropped afterwards. nil if there is none.
	Credential func(ctx context.Context) (string, error)
}

// key identifies a pooled client.
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

// Gateway calls tool servers. It is safe for concurrent use; Close ends its goroutines.
type Gateway struct {
	cfg  Config
	http *http.Client

	ctx  context.Context // of work that outlives its caller
	stop context.CancelFunc
	work sync.WaitGroup // flights, closing sessions, the sweeper
	ops  sync.WaitGroup // callers inside a method

	mu      sync.Mutex // guards the fields below; taken before an entry's mu
	closed  bool
	entries map[key]*entry
	bytes   int // of cached lists

	forks forker
}

// New returns a Gateway and starts its sweeper.
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
	if cfg.Live == nil {
		cfg.Live = func() bool { return true }
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
	places chan struct{} // one for each call in flight

	busy int       // callers and flights inside; guarded by the gateway's mu, as are the next two
	used time.Time // when the last caller left
	gone bool      // removed from the pool: closed when the last caller leaves

	mu         sync.Mutex // guards the fields below, and refs and retired of sessions
	cur        *session   // nil: none yet, or lost
	connecting *flight[*session]
	list       *catalog          // nil: none, or dropped
	listing    *flight[*catalog] // the flight whose list will be kept
}

// flight is work that several callers wait for.
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
	defer g.ops.Done() // deferred last: Close also waits for work begun here
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

// drop removes a client from the pool. g.mu is held.
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

// empty releases what a client holds. g.mu is held.
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

// retire closes a session once it is unused. Its entry's mu is held.
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

// sweep drops clients that were idle for the TTL.
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

// ForgetAll drops the lists of all servers, for a node that was cut off: later callers get
// lists that were requested afterwards. A list that is being fetched goes only to the callers
// that already wait for it. Clients and sessions stay. It does not wait for any server.
func (g *Gateway) ForgetAll() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, e := range g.entries {
		e.mu.Lock()
		g.account(e, nil)
		e.listing = nil
		e.mu.Unlock()
	}
}

// Close refuses new calls, waits for calls in flight until ctx ends, then cancels them, and
// ends every session and process.
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
	<-left // cancelled calls return at once
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

// life returns a context that ends with the call's time-out, the caller or the gateway,
// whichever comes first.
func (g *Gateway) life(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, g.cfg.Timeout)
	unhook := context.AfterFunc(g.ctx, cancel)
	return ctx, func() { unhook(); cancel() }
}

// ended returns the error of a caller's operation that stopped, by its cause.
func (g *Gateway) ended(parent context.Context, maybeRan bool) *Error {
	if g.ctx.Err() != nil {
		return &Error{Kind: Cancelled, Message: "the tool gateway is closed", MaybeRan: maybeRan, Err: context.Canceled}
	}
	return ended(parent, maybeRan)
}
