package platform

import (
	"context"
	"time"

	"agentsvc/persistence/store"
	"agentsvc/schemas/apikey"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/problem"
	"agentsvc/transport/edge"
)

const (
	maxKeys = 1 << 15
	keysFor = 30 * time.Second
)

// Keys looks API keys up; store.Store is the one.
type Keys func(ctx context.Context, t id.TenantID, key id.KeyID) (h apikey.Hash, live bool, err error)

// StoredKeys looks API keys up in the store.
func StoredKeys(s *store.Store) Keys {
	return func(ctx context.Context, t id.TenantID, key id.KeyID) (apikey.Hash, bool, error) {
		return s.View(t).KeyHash(ctx, key)
	}
}

// AuthConfig joins Auth with the rest. Keys is required.
type AuthConfig struct {
	Keys Keys
	// Touch notes that a key was used. It must not block.
	Touch func(t id.TenantID, key id.KeyID, at time.Time)
	// Sessions authenticates console sessions; without it there are none.
	Sessions edge.Authenticator
	// Valid says whether this node still holds its lease; while it does not,
	// nothing that is remembered counts.
	Valid func() bool
	Now   func() time.Time
}

// Auth is the edge's Authenticator: API keys, and sessions where there are any.
// What it remembers of a key is dropped by Forget, at once.
type Auth struct {
	cfg  AuthConfig
	keys *store.Cache[keyAt, liveKey]
}

type keyAt struct {
	tenant id.TenantID
	key    id.KeyID
}

type liveKey struct {
	hash      apikey.Hash
	principal string
}

// NewAuth makes an Auth.
func NewAuth(cfg AuthConfig) *Auth {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Touch == nil {
		cfg.Touch = func(id.TenantID, id.KeyID, time.Time) {}
	}
	return &Auth{cfg, store.NewCache[keyAt, liveKey](store.CacheConfig{Max: maxKeys, TTL: keysFor, Now: cfg.Now, Valid: cfg.Valid})}
}

// nobody is the hash that a key is compared with where there is none: a miss
// takes as long as a wrong secret.
var nobody = apikey.Hash{1}

// unauthorized is the one answer to a key that is foreign, unknown, revoked or
// malformed (service.md, Authentication).
func unauthorized() error { return problem.New(problem.CodeUnauthorized, "") }

// presented reads what a caller claims to be.
func presented(c *edge.Credentials) (at keyAt, hash apikey.Hash, ok bool) {
	var text [36]byte // on the stack: this is every request's path
	if copy(text[:], c.Tenant) != len(c.Tenant) || at.tenant.UnmarshalText(text[:]) != nil {
		return keyAt{}, apikey.Hash{}, false
	}
	var err error
	if at.key, hash, err = apikey.Parse(c.Bearer); err != nil {
		return keyAt{}, apikey.Hash{}, false
	}
	return at, hash, true
}

// Authenticate implements edge.Authenticator.
func (a *Auth) Authenticate(ctx context.Context, c edge.Credentials) (edge.Identity, error) {
	if c.Bearer == "" {
		if c.Cookie == "" || a.cfg.Sessions == nil {
			return edge.Identity{}, unauthorized()
		}
		return a.cfg.Sessions.Authenticate(ctx, c)
	}
	at, hash, ok := presented(&c)
	if !ok {
		return edge.Identity{}, unauthorized()
	}
	live, ok := a.keys.Get(at)
	if !ok {
		var err error
		live, ok, err = a.keys.Load(ctx, at, func(ctx context.Context) (liveKey, bool, error) {
			h, live, err := a.cfg.Keys(ctx, at.tenant, at.key)
			if !live {
				h = nobody
			}
			return liveKey{h, "apikey:" + at.key.String()}, live, err
		})
		if err != nil {
			return edge.Identity{}, err
		}
	}
	if !live.hash.Equal(hash) || !ok {
		return edge.Identity{}, unauthorized()
	}
	a.cfg.Touch(at.tenant, at.key, a.cfg.Now())
	// An API key always acts as role admin (service.md, API key).
	return edge.Identity{Tenant: at.tenant, Role: lifecycle.RoleAdmin, Principal: live.principal, Key: at.key}, nil
}

// Cached implements edge.Authenticator: only what is known to be valid.
func (a *Auth) Cached(c edge.Credentials) bool {
	if c.Bearer == "" {
		return c.Cookie != "" && a.cfg.Sessions != nil && a.cfg.Sessions.Cached(c)
	}
	at, hash, ok := presented(&c)
	if !ok {
		return false
	}
	live, ok := a.keys.Get(at)
	return ok && live.hash.Equal(hash)
}

// Forget drops what is remembered of a key: when it returns, a request that
// presents it is looked up anew, one that is being looked up as well.
func (a *Auth) Forget(t id.TenantID, key id.KeyID) { a.keys.Drop(keyAt{t, key}) }

// ForgetAll drops everything, for a node that was cut off.
func (a *Auth) ForgetAll() { a.keys.Clear() }
