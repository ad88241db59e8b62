package platform

import (
	"context"
	"encoding/json"
	"errors"

	"agentsvc/persistence/store"
	"agentsvc/schemas/agent"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
	"agentsvc/transport/edge"
)

type createAgent struct{ Body api.AgentCreate }

type oneAgent struct {
	ID id.AgentID `path:"id"`
}

type patchAgent struct {
	ID   id.AgentID `path:"id"`
	Body api.AgentPatch
}

type listVersions struct {
	ID id.AgentID `path:"id"`
	api.Page
}

type createVersion struct {
	ID   id.AgentID `path:"id"`
	Body api.AgentVersionCreate
}

type oneVersion struct {
	ID      id.AgentID `path:"id"`
	Version int        `path:"version"`
}

func (p *Platform) agentRoutes(t *edge.Table) {
	const tag = "Agents"
	manifest := map[string]any{"model": map[string]any{"provider": "simulated", "name": "sim"}, "instructions": "You are a friendly assistant."}
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/agents", ID: "listAgents", Answer: listed(sampleAgent),
		Summary: "List agents", Tag: tag, Role: lifecycle.RoleMember}, p.listAgents)
	edge.Handle(t, edge.Route{Method: "POST", Path: "/v1/agents", ID: "createAgent", Answer: api.AgentAnswer{Agent: &sampleAgent, Version: &sampleVersion},
		Summary:     "Create an agent",
		Description: "With a manifest it also creates version 1, as a draft. An omitted slug is made from the name.", Tag: tag, Role: lifecycle.RoleAdmin,
		Status: 201, Idempotent: true, Codes: []problem.Code{problem.CodeSlugTaken},
		Example: map[string]any{"name": "Support", "manifest": manifest}}, p.createAgent)
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/agents/{id}", ID: "getAgent", Answer: sampleAgentAnswer,
		Summary: "Read an agent", Tag: tag, Role: lifecycle.RoleMember}, p.getAgent)
	edge.Handle(t, edge.Route{Method: "PATCH", Path: "/v1/agents/{id}", ID: "updateAgent", Answer: sampleAgentAnswer,
		Summary: "Change an agent", Tag: tag, Role: lifecycle.RoleAdmin,
		Codes: []problem.Code{problem.CodeSlugTaken}, Example: map[string]any{"emoji": "🦉"}}, p.updateAgent)
	edge.Handle(t, edge.Route{Method: "DELETE", Path: "/v1/agents/{id}", ID: "archiveAgent", Summary: "Archive an agent",
		Description: "It can no longer be listed, read or started; its threads and runs stay readable.", Tag: tag, Role: lifecycle.RoleAdmin}, p.archiveAgent)
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/agents/{id}/versions", ID: "listAgentVersions", Answer: listed(sampleVersion),
		Summary: "List an agent's versions", Tag: tag, Role: lifecycle.RoleMember}, p.listVersions)
	edge.Handle(t, edge.Route{Method: "POST", Path: "/v1/agents/{id}/versions", ID: "createAgentVersion", Answer: api.AgentVersionAnswer{Version: &sampleVersion, Warnings: []string{}},
		Summary:     "Add a version",
		Description: "It is a draft until it is published. warnings list the parts of the manifest that do not exist or are not granted now; they are not errors.", Tag: tag, Role: lifecycle.RoleAdmin, Status: 201, Idempotent: true,
		Example: map[string]any{"manifest": manifest}}, p.createVersion)
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/agents/{id}/versions/{version}", ID: "getAgentVersion", Answer: sampleVersion,
		Summary: "Read a version", Tag: tag, Role: lifecycle.RoleMember}, p.getVersion)
	edge.Handle(t, edge.Route{Method: "POST", Path: "/v1/agents/{id}/versions/{version}/publish", ID: "publishAgentVersion", Answer: samplePublished,
		Summary:     "Publish a version",
		Description: "New runs use it; running ones keep theirs. Publish an older version to roll back. warnings list the parts of the manifest that do not exist or are not granted now: model provider, tool server, browser skill, knowledge base, handoff, tool. They are not errors.", Tag: tag, Role: lifecycle.RoleAdmin, Idempotent: true, Again: again(p, published)}, p.publish)
}

func (p *Platform) listAgents(ctx context.Context, c *edge.Caller, in *api.Page) (*api.List[api.Agent], error) {
	return list(ctx, p.Store.View(c.Tenant), *in, "agents", store.View.Agents, func(a api.Agent) id.AgentID { return a.ID })
}

func (p *Platform) createAgent(ctx context.Context, c *edge.Caller, in *createAgent) (*api.AgentAnswer, error) {
	b := &in.Body
	given := len(b.Manifest) > 0
	if given {
		if err := p.judge(ctx, c, func(ctx context.Context) error {
			_, err := agent.Parse(ctx, "manifest", json.RawMessage(b.Manifest))
			return err
		}); err != nil {
			return nil, err
		}
	}
	return change(ctx, p, c, func(ctx context.Context, tx *store.Tx) (*api.AgentAnswer, error) {
		a, err := tx.CreateAgent(ctx, b)
		if err != nil || !given {
			return &api.AgentAnswer{Agent: a}, err
		}
		a, v, err := tx.CreateVersion(ctx, a.ID, json.RawMessage(b.Manifest))
		return &api.AgentAnswer{Agent: a, Version: v}, err
	})
}

func (p *Platform) getAgent(ctx context.Context, c *edge.Caller, in *oneAgent) (*api.AgentAnswer, error) {
	a, err := p.Store.View(c.Tenant).Agent(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	return &api.AgentAnswer{Agent: a}, nil
}

// updateAgent returns once every node decides with the agent's org node, and shows visitors its name and emoji.
func (p *Platform) updateAgent(ctx context.Context, c *edge.Caller, in *patchAgent) (*api.AgentAnswer, error) {
	shown := msg.Revoked{What: msg.ChangedEmbedKey, Tenant: c.Tenant}
	out, err := change(ctx, p, c, func(ctx context.Context, tx *store.Tx) (*api.AgentAnswer, error) {
		a, err := tx.UpdateAgent(ctx, in.ID, &in.Body)
		if err != nil || in.Body.Name == nil && in.Body.Emoji == nil {
			return &api.AgentAnswer{Agent: a}, err
		}
		keys, err := tx.EmbedKeys(ctx, store.EmbedKeyFilter{Agent: &in.ID}, id.EmbedKeyID{}, store.All)
		for _, k := range keys {
			shown.EmbedKeys = append(shown.EmbedKeys, k.ID)
		}
		return &api.AgentAnswer{Agent: a}, err
	})
	if in.Body.NodeID.Set {
		out, err = told(ctx, p, access(c), out, err)
	}
	if len(shown.EmbedKeys) > 0 {
		out, err = told(ctx, p, shown, out, err)
	}
	return out, err
}

func (p *Platform) archiveAgent(ctx context.Context, c *edge.Caller, in *oneAgent) (*edge.Empty, error) {
	r := msg.Revoked{What: msg.ChangedAgent, Tenant: c.Tenant, Agent: in.ID}
	out, err := change(ctx, p, c, func(ctx context.Context, tx *store.Tx) (_ *edge.Empty, err error) {
		r.EmbedKeys, err = tx.ArchiveAgent(ctx, in.ID)
		return nil, err
	})
	if errors.Is(err, problem.New(problem.CodeNotFound, "")) { // possibly a repeat: return which embed keys ended then
		var failed error
		if r.EmbedKeys, failed = p.Store.View(c.Tenant).ArchivedEmbedKeys(ctx, in.ID); failed != nil {
			err = failed // the streams to cut are not known: another repeat will find them
		}
	}
	return removed(ctx, p, r, out, err)
}

func (p *Platform) listVersions(ctx context.Context, c *edge.Caller, in *listVersions) (*api.List[api.AgentVersion], error) {
	return list(ctx, p.Store.View(c.Tenant), in.Page, "agent-versions", func(v store.View, ctx context.Context, at int32, limit int) ([]api.AgentVersion, error) {
		if _, err := v.Agent(ctx, in.ID); err != nil {
			return nil, err
		}
		return v.Versions(ctx, in.ID, int(at), limit)
	}, func(v api.AgentVersion) int32 { return int32(v.Version) })
}

func (p *Platform) createVersion(ctx context.Context, c *edge.Caller, in *createVersion) (*api.AgentVersionAnswer, error) {
	if _, err := p.Store.View(c.Tenant).Agent(ctx, in.ID); err != nil {
		return nil, err
	}
	var m *agent.Manifest
	if err := p.judge(ctx, c, func(ctx context.Context) (err error) {
		m, err = agent.Parse(ctx, "manifest", json.RawMessage(in.Body.Manifest))
		return err
	}); err != nil {
		return nil, err
	}
	return change(ctx, p, c, func(ctx context.Context, tx *store.Tx) (*api.AgentVersionAnswer, error) {
		_, v, err := tx.CreateVersion(ctx, in.ID, json.RawMessage(in.Body.Manifest))
		if err != nil {
			return nil, err
		}
		warnings, err := p.warnings(ctx, tx, in.ID, m)
		return &api.AgentVersionAnswer{Version: v, Warnings: warnings}, err
	})
}

func (p *Platform) getVersion(ctx context.Context, c *edge.Caller, in *oneVersion) (*api.AgentVersion, error) {
	v := p.Store.View(c.Tenant)
	if _, err := v.Agent(ctx, in.ID); err != nil {
		return nil, err
	}
	return v.Version(ctx, in.ID, in.Version)
}

// publish returns once the agent's next run uses the version on every node.
func (p *Platform) publish(ctx context.Context, c *edge.Caller, in *oneVersion) (*api.AgentPublished, error) {
	out, err := change(ctx, p, c, func(ctx context.Context, tx *store.Tx) (*api.AgentPublished, error) {
		a, v, err := tx.Publish(ctx, in.ID, in.Version)
		if err != nil {
			return nil, err
		}
		m, err := agent.Load(json.RawMessage(v.Manifest))
		if err != nil {
			return nil, err
		}
		warnings, err := p.warnings(ctx, tx, in.ID, m)
		return &api.AgentPublished{Agent: a, Version: v, Warnings: warnings}, err
	})
	return told(ctx, p, published(c, in), out, err)
}

func published(c *edge.Caller, in *oneVersion) msg.Revoked {
	return msg.Revoked{What: msg.ChangedAgent, Tenant: c.Tenant, Agent: in.ID}
}
