package platform

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"agentsvc/persistence/blob"
	"agentsvc/persistence/journal"
	"agentsvc/persistence/outbox"
	"agentsvc/persistence/store"
	"agentsvc/schemas/api"
	"agentsvc/schemas/event"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/tool"
	"agentsvc/schemas/turn"
	"agentsvc/transport/edge"
)

// Actors reaches the owners of threads and runs.
type Actors interface {
	// Ask sends message to an actor and waits for its reply, for some seconds at
	// most; a reply that is an error is returned as the error.
	Ask(ctx context.Context, kind string, tenant id.TenantID, actor id.UUID, message any) (any, error)
	// MintShard is a shard of this node.
	MintShard() id.Shard
}

// Streams opens the event streams of runs. A run that the tenant does not have
// is NOT_FOUND.
type Streams interface {
	Open(ctx context.Context, tenant id.TenantID, run id.RunID, from event.Cursor) (edge.Subscriber, error)
}

// Files stores attachments and documents.
type Files interface {
	Put(ctx context.Context, key string, r io.Reader, max int64) (size int64, sum [sha256.Size]byte, err error)
	Open(ctx context.Context, key string) (io.ReadCloser, int64, error)
	Delete(ctx context.Context, key string) error
	// Settle reports that the row of a stored file is committed, or never will be; known is
	// false if the outcome is unknown.
	Settle(key string, known bool)
}

// URLGuard checks whether the service may send requests to a URL. The text of a refusal is
// shown to the caller.
type URLGuard interface {
	CheckURL(ctx context.Context, url string) error
}

// Tools knows the tools that tool servers offer.
type Tools interface {
	// Offered returns the tools that the published version of an agent may call now, with the
	// rules that decide on each. An agent without a published version counts with its newest.
	Offered(ctx context.Context, t id.TenantID, a id.AgentID) ([]tool.Offer, error)
	// Explain returns what decides when this agent calls the named tool. The name may be
	// qualified or bare.
	Explain(ctx context.Context, t id.TenantID, a id.AgentID, name string) (*tool.Explanation, error)
	// All returns up to limit tools of the tenant whose qualified names follow after, in the order
	// of these names, whatever is granted, as they were last listed. There are fewer if they are
	// large; more reports that there are others.
	All(ctx context.Context, t id.TenantID, after string, limit int) (tools []tool.Listed, more bool, err error)
	// Verdicts returns what happens when an agent calls each of these tools, by the grants and
	// policies of now. An unknown agent is NOT_FOUND.
	Verdicts(ctx context.Context, t id.TenantID, a id.AgentID, specs []tool.Spec) ([]tool.Verdict, error)
	// Known reports for each token of a message's tools whether it matches a tool of the
	// tenant, regardless of grants.
	Known(ctx context.Context, t id.TenantID, tokens []string) ([]bool, error)
	// Test lists a server's tools now, without caches, with the named connection if there is
	// one. A server that cannot be reached is MCP_UNREACHABLE.
	Test(ctx context.Context, t id.TenantID, s id.ServerID, c *id.ConnectionID) ([]tool.Spec, error)
	// Forget drops the cached state of a server, after a change of the server or of one of
	// its connections.
	Forget(t id.TenantID, s id.ServerID)
	// ForgetAccess drops the cached grants and policies: later calls are decided by the
	// tables.
	ForgetAccess(t id.TenantID)
	// ForgetAll drops every entry for which a change may have been missed.
	ForgetAll()
	// CheckEndpoint returns an error if a server may not have this endpoint.
	CheckEndpoint(ctx context.Context, transport tool.Transport, auth tool.AuthKind, endpoint string) error
}

// Logins is what console sessions need besides the store.
type Logins interface {
	// Find returns the users of all tenants with this e-mail that can log in with a password.
	Find(ctx context.Context, email string) ([]store.LoginUser, error)
	// Allow takes a token from the login bucket of key: an address, an e-mail or a user. When none is
	// left it returns the time until the next one.
	Allow(ctx context.Context, key string) (retry time.Duration, ok bool, err error)
}

// Turns are places for long work, for which tenants wait in turn (turn.Places).
type Turns interface {
	Take(ctx context.Context, t id.TenantID) error
	Give(t id.TenantID)
}

// Config holds the dependencies of the routes. A dependency is required unless it says what nil means.
type Config struct {
	Store   *store.Store
	Auth    *Auth
	Actors  Actors
	Streams Streams
	// Feed opens the feeds of tenants; nil: there are none.
	Feed   Feed
	Files  Files
	URLs   URLGuard
	Tools  Tools
	Logins Logins
	// Sessions are the console sessions cached on this node.
	Sessions *Sessions
	// Provides reports whether the deployment has a model provider of that name; nil means
	// none.
	Provides func(name string) bool
	// Production turns on secure cookies.
	Production bool
	// PublicURL is the origin of the console.
	PublicURL string
	// Revoker broadcasts to all nodes; nil means a single node.
	Revoker Revoker
	// Live reports whether this node still holds its lease; while it does not, caches count
	// as empty. nil means always.
	Live func() bool
	// Versions is this node's cache of agents; nil means a private one.
	Versions *Versions
	// Revoked is called once this node no longer accepts a revoked key. It closes the key's
	// streams on this node. nil means that there are none.
	Revoked func(ctx context.Context, t id.TenantID, key id.KeyID) error
	// WebhookURLs checks the URLs of webhook endpoints: https in every environment.
	WebhookURLs URLGuard
	// Deliveries sends to webhook endpoints; nil means that nothing is sent.
	Deliveries Deliveries
	// Outbox holds the deliveries that listeners pull.
	Outbox Outbox
	// WebhookBackoff is the pause after the first failed attempt of a delivery.
	WebhookBackoff time.Duration
	// Hooks is this node's cache of hooks; nil means none.
	Hooks Hooks
	// Fired is called for each run that a trigger started, by a hook or by a person. It must
	// not block. nil: it is not called.
	Fired func(t id.TenantID, g id.TriggerID, by string)
	// Embeds is this node's cache of embed keys and end users; nil means none.
	Embeds Embeds
	// EndVisits closes this node's streams of the visitors of an embed key, or of an end
	// user; the other id is zero. nil means that there are none.
	EndVisits func(t id.TenantID, k id.EmbedKeyID, u id.EndUserID)
	// Searcher searches knowledge bases; nil means that searches are UNAVAILABLE.
	Searcher Searcher
	// Embedding reports whether the deployment has a provider of embeddings of that name; nil
	// means none.
	Embedding func(name string) bool
	// Judging are the node's places for checks of definitions and manifests; nil: no check waits.
	Judging Turns
	// SourceURLs checks the addresses of knowledge sources.
	SourceURLs store.URLs
	// SkillRuns starts dry runs of browser skills and reads runs; nil means that dry runs are
	// BROWSER_SKILL_UNAVAILABLE, and that there are no runs.
	SkillRuns SkillRuns
	// Recorder knows the sessions in which skills are recorded; nil means none.
	Recorder Recorder
	// Wake makes the actor of a document or a source look at its row, without waiting; nil means
	// that only the search for open work does.
	Wake func(kind string, t id.TenantID, actor id.UUID)
	Log  zerolog.Logger
}

// Platform implements the /v1 routes.
type Platform struct {
	Config
}

// Versions caches which version of an agent answers messages, for the routes and for the
// threads of this node. An archived agent has none.
type Versions struct {
	store *store.Store
	cache *store.Cache[agentKey, int]
}

// NewVersions returns an empty cache. live reports whether the node still holds its lease;
// nil means always.
func NewVersions(s *store.Store, live func() bool) *Versions {
	return &Versions{s, store.NewCache[agentKey, int](store.CacheConfig{Max: maxPublished, TTL: publishedFor, Live: live})}
}

// Published returns the version of an agent that answers messages, 0 if there is none or it
// is not cached.
func (v *Versions) Published(t id.TenantID, a id.AgentID) int {
	n, _ := v.cache.Get(agentKey{t, a})
	return n
}

// Speaking reads the version of an agent that answers messages; AGENT_NOT_PUBLISHED where
// none does.
func (v *Versions) Speaking(ctx context.Context, t id.TenantID, a id.AgentID) (int, error) {
	n, ok, err := v.read(ctx, t, a)
	if err == nil && (!ok || n == 0) { // archived, or never published
		err = notPublished(problem.CodeAgentNotPublished, a)
	}
	return n, err
}

// read returns the published version, 0 if there is none; ok is false if the agent does not
// exist.
func (v *Versions) read(ctx context.Context, t id.TenantID, a id.AgentID) (version int, ok bool, err error) {
	return v.cache.Load(ctx, agentKey{t, a}, func(ctx context.Context) (int, bool, error) {
		return v.store.View(t).Published(ctx, a)
	})
}

type agentKey struct {
	tenant id.TenantID
	agent  id.AgentID
}

const (
	maxPublished = 1 << 14
	// publishedFor bounds how long what another process published past the API
	// goes unseen.
	publishedFor = 2 * time.Second
)

// New returns the routes; Register adds them to a table.
func New(cfg Config) *Platform {
	if cfg.Versions == nil {
		cfg.Versions = NewVersions(cfg.Store, cfg.Live)
	}
	return &Platform{Config: cfg}
}

// Register adds every route.
func (p *Platform) Register(t *edge.Table) {
	edge.Enum(t, lifecycle.RunStatuses...)
	edge.Enum(t, lifecycle.StepStatuses...)
	edge.Enum(t, lifecycle.StepKinds...)
	edge.Enum(t, lifecycle.VersionStatuses...)
	edge.Enum(t, lifecycle.OriginKinds...)
	edge.Enum(t, lifecycle.ApproverRoles...)
	edge.Enum(t, lifecycle.ApprovalStatuses...)
	edge.Enum(t, lifecycle.Risks...)
	edge.Enum(t, api.EffectStates...)
	edge.Enum(t, api.HealthStates...)
	edge.Enum(t, api.FoundKinds...)
	edge.Enum(t, api.ToolAccesses...)
	edge.Enum(t, tool.Sources...)
	edge.Enum(t, tool.Effects...)
	edge.Enum(t, tool.Transports...)
	edge.Enum(t, tool.AuthKinds...)
	describe(t)
	describeFeed(t)
	p.tenantRoutes(t)
	p.keyRoutes(t)
	p.agentRoutes(t)
	p.providerRoutes(t)
	p.attachmentRoutes(t)
	p.threadRoutes(t)
	p.runRoutes(t)
	p.workflowRoutes(t)
	p.workflowRunRoutes(t)
	p.knowledgeRoutes(t)
	p.approvalRoutes(t)
	p.serverRoutes(t)
	p.connectionRoutes(t)
	p.grantRoutes(t)
	p.policyRoutes(t)
	p.skillRoutes(t)
	p.webhookRoutes(t)
	p.triggerRoutes(t)
	p.embedKeyRoutes(t)
	p.endUserRoutes(t)
	p.sessionRoutes(t)
	p.userRoutes(t)
	p.nodeRoutes(t)
	p.auditRoutes(t)
	p.usageRoutes(t)
	p.searchRoutes(t)
	p.overviewRoutes(t)
	p.feedRoutes(t)
}

// Tags are the sections of the OpenAPI document, in its order.
var Tags = []edge.Tag{
	{Name: "Tenant", Description: "The caller, and the tenant itself."},
	{Name: "API keys", Description: "Keys of a tenant's back end. A key acts as admin."},
	{Name: "Agents", Description: "Agents, their versions, and runs of them without a thread."},
	{Name: "Workflows", Description: "Durable graphs of agents, tools, gates and people, and their versions."},
	{Name: knowledgeTag, Description: "Documents that agents search, the sources that bring them, and who may find them."},
	{Name: "Model providers", Description: "A tenant's own model providers take precedence over the deployment's."},
	{Name: "Attachments", Description: "Files that messages name."},
	{Name: "Threads", Description: "Conversations with an agent."},
	{Name: "Runs", Description: "What agents do: status, steps, events."},
	{Name: "Approvals", Description: "Tool calls that wait for a person, and their decisions."},
	{Name: "Tool servers", Description: "MCP servers, their credentials, and grants to call their tools."},
	{Name: "Approval policies", Description: "Rules that make tool calls wait for an approval."},
	{Name: skillsTag, Description: "Work on a web site that was shown once, as tools of agents: what is done, who approves it, which agents may, and what became of it."},
	{Name: webhooks, Description: "Notifications of events: endpoints, deliveries, listeners."},
	{Name: TriggersTag, Description: "Start runs automatically: hooks and schedules."},
	{Name: embedKeys, Description: "Let a chat widget on your pages talk to one agent."},
	{Name: endUsers, Description: "The people of your own product, as identity tokens name them."},
	{Name: "Sessions", Description: "Logging in and out of the console."},
	{Name: "Users", Description: "The people of a tenant."},
	{Name: "Org nodes", Description: "The tenant's organisation, as a tree with managers."},
	{Name: "Audit and usage", Description: "The audit log, and the cost of runs."},
	{Name: overviewTag, Description: "What changes, what happens now, and figures for charts."},
}

// ForgetAgent drops an agent's cached version: its next run looks up the published one.
func (p *Platform) ForgetAgent(t id.TenantID, a id.AgentID) { p.Versions.cache.Drop(agentKey{t, a}) }

// version returns the agent's published version, 0 if it has none; ok is false for an agent
// that is unknown or archived.
func (p *Platform) version(ctx context.Context, t id.TenantID, a id.AgentID) (version int, ok bool, err error) {
	return p.Versions.read(ctx, t, a)
}

// by returns the caller in the form that the store and the audit log use.
func by(c *edge.Caller) store.By {
	b := store.By{Tenant: c.Tenant, Actor: c.Principal, Again: c.Again}
	if c.IP.IsValid() {
		b.IP = c.IP.String()
	}
	if c.Idem != nil {
		b.Idem = &store.Idem{Digest: digest(c.Idem.IdemKey), Fingerprint: c.Idem.Fingerprint, Status: c.Idem.Status}
	}
	return b
}

// change runs one change of the store; its response is kept under the caller's
// Idempotency-Key.
func change[Out any](ctx context.Context, p *Platform, c *edge.Caller, fn func(ctx context.Context, tx *store.Tx) (*Out, error)) (*Out, error) {
	return changeBy(ctx, p, c, by(c), fn)
}

// with1 and with2 are changes that one method of the store makes, with one or two arguments. none1
// and none2 are those without an answer.
func with1[A, Out any](do func(*store.Tx, context.Context, A) (*Out, error), a A) func(context.Context, *store.Tx) (*Out, error) {
	return func(ctx context.Context, tx *store.Tx) (*Out, error) { return do(tx, ctx, a) }
}

func with2[A, B, Out any](do func(*store.Tx, context.Context, A, B) (*Out, error), a A, b B) func(context.Context, *store.Tx) (*Out, error) {
	return func(ctx context.Context, tx *store.Tx) (*Out, error) { return do(tx, ctx, a, b) }
}

func none1[A any](do func(*store.Tx, context.Context, A) error, a A) func(context.Context, *store.Tx) (*edge.Empty, error) {
	return func(ctx context.Context, tx *store.Tx) (*edge.Empty, error) { return nil, do(tx, ctx, a) }
}

func none2[A, B any](do func(*store.Tx, context.Context, A, B) error, a A, b B) func(context.Context, *store.Tx) (*edge.Empty, error) {
	return func(ctx context.Context, tx *store.Tx) (*edge.Empty, error) { return nil, do(tx, ctx, a, b) }
}

// changeLong does the same for a change that may touch each document of a knowledge base.
func changeLong[Out any](ctx context.Context, p *Platform, c *edge.Caller, fn func(ctx context.Context, tx *store.Tx) (*Out, error)) (*Out, error) {
	b := by(c)
	b.Long = true
	return changeBy(ctx, p, c, b, fn)
}

func changeBy[Out any](ctx context.Context, p *Platform, c *edge.Caller, b store.By, fn func(ctx context.Context, tx *store.Tx) (*Out, error)) (*Out, error) {
	var out *Out
	err := p.Store.Change(ctx, b, func(ctx context.Context, tx *store.Tx) ([]byte, error) {
		var err error
		if out, err = fn(ctx, tx); err != nil || c.Idem == nil {
			return nil, err
		}
		return edge.Encode(out)
	})
	if errors.Is(err, store.ErrReplay) {
		err = edge.ErrReplay
	}
	if err != nil {
		return nil, err
	}
	return out, nil
}

// judge checks a definition or a manifest in the tenant's turn: one that is made to be expensive
// takes a second or more.
func (p *Platform) judge(ctx context.Context, c *edge.Caller, check func(context.Context) error) error {
	if p.Judging != nil {
		if err := p.Judging.Take(ctx, c.Tenant); err != nil {
			return err
		}
		defer p.Judging.Give(c.Tenant)
	}
	return check(turn.With(ctx, c.Tenant))
}

// digest returns the hash under which a response is kept.
func digest(k edge.IdemKey) [sha256.Size]byte {
	var b []byte
	for _, part := range []string{k.Principal, k.Method, k.Path, k.Key} {
		b = binary.BigEndian.AppendUint32(b, uint32(len(part)))
		b = append(b, part...)
	}
	return sha256.Sum256(b)
}

// keep seals the response that an actor's commit stores.
func (p *Platform) keep(c *edge.Caller, answer any) (*msg.Idempotency, error) {
	if c.Idem == nil {
		return nil, nil
	}
	body, err := edge.Encode(answer)
	if err != nil {
		return nil, err
	}
	d := digest(c.Idem.IdemKey)
	sealed, err := p.Store.SealAnswer(c.Tenant, d, body)
	if err != nil {
		return nil, fmt.Errorf("seal an answer: %w", err)
	}
	return &msg.Idempotency{Digest: d, Fingerprint: c.Idem.Fingerprint, Status: c.Idem.Status, Response: sealed}, nil
}

// ask sends an order to an actor and returns its typed reply.
func ask[Reply any](ctx context.Context, p *Platform, c *edge.Caller, kind string, actor id.UUID, order any) (Reply, error) {
	var none Reply
	v, err := p.Actors.Ask(ctx, kind, c.Tenant, actor, order)
	if errors.Is(err, journal.ErrReplay) {
		err = edge.ErrReplay
	}
	if err != nil {
		return none, err
	}
	reply, ok := v.(Reply)
	if !ok {
		return none, fmt.Errorf("a %s answered %T to %T", kind, v, order)
	}
	return reply, nil
}

func sender(c *edge.Caller) msg.By {
	b := by(c)
	return msg.By{Actor: b.Actor, IP: b.IP}
}

// origin returns the caller as the origin of a run.
func origin(c *edge.Caller) msg.Origin {
	if !c.Key.IsZero() {
		return msg.Origin{Kind: lifecycle.OriginAPIKey, ID: c.Key.UUID}
	}
	return msg.Origin{Kind: lifecycle.OriginUser, ID: c.User.UUID}
}

// Replays finds kept responses for the edge.
type Replays struct{ Store *store.Store }

// Find returns nil when there is none.
func (r Replays) Find(ctx context.Context, k edge.IdemKey) (*edge.Stored, error) {
	kept, err := r.Store.Kept(ctx, k.Tenant, digest(k))
	if err != nil || kept == nil {
		return nil, err
	}
	return &edge.Stored{Fingerprint: kept.Fingerprint, Status: kept.Status, Body: kept.Body}, nil
}

// Classify maps internal errors to UNAVAILABLE if storage cannot serve now. It is the edge's
// Config.Classify.
func Classify(err error) *problem.Error {
	for _, down := range []error{store.ErrUnavailable, journal.ErrUnavailable, journal.ErrUnsettled, journal.ErrFenced, journal.ErrConflict,
		outbox.ErrUnavailable, outbox.ErrFenced, blob.ErrUnavailable, context.DeadlineExceeded, context.Canceled, syscall.ENOSPC, syscall.EDQUOT} {
		if errors.Is(err, down) {
			return problem.Unavailable("Storage is not available now.", time.Second)
		}
	}
	return nil
}

// page parses the cursor of a list.
func page[ID any](q api.Page, kind string) (at ID, err error) {
	_, err = q.From(kind, &at)
	return at, err
}

// reader reads the entries of a list after at; it may return one more than limit.
type reader[ID, T any] func(v store.View, ctx context.Context, at ID, limit int) ([]T, error)

// list returns one page of a list; pos returns the position of an entry in it. Every list is
// read by list or by whole, within api.MaxListBytes.
func list[ID, T any](ctx context.Context, v store.View, in api.Page, kind string, read reader[ID, T], pos func(T) ID) (*api.List[T], error) {
	at, err := page[ID](in, kind)
	if err != nil {
		return nil, err
	}
	bound := store.Bound{Bytes: api.MaxListBytes}
	rows, err := read(v.Bounded(&bound), ctx, at, in.Size())
	if err != nil {
		return nil, err
	}
	l := api.Paged(rows, in.Size(), bound.Cut, kind, func(item T) any { return pos(item) })
	return &l, nil
}

// The first read of a whole list takes as many rows as a page has. Each further read takes
// more, since the rows so far were small.
const maxChunk = 1600

// whole returns the whole list unless a page was requested. It begins after from and has at
// most most entries; 0 means no limit.
func whole[ID, T any](ctx context.Context, v store.View, in api.Page, kind string, from ID, most int, read reader[ID, T], pos func(T) ID) (*api.Whole[T], error) {
	if in.Given() {
		l, err := list(ctx, v, in, kind, read, pos)
		if err != nil {
			return nil, err
		}
		return api.PageOf(*l), nil
	}
	items := []T{}
	bound := store.Bound{Bytes: api.MaxListBytes}
	more := true
	for chunk := api.DefaultLimit; more && !bound.Cut && bound.Bytes > 0 && (most == 0 || len(items) < most); chunk = min(4*chunk, maxChunk) {
		if most > 0 {
			chunk = min(chunk, most-len(items))
		}
		rows, err := read(v.Bounded(&bound), ctx, from, chunk)
		if err != nil {
			return nil, err
		}
		if more = len(rows) > chunk; more {
			rows = rows[:chunk]
		}
		if items = append(items, rows...); len(rows) > 0 {
			from = pos(rows[len(rows)-1])
		}
	}
	if most > 0 && len(items) == most {
		more = false
	}
	return api.WholeOf(api.Paged(items, len(items), more || bound.Cut, kind, func(item T) any { return pos(item) })), nil
}
