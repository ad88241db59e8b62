package edge

import (
	"context"
	"net/netip"
	"time"

	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/quota"
)

// Identity is what authentication finds out.
type Identity struct {
	Tenant    id.TenantID
	Role      lifecycle.Role
	Principal string // "apikey:<id>", "user:<id>", …: the actor of the audit log
	Key       id.KeyID
	User      id.UserID
	Session   id.SessionID // of a console session
	Until     time.Time    // when a session ends unless it is used again; zero: never
	Embed     Embedded     // of a call of the embed API
}

// Embedded is whose call of the embed API it is. Of a call with a publishable key
// only Key is known.
type Embedded struct {
	Key        id.EmbedKeyID
	Generation int64 // of the key when the session was minted
	Visitor    id.VisitorID
	EndUser    id.EndUserID // zero: nobody knows who the visitor is
	Origin     string       // of the page, as it was judged
}

// Caller is who calls, for one request. A handler may keep it.
type Caller struct {
	Identity
	IP        netip.Addr
	RequestID string
	Idem      *Idempotency // nil without an Idempotency-Key

	headers []Header
	quota   quota.Quota // the tightest of the limits that the call was charged to; no Limit: none
}

// Charged implements quota.Noter. Of several limits the one that is nearest to its end
// is shown.
func (c *Caller) Charged(q quota.Quota) {
	if c.quota.Limit == 0 || q.Remaining < c.quota.Remaining {
		c.quota = q
	}
}

// Header is one header field of an answer.
type Header struct{ Name, Value string }

// SetHeader adds a field to the answer, whatever becomes of the request.
func (c *Caller) SetHeader(name, value string) {
	c.headers = append(c.headers, Header{name, value})
}

// Credentials are what a request carries to say who calls. The strings are the
// receiver's to keep.
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
}

// Authenticator finds out who calls.
type Authenticator interface {
	// Authenticate answers a *problem.Error for credentials that are not valid. It
	// bounds by itself what look-ups of unknown credentials cost: a call is charged
	// after it, when it is known whose call it is.
	Authenticate(ctx context.Context, c Credentials) (Identity, error)
}

// Limiter holds the platform's token buckets. Each method notes the bucket in ctx
// (quota.Note).
type Limiter interface {
	// Tenant takes a token of a tenant. When there is none it says how long to
	// wait for one. Where it cannot be known in time whether there is one, err is a
	// *problem.Error.
	Tenant(ctx context.Context, t id.TenantID) (retry time.Duration, ok bool, err error)
	// User takes a token of a user of a tenant, as Tenant does.
	User(ctx context.Context, t id.TenantID, u id.UserID) (retry time.Duration, ok bool, err error)
	// IP takes a token of a client address (IPv6: of its /64), as Tenant does.
	IP(ctx context.Context, ip netip.Addr) (retry time.Duration, ok bool, err error)
	// Public takes a token that a client address has for public routes.
	Public(ctx context.Context, ip netip.Addr) (retry time.Duration, ok bool, err error)
	// RefundIP gives back a token that IP took.
	RefundIP(ip netip.Addr)
}

// noLimits lets everything pass.
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

// callCtx is the context of a handler: that of the server, with the caller.
type callCtx struct {
	context.Context
	caller *Caller
}

type callerKey struct{}

func (c *callCtx) Value(key any) any {
	switch key.(type) {
	case callerKey, quota.Key:
		return c.caller
	}
	return c.Context.Value(key)
}

// CallerOf is the caller on whose behalf ctx runs, nil outside a request.
func CallerOf(ctx context.Context) *Caller {
	c, _ := ctx.Value(callerKey{}).(*Caller)
	return c
}
