package toolbox

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"agentsvc/persistence/store"
	"agentsvc/schemas/agent"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/skill"
	"agentsvc/schemas/tool"
	"agentsvc/transport/egress"
	"agentsvc/transport/mcp"
)

// The toolbox as the routes use it (platform.Tools).

// manifest is the one that an agent's next run has, or its newest version's.
func (b *Toolbox) manifest(ctx context.Context, t id.TenantID, a id.AgentID) (*agent.Manifest, error) {
	v := b.Tables.View(t)
	row, err := v.Agent(ctx, a)
	if err != nil {
		return nil, err
	}
	version := row.LatestVersion
	if row.PublishedVersion != nil {
		version = *row.PublishedVersion
	}
	if version == 0 {
		return &agent.Manifest{}, nil // it may call nothing yet
	}
	found, err := v.Version(ctx, a, version)
	if err != nil {
		return nil, err
	}
	return agent.Load(json.RawMessage(found.Manifest))
}

// Offered implements platform.Tools.
func (b *Toolbox) Offered(ctx context.Context, t id.TenantID, a id.AgentID) ([]tool.Offer, error) {
	m, err := b.manifest(ctx, t, a)
	if err != nil {
		return nil, err
	}
	v, err := b.look(ctx, t, a, m, "")
	if err != nil {
		return nil, err
	}
	return tool.Offers(v.access, m, tool.Options{}, v.specs), nil
}

// Explain implements platform.Tools. Tools of servers that the manifest does not
// name are explained as well.
func (b *Toolbox) Explain(ctx context.Context, t id.TenantID, a id.AgentID, name string) (*tool.Explanation, error) {
	m, err := b.manifest(ctx, t, a)
	if err != nil {
		return nil, err
	}
	v, err := b.look(ctx, t, a, m, "")
	if err != nil {
		return nil, err
	}
	last, err := b.Tables.View(t).LastTools(ctx)
	if err != nil {
		return nil, err
	}
	if err := b.explainSkill(ctx, t, v, name); err != nil {
		return nil, err
	}
	if !m.HasBuiltin(agent.BuiltinKBSearch) {
		v.specs = append(slices.Clip(v.specs), tool.KBSearchSpec([]tool.Base{{}})) // the manifest refuses it
	}
	known := map[string]bool{}
	for _, s := range v.specs {
		known[s.Qualified()] = true
	}
	for _, specs := range last {
		for _, s := range specs {
			if !known[s.Qualified()] {
				v.specs = append(v.specs, s)
			}
		}
	}
	return tool.Explain(v.access, m, tool.Options{}, v.specs, name), nil
}

// All implements platform.Tools: the last known lists of the enabled servers, the enabled browser
// skills, and the builtin tools.
func (b *Toolbox) All(ctx context.Context, t id.TenantID) ([]tool.Listed, error) {
	v := b.Tables.View(t)
	out, err := v.Catalog(ctx)
	if err != nil {
		return nil, err
	}
	out = append(out, tool.Listed{Spec: tool.KBSearchSpec(nil)})
	known, err := v.SkillTools(ctx)
	if err != nil || len(known) == 0 {
		return out, err
	}
	var slugs []string
	for _, s := range known {
		if !slices.Contains(slugs, s.Owner) {
			slugs = append(slugs, s.Owner)
		}
	}
	skills, err := v.SkillsOf(ctx, slugs)
	if err != nil {
		return nil, err
	}
	for _, s := range skills {
		for _, spec := range skill.Tools(s.ID, s.Slug, s.Description, s.Definition, s.Policy) {
			out = append(out, tool.Listed{Spec: spec})
		}
	}
	return out, nil
}

// Verdicts implements platform.Tools. No server is asked: names decide.
func (b *Toolbox) Verdicts(ctx context.Context, t id.TenantID, a id.AgentID, specs []tool.Spec) ([]tool.Verdict, error) {
	m, err := b.manifest(ctx, t, a)
	if err != nil {
		return nil, err
	}
	access, err := b.reads.get(ctx, owner{t, a.UUID}, func(ctx context.Context) (*tool.Access, error) { return b.Tables.View(t).Access(ctx, a) })
	if err != nil {
		return nil, err
	}
	if access == nil { // the agent is gone: nothing is granted to it
		access = &tool.Access{Agent: a}
	}
	out := make([]tool.Verdict, len(specs))
	for i, s := range specs {
		out[i] = tool.Resolve(access, m, tool.Options{}, s).Verdict
	}
	return out, nil
}

// Known implements platform.Tools: the last known lists first, then, where a
// token matches none of them, what the servers offer now.
func (b *Toolbox) Known(ctx context.Context, t id.TenantID, tokens []string) ([]bool, error) {
	last, err := b.Tables.View(t).LastTools(ctx)
	if err != nil {
		return nil, err
	}
	specs := []tool.Spec{{Source: tool.Builtin, Name: agent.BuiltinKBSearch}, {Source: tool.Builtin, Name: tool.HandoffName}}
	for _, list := range last {
		specs = append(specs, list...)
	}
	skills, err := b.Tables.View(t).SkillTools(ctx)
	if err != nil {
		return nil, err
	}
	known := matched(tokens, append(specs, skills...))
	if !slices.Contains(known, false) {
		return known, nil
	}
	servers, err := b.Tables.View(t).Servers(ctx, id.ServerID{}, store.All)
	if err != nil {
		return nil, err
	}
	var targets []mcp.Target
	for i := range servers {
		if !servers[i].Enabled {
			continue
		}
		c, err := b.tenantWide(ctx, t, &servers[i])
		if err != nil {
			return nil, err
		}
		targets = append(targets, b.target(t, server(&servers[i]), c))
	}
	now := matched(tokens, b.lists(ctx, t, targets))
	for i := range known {
		known[i] = known[i] || now[i]
	}
	return known, nil
}

func matched(tokens []string, specs []tool.Spec) []bool {
	out := make([]bool, len(tokens))
	for i, token := range tokens {
		out[i] = slices.ContainsFunc(specs, func(s tool.Spec) bool { return tool.MatchesToken(token, s) })
	}
	return out
}

// Test implements platform.Tools.
func (b *Toolbox) Test(ctx context.Context, t id.TenantID, s id.ServerID, c *id.ConnectionID) ([]tool.Spec, error) {
	row, err := b.Tables.View(t).Server(ctx, s)
	if err != nil {
		return nil, err
	}
	if c == nil {
		if c, err = b.tenantWide(ctx, t, row); err != nil {
			return nil, err
		}
	}
	if c == nil && row.AuthKind != tool.AuthNone {
		return nil, unreachable("There is no connection with a credential for this server.")
	}
	target := b.target(t, server(row), c)
	specs, err := b.Gateway.Fresh(ctx, target)
	if err != nil {
		b.note(&target, err)
	}
	var e *mcp.Error
	if errors.As(err, &e) {
		return nil, unreachable(e.Message)
	}
	if err != nil {
		return nil, err
	}
	b.forgetDowntime(s)
	b.remember(ctx, &target, specs)
	return specs, nil
}

// tenantWide returns the connection with which a server is listed for the tenant as a whole,
// nil if the server takes no credentials.
func (b *Toolbox) tenantWide(ctx context.Context, t id.TenantID, s *api.MCPServer) (*id.ConnectionID, error) {
	if s.AuthKind == tool.AuthNone {
		return nil, nil
	}
	return b.Tables.View(t).TenantWide(ctx, s.ID)
}

// server is a tool server's row as resolution sees it.
func server(row *api.MCPServer) *tool.Server {
	return &tool.Server{ID: row.ID, Slug: row.Slug, Transport: row.Transport, Endpoint: row.Endpoint, AuthKind: row.AuthKind, Enabled: row.Enabled, UpdatedAt: row.UpdatedAt}
}

func unreachable(why string) *problem.Error {
	return &problem.Error{Code: problem.CodeMCPUnreachable, Detail: sentence(why), Extensions: map[string]any{"errors": []string{why}}}
}

// Forget implements platform.Tools.
func (b *Toolbox) Forget(t id.TenantID, s id.ServerID) {
	b.Gateway.Forget(t, s)
	b.forgetDowntime(s)
}

// CheckEndpoint implements platform.Tools.
func (b *Toolbox) CheckEndpoint(ctx context.Context, transport tool.Transport, auth tool.AuthKind, endpoint string) error {
	if transport == tool.Stdio {
		if _, ok := b.Stdio[endpoint]; !ok {
			return errors.New("must name a command that the operator allows (SVC_STDIO_SERVERS)")
		}
		if auth != tool.AuthNone {
			return errors.New("a stdio server takes no credential: auth_kind must be none")
		}
		return nil
	}
	if strings.Contains(endpoint, "#") {
		return errors.New("must hold no fragment")
	}
	return b.Guard.CheckURL(ctx, endpoint, egress.Rules{HTTPSOnly: b.HTTPSOnly})
}
