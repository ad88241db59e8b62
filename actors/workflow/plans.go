package workflow

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	"github.com/rs/zerolog"

	"agentsvc/schemas/flow"
	"agentsvc/schemas/id"
)

// maxPlans bounds the cached versions.
const maxPlans = 2048

type version struct {
	tenant   id.TenantID
	workflow id.WorkflowID
	version  int
}

// plans caches the plans of versions. A version never changes, so a cached one stays valid.
type plans struct {
	read func(ctx context.Context, tenant id.TenantID, workflow id.WorkflowID, version int) (json.RawMessage, error)
	log  zerolog.Logger

	mu   sync.RWMutex // guards kept
	kept map[version]*flow.Plan
}

// get returns the plan of a version, nil if there is none or it cannot be run. The error is
// the storage's.
func (p *plans) get(ctx context.Context, v version) (*flow.Plan, error) {
	p.mu.RLock()
	plan := p.kept[v]
	p.mu.RUnlock()
	if plan != nil {
		return plan, nil
	}
	doc, err := p.read(ctx, v.tenant, v.workflow, v.version)
	if err != nil {
		return nil, fmt.Errorf("read a workflow's definition: %w", err)
	}
	if doc == nil {
		return nil, nil
	}
	if plan, err = flow.Cached(doc); err != nil {
		p.log.Error().Err(err).Stringer("tenant", v.tenant).Stringer("workflow", v.workflow).Int("version", v.version).Msg("workflow version cannot be run")
		return nil, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.kept) >= maxPlans {
		for old := range p.kept { // any: a version is read again within a millisecond
			delete(p.kept, old)
			break
		}
	}
	p.kept[v] = plan
	return plan, nil
}
