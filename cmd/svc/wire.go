package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"agentsvc/actors/approval"
	"agentsvc/actors/durable"
	"agentsvc/actors/limit"
	"agentsvc/actors/run"
	"agentsvc/actors/stream"
	"agentsvc/actors/sweep"
	"agentsvc/actors/thread"
	"agentsvc/cluster"
	"agentsvc/cluster/membership"
	"agentsvc/persistence/blob"
	"agentsvc/persistence/engine"
	"agentsvc/persistence/feed"
	"agentsvc/persistence/journal"
	"agentsvc/persistence/pg"
	"agentsvc/persistence/store"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
	"agentsvc/transport/edge"
	"agentsvc/transport/egress"
	"agentsvc/transport/mcp"
	"agentsvc/transport/model"
)

// Connections of a node beside the writer's lanes.
const (
	apiConns    = 16
	systemConns = 8
	leaseConns  = 4 // one at work; a server that hangs holds the others until they are given up
)

// service is one running node: everything joined.
type service struct {
	log    zerolog.Logger
	server *edge.Server
	ln     net.Listener
	fenced chan struct{} // closed when this process was declared dead

	// stops end the parts, last one first.
	stops []func(context.Context) error
}

// newService starts all parts of a node but the listener's loop. What was
// started before an error is stopped again.
func newService(ctx context.Context, c *Config, log zerolog.Logger) (_ *service, err error) {
	s := &service{log: log, fenced: make(chan struct{})}
	defer func() {
		if err != nil {
			stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTime)
			defer cancel()
			err = errors.Join(err, s.stop(stopping))
		}
	}()

	// The address first: a taken port is the commonest mistake and should not
	// cost a database start.
	if s.ln, err = net.Listen("tcp", c.Addr); err != nil {
		return nil, err
	}
	s.onStop(func(context.Context) error {
		if err := s.ln.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			return err
		}
		return nil
	})

	keys, err := openVault(c)
	if err != nil {
		return nil, err
	}
	st, err := openStorage(ctx, c, log, false)
	if err != nil {
		return nil, err
	}
	s.onStop(st.close)
	pools, err := s.openPools(ctx, st.url)
	if err != nil {
		return nil, err
	}
	blobs, err := blob.New(filepath.Join(c.DataDir, "blobs"))
	if err != nil {
		return nil, err
	}
	s.onStop(func(context.Context) error { return blobs.Close() })

	metrics := prometheus.NewRegistry()
	for _, cs := range [][]prometheus.Collector{egress.Collectors(), model.Collectors(), mcp.Collectors(), stream.Collectors(), limit.Collectors(), sweep.Collectors()} {
		metrics.MustRegister(cs...)
	}

	self := id.MemberID{UUID: id.NewAnywhere()}
	node := cluster.New(cluster.Config{Member: self, Log: log})
	lost := sync.OnceFunc(func() { close(s.fenced) })
	// Without a lease nothing is performed: runs, threads and approvals leave
	// memory, and the sweep wakes what has something to do when the database is back.
	rest := func() {
		for _, kind := range []string{msg.KindRun, msg.KindThread, msg.KindApproval} {
			node.Rest(kind)
		}
	}
	member, err := membership.Join(ctx, pools.lease, membership.Config{
		Member: self, Lease: c.Lease, Log: log, OnFenced: lost, OnSuspended: rest, Exclusive: st.exclusive(),
	})
	if err != nil {
		return nil, err
	}
	s.onStop(member.Leave)

	writer := journal.New(journal.Config{Pool: pools.writer, Member: self, Log: log, Metrics: journal.NewMetrics(metrics), OnFenced: lost})
	if err := writer.Start(ctx); err != nil {
		return nil, err
	}
	s.onStop(writer.Stop)

	guard := egress.New(egress.Config{Allow: c.OutboundAllow, Own: ownAddresses(s.ln, c.MetricsAddr)})
	registry := model.NewRegistry(model.Config{Guard: guard, RequireTLS: c.Production,
		OpenAI:    model.Provider{Kind: model.OpenAI, BaseURL: c.OpenAIURL, APIKey: model.Secret(c.OpenAIKey)},
		Anthropic: model.Provider{Kind: model.Anthropic, BaseURL: c.AnthropicURL, APIKey: model.Secret(c.AnthropicKey)}})
	s.onStop(func(context.Context) error { registry.Close(); return nil })

	gateway := mcp.New(mcp.Config{Guard: guard, RequireTLS: c.Production, Timeout: c.ToolTimeout, TTL: c.ToolsTTL, Stdio: c.StdioServers, Env: stdioEnv(), Log: log})
	s.onStop(func(ctx context.Context) error { gateway.Close(ctx); return nil })

	tables := store.New(pools.api, keys)
	tools := newToolbox(tables, keys, gateway, guard, c, log)
	sweeps := feed.NewSweep(pools.system)
	hubs := stream.New(stream.Config{Node: node, Source: feed.New(pools.api), Heads: sweeps, Log: log})
	reads := engine.New(pools.system)
	host := durable.Config{Log: log, Now: member.Now, MaxEffects: maxModelTurns}
	thread.Register(node, writer, thread.Config{Store: reads, Tell: node, Log: log}, host)
	durable.Register(node, writer, approval.New(approval.Config{Store: reads, Vault: keys, Tell: node, Join: run.Join(node), Seal: tables.SealAnswer, Log: log}), host)
	runs := run.Config{Store: reads, Models: &models{tables, keys, registry}, Live: hubs, Sealer: keys, Tell: node,
		Attachments: attachments{blobs}, Tools: tools, EscalateFraction: c.Escalation, Now: member.Now, Log: log}
	if c.RunConcurrency > 0 {
		runs.Slots, runs.TakeSlot = slots{node}, slots{node}.Take
		node.Register(limit.KindSlots, limit.Slots(limit.SlotsConfig{Limit: c.RunConcurrency, Running: sweeps, Now: member.Now, Log: log}))
	}
	durable.Register(node, writer, run.New(runs), host)
	node.Register(msg.KindLimit, limit.Buckets(limit.PerSecond(int64(c.RateCapacity), c.RateRefill), nil, member.Now))
	node.Register(kindLogin, limit.Buckets(limit.PerSecond(loginTries, loginRefill), nil, member.Now))
	if err := node.Start(ctx); err != nil {
		return nil, err
	}
	s.onStop(node.Stop)
	if err := hubs.Start(ctx); err != nil {
		return nil, err
	}
	s.onStop(func(context.Context) error { hubs.Stop(); return nil })
	ledger := limit.NewLedger(limit.LedgerConfig{Node: node, Rate: limit.PerSecond(int64(c.RateCapacity), c.RateRefill)})
	if err := ledger.Start(ctx); err != nil {
		return nil, err
	}
	s.onStop(func(context.Context) error { ledger.Stop(); return nil })
	sweeper := sweep.New(sweep.Config{Node: node, Rows: sweeps, Log: log})
	if err := sweeper.Start(ctx); err != nil {
		return nil, err
	}
	s.onStop(func(context.Context) error { sweeper.Stop(); return nil })
	return s, s.openHTTP(c, joined{
		node: node, writer: writer, tables: tables, hubs: hubs, blobs: blobs, guard: guard, ledger: ledger, member: member, tools: tools,
		users: store.NewDirectory(pools.system),
	}, metrics)
}

// maxModelTurns is how many turns a node asks models at a time.
const maxModelTurns = 1 << 16

func (s *service) onStop(f func(context.Context) error) { s.stops = append(s.stops, f) }

// listen answers requests until the service stops.
func (s *service) listen() error {
	s.log.Info().Str("addr", s.ln.Addr().String()).Str("version", version).Msg("serving")
	return s.server.Serve(s.ln)
}

// stop ends the parts in the reverse order of their start: no new requests,
// streams cut, activations ended, what is queued committed, the lease given back.
func (s *service) stop(ctx context.Context) error {
	var errs []error
	for i := len(s.stops) - 1; i >= 0; i-- {
		errs = append(errs, s.stops[i](ctx))
	}
	s.stops = nil
	return errors.Join(errs...)
}

// pools are the ways to the database under their roles. The lease has its own:
// no crowd of reads may come between a node and its beat.
type pools struct{ api, system, writer, lease *pg.Pool }

func (s *service) openPools(ctx context.Context, url string) (p pools, err error) {
	for _, o := range []struct {
		to *(*pg.Pool)
		pg.Options
	}{
		{&p.api, pg.Options{Role: pg.API, MaxConns: apiConns, AppName: "svc api"}},
		{&p.system, pg.Options{Role: pg.System, MaxConns: systemConns, AppName: "svc actors"}},
		{&p.writer, pg.Options{Role: pg.System, MaxConns: 4, Writer: true, AppName: "svc writer"}},
		{&p.lease, pg.Options{Role: pg.System, MaxConns: leaseConns, AppName: "svc lease"}},
	} {
		pool, err := pg.Open(ctx, url, o.Options)
		if err != nil {
			return p, err
		}
		*o.to = pool
		s.onStop(func(ctx context.Context) error { return closePool(ctx, pool) })
	}
	return p, nil
}

// closePool waits for a pool's connections to end, but no longer than the node
// may take: a server that hangs does not say good-bye.
func closePool(ctx context.Context, pool *pg.Pool) error {
	closed := make(chan struct{})
	go func() { pool.Close(); close(closed) }()
	select {
	case <-closed:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("close connections: %w", ctx.Err())
	}
}

// ownAddresses are the listeners that outbound calls never reach.
func ownAddresses(ln net.Listener, metrics string) []netip.AddrPort {
	var own []netip.AddrPort
	for _, a := range []string{ln.Addr().String(), metrics} {
		addr, err := net.ResolveTCPAddr("tcp", a)
		if err != nil || a == "" {
			continue
		}
		at := addr.AddrPort()
		ip := at.Addr().Unmap()
		if !ip.IsValid() { // a port alone: every address of this machine
			ip = netip.IPv6Unspecified()
		}
		own = append(own, netip.AddrPortFrom(ip, at.Port()))
	}
	return own
}

// slots tell the tenant's limiter what runs wish.
type slots struct{ node *cluster.Node }

func (s slots) Acquire(t id.TenantID, wish msg.AcquireSlot) { s.node.Tell(limit.TenantSlots(t), wish) }
func (s slots) Take(t id.TenantID, taken msg.TakeSlot)      { s.node.Tell(limit.TenantSlots(t), taken) }
func (s slots) Release(t id.TenantID, done msg.ReleaseSlot) { s.node.Tell(limit.TenantSlots(t), done) }
