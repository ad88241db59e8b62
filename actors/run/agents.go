package run

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	"github.com/rs/zerolog"

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
	read func(ctx context.Context, tenant id.TenantID, agent id.AgentID, version int) (json.RawMessage, error)
	log  zerolog.Logger

	mu   sync.RWMutex // guards kept
	kept map[version]*Agent
}

// ready returns a cached version.
func (a *agents) ready(v version) (*Agent, bool) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	ag, ok := a.kept[v]
	return ag, ok
}

// get returns the version, nil if it does not exist or cannot be run. The error is the
// storage's.
func (a *agents) get(ctx context.Context, v version) (*Agent, error) {
	if ag, ok := a.ready(v); ok {
		return ag, nil
	}
	doc, err := a.read(ctx, v.tenant, v.agent, v.version)
	if err != nil {
		return nil, fmt.Errorf("read a manifest: %w", err)
	}
	ag, err := prepare(doc)
	if err != nil {
		a.log.Error().Err(err).Stringer("tenant", v.tenant).Stringer("agent", v.agent).Int("version", v.version).Msg("agent version cannot be run")
		return nil, nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.kept) >= maxAgents {
		for old := range a.kept { // any: a version is read again within a millisecond
			delete(a.kept, old)
			break
		}
	}
	a.kept[v] = ag
	return ag, nil
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
