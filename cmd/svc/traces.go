package main

import (
	"context"
	"time"

	"agentsvc/actors/delivery"
	"agentsvc/actors/run"
	"agentsvc/transport/edge"
	"agentsvc/transport/trace"
)

// spans is where the parts of a node tell what they did.
type spans interface {
	edge.Spans
	run.Spans
	delivery.Spans
}

// flushTime is how long a node that stops waits at most for the collector of traces.
const flushTime = 2 * time.Second

// openTraces starts what sends spans, if a collector is configured. It stops after the lease was
// given back, so that a collector that hangs keeps no other node waiting.
func (s *service) openTraces(ctx context.Context) error {
	t, err := trace.Open(ctx, trace.Config{Endpoint: s.c.TraceURL, Node: s.self, Version: version, Log: s.log})
	if err != nil || t == nil {
		return err
	}
	s.tracer = t
	s.onStop(func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, flushTime)
		defer cancel()
		return t.Stop(ctx)
	})
	return nil
}
