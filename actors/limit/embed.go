package limit

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"agentsvc/schemas/id"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/quota"
)

const (
	// embedStreams is how many live streams a visitor has of a key (service.md,
	// Limits), and embedStreamRetry the Retry-After of one more (Errors).
	embedStreams     = 2
	embedStreamRetry = 5 * time.Second
)

// Embed is the buckets and places of the embed API (service.md, Limits), over all
// nodes. Each error is a *problem.Error: UNAVAILABLE where nobody can say whether
// there is a token or a place.
type Embed struct {
	Ledger *Ledger
	Holds  *Holds
}

// IP takes a token of a client: of its config reads (scope "config"), or of its
// session mints ("session").
func (l Embed) IP(ctx context.Context, scope string, ip netip.Addr) error {
	switch scope {
	case "config":
		return l.take(ctx, EmbedConfig(ip))
	case "session":
		return l.take(ctx, EmbedSession(ip))
	}
	return fmt.Errorf("a client has no embed bucket %q", scope)
}

// Mint takes one of the sessions of a key of that rate_limit_per_min.
func (l Embed) Mint(ctx context.Context, t id.TenantID, key id.EmbedKeyID, perMinute int) error {
	return l.take(ctx, EmbedKeyMints(t, key, perMinute))
}

// Post takes one of a visitor's messages and one of its key's. The visitor's comes
// first, so that a visitor who posts too much takes nothing from the others; it has
// it back where the key has none.
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

// Read takes one of a visitor's reads.
func (l Embed) Read(ctx context.Context, t id.TenantID, visitor id.VisitorID) error {
	return l.take(ctx, EmbedVisitorReads(t, visitor))
}

// Stream takes one of a visitor's places for live streams of a key until release,
// which may be called twice and does not block. The place of a node that died is
// free within its lease.
func (l Embed) Stream(ctx context.Context, t id.TenantID, key id.EmbedKeyID, visitor id.VisitorID) (release func(), err error) {
	at := HoldsAddress(t, "embed_streams", key.String()+visitor.String())
	release, ok, err := l.Holds.Hold(ctx, at, embedStreams)
	if err != nil {
		return nil, err
	}
	if !ok {
		quota.Note(ctx, quota.Quota{Limit: embedStreams, Reset: embedStreamRetry})
		return nil, &problem.Error{
			Code: problem.CodeEmbedTooManyStreams, RetryAfter: embedStreamRetry,
			Detail: fmt.Sprintf("The visitor has %d live streams of this key already. Close one first.", embedStreams),
		}
	}
	return release, nil
}

func (l Embed) take(ctx context.Context, b Bucket) error {
	_, retry, ok, err := l.Ledger.Take(ctx, b)
	return spent(b, retry, ok, err)
}

// spent is what the client is told of a Take.
func spent(b Bucket, retry time.Duration, ok bool, err error) error {
	switch {
	case err != nil:
		return err
	case !ok:
		return problem.RateLimited(fmt.Sprintf("Rate limit of scope %s exceeded.", b.Scope()), max(retry, time.Millisecond))
	}
	return nil
}
