package main

import (
	"context"
	"time"

	"agentsvc/transport/trace"
)

// flushTime is how long a node that stops waits at most for the collector of traces.
const flushTime = 2 * time.Second

// openTraces starts what sends spans, if a collector is configured. It stops after the lease was
// given back, so that a collector that hangs keeps no other node waiting.
func (s *service) openTraces(ctx context.Context) (err error) {
	s.tracer, err = trace.Open(ctx, trace.Config{Endpoint: s.c.TraceURL, Node: s.self, Version: version, Log: s.log})
	s.onStop(func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, flushTime)
		defer cancel()
		return s.tracer.Stop(ctx)
	})
	return err
}
