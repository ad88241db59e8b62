package main

import (
	"context"

	"agentsvc/actors/stream"
	"agentsvc/schemas/event"
	"agentsvc/schemas/id"
	"agentsvc/transport/edge"
)

// relays opens readers of the embed relay for the edge's connections. They take the
// tenant's places like other readers. The embed API limits the readers of one visitor.
type relays struct{ streams }

// OpenRelay opens a reader of the redacted events of a run.
func (s relays) OpenRelay(ctx context.Context, tenant id.TenantID, run id.RunID, from event.Cursor) (edge.Subscriber, error) {
	return s.open(ctx, tenant, func() (*stream.Reader, error) { return s.hubs.OpenRelay(ctx, tenant, run, from) })
}
