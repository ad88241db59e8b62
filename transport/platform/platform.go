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

// Files keeps attachments.
type Files interface {
	Put(ctx context.Context, key string, r io.Reader, max int64) (size int64, sum [sha256.Size]byte, err error)
	Open(key string) (io.ReadSeekCloser, int64, error)
	Delete(key string) error
	// Settle says that the row of a stored file is committed, or never will be; known is
	// false where nobody knows which.
	Settle(key string, known bool)
}

// URLGuard says whether the service may be sent to a URL. The text of a refusal
// is shown to the caller.
type URLGuard interface {
	CheckURL(ctx context.Context, url string) error
}

// Tools knows what tool servers offer.
type Tools interface {
	// Offered is what the published version of an agent may call now, with what
	// decides on each; without one it is the newest version.
	Offered(ctx context.Context, t id.TenantID, a id.AgentID) ([]tool.Offer, error)
	// Explain says what decides on a call of the tool named, by its qualified or
	// bare name, by that agent.
	Explain(ctx context.Context, t id.TenantID, a id.AgentID, name string) (*tool.Explanation, error)
	// Known says for each token of a message's tools whether it matches a tool of
	// the tenant, whoever may call it.
	Known(ctx context.Context, t id.TenantID, tokens []string) ([]bool, error)
	// Test lists a server's tools now, past every cache, with the connection
	// named, or without one. A server that cannot be reached is MCP_UNREACHABLE.
	Test(ctx context.Context, t id.TenantID, s id.ServerID, c *id.ConnectionID) ([]tool.Spec, error)
	// Forget drops what is remembered of a server: it was changed or deleted, or
	// one of its connections was.
	Forget(t id.TenantID, s id.ServerID)
	// ForgetAccess drops what is remembered of who may call what: a call that asks
	// from now on is decided by what the tables say then.
	ForgetAccess(t id.TenantID)
	// ForgetAll drops everything of which a change may not have been heard.
	ForgetAll()
	// CheckEndpoint says whether a server may have this endpoint; the error is
	// the complaint.
	CheckEndpoint(ctx context.Context, transport tool.Transport, auth tool.AuthKind, endpoint string) error
}

// Logins is what console sessions need beside the store.
type Logins interface {
	// Find finds the users of all tenants with this e-mail that can log in by a
	// password.
	Find(ctx context.Context, email string) ([]store.LoginUser, error)
	// Allow takes a token of the bucket of a login by key: an address or an
	// e-mail. When there is none it says how long to wait for one.
	Allow(ctx context.Context, key string) (retry time.Duration, ok bool, err error)
}

// Config joins the routes with the rest. Everything but Provides, Revoker, Valid, Versions, Revoked,
// Hooks, Fired, Embeds, EndVisits and Deliveries is required.
type Config struct {
	Store   *store.Store
	Auth    *Auth
	Actors  Actors
	Streams Streams
	Files   Files
	URLs    URLGuard
	Tools   Tools
	Logins  Logins
	// Sessions are the console sessions that this node knows.
	Sessions *Sessions
	// Provides says whether the deployment has a model provider of that name; nil: none.
	Provides func(name string) bool
	// Production turns on secure cookies.
	Production bool
	// PublicURL is the origin of the console.
	PublicURL string
	// Revoker reaches all nodes; nil: this one is the only one.
	Revoker Revoker
	// Valid says whether this node still holds its lease; while it does not,
	// nothing that is remembered counts. nil: always.
	Valid func() bool
	// Versions is what this node remembers of agents; nil: the routes have their own.
	Versions *Versions
	// Revoked is called when a key was revoked and this node accepts it no more: it
	// closes the key's streams on this node.
	Revoked func(ctx context.Context, t id.TenantID, key id.KeyID) error
	// WebhookURLs judges the URLs of webhook endpoints: https in every environment.
	WebhookURLs URLGuard
	// Deliveries is what this node sends to webhook endpoints; nil: nothing.
	Deliveries Deliveries
	// Outbox holds the deliveries that listeners pull.
	Outbox Outbox
	// WebhookBackoff is the pause after the first failed attempt of a delivery.
	WebhookBackoff time.Duration
	// Hooks is what this node remembers of hooks; nil: nothing.
	Hooks Hooks
	// Fired is told of each run that a trigger started, by a hook or by a person. It
	// must not block.
	Fired func(t id.TenantID, g id.TriggerID, by string)
	// Embeds is what this node remembers of embed keys and end users; nil: nothing.
	Embeds Embeds
	// EndVisits closes the streams on this node of the visitors of an embed key, or of
	// an end user: the other one is zero. nil: there are none.
	EndVisits func(t id.TenantID, k id.EmbedKeyID, u id.EndUserID)
}

// Platform is the /v1 routes.
type Platform struct {
	Config
}

// Versions remembers which version of an agent answers messages, for those routes that
// need it and for the threads of this node. An agent that is archived has none.
type Versions struct {
	store *store.Store
	cache *store.Cache[agentKey, int]
}

// NewVersions makes one that remembers nothing. valid says whether the node still holds
// its lease; nil: it always does.
func NewVersions(s *store.Store, valid func() bool) *Versions {
	return &Versions{s, store.NewCache[agentKey, int](store.CacheConfig{Max: maxPublished, TTL: publishedFor, Valid: valid})}
}

// Published is the version of an agent that answers messages, 0 where none does or it is
// not remembered.
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

// read returns the published version, 0 where there is none; not ok where there is no
// such agent.
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

// New makes the routes; Register puts them into a table.
func New(cfg Config) *Platform {
	if cfg.Versions == nil {
		cfg.Versions = NewVersions(cfg.Store, cfg.Valid)
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
	edge.Enum(t, tool.Sources...)
	edge.Enum(t, tool.Effects...)
	edge.Enum(t, tool.Transports...)
	edge.Enum(t, tool.AuthKinds...)
	describe(t)
	p.tenantRoutes(t)
	p.keyRoutes(t)
	p.agentRoutes(t)
	p.providerRoutes(t)
	p.attachmentRoutes(t)
	p.threadRoutes(t)
	p.runRoutes(t)
	p.approvalRoutes(t)
	p.serverRoutes(t)
	p.connectionRoutes(t)
	p.grantRoutes(t)
	p.policyRoutes(t)
	p.webhookRoutes(t)
	p.triggerRoutes(t)
	p.embedKeyRoutes(t)
	p.endUserRoutes(t)
	p.sessionRoutes(t)
	p.userRoutes(t)
	p.nodeRoutes(t)
	p.auditRoutes(t)
	p.usageRoutes(t)
}

// Tags are the sections of the OpenAPI document, in its order.
var Tags = []edge.Tag{
	{Name: "Tenant", Description: "Who calls, and the tenant itself."},
	{Name: "API keys", Description: "Keys of a tenant's back end. A key acts as admin."},
	{Name: "Agents", Description: "Agents, their versions, and runs of them without a thread."},
	{Name: "Model providers", Description: "A tenant's own model providers go before the deployment's."},
	{Name: "Attachments", Description: "Files that messages name."},
	{Name: "Threads", Description: "Conversations with an agent."},
	{Name: "Runs", Description: "What agents do: status, steps, events."},
	{Name: "Approvals", Description: "Tool calls that wait for a person, and their decisions."},
	{Name: "Tool servers", Description: "MCP servers, their credentials, and who may call what."},
	{Name: "Approval policies", Description: "Which tool calls wait for a person, and for whom."},
	{Name: webhooks, Description: "What is sent when something happens: endpoints, deliveries, listeners."},
	{Name: TriggersTag, Description: "What starts runs by itself: hooks and schedules."},
	{Name: embedKeys, Description: "What lets a chat widget on your pages talk to one agent."},
	{Name: endUsers, Description: "The people of your own product, as identity tokens name them."},
	{Name: "Sessions", Description: "Logging in and out of the console."},
	{Name: "Users", Description: "The people of a tenant."},
	{Name: "Org nodes", Description: "The tenant's organisation, as a tree with managers."},
	{Name: "Audit and usage", Description: "Who did what, and what it cost."},
}

// ForgetAgent makes the next run of the agent look up its published version.
func (p *Platform) ForgetAgent(t id.TenantID, a id.AgentID) { p.Versions.cache.Drop(agentKey{t, a}) }

// version is the agent's published version, 0 when it has none; ok is false for
// an agent that is unknown or archived.
func (p *Platform) version(ctx context.Context, t id.TenantID, a id.AgentID) (version int, ok bool, err error) {
	return p.Versions.read(ctx, t, a)
}

// by is the caller as the store and the audit log see it.
func by(c *edge.Caller) store.By {
	b := store.By{Tenant: c.Tenant, Actor: c.Principal}
	if c.IP.IsValid() {
		b.IP = c.IP.String()
	}
	if c.Idem != nil {
		b.Idem = &store.Idem{Digest: digest(c.Idem.IdemKey), Fingerprint: c.Idem.Fingerprint, Status: c.Idem.Status}
	}
	return b
}

// change makes one change; its answer is kept under the caller's
// Idempotency-Key.
func change[Out any](ctx context.Context, p *Platform, c *edge.Caller, fn func(ctx context.Context, tx *store.Tx) (*Out, error)) (*Out, error) {
	var out *Out
	err := p.Store.Change(ctx, by(c), func(ctx context.Context, tx *store.Tx) ([]byte, error) {
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

// digest is what an answer is kept under.
func digest(k edge.IdemKey) [sha256.Size]byte {
	var b []byte
	for _, part := range []string{k.Principal, k.Method, k.Path, k.Key} {
		b = binary.BigEndian.AppendUint32(b, uint32(len(part)))
		b = append(b, part...)
	}
	return sha256.Sum256(b)
}

// keep seals the answer that an actor's commit is to keep.
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

// ask sends an order to an actor and reads its reply.
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

// origin is the caller as what starts a run.
func origin(c *edge.Caller) msg.Origin {
	if !c.Key.IsZero() {
		return msg.Origin{Kind: lifecycle.OriginAPIKey, ID: c.Key.UUID}
	}
	return msg.Origin{Kind: lifecycle.OriginUser, ID: c.User.UUID}
}

// Replays finds kept answers for the edge.
type Replays struct{ Store *store.Store }

// Find answers nil when there is none.
func (r Replays) Find(ctx context.Context, k edge.IdemKey) (*edge.Stored, error) {
	kept, err := r.Store.Kept(ctx, k.Tenant, digest(k))
	if err != nil || kept == nil {
		return nil, err
	}
	return &edge.Stored{Fingerprint: kept.Fingerprint, Status: kept.Status, Body: kept.Body}, nil
}

// Classify says which internal errors mean that storage cannot serve now; it is
// the edge's.
func Classify(err error) *problem.Error {
	for _, down := range []error{store.ErrUnavailable, journal.ErrUnavailable, journal.ErrUnsettled, journal.ErrFenced, journal.ErrConflict,
		outbox.ErrUnavailable, outbox.ErrFenced, context.DeadlineExceeded, context.Canceled, syscall.ENOSPC, syscall.EDQUOT} {
		if errors.Is(err, down) {
			return problem.Unavailable("Storage is not available now.", time.Second)
		}
	}
	return nil
}

// page reads where a list goes on.
func page[ID any](q api.Page, kind string) (at ID, err error) {
	_, err = q.From(kind, &at)
	return at, err
}

// reader reads entries of a list from behind at; one more than limit may come.
type reader[ID, T any] func(v store.View, ctx context.Context, at ID, limit int) ([]T, error)

// list answers one page of a list; pos is where an entry stands in it. Every list
// is read by it or by whole, within api.MaxListBytes.
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

// The first read of a whole list takes as many rows as a page has; each further
// one more of them, since the rows before it were small.
const maxChunk = 1600

// whole answers a list that is whole unless a page was asked for. It begins
// behind from and has at most most entries; 0: no such limit.
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
