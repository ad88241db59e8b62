package embed

import (
	"context"
	"net/netip"
	"time"

	"agentsvc/persistence/store"
	"agentsvc/persistence/vault"
	"agentsvc/schemas/api"
	"agentsvc/schemas/embed"
	"agentsvc/schemas/event"
	"agentsvc/schemas/id"
	"agentsvc/transport/edge"
	"agentsvc/transport/embed/session"
	"agentsvc/transport/embed/widget"
	"agentsvc/transport/platform"
)

const (
	maxKeys = 1 << 12
	keysFor = 30 * time.Second
	// Unknown ids are cached briefly, so that repeated calls with one do not cost a look-up
	// each.
	maxAbsent = 1 << 14
	absentFor = 2 * time.Second
	maxPeople = 1 << 16
	peopleFor = 30 * time.Second
)

// Rows looks up embed keys, including revoked and paused ones; nil means none
// (store.EmbedKeys).
type Rows interface {
	Find(ctx context.Context, k id.EmbedKeyID) (*store.EmbedAccess, error)
	// Open opens a key's identity secret; zero if it has none.
	Open(key *store.EmbedAccess) (vault.Secret, error)
}

// Bucket scopes of client addresses (service.md, Limits: Embed per IP).
const (
	ScopeConfig  = "config"
	ScopeSession = "session"
)

// Limits are the cluster-wide buckets and slots of the embed API (service.md, Limits). Each
// error is a *problem.Error.
type Limits interface {
	// IP takes a token of a client address.
	IP(ctx context.Context, scope string, ip netip.Addr) error
	// Mint takes a token for a new session of a key with that rate per minute.
	Mint(ctx context.Context, t id.TenantID, key id.EmbedKeyID, perMinute int) error
	// Post takes a token for a message from the visitor and one from its key.
	Post(ctx context.Context, t id.TenantID, key id.EmbedKeyID, perMinute int, visitor id.VisitorID) error
	// Read takes a token for a read from the visitor.
	Read(ctx context.Context, t id.TenantID, visitor id.VisitorID) error
	// Stream takes one of a visitor's slots for open streams, until release.
	Stream(ctx context.Context, t id.TenantID, key id.EmbedKeyID, visitor id.VisitorID) (release func(), err error)
}

// Streams opens the redacted event streams of runs.
type Streams interface {
	OpenRelay(ctx context.Context, t id.TenantID, run id.RunID, from event.Cursor) (edge.Subscriber, error)
}

// Host executes the visitors' requests (platform.Platform).
type Host interface {
	// Say posts a message under the rules of embed threads.
	Say(ctx context.Context, c *edge.Caller, s platform.Saying) (*platform.Said, error)
	// Cancel cancels a run.
	Cancel(ctx context.Context, c *edge.Caller, run id.RunID) (*api.RunStatus, error)
}

// Config holds the dependencies of the embed API. Everything but Production, Bundle, Valid,
// Now and Denied is required.
type Config struct {
	Rows    Rows
	Store   *store.Store
	Limits  Limits
	Streams Streams
	Signer  *session.Signer
	// TokenTTL is the lifetime of a session token.
	TokenTTL time.Duration
	// PublicURL is the URL of the service: the origin of a page that sends none.
	PublicURL string
	// Production hides the demo page.
	Production bool
	// Bundle returns the widget, nil if this build has none; nil means widget.Bundle.
	Bundle func() *edge.Static
	// Live reports whether this node still holds its lease; while it does not, the cache
	// counts as empty. nil means always.
	Live func() bool
	Now  func() time.Time
	// Denied notes that a key refused an origin; nil: nothing does. It must not block.
	Denied func(t id.TenantID, k id.EmbedKeyID, origin string)
}

// Embed is the embed API of one node with its cache of keys and end users. It implements
// platform.Embeds. Register adds its routes to a table.
type Embed struct {
	Config
	host   Host
	public string // origin of PublicURL
	known  *store.Cache[id.EmbedKeyID, *store.EmbedAccess]
	absent *store.Cache[id.EmbedKeyID, struct{}]
	people *store.Cache[person, struct{}]
	gone   *store.Cache[person, struct{}]
}

type person struct {
	tenant id.TenantID
	user   id.EndUserID
}

// New returns an Embed with an empty cache.
func New(cfg Config) *Embed {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Denied == nil {
		cfg.Denied = func(id.TenantID, id.EmbedKeyID, string) {}
	}
	if cfg.Bundle == nil {
		cfg.Bundle = widget.Bundle
	}
	return &Embed{
		Config: cfg,
		public: embed.OfURL(cfg.PublicURL),
		known:  store.NewCache[id.EmbedKeyID, *store.EmbedAccess](store.CacheConfig{Max: maxKeys, TTL: keysFor, Now: cfg.Now, Live: cfg.Live}),
		absent: store.NewCache[id.EmbedKeyID, struct{}](store.CacheConfig{Max: maxAbsent, TTL: absentFor, Now: cfg.Now, Live: cfg.Live}),
		people: store.NewCache[person, struct{}](store.CacheConfig{Max: maxPeople, TTL: peopleFor, Now: cfg.Now, Live: cfg.Live}),
		gone:   store.NewCache[person, struct{}](store.CacheConfig{Max: maxAbsent, TTL: absentFor, Now: cfg.Now, Live: cfg.Live}),
	}
}

// Forget implements platform.Embeds.
func (e *Embed) Forget(_ id.TenantID, k id.EmbedKeyID) {
	e.known.Drop(k)
	e.absent.Drop(k)
}

// ForgetEndUser implements platform.Embeds.
func (e *Embed) ForgetEndUser(t id.TenantID, u id.EndUserID) {
	e.people.Drop(person{t, u})
	e.gone.Drop(person{t, u})
}

// ForgetAll implements platform.Embeds.
func (e *Embed) ForgetAll() {
	e.known.Clear()
	e.absent.Clear()
	e.people.Clear()
	e.gone.Clear()
}

// find returns a key, nil for none. The look-up of the key runs inside the look-up of the
// absent entry, so that a Forget in the meantime repeats both.
func (e *Embed) find(ctx context.Context, k id.EmbedKeyID) (*store.EmbedAccess, error) {
	if key, ok := e.known.Get(k); ok {
		return key, nil
	}
	var key *store.EmbedAccess
	_, _, err := e.absent.Load(ctx, k, func(ctx context.Context) (none struct{}, gone bool, err error) {
		key, _, err = e.known.Load(ctx, k, func(ctx context.Context) (*store.EmbedAccess, bool, error) {
			found, err := e.Rows.Find(ctx, k)
			return found, found != nil, err
		})
		return none, key == nil, err
	})
	return key, err
}

// there reports whether an end user exists. A deleted one is cached briefly like an unknown
// key, so that its tokens do not cost a look-up each.
func (e *Embed) there(ctx context.Context, t id.TenantID, u id.EndUserID) (bool, error) {
	who := person{t, u}
	if _, ok := e.people.Get(who); ok {
		return true, nil
	}
	_, gone, err := e.gone.Load(ctx, who, func(ctx context.Context) (none struct{}, gone bool, err error) {
		_, live, err := e.people.Load(ctx, who, func(ctx context.Context) (none struct{}, ok bool, err error) {
			ok, err = e.Store.View(t).EndUserLive(ctx, u)
			return none, ok, err
		})
		return none, !live, err
	})
	return !gone, err
}
