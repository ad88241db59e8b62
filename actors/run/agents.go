package run

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/rs/zerolog"

	"agentsvc/persistence/store"
	"agentsvc/schemas/agent"
	"agentsvc/schemas/guardrail"
	"agentsvc/schemas/id"
)

// maxAgents bounds the cached versions.
const maxAgents = 4096

type version struct {
	tenant  id.TenantID
	agent   id.AgentID
	version int
}

// agents caches versions that are ready to run. A version is immutable, so a cached one
// stays valid.
type agents struct {
	*store.Cache[version, *Agent]
	manifest func(ctx context.Context, tenant id.TenantID, agent id.AgentID, version int) (json.RawMessage, error)
	log      zerolog.Logger
}

func newAgents(cfg *Config) agents {
	return agents{store.NewCache[version, *Agent](store.CacheConfig{Max: maxAgents}), cfg.Store.Manifest, cfg.Log}
}

// ready returns the version, nil if it does not exist or cannot be run. The error is the
// storage's.
func (a *agents) ready(ctx context.Context, v version) (*Agent, error) {
	if ag, ok := a.Get(v); ok {
		return ag, nil
	}
	ag, _, err := a.Load(ctx, v, func(ctx context.Context) (*Agent, bool, error) {
		doc, err := a.manifest(ctx, v.tenant, v.agent, v.version)
		if err != nil {
			return nil, false, fmt.Errorf("read a manifest: %w", err)
		}
		ag, err := prepare(doc)
		if err != nil {
			a.log.Error().Err(err).Stringer("tenant", v.tenant).Stringer("agent", v.agent).Int("version", v.version).Msg("agent version cannot be run")
		}
		return ag, err == nil, nil
	})
	return ag, err
}

func prepare(doc json.RawMessage) (*Agent, error) {
	if doc == nil {
		return nil, fmt.Errorf("there is no such version")
	}
	m, err := agent.Load(doc)
	if err != nil {
		return nil, err
	}
	rules, err := guardrail.Compile(m)
	if err != nil {
		return nil, err
	}
	return &Agent{Manifest: m, Rules: rules}, nil
}
