package platform

import (
	"context"
	"sync/atomic"
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
	// renewAfter is the age at which a cached key or session in use is read again in the
	// background, so that its calls never wait for the read.
	renewAfter = keysFor * 2 / 3
)

// Keys looks up API keys; StoredKeys reads them from the store.
type Keys func(ctx context.Context, t id.TenantID, key id.KeyID) (h apikey.Hash, live bool, err error)

// StoredKeys looks API keys up in the store.
func StoredKeys(s *store.Store) Keys {
	return func(ctx context.Context, t id.TenantID, key id.KeyID) (apikey.Hash, bool, error) {
		return s.View(t).KeyHash(ctx, key)
	}
}

// AuthConfig holds Auth's dependencies. Keys is required.
type AuthConfig struct {
	Keys Keys
	// Strangers looks up keys that this node has not accepted recently (StrangeKeys); nil
	// means Keys.
	Strangers Keys
	// Touch records that a key was used. It must not block.
	Touch func(t id.TenantID, key id.KeyID, at time.Time)
	// Sessions authenticates console sessions; nil means that sessions are not accepted.
	Sessions edge.Authenticator
	// Live reports whether this node still holds its lease; while it does not, the cache
	// counts as empty.
	Live func() bool
	Now  func() time.Time
}

// Auth is the edge's Authenticator for API keys and, where enabled, sessions. Forget drops a
// cached key at once.
type Auth struct {
	cfg  AuthConfig
	keys *store.Cache[keyAt, *liveKey]
	seen seen[keyAt]
}

type keyAt struct {
	tenant id.TenantID
	key    id.KeyID
}

type liveKey struct {
	hash      apikey.Hash
	principal string
	renewal
}

// renewal is the time at which a cache entry is read again.
type renewal struct {
	at    time.Time
	begun atomic.Bool
}

// due reports that the time has come, to one caller only.
func (r *renewal) due(now time.Time) bool { return !now.Before(r.at) && !r.begun.Swap(true) }

// NewAuth returns an Auth.
func NewAuth(cfg AuthConfig) *Auth {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Touch == nil {
		cfg.Touch = func(id.TenantID, id.KeyID, time.Time) {}
	}
	if cfg.Strangers == nil {
		cfg.Strangers = cfg.Keys
	}
	return &Auth{cfg, store.NewCache[keyAt, *liveKey](store.CacheConfig{Max: maxKeys, TTL: keysFor, Now: cfg.Now, Live: cfg.Live}), newSeen[keyAt](maxKeys, cfg.Now)}
}

// decoyHash is compared when the key does not exist, so that a miss takes as long as a wrong
// secret.
var decoyHash = apikey.Hash{1}

// unauthorized is the error for invalid credentials. Its text depends on their form alone: a
// foreign, an unknown and a revoked key get the same answer (service.md, Authentication).
func unauthorized(detail string) error { return problem.New(problem.CodeUnauthorized, detail) }

const (
	noKey     = "The tenant has no such API key, or it was revoked."
	noSession = "The session has ended, or there is none: log in again."
)

// presented parses the caller's key and tenant. Its error says which header field is
// malformed.
func presented(c *edge.Credentials) (at keyAt, hash apikey.Hash, err error) {
	var text [36]byte // on the stack: every request passes here
	if copy(text[:], c.Tenant) != len(c.Tenant) || at.tenant.UnmarshalText(text[:]) != nil {
		return keyAt{}, apikey.Hash{}, unauthorized("The X-Tenant-Id header is not a UUID.")
	}
	if at.key, hash, err = apikey.Parse(c.Bearer); err != nil {
		return keyAt{}, apikey.Hash{}, unauthorized("The Authorization header holds no API key: a key is svc_ and 73 characters, and its checksum must fit.")
	}
	return at, hash, nil
}

// Authenticate implements edge.Authenticator.
func (a *Auth) Authenticate(ctx context.Context, c edge.Credentials) (edge.Identity, error) {
	if c.Bearer == "" {
		if c.Cookie == "" || a.cfg.Sessions == nil {
			return edge.Identity{}, unauthorized("There are no sessions here: send an API key.")
		}
		return a.cfg.Sessions.Authenticate(ctx, c)
	}
	at, hash, err := presented(&c)
	if err != nil {
		return edge.Identity{}, err
	}
	now := a.cfg.Now()
	live, ok := a.keys.Get(at)
	if !ok {
		find := a.cfg.Strangers
		if a.seen.knows(at, hash) {
			find = a.cfg.Keys
		}
		if live, ok, err = a.keys.Load(ctx, at, a.read(at, find)); err != nil {
			return edge.Identity{}, err
		}
		if ok && live.hash.Equal(hash) {
			a.seen.hashes.Keep(at, hash)
		}
	}
	if !live.hash.Equal(hash) || !ok {
		return edge.Identity{}, unauthorized(noKey)
	}
	if live.due(now) {
		go a.renew(at)
	}
	a.cfg.Touch(at.tenant, at.key, now)
	// An API key always acts as role admin (service.md, API key).
	return edge.Identity{Tenant: at.tenant, Role: lifecycle.RoleAdmin, Principal: live.principal, Key: at.key}, nil
}

// read returns a function that looks up a key with find.
func (a *Auth) read(at keyAt, find Keys) func(context.Context) (*liveKey, bool, error) {
	return func(ctx context.Context) (*liveKey, bool, error) {
		live := &liveKey{hash: decoyHash, principal: "apikey:" + at.key.String()}
		live.at = a.cfg.Now().Add(renewAfter)
		h, ok, err := find(ctx, at.tenant, at.key)
		switch {
		case ok:
			live.hash = h
		case err == nil: // its next look-up is a stranger's
			a.seen.hashes.Drop(at)
		}
		return live, ok, err
	}
}

// renew reads a cached key again before the entry expires. If that fails, the first call
// after expiry looks it up.
func (a *Auth) renew(at keyAt) {
	ctx, cancel := context.WithTimeout(context.Background(), store.Timeout)
	defer cancel()
	_, _, _ = a.keys.Renew(ctx, at, a.read(at, a.cfg.Keys))
}

// Cached reports whether a key is cached as valid.
func (a *Auth) Cached(c edge.Credentials) bool {
	at, hash, err := presented(&c)
	if err != nil {
		return false
	}
	live, ok := a.keys.Get(at)
	return ok && live.hash.Equal(hash)
}

// Forget drops a cached key. After it returns, a request with that key is looked up again,
// even if a look-up was already in progress.
func (a *Auth) Forget(t id.TenantID, key id.KeyID) {
	a.seen.hashes.Drop(keyAt{t, key})
	a.keys.Drop(keyAt{t, key})
}

// ForgetAll drops every cached key, for a node that was cut off.
func (a *Auth) ForgetAll() { a.keys.Clear() }
