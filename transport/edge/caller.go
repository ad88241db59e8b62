package edge

import (
	"context"
	"net/netip"
	"time"

	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
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
	// Authenticate answers a *problem.Error for credentials that are not valid.
	Authenticate(ctx context.Context, c Credentials) (Identity, error)
	// Cached says, without waiting, whether Authenticate needs no look-up.
	Cached(c Credentials) bool
}

// Limiter holds the platform's token buckets.
type Limiter interface {
	// Tenant takes a token of a tenant. When there is none it says how long to
	// wait for one. Where it cannot be known in time whether there is one, err is a
	// *problem.Error.
	Tenant(ctx context.Context, t id.TenantID) (retry time.Duration, ok bool, err error)
	// IP takes a token of a client address (IPv6: of its /64), as Tenant does.
	IP(ctx context.Context, ip netip.Addr) (retry time.Duration, ok bool, err error)
	// RefundIP gives a token back.
	RefundIP(ip netip.Addr)
}

// noLimits lets everything pass.
type noLimits struct{}

func (noLimits) Tenant(context.Context, id.TenantID) (time.Duration, bool, error) {
	return 0, true, nil
}
func (noLimits) IP(context.Context, netip.Addr) (time.Duration, bool, error) { return 0, true, nil }
func (noLimits) RefundIP(netip.Addr)                                         {}

// callCtx is the context of a handler: that of the server, with the caller.
type callCtx struct {
	context.Context
	caller *Caller
}

type callerKey struct{}

func (c *callCtx) Value(key any) any {
	if _, ok := key.(callerKey); ok {
		return c.caller
	}
	return c.Context.Value(key)
}

// CallerOf is the caller on whose behalf ctx runs, nil outside a request.
func CallerOf(ctx context.Context) *Caller {
	c, _ := ctx.Value(callerKey{}).(*Caller)
	return c
}
