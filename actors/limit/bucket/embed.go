package bucket

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"agentsvc/schemas/id"
	"agentsvc/schemas/problem"
)

// Embed takes tokens from the buckets of the embed API (service.md, Limits), over all
// nodes. Each error is a *problem.Error: UNAVAILABLE where the bucket's owner could not
// be asked.
type Embed struct{ Ledger *Ledger }

// IP takes a token of a client: for a config read (scope "config") or a new session
// ("session").
func (l Embed) IP(ctx context.Context, scope string, ip netip.Addr) error {
	switch scope {
	case "config":
		return l.take(ctx, EmbedConfig(ip))
	case "session":
		return l.take(ctx, EmbedSession(ip))
	}
	return fmt.Errorf("a client has no embed bucket %q", scope)
}

// Mint takes a token for a session of a key with this rate_limit_per_min.
func (l Embed) Mint(ctx context.Context, t id.TenantID, key id.EmbedKeyID, perMinute int) error {
	return l.take(ctx, EmbedKeyMints(t, key, perMinute))
}

// Post takes a message token of a visitor and one of its key. The visitor's token is taken
// first, so that a visitor who posts too much takes nothing from the others. It is
// refunded if the key has none.
func (l Embed) Post(ctx context.Context, t id.TenantID, key id.EmbedKeyID, perMinute int, visitor id.VisitorID) error {
	own := EmbedVisitorMessages(t, visitor)
	taken, retry, ok, err := l.Ledger.Take(ctx, own)
	if err := spent(own, retry, ok, err); err != nil {
		return err
	}
	if err := l.take(ctx, EmbedKeyMessages(t, key, perMinute)); err != nil {
		l.Ledger.Refund(taken)
		return err
	}
	return nil
}

// Read takes a read token of a visitor.
func (l Embed) Read(ctx context.Context, t id.TenantID, visitor id.VisitorID) error {
	return l.take(ctx, EmbedVisitorReads(t, visitor))
}

func (l Embed) take(ctx context.Context, b Spec) error {
	_, retry, ok, err := l.Ledger.Take(ctx, b)
	return spent(b, retry, ok, err)
}

// spent returns the error of a Take for the client, or nil.
func spent(b Spec, retry time.Duration, ok bool, err error) error {
	switch {
	case err != nil:
		return err
	case !ok:
		return problem.RateLimited(fmt.Sprintf("Rate limit of scope %s exceeded.", b.Scope()), max(retry, time.Millisecond))
	}
	return nil
}
