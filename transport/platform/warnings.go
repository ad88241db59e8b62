package platform

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"agentsvc/persistence/store"
	"agentsvc/schemas/agent"
	"agentsvc/schemas/flow"
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
		work := tool.MaxWork
		out = append(out, tool.Warnings(access, m, &work)...)
		named := make([]string, len(m.Tools.BrowserSkills))
		for i, use := range m.Tools.BrowserSkills {
			named[i] = use.Skill
		}
		skills, err := tx.SkillSlugs(ctx, named)
		if err != nil {
			return nil, err
		}
		out = append(out, tool.SkillWarnings(access, m, func(slug string) bool { return slices.Contains(skills, slug) }, &work)...)
		if work < 0 {
			out = append(out, tool.Unchecked)
		}
	}
	bases, err := tx.LiveBases(ctx, m.KnowledgeBases)
	if err != nil {
		return nil, err
	}
	for i, kb := range m.KnowledgeBases {
		if !slices.Contains(bases, kb) {
			out = append(out, fmt.Sprintf("knowledge_bases[%d]: there is no knowledge base %s", i, kb))
		}
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

// workflowWarnings lists what a run of a definition could fail on as things are now: agents
// that are archived, have no published version or could meet an approval, and tools that no
// grant allows. These are not errors.
func workflowWarnings(ctx context.Context, tx *store.Tx, w id.WorkflowID, d *flow.Definition) ([]string, error) {
	access, err := tx.WorkflowAccess(ctx, w)
	if err != nil {
		return nil, err
	}
	work := tool.MaxWork
	missing := tool.Missing(access, &work)
	agents := approvalSearch{tx: tx, work: &work, told: map[id.AgentID]string{}, gates: map[id.AgentID]*gatedAgent{}}
	if err := agents.start(ctx, d); err != nil {
		return nil, err
	}
	out := []string{}
	for i := range d.Nodes {
		why, at := "", ""
		switch n := &d.Nodes[i]; n.Type {
		case flow.Agent:
			at = "agent_id"
			if why, err = agents.warning(ctx, n.AgentID); err != nil {
				return nil, err
			}
		case flow.Tool:
			at, why = "tool", missing(n.Tool)
		}
		if why != "" {
			out = append(out, fmt.Sprintf("definition.nodes[%d].%s: %s", i, at, why))
		}
	}
	if work < 0 {
		out = append(out, tool.Unchecked)
	}
	return out, nil
}

// approvalSearch finds out which agents could meet an approval. Each agent is looked at once.
type approvalSearch struct {
	tx    *store.Tx
	work  *int // left, see tool.Gate
	named []store.PublishedAgent
	told  map[id.AgentID]string
	gates map[id.AgentID]*gatedAgent
}

// gatedAgent is an agent that was looked at.
type gatedAgent struct {
	gate     string // see tool.Gate
	handoffs []string
}

// maxHandoffs is how many handoffs one run takes (open-parts.md, Handoff).
const maxHandoffs = 5

// readWork is the work of one grant or policy that is read and prepared, in comparisons of patterns.
const readWork = 16

// maxSearched bounds the agents that are looked at for one definition; each takes two reads.
const maxSearched = 400

func (s *approvalSearch) start(ctx context.Context, d *flow.Definition) (err error) {
	var ids []id.AgentID
	for i := range d.Nodes {
		if d.Nodes[i].Type == flow.Agent {
			ids = append(ids, d.Nodes[i].AgentID)
		}
	}
	if len(ids) > 0 {
		s.named, err = s.tx.PublishedAgents(ctx, ids, nil)
	}
	return err
}

// warning returns the warning about an agent, "" if there is none.
func (s *approvalSearch) warning(ctx context.Context, a id.AgentID) (string, error) {
	why, known := s.told[a]
	if known {
		return why, nil
	}
	at := slices.IndexFunc(s.named, func(p store.PublishedAgent) bool { return p.ID == a })
	switch {
	case at < 0:
		why = "there is no such agent"
	case s.named[at].PublishedVersion == nil:
		why = fmt.Sprintf("the agent %q has no published version", s.named[at].Slug)
	default:
		agent, gate, err := s.search(ctx, s.named[at])
		if err != nil {
			return "", err
		}
		switch {
		case gate == "":
		case agent.ID == a:
			why = fmt.Sprintf("a run of the agent %q could meet an approval (%s), which would fail the workflow: use a gate", agent.Slug, gate)
		default:
			why = fmt.Sprintf("a run of the agent %q could hand over to %q and meet an approval there (%s), which would fail the workflow: use a gate", s.named[at].Slug, agent.Slug, gate)
		}
	}
	s.told[a] = why
	return why, nil
}

// search returns the first of an agent and those that it could hand over to that could meet
// an approval, with the rule that asks for it.
func (s *approvalSearch) search(ctx context.Context, first store.PublishedAgent) (store.PublishedAgent, string, error) {
	seen := map[id.AgentID]bool{}
	level := []store.PublishedAgent{first}
	for range maxHandoffs + 1 {
		var slugs []string
		for _, a := range level {
			if seen[a.ID] || a.PublishedVersion == nil {
				continue
			}
			seen[a.ID] = true
			g, err := s.look(ctx, a)
			if err != nil || g.gate != "" {
				return a, g.gate, err
			}
			slugs = append(slugs, g.handoffs...)
		}
		if len(slugs) == 0 {
			break
		}
		var err error
		if level, err = s.tx.PublishedAgents(ctx, nil, slugs); err != nil {
			return first, "", err
		}
	}
	return first, "", nil
}

func (s *approvalSearch) look(ctx context.Context, a store.PublishedAgent) (*gatedAgent, error) {
	g := s.gates[a.ID]
	if g != nil || len(s.gates) == maxSearched || *s.work < 0 {
		return cmp.Or(g, &gatedAgent{}), nil
	}
	g = &gatedAgent{}
	v, err := s.tx.Version(ctx, a.ID, *a.PublishedVersion)
	if err != nil {
		return g, err
	}
	m, err := agent.Load(json.RawMessage(v.Manifest))
	if err != nil {
		return g, err
	}
	access, err := s.tx.Access(ctx, a.ID)
	if err != nil {
		return g, err
	}
	if access != nil {
		*s.work -= readWork * (len(access.Grants) + len(access.Policies))
		g.gate = tool.Gate(access, m, s.work)
	}
	g.handoffs = m.Handoffs
	s.gates[a.ID] = g
	return g, nil
}
