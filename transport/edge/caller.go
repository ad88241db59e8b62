package edge

import (
	"context"
	"net/netip"
	"time"

	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/quota"
)

// Identity is the result of authentication.
type Identity struct {
	Tenant    id.TenantID
	Role      lifecycle.Role
	Principal string // "apikey:<id>", "user:<id>", …: the actor of the audit log
	Key       id.KeyID
	User      id.UserID
	Session   id.SessionID // of a console session
	Until     time.Time    // when a session ends unless it is used again; zero means never
	Embed     Embedded     // of a call of the embed API
}

// Embedded identifies the caller of the embed API. For a call with a publishable key only Key
// is set.
type Embedded struct {
	Key        id.EmbedKeyID
	Generation int64 // generation of the key when the session was minted
	Visitor    id.VisitorID
	EndUser    id.EndUserID // zero for an anonymous visitor
	Origin     string       // origin of the page, as it was checked
}

// Caller is the authenticated caller of one request. A handler may keep it.
type Caller struct {
	Identity
	IP   netip.Addr
	Idem *Idempotency // nil without an Idempotency-Key
	Run  id.RunID     // the run that the request started; its handler sets it

	rq      *request // while its handler runs
	headers []Header
	quota   quota.Quota // the tightest limit that the call was charged to; no Limit means none
}

// Charged implements quota.Noter. Of several limits it keeps the one with the least left.
func (c *Caller) Charged(q quota.Quota) {
	if c.quota.Limit == 0 || q.Remaining < c.quota.Remaining {
		c.quota = q
	}
}

// Again authenticates the caller once more, after a wait within its request whose length others
// decide, as at the end of a body: credentials that were revoked meanwhile end there, and a changed
// role counts. Only the handler calls it.
func (c *Caller) Again() error {
	if c.rq == nil {
		return nil
	}
	return c.rq.authenticateAgain()
}

// Again is Caller.Again for the caller of the request that ctx belongs to, if it belongs to one.
func Again(ctx context.Context) error {
	if c, ok := ctx.Value(quota.Key{}).(*Caller); ok {
		return c.Again()
	}
	return nil
}

// Header is one header field of a response.
type Header struct{ Name, Value string }

// SetHeader adds a header field to the response, whether the request succeeds or fails.
func (c *Caller) SetHeader(name, value string) {
	c.headers = append(c.headers, Header{name, value})
}

// Credentials are the credentials of a request. The strings are copies: the receiver may keep
// them.
type Credentials struct {
	Bearer   string
	Tenant   string // X-Tenant-Id; a session needs none
	Cookie   string // svc_session
	EmbedKey string // X-Svc-Embed-Key
	Method   string
	Path     string
	CSRF     string // X-Svc-CSRF
	Origin   string
	Referer  string
	IP       netip.Addr
	Again    bool // the request was authenticated and charged before: take nothing from a bucket
}

// Authenticator authenticates requests.
type Authenticator interface {
	// Authenticate returns a *problem.Error for credentials that are not valid. It bounds the
	// cost of look-ups of unknown credentials itself: the rate limit is charged after it,
	// once the caller is known.
	Authenticate(ctx context.Context, c Credentials) (Identity, error)
}

// Limiter holds the platform's token buckets. Each method notes its bucket in ctx
// (quota.Note).
type Limiter interface {
	// Tenant takes a token of a tenant. When none is left it returns the time until the next
	// one. err is a *problem.Error when the bucket cannot be asked in time.
	Tenant(ctx context.Context, t id.TenantID) (retry time.Duration, ok bool, err error)
	// User takes a token of a user of a tenant, as Tenant does.
	User(ctx context.Context, t id.TenantID, u id.UserID) (retry time.Duration, ok bool, err error)
	// IP takes a token of a client address (IPv6: of its /64), as Tenant does.
	IP(ctx context.Context, ip netip.Addr) (retry time.Duration, ok bool, err error)
	// Public takes a token of a client address for public routes.
	Public(ctx context.Context, ip netip.Addr) (retry time.Duration, ok bool, err error)
	// RefundIP returns a token that IP took.
	RefundIP(ip netip.Addr)
}

// noLimits admits every call.
type noLimits struct{}

func (noLimits) Tenant(context.Context, id.TenantID) (time.Duration, bool, error) {
	return 0, true, nil
}
func (noLimits) User(context.Context, id.TenantID, id.UserID) (time.Duration, bool, error) {
	return 0, true, nil
}
func (noLimits) IP(context.Context, netip.Addr) (time.Duration, bool, error) { return 0, true, nil }
func (noLimits) Public(context.Context, netip.Addr) (time.Duration, bool, error) {
	return 0, true, nil
}
func (noLimits) RefundIP(netip.Addr) {}

// callCtx is the context of a handler: the server's context with the caller.
type callCtx struct {
	context.Context
	caller *Caller
}

func (c *callCtx) Value(key any) any {
	if _, ok := key.(quota.Key); ok {
		return c.caller
	}
	return c.Context.Value(key)
}
