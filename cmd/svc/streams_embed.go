package main

import (
	"context"

	"agentsvc/actors/stream"
	"agentsvc/schemas/event"
	"agentsvc/schemas/id"
	"agentsvc/transport/edge"
)

// relays gives the edge's connections to the readers of the embed relay. They take
// the tenant's places as other readers do; how many of them a visitor may have is held
// by who opens them.
type relays struct{ streams }

// OpenRelay begins to read the redacted events of a run.
func (s relays) OpenRelay(ctx context.Context, tenant id.TenantID, run id.RunID, from event.Cursor) (edge.Subscriber, error) {
	return s.open(ctx, tenant, func() (*stream.Reader, error) { return s.hubs.OpenRelay(ctx, tenant, run, from) })
}
