package platform

import (
	"context"
	"fmt"
	"slices"

	"agentsvc/persistence/store"
	"agentsvc/schemas/agent"
	"agentsvc/schemas/id"
	"agentsvc/schemas/tool"
)

// warnings lists what a manifest names that does not exist or is not granted now. These are
// not errors: the missing parts may be added later.
func (p *Platform) warnings(ctx context.Context, tx *store.Tx, a id.AgentID, m *agent.Manifest) ([]string, error) {
	out := []string{}
	known, err := tx.HasProvider(ctx, m.Model.Provider)
	if err != nil {
		return nil, err
	}
	if !known && m.Model.Provider != agent.ProviderSimulated && (p.Provides == nil || !p.Provides(m.Model.Provider)) {
		out = append(out, fmt.Sprintf("model.provider: neither the tenant nor the deployment has a model provider %q, the model %q cannot be asked", m.Model.Provider, m.Model.Name))
	}
	access, err := tx.Access(ctx, a)
	if err != nil {
		return nil, err
	}
	if access != nil {
		out = append(out, tool.Warnings(access, m)...)
	}
	for i, use := range m.Tools.BrowserSkills { // none exist yet
		out = append(out, fmt.Sprintf("tools.browser_skills[%d].skill: there is no browser skill %q", i, use.Skill))
	}
	for i, kb := range m.KnowledgeBases { // none exist yet
		out = append(out, fmt.Sprintf("knowledge_bases[%d]: there is no knowledge base %s", i, kb))
	}
	slugs, err := tx.AgentSlugs(ctx, m.Handoffs)
	if err != nil {
		return nil, err
	}
	for i, to := range m.Handoffs {
		if !slices.Contains(slugs, to) {
			out = append(out, fmt.Sprintf("handoffs[%d]: there is no agent %q", i, to))
		}
	}
	return out, nil
}
