package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"agentsvc/actors/limit/bucket"
	"agentsvc/actors/limit/hold"
	"agentsvc/actors/limit/slot"
	"agentsvc/actors/notice"
	"agentsvc/actors/stream"
	"agentsvc/actors/sweep"
	"agentsvc/cluster/revocation"
	"agentsvc/persistence/blob"
	"agentsvc/persistence/cache"
	"agentsvc/persistence/knowledge"
	"agentsvc/persistence/rollup"
	"agentsvc/transport/browser"
	"agentsvc/transport/edge"
	"agentsvc/transport/egress"
	"agentsvc/transport/embed"
	"agentsvc/transport/mcp"
	"agentsvc/transport/model"
	"agentsvc/transport/parser"
	"agentsvc/transport/trace"
	"agentsvc/transport/webhook"
)

// service is one running node. Each of its parts is complete after its step of newService,
// and a step uses the parts of the steps before it.
type service struct {
	c       *Config
	log     zerolog.Logger
	metrics *prometheus.Registry
	tracer  spans // traces.go; nil: no collector

	data     // data.go
	place    // cluster.go
	writers  // writers.go
	outbound // outbound.go
	actors   // kinds.go
	limits   // limits.go

	ln       net.Listener
	figures  net.Listener                // of SVC_METRICS_ADDR; nil: none
	server   atomic.Pointer[edge.Server] // nil until the edge is open
	draining sync.Mutex                  // guards drains, and that the edge's drain state is the same
	drains   bool                        // balancers are told to send clients to other nodes

	fenced chan struct{}   // closed when this process must end
	why    error           // set before that
	lost   func(why error) // closes fenced; the first reason counts

	stops []func(context.Context) error // of the parts, in the order of their start
}

// newService starts all parts of a node except the loop of its listener. After an error
// it stops the parts that it has started.
func newService(ctx context.Context, c *Config, log zerolog.Logger) (_ *service, err error) {
	s := &service{c: c, log: log, metrics: newMetrics(), fenced: make(chan struct{})}
	var once sync.Once
	s.lost = func(why error) { once.Do(func() { s.why = why; close(s.fenced) }) }
	defer func() {
		if err != nil {
			stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTime)
			defer cancel()
			err = errors.Join(err, s.stop(stopping))
		}
	}()
	for _, step := range []func(context.Context) error{
		s.takeAddress,  // first: a taken port is the commonest mistake, and should cost neither a database start nor a share of the work
		s.openData,     // Postgres, master keys, files
		s.openTraces,   // spans for a collector
		s.joinCluster,  // the lease, the shards, the way to the other nodes
		s.startWriters, // what commits: the journal, and the outbox of webhooks
		s.openOutbound, // what leaves: calls of models, tools and webhooks
		s.addActors,    // streams and the durable kinds
		s.addLimits,    // buckets and semaphores
		s.addSweep,     // due timers, open work, retention
		s.makeEdge,     // HTTP, and what is forgotten when it is revoked
		s.startNode,    // from here on actors receive
		s.openEdge,     // HTTP ends before the actors
	} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func newMetrics() *prometheus.Registry {
	metrics := prometheus.NewRegistry()
	for _, cs := range [][]prometheus.Collector{
		egress.Collectors(), model.Collectors(), mcp.Collectors(), stream.Collectors(), bucket.Collectors(), hold.Collectors(), slot.Collectors(), sweep.Collectors(), cache.Collectors(),
		webhook.Collectors(), embed.Collectors(), revocation.Collectors(), blob.Collectors(), parser.Collectors(), browser.Collectors(), knowledge.Collectors(), notice.Collectors(), rollup.Collectors(), trace.Collectors(),
	} {
		metrics.MustRegister(cs...)
	}
	for _, k := range kinds {
		metrics.MustRegister(k.Collectors...)
	}
	return metrics
}

// declaredDead ends a process that another one has declared dead.
func (s *service) declaredDead() {
	s.lost(errors.New("this process was declared dead by another one: ending"))
}

// takeAddress opens the listeners of the edge and of the metrics. Nothing is answered there before listen and
// openMetrics.
func (s *service) takeAddress(context.Context) error {
	for _, take := range []struct {
		env, addr string
		to        *net.Listener
	}{
		{"SVC_ADDR", s.c.Addr, &s.ln},
		{"SVC_METRICS_ADDR", s.c.MetricsAddr, &s.figures},
	} {
		if take.addr == "" {
			continue
		}
		ln, err := net.Listen("tcp", take.addr)
		if err != nil {
			return fmt.Errorf("%s: %w", take.env, err)
		}
		*take.to = ln
		s.onStop(func(context.Context) error {
			if err := ln.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
				return err
			}
			return nil
		})
	}
	return nil
}

// startNode lets the actors receive, and starts what works beside them.
func (s *service) startNode(ctx context.Context) error {
	for _, part := range []struct {
		start func(context.Context) error
		stop  func(context.Context) error // nil: nothing to stop, or it is stopped elsewhere
	}{
		{s.node.Start, s.node.Stop},
		{func(ctx context.Context) error { return s.mesh.start(ctx, s.node) }, nil}, // after the node: messages of other nodes arrive from here on
		{s.hubs.Start, infallible(s.hubs.Stop)},
		{s.board.Start, nil},
		{s.ledger.Start, infallible(s.ledger.Stop)},
		{s.revoker.Start, infallible(s.revoker.Stop)},
		{s.sweeper.Start, infallible(s.sweeper.Stop)},
		{s.folder.Start, infallible(s.folder.Stop)},
		{s.fired.Start, s.fired.Stop},
		{s.noted.Start, s.noted.Stop},
	} {
		if err := part.start(ctx); err != nil {
			return err
		}
		if part.stop != nil {
			s.onStop(part.stop)
		}
	}
	return nil
}

// infallible turns a function that cannot fail into a step of stop.
func infallible(f func()) func(context.Context) error {
	return func(context.Context) error { f(); return nil }
}

func (s *service) onStop(f func(context.Context) error) { s.stops = append(s.stops, f) }

// listen answers requests until the service stops.
func (s *service) listen() error {
	s.log.Info().Str("addr", s.ln.Addr().String()).Str("version", version).Msg("serving")
	return s.server.Load().Serve(s.ln)
}

// drain tells balancers to send clients to other nodes, or to send them here again.
func (s *service) drain(on bool) {
	s.draining.Lock()
	defer s.draining.Unlock()
	s.drains = on
	if server := s.server.Load(); server != nil {
		server.Drain(on)
	}
}

// opened publishes the edge and applies the current drain state.
func (s *service) opened(server *edge.Server) {
	s.draining.Lock()
	defer s.draining.Unlock()
	s.server.Store(server)
	server.Drain(s.drains)
}

// stop ends the parts in the reverse order of their start: no new requests,
// streams cut, activations ended, queued commits written, the lease given back.
func (s *service) stop(ctx context.Context) error {
	var errs []error
	for i := len(s.stops) - 1; i >= 0; i-- {
		errs = append(errs, s.stops[i](ctx))
	}
	s.stops = nil
	return errors.Join(errs...)
}
