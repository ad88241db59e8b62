package delivery

import (
	"context"
	"time"

	"agentsvc/persistence/store"
	"agentsvc/schemas/id"
)

const (
	maxTargets = 1 << 16
	targetsFor = 30 * time.Second
)

// TargetsConfig holds the dependencies of Targets.
type TargetsConfig struct {
	Endpoints Endpoints        // reads the rows
	Live      func() bool      // the node holds its lease; nil: always
	Now       func() time.Time // nil: time.Now
}

// Targets caches Endpoints. After Forget no caller gets a value that was read before it.
type Targets struct {
	rows  Endpoints
	cache *store.Cache[endpointAt, *store.Endpoint]
}

type endpointAt struct {
	tenant  id.TenantID
	webhook id.WebhookID
}

// NewTargets returns Targets with an empty cache.
func NewTargets(cfg TargetsConfig) *Targets {
	return &Targets{cfg.Endpoints, store.NewCache[endpointAt, *store.Endpoint](store.CacheConfig{
		Max: maxTargets, TTL: targetsFor, Now: cfg.Now, Live: cfg.Live,
	})}
}

// Endpoint implements Endpoints.
func (s *Targets) Endpoint(ctx context.Context, t id.TenantID, w id.WebhookID) (*store.Endpoint, error) {
	to, _, err := s.cache.Load(ctx, endpointAt{t, w}, func(ctx context.Context) (*store.Endpoint, bool, error) {
		to, err := s.rows.Endpoint(ctx, t, w)
		return to, to != nil, err
	})
	return to, err
}

// Forget drops an endpoint.
func (s *Targets) Forget(t id.TenantID, w id.WebhookID) { s.cache.Drop(endpointAt{t, w}) }

// ForgetAll drops everything.
func (s *Targets) ForgetAll() { s.cache.Clear() }
