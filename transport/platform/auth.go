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
	// renewAfter is the age at which what is remembered of a key or session in use is
	// read anew, beside its calls, so that they never wait for it.
	renewAfter = keysFor * 2 / 3
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
	// Strangers looks up keys that this node has not accepted lately (StrangeKeys);
	// nil: Keys does.
	Strangers Keys
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

// renewal says when something that is remembered is read anew.
type renewal struct {
	at    time.Time
	begun atomic.Bool
}

// due reports to one caller that the time has come.
func (r *renewal) due(now time.Time) bool { return !now.Before(r.at) && !r.begun.Swap(true) }

// NewAuth makes an Auth.
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
	return &Auth{cfg, store.NewCache[keyAt, *liveKey](store.CacheConfig{Max: maxKeys, TTL: keysFor, Now: cfg.Now, Valid: cfg.Valid}), newSeen[keyAt](maxKeys, cfg.Now)}
}

// nobody is the hash that a key is compared with where there is none: a miss
// takes as long as a wrong secret.
var nobody = apikey.Hash{1}

// unauthorized is the answer to credentials that are not valid. What it tells depends
// on their form alone: a key that is foreign, unknown or revoked has one answer
// (service.md, Authentication).
func unauthorized(detail string) error { return problem.New(problem.CodeUnauthorized, detail) }

const (
	noKey     = "The tenant has no such API key, or it was revoked."
	noSession = "The session has ended, or there is none: log in again."
)

// presented reads what a caller claims to be. Its error says what is wrong with the
// form of the header fields.
func presented(c *edge.Credentials) (at keyAt, hash apikey.Hash, err error) {
	var text [36]byte // on the stack: this is every request's path
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

// read looks a key up with find.
func (a *Auth) read(at keyAt, find Keys) func(context.Context) (*liveKey, bool, error) {
	return func(ctx context.Context) (*liveKey, bool, error) {
		live := &liveKey{hash: nobody, principal: "apikey:" + at.key.String()}
		live.at = a.cfg.Now().Add(renewAfter)
		h, ok, err := find(ctx, at.tenant, at.key)
		if ok {
			live.hash = h
		}
		return live, ok, err
	}
}

// renew reads a key in use again before what is remembered of it ends. Where that
// fails the next call behind that end looks it up.
func (a *Auth) renew(at keyAt) {
	ctx, cancel := context.WithTimeout(context.Background(), store.Timeout)
	defer cancel()
	_, _, _ = a.keys.Renew(ctx, at, a.read(at, a.cfg.Keys))
}

// Cached reports whether a key is remembered as valid.
func (a *Auth) Cached(c edge.Credentials) bool {
	at, hash, err := presented(&c)
	if err != nil {
		return false
	}
	live, ok := a.keys.Get(at)
	return ok && live.hash.Equal(hash)
}

// Forget drops what is remembered of a key: when it returns, a request that
// presents it is looked up anew, one that is being looked up as well.
func (a *Auth) Forget(t id.TenantID, key id.KeyID) {
	a.seen.hashes.Drop(keyAt{t, key})
	a.keys.Drop(keyAt{t, key})
}

// ForgetAll drops everything, for a node that was cut off.
func (a *Auth) ForgetAll() { a.keys.Clear() }
