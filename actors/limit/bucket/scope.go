package bucket

import (
	"net/netip"

	"agentsvc/schemas/id"
)

// Scope says what a bucket bounds; its text is what clients and metrics read.
type Scope uint8

// The scopes of service.md, Limits, and open-parts.md, Rate limits. Ids of buckets are
// made of their distance to ScopeIP or ScopeEmbedKeyMint, which nodes of two versions
// must agree on: a new scope of client IPs goes before ScopeEmbedKeyMint, any other one
// to the end.
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

// Spec is one of the embed API's buckets: it holds as many tokens as come back in
// a minute.
type Spec struct {
	name
	perMinute uint32 // 0: what the Ledger's and the Keeper's config say
	scope     Scope
}

// Scope says what the bucket bounds.
func (b Spec) Scope() Scope { return b.scope }

// EmbedConfig bounds a client's reads of embed configs. IPv6 clients count by /64.
func EmbedConfig(addr netip.Addr) Spec {
	return Spec{client(ScopeEmbedIPConfig, addr), configReads, ScopeEmbedIPConfig}
}

// EmbedSession bounds a client's mints of embed sessions.
func EmbedSession(addr netip.Addr) Spec {
	return Spec{client(ScopeEmbedIPSession, addr), sessionMints, ScopeEmbedIPSession}
}

// EmbedKeyMints bounds the sessions of an embed key: ten for each message that its
// rate_limit_per_min allows. The rate is the key's as it is now: the owner goes by
// the last one it was asked with.
func EmbedKeyMints(t id.TenantID, key id.EmbedKeyID, rate int) Spec {
	return Spec{of(ScopeEmbedKeyMint, t, key.UUID), mintsPerMessage * atLeastOne(rate), ScopeEmbedKeyMint}
}

// EmbedKeyMessages bounds the messages of all visitors of an embed key, as
// EmbedKeyMints its sessions.
func EmbedKeyMessages(t id.TenantID, key id.EmbedKeyID, rate int) Spec {
	return Spec{of(ScopeEmbedKeyMessages, t, key.UUID), atLeastOne(rate), ScopeEmbedKeyMessages}
}

// EmbedVisitorMessages bounds a visitor's messages.
func EmbedVisitorMessages(t id.TenantID, visitor id.VisitorID) Spec {
	return Spec{of(ScopeEmbedVisitorMessages, t, visitor.UUID), visitorMessages, ScopeEmbedVisitorMessages}
}

// EmbedVisitorReads bounds what a visitor reads, cancels and opens.
func EmbedVisitorReads(t id.TenantID, visitor id.VisitorID) Spec {
	return Spec{of(ScopeEmbedVisitorReads, t, visitor.UUID), visitorReads, ScopeEmbedVisitorReads}
}

// atLeastOne keeps a rate within what a bucket can have. A key's is 1 to 10000.
func atLeastOne(rate int) uint32 { return uint32(min(max(rate, 1), 1<<20)) }

// of is the bucket of a scope of a tenant's thing. Ids that the service minted are of
// version 7: the scope in its place names a bucket that no other thing or scope has.
func of(s Scope, t id.TenantID, u id.UUID) name {
	u[6] = u[6]&0x0f | byte(s-ScopeEmbedKeyMint)<<4 | version8
	return name{t, u}
}
