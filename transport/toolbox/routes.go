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
	v, err := b.look(ctx, t, a, m)
	if err != nil {
		return nil, err
	}
	var out []tool.Offer
	err = b.judge(ctx, t, func() error {
		out = tool.Offers(v.access, m, tool.Options{}, v.specs)
		return nil
	})
	return out, err
}

// Explain implements platform.Tools. Tools of servers that the manifest does not
// name are explained as well.
func (b *Toolbox) Explain(ctx context.Context, t id.TenantID, a id.AgentID, name string) (*tool.Explanation, error) {
	m, err := b.manifest(ctx, t, a)
	if err != nil {
		return nil, err
	}
	v, err := b.look(ctx, t, a, m, name)
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
	add := func(last *store.ServerTools) {
		for _, s := range last.Specs {
			if q := s.Qualified(); s.Answers(name) && !known[q] {
				known[q] = true
				v.specs = append(v.specs, s)
			}
		}
	}
	owner, _, _ := strings.Cut(name, ".")
	if i := slices.IndexFunc(v.access.Servers, func(s tool.Server) bool { return s.Slug == owner }); i >= 0 {
		// The server of a qualified name is read however many others there are.
		last, err := b.Tables.View(t).LastTools(ctx, v.access.Servers[i].ID)
		if err != nil {
			return nil, err
		}
		if last != nil {
			add(last)
		}
	}
	if _, err := b.catalog(ctx, t, "", maxLists, func(last *store.ServerTools) bool { add(last); return true }); err != nil {
		return nil, err
	}
	var out *tool.Explanation
	err = b.judge(ctx, t, func() error {
		out = tool.Explain(v.access, m, tool.Options{}, v.specs, name)
		return nil
	})
	return out, err
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
	var out []tool.Verdict
	err = b.judge(ctx, t, func() error {
		out, err = tool.Verdicts(ctx, access, m, specs)
		return err
	})
	return out, err
}

// judge runs work that takes long if the tenant has many grants, policies or tools, in the tenant's
// turn.
func (b *Toolbox) judge(ctx context.Context, t id.TenantID, work func() error) error {
	if b.Judging != nil {
		if err := b.Judging.Take(ctx, t); err != nil {
			return err
		}
		defer b.Judging.Give(t)
	}
	return work()
}

// Known implements platform.Tools: the last known lists first, then, where a token matches none
// of them, what maxAsked servers offer now, beginning with the servers that a token names. If the
// last known lists are too large to be read for one message, a token that is not found counts as
// known: tokens only narrow what is granted.
func (b *Toolbox) Known(ctx context.Context, t id.TenantID, tokens []string) ([]bool, error) {
	parsed := tool.ParseTokens(tokens)
	known := make([]bool, len(tokens))
	mark := func(specs []tool.Spec) error {
		return b.judge(ctx, t, func() error {
			for i := range specs {
				parsed.Mark(&specs[i], known)
			}
			return ctx.Err()
		})
	}
	v := b.Tables.View(t)
	skills, err := v.SkillTools(ctx)
	if err != nil {
		return nil, err
	}
	err = mark(append(skills, tool.Spec{Source: tool.Builtin, Name: agent.BuiltinKBSearch}, tool.Spec{Source: tool.Builtin, Name: tool.HandoffName}))
	if err != nil || !slices.Contains(known, false) {
		return known, err
	}
	var failed error
	all, err := b.catalog(ctx, t, "", maxLists, func(last *store.ServerTools) bool {
		failed = mark(last.Specs)
		return failed == nil && slices.Contains(known, false)
	})
	if err = errors.Join(err, failed); err != nil {
		return nil, err
	}
	if !slices.Contains(known, false) {
		return known, nil
	}
	if !all {
		for i := range known {
			known[i] = true
		}
		return known, nil
	}
	var named []string
	for i, token := range tokens {
		if owner, _, dotted := strings.Cut(token, "."); dotted && !known[i] {
			named = append(named, owner)
		}
	}
	servers, err := v.AskedServers(ctx, named, maxAsked)
	if err != nil {
		return nil, err
	}
	targets := make([]mcp.Target, len(servers))
	for i := range servers {
		s := &servers[i]
		targets[i] = b.target(t, &tool.Server{ID: s.ID, Slug: s.Slug, Transport: s.Transport, Endpoint: s.Endpoint, AuthKind: s.AuthKind, Enabled: true, UpdatedAt: s.UpdatedAt}, s.Connection)
	}
	now, err := b.lists(ctx, t, targets, nil, func(s *tool.Spec) bool {
		return parsed.Match(s)
	})
	if err != nil {
		return nil, err
	}
	return known, mark(now)
}

// maxAsked is how many servers are asked for their lists because of one message. The tokens were
// compared with the last known lists of the others.
const maxAsked = 100

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
