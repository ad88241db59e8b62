package platform

import (
	"context"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"agentsvc/persistence/store"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/password"
	"agentsvc/schemas/problem"
	"agentsvc/transport/edge"
)

const (
	maxSessions = 1 << 14
	sessionsFor = 30 * time.Second
	// touchEvery is the minimum time between writes of a session's last use. A session may
	// expire by idleness this much too early.
	touchEvery = time.Minute
	// epochSlots is how many counters all tenants share. Two tenants that share one only look
	// sessions up a little more often.
	epochSlots = 1 << 10
)

// SessionsConfig holds the dependencies of Sessions. Store and PublicURL are required.
type SessionsConfig struct {
	Store *store.Store
	// Strangers looks up sessions that this node has not accepted recently (StrangeSessions);
	// nil means Store.
	Strangers func(ctx context.Context, t id.TenantID, session id.SessionID) (*store.Session, error)
	// PublicURL is the origin of the console: a call from this origin needs no X-Svc-CSRF.
	PublicURL string
	// Live reports whether this node still holds its lease; while it does not, the cache
	// counts as empty.
	Live func() bool
	Now  func() time.Time
	// Ended is called once this node no longer accepts a session that has ended, or, with a
	// zero id, every session of a user. It closes the streams of those sessions on this node.
	Ended func(ctx context.Context, t id.TenantID, user id.UserID, session id.SessionID) error
}

// Sessions caches the console sessions of this node. It is the edge's Authenticator for
// cookies, and limits how many passwords are hashed at once. Forget and ForgetUser drop
// cached sessions at once.
type Sessions struct {
	cfg    SessionsConfig
	origin string
	live   *store.Cache[sessionAt, *liveSession]
	seen   seen[store.SessionRef]
	epochs [epochSlots]atomic.Uint64
	hashes *gate
	// refusal is the minimum time of a refused login, so that the time does not reveal how
	// many users have the e-mail.
	refusal time.Duration
	// fitsAtOnce is how many passwords a login compares in one turn. A login with more of them
	// gives way to others in between: every tenant can have a user of another person's e-mail.
	fitsAtOnce int
}

// sessionAt is the cache key of a session as read after the epoch-th change of a user of its
// tenant.
type sessionAt struct {
	tenant  id.TenantID
	session id.SessionID
	epoch   uint64
}

type liveSession struct {
	hash      [32]byte
	user      id.UserID
	role      lifecycle.Role
	principal string
	until     time.Time
	renewal
}

// NewSessions returns a Sessions.
func NewSessions(cfg SessionsConfig) *Sessions {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Ended == nil {
		cfg.Ended = func(context.Context, id.TenantID, id.UserID, id.SessionID) error { return nil }
	}
	return &Sessions{
		cfg: cfg, origin: originOf(cfg.PublicURL), refusal: 250 * time.Millisecond, fitsAtOnce: 32,
		live:   store.NewCache[sessionAt, *liveSession](store.CacheConfig{Max: maxSessions, TTL: sessionsFor, Now: cfg.Now, Live: cfg.Live}),
		seen:   newSeen[store.SessionRef](maxSessions, cfg.Now),
		hashes: newGate(max(runtime.GOMAXPROCS(0)/2, 1)),
	}
}

// originOf returns a URL's origin as browsers write it.
func originOf(text string) string {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" {
		return ""
	}
	scheme, host := strings.ToLower(u.Scheme), strings.ToLower(u.Host)
	for of, port := range map[string]string{"http": ":80", "https": ":443"} {
		if scheme == of {
			host = strings.TrimSuffix(host, port)
		}
	}
	return scheme + "://" + host
}

func (s *Sessions) epoch(t id.TenantID) *atomic.Uint64 {
	return &s.epochs[(uint(t.UUID[14])<<8|uint(t.UUID[15]))%epochSlots]
}

func (s *Sessions) at(k *store.Token) sessionAt {
	return sessionAt{k.Tenant, id.SessionID{UUID: k.ID}, s.epoch(k.Tenant).Load()}
}

// presentedSession parses the cookie. A session needs no X-Tenant-Id; one that names another
// tenant makes it invalid.
func presentedSession(c *edge.Credentials) (store.Token, bool) {
	k, ok := store.ParseToken(c.Cookie)
	if ok && c.Tenant != "" {
		named, err := id.Parse(c.Tenant)
		ok = err == nil && named == k.Tenant.UUID
	}
	return k, ok
}

// Authenticate implements edge.Authenticator.
func (s *Sessions) Authenticate(ctx context.Context, c edge.Credentials) (edge.Identity, error) {
	k, ok := presentedSession(&c)
	if !ok {
		return edge.Identity{}, unauthorized(noSession)
	}
	live, ok, err := s.load(ctx, &k)
	if err != nil {
		return edge.Identity{}, err
	}
	now := s.cfg.Now()
	if !ok || !k.Fits(live.hash[:]) || !now.Before(live.until) {
		return edge.Identity{}, unauthorized(noSession)
	}
	if live.due(now) {
		go s.renew(k)
	}
	if !s.safe(&c) {
		return edge.Identity{}, problem.New(problem.CodeForbidden, "A call of a session that changes something carries X-Svc-CSRF: 1 or the Origin of the console.")
	}
	return edge.Identity{Tenant: k.Tenant, Role: live.role, Principal: live.principal, User: live.user,
		Session: id.SessionID{UUID: k.ID}, Until: live.until}, nil
}

// safe reports whether the owner of the cookie meant this call: other sites can neither set
// the header nor choose the Origin.
func (s *Sessions) safe(c *edge.Credentials) bool {
	return c.Method == "GET" || c.Method == "HEAD" || c.CSRF == "1" || c.Origin != "" && c.Origin == s.origin
}

// Cached reports whether a session is cached as valid.
func (s *Sessions) Cached(c edge.Credentials) bool {
	k, ok := presentedSession(&c)
	if !ok {
		return false
	}
	live, ok := s.live.Get(s.at(&k))
	return ok && k.Fits(live.hash[:]) && s.cfg.Now().Before(live.until)
}

// load reads a session with the role of its user. It repeats a look-up during which the user
// changed.
func (s *Sessions) load(ctx context.Context, k *store.Token) (*liveSession, bool, error) {
	for {
		at := s.at(k)
		live, ok, err := s.live.Load(ctx, at, func(ctx context.Context) (*liveSession, bool, error) { return s.read(ctx, k) })
		if err != nil || s.epoch(k.Tenant).Load() == at.epoch {
			return live, ok, err
		}
		if err := ctx.Err(); err != nil {
			return nil, false, err
		}
	}
}

// renew reads a cached session again before the entry expires.
func (s *Sessions) renew(k store.Token) {
	ctx, cancel := context.WithTimeout(context.Background(), store.Timeout)
	defer cancel()
	_, _, _ = s.live.Renew(ctx, s.at(&k), func(ctx context.Context) (*liveSession, bool, error) { return s.read(ctx, &k) })
}

// find reads the row of a session. A secret that was accepted recently does not wait behind
// the look-ups of unknown ones.
func (s *Sessions) find(ctx context.Context, k *store.Token) (*store.Session, error) {
	session := id.SessionID{UUID: k.ID}
	if s.cfg.Strangers == nil || s.seen.knows(store.SessionRef{Tenant: k.Tenant, ID: session}, k.Hash()) {
		return s.cfg.Store.View(k.Tenant).Session(ctx, session)
	}
	return s.cfg.Strangers(ctx, k.Tenant, session)
}

func (s *Sessions) read(ctx context.Context, k *store.Token) (*liveSession, bool, error) {
	session := id.SessionID{UUID: k.ID}
	ref := store.SessionRef{Tenant: k.Tenant, ID: session}
	row, err := s.find(ctx, k)
	if err != nil {
		return nil, false, err
	}
	now := s.cfg.Now()
	if row == nil || !k.Fits(row.SecretHash) || !now.Before(row.Until()) {
		s.seen.forget(ref, k.Hash())
		return nil, false, nil
	}
	s.seen.hashes.Keep(ref, k.Hash())
	if now.Sub(row.UsedAt) >= touchEvery {
		// A failed write of the last use does not refuse the call; the next use writes it.
		if s.cfg.Store.UseSession(ctx, k.Tenant, session, now) == nil {
			row.UsedAt = now
		}
	}
	live := &liveSession{user: row.User, role: row.Role, principal: "user:" + row.User.String(), until: row.Until()}
	live.at = now.Add(renewAfter)
	copy(live.hash[:], row.SecretHash)
	return live, true, nil
}

// Forget drops a cached session. After it returns, a request with that session is looked up
// again, even if a look-up was already in progress.
func (s *Sessions) Forget(t id.TenantID, session id.SessionID) {
	s.seen.hashes.Drop(store.SessionRef{Tenant: t, ID: session})
	s.live.Drop(sessionAt{t, session, s.epoch(t).Load()})
}

// ForgetUser does the same for every session of a user. It also drops the tenant's other
// sessions, since there is no list of a user's sessions.
func (s *Sessions) ForgetUser(t id.TenantID, _ id.UserID) { s.epoch(t).Add(1) }

// ForgetAll drops every cached session, for a node that was cut off.
func (s *Sessions) ForgetAll() { s.live.Clear() }

// gate limits how many passwords are hashed at once and how many wait: a hash takes much of a
// core and 64 MiB. Each client has one place, working or waiting for a slot, and its further
// work queues behind it in a line of its own, so one client with much work does not fill the
// gate. Clients get slots in order of arrival.
type gate struct {
	slots, queue chan struct{}
	patience     time.Duration

	mu    sync.Mutex
	lines map[string]*line // the clients that have work here
}

// line is the work of one client. The holder of the token in place may wait for a slot.
type line struct {
	place chan struct{}
	count int // guarded by gate.mu
}

const (
	maxHashQueue = 32 // how many clients wait for a slot, and how many pieces of work of one client wait
	hashPatience = 3 * time.Second
)

func newGate(slots int) *gate {
	return &gate{slots: make(chan struct{}, slots), queue: make(chan struct{}, slots+maxHashQueue), patience: hashPatience, lines: map[string]*line{}}
}

// join adds work of a client, unless its line is full.
func (g *gate) join(client string) (*line, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	l := g.lines[client]
	if l == nil {
		l = &line{place: make(chan struct{}, 1)}
		g.lines[client] = l
	}
	if l.count > maxHashQueue {
		return nil, false
	}
	l.count++
	return l, true
}

func (g *gate) leave(client string, l *line) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if l.count--; l.count == 0 {
		delete(g.lines, client)
	}
}

// do runs a client's work in a slot. It returns RATE_LIMITED if the client's own work blocks
// it for too long, and UNAVAILABLE if the work of others does.
func (g *gate) do(ctx context.Context, client string, work func()) error {
	crowded := func() error {
		return problem.RateLimited("Rate limit of scope login exceeded: too many passwords of this client are being checked at once.", time.Second)
	}
	busy := func() error {
		return problem.Unavailable("Too many passwords are being checked at the moment.", time.Second)
	}
	l, ok := g.join(client)
	if !ok {
		return crowded()
	}
	defer g.leave(client, l)
	timer := time.NewTimer(g.patience)
	defer timer.Stop()
	select {
	case l.place <- struct{}{}:
		defer func() { <-l.place }()
	case <-timer.C:
		return crowded()
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case g.queue <- struct{}{}:
		defer func() { <-g.queue }()
	default:
		return busy()
	}
	select {
	case g.slots <- struct{}{}: // a channel wakes its waiters in order
		defer func() { <-g.slots }()
	case <-timer.C:
		return busy()
	case <-ctx.Done():
		return ctx.Err()
	}
	work()
	return nil
}

// hash hashes a password, nil for no password.
func (s *Sessions) hash(ctx context.Context, client string, secret *string) (hash *string, err error) {
	if secret == nil {
		return nil, nil
	}
	err = s.hashes.do(ctx, client, func() { h := password.Hash(*secret); hash = &h })
	return hash, err
}

// cookie returns the header field that sets the session cookie; an empty text deletes it.
func (p *Platform) cookie(text string) string {
	b := "svc_session=" + text + "; Path=/; HttpOnly; SameSite=Lax; Max-Age="
	if text == "" {
		b += "0"
	} else {
		b += maxAge
	}
	if p.Production {
		b += "; Secure"
	}
	return b
}

const maxAge = "604800" // store.SessionLife

// sessionOf returns the caller's session; a key has none.
func sessionOf(c *edge.Caller) (id.SessionID, error) {
	if c.Session.IsZero() {
		return id.SessionID{}, problem.New(problem.CodeUnauthorized, "This is for console sessions.")
	}
	return c.Session, nil
}

func (p *Platform) sessionRoutes(t *edge.Table) {
	const tag = "Sessions"
	describePeople(t)
	edge.Handle(t, edge.Route{Method: "POST", Path: "/v1/auth/login", ID: "login", Answer: api.LoggedIn{User: &sampleUser, Tenant: &sampleTenant},
		Headers: []edge.HeaderField{{Name: "Set-Cookie", Description: "svc_session, the cookie of the session."}},
		Summary: "Log in",
		Description: "Sets the cookie svc_session, which ends after 12 hours without use or after 7 days. tenant_id is needed only if e-mail and password match " +
			"users of several tenants: then the response is TENANT_REQUIRED. " +
			"Each user whose password does not match adds an auth.login_failed in the tenant's audit log. Limited by address and by e-mail, over all tenants: 20 attempts, one more every 10 seconds. Logins of one address are checked one after the other. Takes no Idempotency-Key.",
		Tag: tag, MaxBody: 16 << 10, Bucket: edge.BucketNone, // login has its own bucket: other calls from the address cannot lock people out
		Codes:   []problem.Code{problem.CodeUnauthorized, problem.CodeTenantRequired, problem.CodeRateLimited, problem.CodeUnavailable, problem.CodeInternal},
		Example: map[string]any{"email": "kim@example.com", "password": "correct horse battery"}}, p.login)
	// Another session of the user may request the kept response, so all of them are looked up
	// again.
	sessionsOf := func(c *edge.Caller) msg.Revoked {
		return msg.Revoked{What: msg.RevokedUser, Tenant: c.Tenant, User: c.User}
	}
	deletes := []edge.HeaderField{{Name: "Set-Cookie", Description: "Deletes svc_session, the cookie of the session."}}
	edge.Handle(t, edge.Route{Method: "POST", Path: "/v1/auth/logout", ID: "logout", Summary: "Log out", Headers: deletes,
		Description: "Ends the session and deletes its cookie. For sessions: a key is UNAUTHORIZED.", Tag: tag, Role: lifecycle.RoleMember, Idempotent: true,
		Again: again(p, func(c *edge.Caller, _ *nothing) msg.Revoked { return sessionsOf(c) })}, p.logout)
	edge.Handle(t, edge.Route{Method: "POST", Path: "/v1/auth/password", ID: "changePassword", Summary: "Change your own password", Headers: deletes,
		Description: "Ends every session of the user, this one too. For sessions: a key is UNAUTHORIZED. Limited by address, together with logins, and by user: 20 attempts, one more every 10 seconds.", Tag: tag, Role: lifecycle.RoleMember, Idempotent: true,
		Again:   again(p, func(c *edge.Caller, _ *passwordInput) msg.Revoked { return sessionsOf(c) }),
		Example: map[string]any{"current": "correct horse battery", "new": "battery horse correct"}}, p.changePassword)
	edge.HandleRaw(t, edge.Route{Method: "GET", Path: "/login/" + signedInPath, ID: "showSignedIn", Summary: "Show the signed-in user and waiting approvals", Tag: tag,
		MediaType: htmlType, Hidden: true}, p.showSignedIn)
	edge.HandleRaw(t, edge.Route{Method: "GET", Path: "/login/{token}", ID: "showLoginLink", Summary: "Show a one-time login link", Tag: tag,
		MediaType: htmlType, Hidden: true}, p.showLink)
	edge.HandleRaw(t, edge.Route{Method: "POST", Path: "/login/{token}", ID: "useLoginLink", Summary: "Use a one-time login link", Tag: tag,
		MediaType: htmlType, Hidden: true, MaxBody: 4096}, p.useLink)
}
