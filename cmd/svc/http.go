package main

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"agentsvc/actors/durable"
	"agentsvc/actors/limit/bucket"
	"agentsvc/actors/limit/hold"
	"agentsvc/cluster"
	"agentsvc/cluster/membership"
	"agentsvc/cmd/svc/cli"
	"agentsvc/persistence/journal"
	"agentsvc/persistence/pg"
	"agentsvc/persistence/store"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
	"agentsvc/transport/browser"
	"agentsvc/transport/console"
	"agentsvc/transport/edge"
	"agentsvc/transport/edge/sse"
	"agentsvc/transport/egress"
	"agentsvc/transport/embed"
	"agentsvc/transport/embed/session"
	"agentsvc/transport/hooks"
	"agentsvc/transport/platform"
)

// drainWindow is the time over which a stopping node cuts its streams, so that their
// clients do not reconnect all at once.
const drainWindow = 3 * time.Second

// drainNotice is how long a node of several still serves after /readyz says that it
// leaves, so that load balancers notice.
const drainNotice = time.Second

// descriptors returns this process's limit of file descriptors: three quarters are for the
// connections of clients, the rest for its own calls. It returns 0 if the system does not tell.
func descriptors() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0
	}
	return int(min(limit.Cur, 1<<22))
}

// maxConns returns how many connections clients may have open; 0 is the edge's default.
func maxConns() int { return descriptors() / 4 * 3 }

// metricsConns is the number of connections of the separate listener for metrics. It shares
// the descriptors with the edge.
const metricsConns = 64

// makeEdge makes the edge, and opens the separate listener for metrics if one is configured. From here on
// this node forgets what others revoke, so it comes before the actors, which remember.
func (s *service) makeEdge(context.Context) error {
	c := s.c
	sessions := platform.NewSessions(platform.SessionsConfig{Store: s.tables, PublicURL: c.PublicURL, Live: s.trusted, Strangers: platform.StrangeSessions(s.users),
		Ended: func(_ context.Context, t id.TenantID, user id.UserID, session id.SessionID) error {
			s.server.Load().CloseWhere(func(o sse.Owner) bool {
				return o.Tenant == t && o.User == user && (session.IsZero() || o.Session == session)
			})
			return nil
		}})
	auth := platform.NewAuth(platform.AuthConfig{Keys: platform.StoredKeys(s.tables), Strangers: platform.StrangeKeys(s.users), Touch: s.writer.Touch, Sessions: sessions, Live: s.trusted})
	called := hooks.New(hooks.Config{Rows: store.NewHooks(s.pools.system, s.keys), Live: s.trusted})
	open := streams{s.hubs, hold.TenantStreams{Semaphores: s.holds, Most: c.TenantStreams}}
	widgets := embed.New(embed.Config{
		Rows: store.NewEmbedKeys(s.pools.system, s.keys), Store: s.tables, Limits: embedLimits{bucket.Embed{Ledger: s.ledger}, hold.EmbedStreams{Semaphores: s.holds}}, Streams: relays{open},
		Signer: session.NewSigner(s.keys), TokenTTL: c.EmbedTokenTTL, PublicURL: c.PublicURL, Production: c.Production, Live: s.trusted,
		Denied: s.noted.Denied,
	})
	p := platform.New(platform.Config{
		Log: s.log, Store: s.tables, Auth: auth, Actors: admitted{s.node, s.writer, s.member}, Streams: open, Feed: feeds{s.board, open.limits}, Files: s.blobs, URLs: urls{s.guard, c.Production},
		Tools: s.tools, SkillRuns: s.tools, Recorder: browser.Finder{Peers: s.node, Living: s.living}, Logins: logins{s.users, bucket.Logins{Node: s.node}}, Sessions: sessions, Production: c.Production, PublicURL: c.PublicURL,
		Revoker: s.revoker, Live: s.trusted, Versions: s.versions, Provides: s.models.Registry.Configured,
		WebhookURLs: urls{s.guard, true}, Deliveries: s.sent, Outbox: s.out, WebhookBackoff: c.WebhookBackoff, Hooks: called, Fired: s.fired.Fired,
		Revoked: func(_ context.Context, t id.TenantID, key id.KeyID) error {
			s.server.Load().CloseWhere(func(o sse.Owner) bool { return o.Tenant == t && o.Key == key })
			return nil
		},
		Embeds: widgets, Embedding: s.models.Registry.Embeds, Wake: s.wake, Searcher: searcher{s.index}, Judging: s.judging,
		SourceURLs: func(ctx context.Context, url string, plain bool) error {
			return urls{s.guard, c.Production && !plain}.CheckURL(ctx, url)
		},
		EndVisits: func(t id.TenantID, key id.EmbedKeyID, user id.EndUserID) {
			s.server.Load().CloseWhere(func(o sse.Owner) bool {
				return o.Tenant == t && (!key.IsZero() && o.EmbedKey == key || !user.IsZero() && o.EndUser == user)
			})
		},
	})
	table := edge.NewTable()
	p.Register(table)
	called.Register(table, p)
	widgets.Register(table, p)
	console.New(console.Built).Register(table)
	storage := &probe{member: s.member, writer: s.writer, trust: s.trusted, from: s.pools.system, kept: []*pg.Pool{s.pools.api, s.pools.system}, turn: make(chan struct{}, 1)}
	s.onStop(storage.stop)
	describe(table, func(ctx context.Context) error {
		if s.server.Load().Draining() {
			return errors.New("the node is stopping or drains")
		}
		return storage.check(ctx)
	})
	gathered := prometheus.Gatherers{s.metrics, prometheus.DefaultGatherer}
	if s.figures == nil {
		edge.HandleMetrics(table, "/metrics", gathered)
	} else if err := s.openMetrics(gathered); err != nil {
		return err
	}
	notice := time.Duration(0)
	if s.mesh != nil {
		notice = drainNotice
	}
	server, err := edge.NewServer(edge.Config{
		Table: table, Auth: auth, Live: s.live, DrainNotice: notice, MaxConns: maxConns(), MaxConnsPerIP: c.AddressConns, Limits: s.ledger, Replays: platform.Replays{Store: s.tables}, KeyedFingerprints: s.mesh == nil, Classify: platform.Classify, Log: s.log, Metrics: s.metrics, Spans: s.tracer,
		TrustedProxies: c.TrustedProxies, DrainWindow: drainWindow, Streams: sse.Config{Heartbeat: c.Heartbeat},
	})
	if err != nil {
		return err
	}
	s.opened(server)
	s.revoker.Bind(remembered{p, server, s.pools.lease, s.writer})
	return nil
}

// openEdge lets the edge end before the actors that it asks. Requests are answered from listen on.
func (s *service) openEdge(context.Context) error {
	server := s.server.Load()
	s.onStop(func(ctx context.Context) error {
		// A request may wait for a foreign server that hangs. The time for it is bounded so
		// that the lease can still be given back.
		ctx, cancel := context.WithTimeout(ctx, edgeStopTime)
		defer cancel()
		return server.Shutdown(ctx)
	})
	return nil
}

// describe adds the routes about the service itself.
func describe(table *edge.Table, ready func(context.Context) error) {
	edge.HandleHealth(table, "/healthz", "health", "Is the process up", func(context.Context) error { return nil })
	edge.HandleHealth(table, "/readyz", "ready", "Does the node serve: storage is reachable, the lease holds, it neither drains nor stops", ready)
	edge.HandleOpenAPI(table, "/v1/openapi.json", apiInfo)
}

// openMetrics serves /metrics on a separate listener.
func (s *service) openMetrics(g prometheus.Gatherer) error {
	table := edge.NewTable()
	edge.HandleMetrics(table, "/metrics", g)
	server, err := edge.NewServer(edge.Config{Table: table, MaxConns: metricsConns, Log: s.log})
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- server.Serve(s.figures) }()
	s.onStop(func(ctx context.Context) error {
		return errors.Join(server.Shutdown(ctx), <-done)
	})
	return nil
}

var apiInfo = edge.Info{
	Title: "Agent platform service", Version: "1",
	Description: "Runs agents for tenants: threads and runs that are streamed and durable.\n\n" +
		"A call carries `Authorization: Bearer svc_…` and `X-Tenant-Id`. Ids are UUIDs, times RFC 3339 in UTC, bodies JSON in snake_case; unknown fields are refused. " +
		"Lists take `cursor` and `limit` (25, at most 100) and answer `next_cursor`. A POST may carry an `Idempotency-Key`: a repeat within 24 hours returns the first response.\n\n" +
		"Errors are `application/problem+json` (RFC 9457) with a stable `code`. Beside those listed with an operation, HTTP itself may answer `METHOD_NOT_ALLOWED` (405), `REQUEST_TIMEOUT` (408), " +
		"`HEADERS_TOO_LARGE` (431) and `HTTP_VERSION_NOT_SUPPORTED` (505).",
	Tags: append(append([]edge.Tag{{Name: edge.TagService, Description: "The service itself."}}, platform.Tags...),
		edge.Tag{Name: embed.Tag, Description: "What chat widgets in browsers call, with a publishable key or a session token."}),
}

// openapiCommand prints the description that GET /v1/openapi.json serves.
func openapiCommand() *cobra.Command {
	return &cobra.Command{Use: "openapi", Short: "print the OpenAPI document", Args: cobra.NoArgs, RunE: cli.Does(func(cmd *cobra.Command, _ []string) error {
		table := edge.NewTable()
		p := platform.New(platform.Config{})
		p.Register(table)
		hooks.New(hooks.Config{}).Register(table, p)
		embed.New(embed.Config{}).Register(table, p)
		console.New(console.Built).Register(table)
		describe(table, nil)
		edge.HandleMetrics(table, "/metrics", prometheus.DefaultGatherer)
		doc, err := table.OpenAPI(apiInfo)
		if err != nil {
			return err
		}
		_, err = cmd.OutOrStdout().Write(append(doc, '\n'))
		return err
	})}
}

// admitted asks actors for the routes. The writer admits new work before it is decided;
// without a lease the node takes none.
type admitted struct {
	node   *cluster.Node
	writer *journal.Writer
	member *membership.Membership
}

func (a admitted) MintShard() id.Shard { return a.node.MintShard() }

func (a admitted) Ask(ctx context.Context, kind string, tenant id.TenantID, actor id.UUID, message any) (any, error) {
	if a.member.Suspended() {
		return nil, problem.Unavailable("Storage is not available.", time.Second)
	}
	switch message.(type) {
	case msg.Post, msg.StartOne, msg.StartWorkflow:
		release, err := a.admit(ctx, tenant)
		if err != nil {
			return nil, err
		}
		defer release()
	}
	return a.node.Ask(ctx, cluster.Address{Kind: kind, Tenant: tenant, ID: actor}, message)
}

// admit waits for the turn of new work. Its caller may have been revoked meanwhile.
func (a admitted) admit(ctx context.Context, tenant id.TenantID) (release func(), err error) {
	if release, err = a.writer.Admit(ctx, tenant); err != nil {
		return nil, err
	}
	if err := edge.Again(ctx); err != nil {
		release()
		return nil, err
	}
	return release, nil
}

// wake makes the actor of a row look at it, if this service has actors of that kind.
func (s *service) wake(kind string, t id.TenantID, actor id.UUID) {
	if slices.ContainsFunc(traits(), func(k durable.Traits) bool { return k.Name == kind }) {
		s.node.Tell(cluster.Address{Kind: kind, Tenant: t, ID: actor}, durable.Wake{})
	}
}

// logins finds users by e-mail and limits login attempts.
type logins struct {
	*store.Directory
	bucket.Logins
}

// embedLimits are the limits of the embed API.
type embedLimits struct {
	bucket.Embed
	hold.EmbedStreams
}

// urls checks the URLs that tenants set.
type urls struct {
	guard     *egress.Guard
	httpsOnly bool
}

func (u urls) CheckURL(ctx context.Context, url string) error {
	return u.guard.CheckURL(ctx, url, egress.Rules{HTTPSOnly: u.httpsOnly})
}
