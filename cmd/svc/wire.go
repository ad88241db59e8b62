package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"agentsvc/actors/approval"
	"agentsvc/actors/delivery"
	"agentsvc/actors/durable"
	"agentsvc/actors/limit/bucket"
	"agentsvc/actors/limit/hold"
	"agentsvc/actors/limit/slot"
	"agentsvc/actors/run"
	"agentsvc/actors/stream"
	"agentsvc/actors/sweep"
	"agentsvc/actors/thread"
	"agentsvc/actors/trigger"
	"agentsvc/cluster"
	"agentsvc/cluster/membership"
	"agentsvc/cluster/remote"
	"agentsvc/cluster/revocation"
	"agentsvc/persistence/blob"
	"agentsvc/persistence/cache"
	"agentsvc/persistence/engine"
	"agentsvc/persistence/feed"
	"agentsvc/persistence/journal"
	"agentsvc/persistence/outbox"
	"agentsvc/persistence/pg"
	"agentsvc/persistence/store"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
	"agentsvc/transport/edge"
	"agentsvc/transport/egress"
	"agentsvc/transport/embed"
	"agentsvc/transport/embed/session"
	"agentsvc/transport/hooks"
	"agentsvc/transport/mcp"
	"agentsvc/transport/model"
	"agentsvc/transport/platform"
	"agentsvc/transport/toolbox"
	"agentsvc/transport/webhook"
)

// Connections of a node.
const (
	apiConns    = 16
	systemConns = 9 // one of /readyz
	leaseConns  = 4 // one at work; a server that hangs holds the others until they are given up
	writerConns = 6 // five of the journal, one of the outbox

	nodeConns = apiConns + systemConns + leaseConns + writerConns
)

// service is one running node: everything joined.
type service struct {
	log    zerolog.Logger
	server atomic.Pointer[edge.Server] // nil until the edge is open
	ln     net.Listener
	fenced chan struct{} // closed when this process was declared dead

	// What finish needs.
	node      *cluster.Node
	mesh      *mesh // nil: a single node
	leasePool *pg.Pool

	draining sync.Mutex // guards drains, and that the edge says the same
	drains   bool       // clients are to go elsewhere

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

	st, err := openStorage(ctx, c, log, serving)
	if err != nil {
		return nil, err
	}
	s.onStop(st.close)
	pools, err := s.openPools(ctx, st.url)
	if err != nil {
		return nil, err
	}
	keys, err := unlock(ctx, c, pools.system, true)
	if err != nil {
		return nil, err
	}
	self := id.MemberID{UUID: id.NewAnywhere()}
	blobs, err := blob.New(filepath.Join(c.DataDir, "blobs"), self.String())
	if err != nil {
		return nil, err
	}
	s.onStop(func(context.Context) error { return blobs.Close() })
	uploads, err := blobs.ID()
	if err != nil {
		return nil, err
	}

	metrics := prometheus.NewRegistry()
	for _, cs := range [][]prometheus.Collector{
		egress.Collectors(), model.Collectors(), mcp.Collectors(), stream.Collectors(), bucket.Collectors(), hold.Collectors(), slot.Collectors(), sweep.Collectors(), cache.Collectors(),
		webhook.Collectors(), embed.Collectors(), revocation.Collectors(),
	} {
		metrics.MustRegister(cs...)
	}
	for _, k := range kinds {
		metrics.MustRegister(k.Collectors...)
	}

	mesh, err := s.openMesh(c, self, log)
	if err != nil {
		return nil, err
	}
	placed := cluster.Config{Member: self, Log: log}
	if mesh != nil {
		placed.Peers = mesh.remote
	}
	node := cluster.New(placed)
	rev := revocation.New(self, c.Lease, log)
	lost := sync.OnceFunc(func() { close(s.fenced) })
	// Without a lease nothing is performed: every durable kind leaves memory, and the sweep
	// wakes what has something to do when the database is back.
	rest := func() {
		for _, k := range kinds {
			node.Rest(k.Name)
		}
		if server := s.server.Load(); server != nil && mesh != nil { // others serve them, and know what was revoked
			server.CloseWhere(func(edge.Owner) bool { return true })
		}
	}
	joining := membership.Config{
		Member: self, Address: c.ClusterAddr, Version: version, Lease: c.Lease, Log: log, OnFenced: lost, OnSuspended: rest,
		OnRevoked: rev.OnRevoked, Exclusive: st.exclusive(), Uploads: uploads, Keys: keys.Names(),
		OnDrain: func(on bool) {
			node.Yield(on)
			s.drain(on)
		},
	}
	if mesh != nil {
		if joining.Secret, err = remote.NameOf(c.ClusterSecret); err != nil {
			return nil, err
		}
		joining.OnMembers = func(members []membership.Member) { mesh.follow(node, members) }
	}
	member, err := membership.Join(ctx, pools.lease, joining)
	if err != nil {
		return nil, err
	}
	s.onStop(member.Leave)
	if mesh != nil {
		mesh.member.Store(member)
		rev.Join(member, node)
	}
	live := func() bool { return !member.Suspended() }

	tables := store.New(pools.api, keys)
	trusted := revocation.Trusts(member, c.Lease)
	sent := deliveries{
		node:    node,
		targets: delivery.NewTargets(delivery.TargetsConfig{Endpoints: endpoints{tables}, Live: trusted}),
		hearers: delivery.NewHearers(delivery.HearersConfig{Reader: endpoints{tables}, Tell: node, Live: trusted, Log: log}),
	}
	writer := journal.New(journal.Config{Pool: pools.writer, Member: self, Tables: tablesOfKinds(), Log: log, Metrics: journal.NewMetrics(metrics), OnFenced: lost, OnEvent: sent.hearers.Committed})
	if err := writer.Start(ctx); err != nil {
		return nil, err
	}
	s.onStop(writer.Stop)
	out := outbox.New(outbox.Config{Pool: pools.writer, Member: self, Timeout: c.WebhookTimeout, Backoff: c.WebhookBackoff, Now: member.Now, Log: log,
		Metrics: outbox.NewMetrics(metrics), OnFenced: lost})
	if err := out.Start(ctx); err != nil {
		return nil, err
	}
	s.onStop(out.Stop)
	if err := sent.hearers.Start(ctx); err != nil {
		return nil, err
	}
	s.onStop(func(context.Context) error { sent.hearers.Stop(); return nil })

	guard := egress.New(egress.Config{Allow: c.OutboundAllow, Own: ownAddresses(s.ln, c.MetricsAddr, c.ClusterAddr), Live: live})
	registry := model.NewRegistry(model.Config{Guard: guard, RequireTLS: c.Production,
		OpenAI:    model.Provider{Kind: model.OpenAI, BaseURL: c.OpenAIURL, APIKey: model.Secret(c.OpenAIKey)},
		Anthropic: model.Provider{Kind: model.Anthropic, BaseURL: c.AnthropicURL, APIKey: model.Secret(c.AnthropicKey)}})
	s.onStop(func(context.Context) error { registry.Close(); return nil })

	gateway := mcp.New(mcp.Config{Guard: guard, RequireTLS: c.Production, Timeout: c.ToolTimeout, TTL: c.ToolsTTL, Stdio: c.StdioServers, Env: stdioEnv(), Live: live, Log: log})
	s.onStop(func(ctx context.Context) error { gateway.Close(ctx); return nil })

	attempts := webhook.New(webhook.Config{Guard: guard, Timeout: c.WebhookTimeout, RequireTLS: true, Version: version, Now: member.Now})
	s.onStop(func(context.Context) error { attempts.Close(); return nil })

	tools := toolbox.New(toolbox.Config{Tables: tables, Vault: keys, Gateway: gateway, Guard: guard, HTTPSOnly: c.Production, Stdio: c.StdioServers, Timeout: c.ToolTimeout, Log: log})
	sweeps := feed.NewSweep(pools.system)
	watched := stream.Config{Node: node, Source: feed.New(pools.api), Heads: sweeps, Log: log}
	if mesh != nil {
		watched.Peers, watched.Carrier, watched.Holds = node, mesh.feed, node.Holds
		watched.Lives = func(m id.MemberID) bool { return slices.Contains(living(member), m) }
		durable.ServeHolder(node)
	}
	hubs := stream.New(watched)
	reads := engine.New(pools.system)
	host := durable.Config{Log: log, Now: member.Now, MaxEffects: maxModelTurns}
	versions := platform.NewVersions(tables, trusted)
	thread.Register(node, writer, thread.Config{Store: reads, Tell: node, Published: versions.Published, Version: versions.Speaking, Ready: run.Kept{Ready: true}.Encode(), Log: log}, host)
	durable.Register(node, writer, approval.New(approval.Config{Store: reads, Vault: keys, Tell: node, Seal: tables.SealAnswer, Hears: sent.hearers.Hears, Log: log}), host)
	runs := run.Config{Store: reads, Models: &models{tables, keys, registry}, Live: hubs, Sealer: keys, Tell: node,
		Attachments: attachments{blobs}, Tools: tools, EscalateFraction: c.Escalation, Hears: sent.hearers.Hears, Now: member.Now, Log: log}
	if mesh != nil {
		runs.Holder = durable.Holder(node, func() []id.MemberID { return living(member) })
	}
	if c.RunConcurrency > 0 {
		queue := slot.NewQueue(node)
		runs.Slots, runs.TakeSlot = queue, queue.Take
		node.Register(slot.Kind, slot.New(slot.Config{Limit: c.RunConcurrency, Running: sweeps, Agreed: 5 * c.Lease, Log: log}))
		node.OnChange(queue.Changed)
		if err := queue.Start(ctx); err != nil {
			return nil, err
		}
		s.onStop(func(context.Context) error { queue.Stop(); return nil })
	}
	durable.Register(node, writer, run.New(runs), host)
	delivery.Register(node, delivery.Config{Outbox: out, Endpoints: sent.targets, Sender: sender{attempts}, Backoff: c.WebhookBackoff, Live: live, Now: member.Now, Log: log})
	schedules := store.NewSchedules(pools.system)
	trigger.Register(node, trigger.Config{Rows: schedules, Runs: actors{node, writer, member}, Now: member.Now, Log: log})
	fired := trigger.NewFired(trigger.FiredConfig{Note: schedules.NoteFired, Now: member.Now, Log: log})
	s.onStop(mesh.stop) // after the node: what it hands on while it ends leaves through here
	rate := bucket.PerSecond(int64(c.RateCapacity), c.RateRefill)
	for kind, rate := range map[string]bucket.Rate{msg.KindLimit: rate, kindLogin: loginRate} {
		buckets := bucket.KeeperConfig{Kind: kind, Rate: rate, Lapse: bucket.DefaultLapse - membership.DefaultLease + c.Lease, Log: log}
		if mesh != nil {
			buckets.Peers, buckets.Living, buckets.Refresh = node, func() []id.MemberID { return living(member) }, member.Refresh
		}
		keeper := bucket.NewKeeper(buckets)
		node.RegisterShared(kind, keeper.Behavior)
		node.Serve(keeper.Service(), keeper.Served)
		node.OnChange(keeper.Changed)
		s.onStop(keeper.Stop)
	}
	held := hold.Config{Node: node}
	if mesh != nil {
		held.Living, held.Refresh = func() []id.MemberID { return living(member) }, member.Refresh
	}
	holds := hold.New(held)
	node.RegisterShared(hold.Kind, holds.Behavior)
	node.Serve(hold.Service, holds.Served)
	node.OnChange(holds.Changed)
	s.onStop(func(context.Context) error { holds.Stop(); return nil })
	ledger := bucket.NewLedger(bucket.LedgerConfig{Node: node, Rate: rate})
	node.Serve(bucket.ServiceRecall, ledger.Served)
	node.Serve(stream.Service, hubs.ServeWatch)
	node.Serve(revocation.Service, rev.Serve)
	sweeper := sweep.New(sweep.Config{Node: node, Rows: sweeps, Kinds: kinds, Retentions: store.Retentions, Member: self, Suspended: member.Suspended, Files: files{blobs, store.NewFiles(pools.system)}, Log: log})
	node.OnChange(func(c cluster.Change) { sweeper.Gained(c.Gained) })
	if err := node.Start(ctx); err != nil {
		return nil, err
	}
	s.onStop(node.Stop)
	if err := mesh.start(ctx, node); err != nil {
		return nil, err
	}
	if err := hubs.Start(ctx); err != nil {
		return nil, err
	}
	s.onStop(func(context.Context) error { hubs.Stop(); return nil })
	if err := ledger.Start(ctx); err != nil {
		return nil, err
	}
	s.onStop(func(context.Context) error { ledger.Stop(); return nil })
	if err := rev.Start(ctx); err != nil {
		return nil, err
	}
	s.onStop(func(context.Context) error { rev.Stop(); return nil })
	if err := sweeper.Start(ctx); err != nil {
		return nil, err
	}
	s.onStop(func(context.Context) error { sweeper.Stop(); return nil })
	if err := fired.Start(ctx); err != nil {
		return nil, err
	}
	s.onStop(fired.Stop)
	if err := s.openHTTP(c, joined{
		node: node, writer: writer, tables: tables, hubs: hubs, holds: holds, blobs: blobs, guard: guard, ledger: ledger, member: member, tools: tools,
		users: store.NewDirectory(pools.system), revoker: rev, pools: pools, live: live, trusted: trusted, clustered: mesh != nil,
		sent: sent, out: out, hooks: hooks.New(hooks.Config{Rows: store.NewHooks(pools.system, keys), Live: trusted}), fired: fired, versions: versions,
		embed: embed.New(embed.Config{
			Rows: store.NewEmbedKeys(pools.system, keys), Store: tables, Limits: embedLimits{bucket.Embed{Ledger: ledger}, hold.EmbedStreams{Semaphores: holds}}, Streams: relays{streams{hubs, holds, c.TenantStreams}}, Signer: session.NewSigner(keys),
			TokenTTL: c.EmbedTokenTTL, PublicURL: c.PublicURL, Production: c.Production, Live: trusted,
		}),
	}, metrics); err != nil {
		return nil, err
	}
	s.node, s.mesh, s.leasePool = node, mesh, pools.lease
	return s, nil
}

// drain has balancers send clients elsewhere, or takes that back.
func (s *service) drain(on bool) {
	s.draining.Lock()
	defer s.draining.Unlock()
	s.drains = on
	if server := s.server.Load(); server != nil {
		server.Drain(on)
	}
}

// opened says which edge is this node's, and has it say what the node says.
func (s *service) opened(server *edge.Server) {
	s.draining.Lock()
	defer s.draining.Unlock()
	s.server.Store(server)
	server.Drain(s.drains)
}

// maxModelTurns is how many turns a node asks models at a time.
const maxModelTurns = 1 << 16

func (s *service) onStop(f func(context.Context) error) { s.stops = append(s.stops, f) }

// listen answers requests until the service stops.
func (s *service) listen() error {
	s.log.Info().Str("addr", s.ln.Addr().String()).Str("version", version).Msg("serving")
	return s.server.Load().Serve(s.ln)
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
		{&p.writer, pg.Options{Role: pg.System, MaxConns: writerConns, Writer: true, AppName: "svc writer"}},
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
func ownAddresses(ln net.Listener, others ...string) []netip.AddrPort {
	var own []netip.AddrPort
	for _, a := range append([]string{ln.Addr().String()}, others...) {
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
