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

// Limits of the cached versions.
const (
	maxPlans     = 2048
	maxPlanBytes = 64 << 20 // by flow.Plan.Weight
)

type version struct {
	tenant   id.TenantID
	workflow id.WorkflowID
	version  int
}

// plans caches the plans of versions, and with each the expressions that its runs have compiled: a
// compilation takes as long as ten evaluations. A version never changes, so a cached one stays
// valid.
type plans struct {
	read func(ctx context.Context, tenant id.TenantID, workflow id.WorkflowID, version int) (json.RawMessage, error)
	log  zerolog.Logger

	mu    sync.RWMutex // guards the fields below
	kept  map[version]keptPlan
	bytes int // of the plans
}

type keptPlan struct {
	*flow.Plan
	bytes int
}

// get returns the plan of a version, nil if there is none or it cannot be run. The error is
// the storage's.
func (p *plans) get(ctx context.Context, v version) (*flow.Plan, error) {
	p.mu.RLock()
	plan := p.kept[v].Plan
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
	if plan, err = flow.Load(doc); err != nil {
		p.log.Error().Err(err).Stringer("tenant", v.tenant).Stringer("workflow", v.workflow).Int("version", v.version).Msg("workflow version cannot be run")
		return nil, nil
	}
	p.keep(v, keptPlan{plan, plan.Weight(len(doc))})
	return plan, nil
}

// keep adds a plan. Others make room for it, any of them: a version is read again within
// milliseconds.
func (p *plans) keep(v version, plan keptPlan) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.kept[v]; ok {
		return
	}
	for old, k := range p.kept {
		if len(p.kept) < maxPlans && p.bytes+plan.bytes <= maxPlanBytes {
			break
		}
		delete(p.kept, old)
		p.bytes -= k.bytes
	}
	p.kept[v] = plan
	p.bytes += plan.bytes
}
