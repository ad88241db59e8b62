package hold

import (
	"context"
	"fmt"
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

// EmbedStreams bounds the live streams of the embed API's visitors, over all nodes.
type EmbedStreams struct{ Semaphores *Semaphores }

// Stream takes one of a visitor's places for live streams of a key until release is
// called. release may be called twice and does not block. The places of a node that
// died are free within its membership lease. Each error is a *problem.Error:
// EMBED_TOO_MANY_STREAMS, or UNAVAILABLE where the places could not be counted.
func (e EmbedStreams) Stream(ctx context.Context, t id.TenantID, key id.EmbedKeyID, visitor id.VisitorID) (release func(), err error) {
	at := Address(t, "embed_streams", key.String()+visitor.String())
	release, ok, err := e.Semaphores.Hold(ctx, at, embedStreams)
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

// TenantStreams limits the open event streams of each tenant, over all nodes.
type TenantStreams struct {
	Semaphores *Semaphores
	Most       int // 0: no limit
}

// Stream takes one of a tenant's places for event streams until release is called. Each
// error is a *problem.Error: RATE_LIMITED, or UNAVAILABLE if the places could not be
// counted.
func (l TenantStreams) Stream(ctx context.Context, t id.TenantID) (release func(), err error) {
	if l.Most == 0 {
		return func() {}, nil
	}
	release, ok, err := l.Semaphores.Hold(ctx, Address(t, "streams", ""), l.Most)
	if err != nil {
		return nil, err
	}
	if !ok {
		quota.Note(ctx, quota.Quota{Limit: int64(l.Most), Reset: time.Second})
		return nil, problem.RateLimited(fmt.Sprintf("The tenant has %d open event streams, and may have no more (scope: streams).", l.Most), time.Second)
	}
	return release, nil
}
