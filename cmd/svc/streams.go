package main

import (
	"context"

	"agentsvc/actors/limit/hold"
	"agentsvc/actors/stream"
	"agentsvc/schemas/event"
	"agentsvc/schemas/id"
	"agentsvc/transport/edge"
)

// streams opens readers of runs for the edge's connections.
type streams struct {
	hubs   *stream.Hubs
	limits hold.TenantStreams
}

func (s streams) Open(ctx context.Context, tenant id.TenantID, run id.RunID, from event.Cursor) (edge.Subscriber, error) {
	return s.open(ctx, tenant, func() (*stream.Reader, error) { return s.hubs.Open(ctx, tenant, run, from) })
}

// open opens a reader that holds one of the tenant's places until it is gone.
func (s streams) open(ctx context.Context, tenant id.TenantID, read func() (*stream.Reader, error)) (edge.Subscriber, error) {
	release, err := s.limits.Stream(ctx, tenant)
	if err != nil {
		return nil, err
	}
	r, err := read()
	if err != nil {
		release()
		return nil, err
	}
	return reader{r, release}, nil
}

type reader struct {
	*stream.Reader
	release func()
}

func (r reader) Attach(c *edge.Conn) { r.Reader.Attach(c) }

func (r reader) Gone() {
	r.Reader.Gone()
	r.release()
}

// relays opens readers of the embed relay for the edge's connections. They take the
// tenant's places like other readers. The embed API limits the readers of one visitor.
type relays struct{ streams }

// OpenRelay opens a reader of the redacted events of a run.
func (s relays) OpenRelay(ctx context.Context, tenant id.TenantID, run id.RunID, from event.Cursor) (edge.Subscriber, error) {
	return s.open(ctx, tenant, func() (*stream.Reader, error) { return s.hubs.OpenRelay(ctx, tenant, run, from) })
}
