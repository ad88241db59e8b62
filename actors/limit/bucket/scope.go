package bucket

import (
	"net/netip"

	"agentsvc/schemas/id"
)

// Scope is what a bucket limits. Clients and metrics see its text.
type Scope uint8

// The scopes of service.md, Limits, and open-parts.md, Rate limits. The ids of buckets
// contain the distance of their scope to ScopeIP or ScopeEmbedKeyMint, on which nodes of
// two versions must agree: a new scope of client IPs goes before ScopeEmbedKeyMint, any
// other one to the end.
const (
	ScopeTenant Scope = iota
	ScopeIP
	ScopeEmbedIPConfig
	ScopeEmbedIPSession
	ScopePublic
	ScopeEmbedKeyMint
	ScopeEmbedKeyMessages
	ScopeEmbedVisitorMessages
	ScopeEmbedVisitorReads
	ScopeUser

	scopes   // how many there are
	ipScopes = ScopePublic + 1 - ScopeIP
)

var scopeNames = [scopes]string{
	"tenant", "ip", "embed_ip_config", "embed_ip_session", "public", "embed_key_mint", "embed_key_messages", "embed_visitor_messages", "embed_visitor_reads", "user",
}

func (s Scope) String() string { return scopeNames[s] }

// The fixed limits of the embed API, each minute.
const (
	configReads     = 60
	sessionMints    = 30
	mintsPerMessage = 10 // of a key
	visitorMessages = 20
	visitorReads    = 60
)

// Spec is one of the embed API's buckets with its rate: its capacity is the number of tokens
// that come back in a minute.
type Spec struct {
	name
	perMinute uint32 // 0: the rate of the Ledger's and the Keeper's config
	scope     Scope
}

// Scope returns what the bucket limits.
func (b Spec) Scope() Scope { return b.scope }

// EmbedConfig limits a client's reads of embed configs. IPv6 clients count by /64.
func EmbedConfig(addr netip.Addr) Spec {
	return Spec{client(ScopeEmbedIPConfig, addr), configReads, ScopeEmbedIPConfig}
}

// EmbedSession limits the embed sessions that a client begins.
func EmbedSession(addr netip.Addr) Spec {
	return Spec{client(ScopeEmbedIPSession, addr), sessionMints, ScopeEmbedIPSession}
}

// EmbedKeyMints limits the sessions of an embed key: ten for each message that its
// rate_limit_per_min allows. rate is the key's present rate: the owner uses the rate of the
// last request.
func EmbedKeyMints(t id.TenantID, key id.EmbedKeyID, rate int) Spec {
	return Spec{of(ScopeEmbedKeyMint, t, key.UUID), mintsPerMessage * atLeastOne(rate), ScopeEmbedKeyMint}
}

// EmbedKeyMessages limits the messages of all visitors of an embed key. rate is as in
// EmbedKeyMints.
func EmbedKeyMessages(t id.TenantID, key id.EmbedKeyID, rate int) Spec {
	return Spec{of(ScopeEmbedKeyMessages, t, key.UUID), atLeastOne(rate), ScopeEmbedKeyMessages}
}

// EmbedVisitorMessages limits a visitor's messages.
func EmbedVisitorMessages(t id.TenantID, visitor id.VisitorID) Spec {
	return Spec{of(ScopeEmbedVisitorMessages, t, visitor.UUID), visitorMessages, ScopeEmbedVisitorMessages}
}

// EmbedVisitorReads limits a visitor's reads, cancels and streams.
func EmbedVisitorReads(t id.TenantID, visitor id.VisitorID) Spec {
	return Spec{of(ScopeEmbedVisitorReads, t, visitor.UUID), visitorReads, ScopeEmbedVisitorReads}
}

// atLeastOne keeps a rate within the bounds of a bucket. A key's rate is 1 to 10,000.
func atLeastOne(rate int) uint32 { return uint32(min(max(rate, 1), 1<<20)) }

// of returns the name of the bucket of a scope and the id of a tenant's key, visitor or
// user. The service makes ids of version 7. The scope takes the version's place, so no
// other id or scope has the same bucket.
func of(s Scope, t id.TenantID, u id.UUID) name {
	u[6] = u[6]&0x0f | byte(s-ScopeEmbedKeyMint)<<4 | version8
	return name{t, u}
}
