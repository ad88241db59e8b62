package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"agentsvc/actors/limit/bucket"
	"agentsvc/actors/limit/hold"
	"agentsvc/actors/stream"
	"agentsvc/actors/trigger"
	"agentsvc/cluster"
	"agentsvc/cluster/membership"
	"agentsvc/cluster/revocation"
	"agentsvc/cmd/svc/cli"
	"agentsvc/persistence/blob"
	"agentsvc/persistence/journal"
	"agentsvc/persistence/outbox"
	"agentsvc/persistence/pg"
	"agentsvc/persistence/store"
	"agentsvc/schemas/event"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/quota"
	"agentsvc/transport/edge"
	"agentsvc/transport/edge/sse"
	"agentsvc/transport/egress"
	"agentsvc/transport/embed"
	"agentsvc/transport/hooks"
	"agentsvc/transport/platform"
	"agentsvc/transport/toolbox"
)

// drainWindow is over which the streams of a stopping node are cut, so that
// their clients do not come back all at once.
const drainWindow = 3 * time.Second

// drainNotice is how long a node of several goes on serving after it has said that
// it leaves, so that load balancers notice.
const drainNotice = time.Second

// maxConns is how many connections clients may have open: three quarters of the
// descriptors that this process may, the rest is for its own calls. 0 is the
// edge's own bound, where the system does not say.
func maxConns() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0
	}
	return int(min(limit.Cur, 1<<22)) / 4 * 3
}

// metricsConns is how many connections the other listener for metrics has: it shares the
// descriptors with the edge.
const metricsConns = 64

// joined is what the edge is joined with.
type joined struct {
	node   *cluster.Node
	writer *journal.Writer
	tables *store.Store
	hubs   *stream.Hubs
	holds  *hold.Semaphores
	blobs  *blob.Dir
	guard  *egress.Guard
	ledger *bucket.Ledger
	member *membership.Membership
	tools  *toolbox.Toolbox
	users  *store.Directory

	revoker   *revocation.Revoker
	pools     pools
	live      func() bool // the lease holds
	trusted   func() bool // so does what is remembered
	clustered bool

	sent  deliveries
	out   *outbox.Outbox
	hooks *hooks.Hooks
	fired *trigger.Fired
	embed *embed.Embed

	versions *platform.Versions
}

// openHTTP makes the edge, and the other listener for metrics where one is
// asked for.
func (s *service) openHTTP(c *Config, h joined, metrics *prometheus.Registry) error {
	sessions := platform.NewSessions(platform.SessionsConfig{Store: h.tables, PublicURL: c.PublicURL, Live: h.trusted, Strangers: platform.StrangeSessions(h.users),
		Ended: func(_ context.Context, t id.TenantID, user id.UserID, session id.SessionID) error {
			s.server.Load().CloseWhere(func(o sse.Owner) bool {
				return o.Tenant == t && o.User == user && (session.IsZero() || o.Session == session)
			})
			return nil
		}})
	auth := platform.NewAuth(platform.AuthConfig{Keys: platform.StoredKeys(h.tables), Strangers: platform.StrangeKeys(h.users), Touch: h.writer.Touch, Sessions: sessions, Live: h.trusted})
	table := edge.NewTable()
	p := platform.New(platform.Config{
		Store: h.tables, Auth: auth, Actors: actors{h.node, h.writer, h.member}, Streams: streams{h.hubs, h.holds, c.TenantStreams}, Files: h.blobs, URLs: urls{h.guard, c.Production},
		Tools: h.tools, Logins: logins{h.users, h.node}, Sessions: sessions, Production: c.Production, PublicURL: c.PublicURL,
		Revoker: h.revoker, Live: h.trusted, Versions: h.versions, Provides: c.provides,
		WebhookURLs: urls{h.guard, true}, Deliveries: h.sent, Outbox: h.out, WebhookBackoff: c.WebhookBackoff, Hooks: h.hooks, Fired: h.fired.Fired,
		Revoked: func(_ context.Context, t id.TenantID, key id.KeyID) error {
			s.server.Load().CloseWhere(func(o sse.Owner) bool { return o.Tenant == t && o.Key == key })
			return nil
		},
		Embeds: h.embed,
		EndVisits: func(t id.TenantID, key id.EmbedKeyID, user id.EndUserID) {
			s.server.Load().CloseWhere(func(o sse.Owner) bool {
				return o.Tenant == t && (!key.IsZero() && o.EmbedKey == key || !user.IsZero() && o.EndUser == user)
			})
		},
	})
	p.Register(table)
	h.hooks.Register(table, p)
	h.embed.Register(table, p)
	storage := &probe{member: h.member, writer: h.writer, trust: h.trusted, from: h.pools.system, kept: []*pg.Pool{h.pools.api, h.pools.system}, turn: make(chan struct{}, 1)}
	s.onStop(storage.stop)
	s.describe(table, func(ctx context.Context) error {
		if s.server.Load().Draining() {
			return errors.New("the node is stopping or drains")
		}
		return storage.check(ctx)
	})
	gathered := prometheus.Gatherers{metrics, prometheus.DefaultGatherer}
	if c.MetricsAddr == "" {
		edge.HandleMetrics(table, "/metrics", gathered)
	} else if err := s.openMetrics(c.MetricsAddr, gathered); err != nil {
		return err
	}
	notice := time.Duration(0)
	if h.clustered {
		notice = drainNotice
	}
	server, err := edge.NewServer(edge.Config{
		Table: table, Auth: auth, Live: h.live, DrainNotice: notice, MaxConns: maxConns(), MaxConnsPerIP: c.AddressConns, Limits: h.ledger, Replays: platform.Replays{Store: h.tables}, Classify: platform.Classify, Log: s.log, Metrics: metrics,
		TrustedProxies: c.TrustedProxies, DrainWindow: drainWindow, Streams: sse.Config{Heartbeat: c.Heartbeat},
	})
	if err != nil {
		return err
	}
	s.opened(server)
	h.revoker.Bind(remembered{p, server, h.pools.lease})
	s.onStop(func(ctx context.Context) error {
		// Whoever waits for something foreign that hangs is not waited for so long that the
		// lease could not be given back.
		ctx, cancel := context.WithTimeout(ctx, edgeStopTime)
		defer cancel()
		return server.Shutdown(ctx)
	})
	return nil
}

// describe adds the routes about the service itself.
func (s *service) describe(table *edge.Table, ready func(context.Context) error) {
	edge.HandleHealth(table, "/healthz", "health", "Is the process up", func(context.Context) error { return nil })
	edge.HandleHealth(table, "/readyz", "ready", "Does the node serve: storage is reachable, the lease holds, it neither drains nor stops", ready)
	edge.HandleOpenAPI(table, "/v1/openapi.json", apiInfo)
}

// openMetrics serves /metrics on a listener of its own.
func (s *service) openMetrics(addr string, g prometheus.Gatherer) error {
	table := edge.NewTable()
	edge.HandleMetrics(table, "/metrics", g)
	server, err := edge.NewServer(edge.Config{Table: table, MaxConns: metricsConns, Log: s.log})
	if err != nil {
		return err
	}
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- server.Serve(ln) }()
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
		(&service{}).describe(table, nil)
		edge.HandleMetrics(table, "/metrics", prometheus.DefaultGatherer)
		doc, err := table.OpenAPI(apiInfo)
		if err != nil {
			return err
		}
		_, err = cmd.OutOrStdout().Write(append(doc, '\n'))
		return err
	})}
}

// actors lets new work in by the writer's admission, before it is decided, and
// nothing while the node has no lease.
type actors struct {
	node   *cluster.Node
	writer *journal.Writer
	member *membership.Membership
}

func (a actors) MintShard() id.Shard { return a.node.MintShard() }

func (a actors) Ask(ctx context.Context, kind string, tenant id.TenantID, actor id.UUID, message any) (any, error) {
	if a.member.Suspended() {
		return nil, problem.Unavailable("Storage is not available.", time.Second)
	}
	switch message.(type) {
	case msg.Post, msg.StartOne:
		release, err := a.writer.Admit(ctx, tenant)
		if err != nil {
			return nil, err
		}
		defer release()
	}
	return a.node.Ask(ctx, cluster.Address{Kind: kind, Tenant: tenant, ID: actor}, message)
}

// embedLimits are the limits of the embed API.
type embedLimits struct {
	bucket.Embed
	hold.EmbedStreams
}

// streams gives the edge's connections to the readers of runs, at most so many of
// a tenant at a time over all nodes.
type streams struct {
	hubs  *stream.Hubs
	holds *hold.Semaphores
	most  int // 0: no bound
}

func (s streams) Open(ctx context.Context, tenant id.TenantID, run id.RunID, from event.Cursor) (edge.Subscriber, error) {
	return s.open(ctx, tenant, func() (*stream.Reader, error) { return s.hubs.Open(ctx, tenant, run, from) })
}

// open is a reader that holds one of the tenant's places.
func (s streams) open(ctx context.Context, tenant id.TenantID, read func() (*stream.Reader, error)) (edge.Subscriber, error) {
	release := func() {}
	if s.most > 0 {
		free, ok, err := s.holds.Hold(ctx, hold.Address(tenant, "streams", ""), s.most)
		if err != nil {
			return nil, err
		}
		if !ok {
			quota.Note(ctx, quota.Quota{Limit: int64(s.most), Reset: time.Second})
			return nil, problem.RateLimited(fmt.Sprintf("The tenant has %d open event streams, and may have no more (scope: streams).", s.most), time.Second)
		}
		release = free
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

// urls judges the URLs that tenants give for models.
type urls struct {
	guard     *egress.Guard
	httpsOnly bool
}

func (u urls) CheckURL(ctx context.Context, url string) error {
	return u.guard.CheckURL(ctx, url, egress.Rules{HTTPSOnly: u.httpsOnly})
}
