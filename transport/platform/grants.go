package platform

import (
	"context"
	"slices"

	"agentsvc/persistence/store"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/tool"
	"agentsvc/transport/edge"
)

type createGrant struct{ Body api.ToolGrantCreate }

type oneGrant struct {
	ID id.GrantID `path:"id"`
}

type patchGrant struct {
	ID   id.GrantID `path:"id"`
	Body api.ToolGrantPatch
}

type createPolicy struct{ Body api.ApprovalPolicyCreate }

type onePolicy struct {
	ID id.PolicyID `path:"id"`
}

type patchPolicy struct {
	ID   id.PolicyID `path:"id"`
	Body api.ApprovalPolicyPatch
}

type explainTool struct {
	ID   id.AgentID `path:"id"`
	Tool string     `query:"tool" required:"true" minLength:"1" maxLength:"300" doc:"the qualified or bare name of a tool"`
}

func (p *Platform) grantRoutes(t *edge.Table) {
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/tool-grants", ID: "listToolGrants", Answer: listed(sampleGrant),
		Summary:     "List tool grants",
		Description: "Includes grants of browser skills.", Tag: toolServers, Role: lifecycle.RoleAdmin}, p.listGrants)
	edge.Handle(t, edge.Route{Method: "POST", Path: "/v1/tool-grants", ID: "createToolGrant", Answer: sampleGrant,
		Summary:     "Grant tools",
		Description: "A grant is for one agent, for the agents of an org node and below it, or, with neither, for all. Any matching deny wins; among the allows the most specific one wins and selects the connection. A manifest narrows the grants.",
		Tag:         toolServers, Role: lifecycle.RoleAdmin, Status: 201, Idempotent: true,
		Again:   again(p, func(c *edge.Caller, _ *createGrant) msg.Revoked { return access(c) }),
		Example: map[string]any{"source": "mcp", "mcp_server_id": sampleServer.ID, "tool_pattern": "orders.*", "effect": "allow", "agent_id": sampleAgentID}}, p.createGrant)
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/tool-grants/{id}", ID: "getToolGrant", Answer: sampleGrant,
		Summary: "Read a tool grant", Tag: toolServers, Role: lifecycle.RoleAdmin}, p.getGrant)
	edge.Handle(t, edge.Route{Method: "PATCH", Path: "/v1/tool-grants/{id}", ID: "updateToolGrant", Answer: sampleGrant,
		Summary:     "Change a tool grant",
		Description: "Its source and tool server cannot change. The grant of a browser skill is changed with the skill.", Tag: toolServers, Role: lifecycle.RoleAdmin,
		Example: map[string]any{"tool_pattern": "orders.read"}}, p.updateGrant)
	edge.Handle(t, edge.Route{Method: "DELETE", Path: "/v1/tool-grants/{id}", ID: "deleteToolGrant", Summary: "Remove a tool grant",
		Description: "The next call is refused already.", Tag: toolServers, Role: lifecycle.RoleAdmin}, p.deleteGrant)
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/tools", ID: "listTools", Answer: listed(sampleListedTool),
		Summary:     "List the tenant's tools",
		Description: "By qualified name, whatever is granted: the tools that enabled servers last listed, those of enabled browser skills, and kb.search. access says what happens when an agent calls one; no server is asked.", Tag: toolServers, Role: lifecycle.RoleAdmin,
		Codes: []problem.Code{problem.CodeNotFound}}, p.listTools)
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/agents/{id}/tools", ID: "listAgentTools", Answer: api.All(sampleAgentTools),
		Summary:     "List what an agent may call now",
		Description: "For its published version, or the newest if none is published.", Tag: "Agents", Role: lifecycle.RoleMember}, p.agentTools)
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/agents/{id}/tools/explain", ID: "explainAgentTool", Answer: sampleExplanation,
		Summary:     "Explain what decides on a tool",
		Description: "Manifest, grants, rules, policies and connection, in the order in which they are checked.", Tag: "Agents", Role: lifecycle.RoleAdmin}, p.explainTool)
}

func (p *Platform) policyRoutes(t *edge.Table) {
	const tag = "Approval policies"
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/approval-policies", ID: "listApprovalPolicies", Answer: listed(samplePolicy),
		Summary: "List approval policies", Tag: tag, Role: lifecycle.RoleAdmin}, p.listPolicies)
	edge.Handle(t, edge.Route{Method: "POST", Path: "/v1/approval-policies", ID: "createApprovalPolicy", Answer: samplePolicy,
		Summary:     "Create an approval policy",
		Description: "Matching tool calls wait for an approval. The most specific policy applies: for one agent before for all, of one source before of any, an exact name before a prefix before *.",
		Tag:         tag, Role: lifecycle.RoleAdmin, Status: 201, Idempotent: true,
		Again: again(p, func(c *edge.Caller, _ *createPolicy) msg.Revoked { return access(c) }),
		Example: map[string]any{"name": "Refunds", "tool_pattern": "orders.refund", "risk": "high", "required_approvals": 2, "approver_role": "manager", "sla_minutes": 120,
			"escalate_to_role": "admin"}}, p.createPolicy)
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/approval-policies/{id}", ID: "getApprovalPolicy", Answer: samplePolicy,
		Summary: "Read an approval policy", Tag: tag, Role: lifecycle.RoleAdmin}, p.getPolicy)
	edge.Handle(t, edge.Route{Method: "PATCH", Path: "/v1/approval-policies/{id}", ID: "updateApprovalPolicy", Answer: samplePolicy,
		Summary:     "Change an approval policy",
		Description: "Open approvals stay as they are.", Tag: tag, Role: lifecycle.RoleAdmin, Example: map[string]any{"required_approvals": 2}}, p.updatePolicy)
	edge.Handle(t, edge.Route{Method: "DELETE", Path: "/v1/approval-policies/{id}", ID: "deleteApprovalPolicy", Summary: "Remove an approval policy",
		Description: "Open approvals stay as they are.", Tag: tag, Role: lifecycle.RoleAdmin}, p.deletePolicy)
}

// access is the revocation for a change of grants or policies: once the change is answered,
// every node applies it to the next call.
func access(c *edge.Caller) msg.Revoked {
	return msg.Revoked{What: msg.ChangedAccess, Tenant: c.Tenant}
}

func (p *Platform) listGrants(ctx context.Context, c *edge.Caller, in *api.Page) (*api.List[api.ToolGrant], error) {
	return list(ctx, p.Store.View(c.Tenant), *in, "tool-grants", store.View.Grants, func(g api.ToolGrant) id.GrantID { return g.ID })
}

func (p *Platform) createGrant(ctx context.Context, c *edge.Caller, in *createGrant) (*api.ToolGrant, error) {
	out, err := change(ctx, p, c, with1((*store.Tx).CreateGrant, &in.Body))
	return told(ctx, p, access(c), out, err)
}

func (p *Platform) getGrant(ctx context.Context, c *edge.Caller, in *oneGrant) (*api.ToolGrant, error) {
	return p.Store.View(c.Tenant).Grant(ctx, in.ID)
}

func (p *Platform) updateGrant(ctx context.Context, c *edge.Caller, in *patchGrant) (*api.ToolGrant, error) {
	out, err := change(ctx, p, c, with2((*store.Tx).UpdateGrant, in.ID, &in.Body))
	return told(ctx, p, access(c), out, err)
}

func (p *Platform) deleteGrant(ctx context.Context, c *edge.Caller, in *oneGrant) (*edge.Empty, error) {
	out, err := change(ctx, p, c, none1((*store.Tx).DeleteGrant, in.ID))
	return removed(ctx, p, access(c), out, err)
}

type listTools struct {
	api.Page
	AgentID []id.AgentID `query:"agent_id" maxItems:"50" doc:"repeat it for several agents, 50 at most: access has an entry for each"`
}

// verdicts are the words for what happens when an agent calls a tool.
var verdicts = map[tool.Verdict]api.ToolAccess{tool.Callable: api.AccessAllow, tool.Gated: api.AccessGate, tool.Refused: api.AccessDeny}

func (p *Platform) listTools(ctx context.Context, c *edge.Caller, in *listTools) (*api.List[api.ListedTool], error) {
	after, err := page[string](in.Page, "tools")
	if err != nil {
		return nil, err
	}
	found, more, err := p.Tools.All(ctx, c.Tenant, after, in.Size())
	if err != nil {
		return nil, err
	}
	specs := make([]tool.Spec, len(found))
	items := make([]api.ListedTool, len(found))
	for i, t := range found {
		specs[i] = t.Spec
		items[i] = api.ListedTool{Tool: t.Qualified(), Source: t.Source, MCPServerID: t.Server, Description: t.Description, InputSchema: api.Value(t.Schema), ListedAt: t.At,
			Access: map[string]api.ToolAccess{}}
	}
	for _, a := range in.AgentID {
		said, err := p.Tools.Verdicts(ctx, c.Tenant, a, specs)
		if err != nil {
			return nil, err
		}
		for i, v := range said {
			items[i].Access[a.String()] = verdicts[v]
		}
	}
	l := api.Paged(items, in.Size(), more, "tools", func(t api.ListedTool) any { return t.Tool })
	return &l, nil
}

type listAgentTools struct {
	api.PageOrAll
	ID id.AgentID `path:"id"`
}

func (p *Platform) agentTools(ctx context.Context, c *edge.Caller, in *listAgentTools) (*api.Whole[api.AgentTool], error) {
	var after string
	page := in.Page()
	paged, err := page.From("agent-tools", &after)
	if err != nil {
		return nil, err
	}
	if _, err := p.Store.View(c.Tenant).Agent(ctx, in.ID); err != nil {
		return nil, err
	}
	offers, err := p.Tools.Offered(ctx, c.Tenant, in.ID)
	if err != nil {
		return nil, err
	}
	items := make([]api.AgentTool, 0, len(offers))
	for i := range offers {
		o := &offers[i]
		if o.Verdict == tool.Refused {
			continue
		}
		shown := api.AgentTool{Tool: o.Qualified(), Source: o.Source, Description: o.Description, InputSchema: api.Value(o.Schema)}
		if len(o.Schema) == 0 {
			shown.InputSchema = api.Value(`{"type":"object"}`)
		}
		if o.Terms != nil {
			gate := gatedBy(o.Terms.Policy)
			shown.GatedBy = &gate
		}
		items = append(items, shown)
	}
	if paged {
		// The list, sorted by name, is read anew for each page: the tool of the cursor may be gone.
		i := slices.IndexFunc(items, func(a api.AgentTool) bool { return a.Tool > after })
		if i < 0 {
			i = len(items)
		}
		items = items[i:]
	}
	pos := func(a api.AgentTool) any { return a.Tool }
	if page.Given() {
		return api.PageOf(api.Paged(items, page.Size(), false, "agent-tools", pos)), nil
	}
	return api.WholeOf(api.Paged(items, len(items), false, "agent-tools", pos)), nil
}

func gatedBy(r tool.PolicyRef) api.GatedBy {
	return api.GatedBy{ID: r.ID, Name: r.Name, Kind: string(r.Kind)}
}

func (p *Platform) explainTool(ctx context.Context, c *edge.Caller, in *explainTool) (*api.ToolExplanation, error) {
	if _, err := p.Store.View(c.Tenant).Agent(ctx, in.ID); err != nil {
		return nil, err
	}
	e, err := p.Tools.Explain(ctx, c.Tenant, in.ID, in.Tool)
	if err != nil {
		return nil, err
	}
	out := &api.ToolExplanation{Tool: e.Tool, Source: string(e.Source), Verdict: string(e.Verdict), Why: e.Why, Steps: make([]api.ExplainedStep, len(e.Steps)),
		GrantID: e.GrantID, ConnectionID: e.Connection}
	for i, s := range e.Steps {
		out.Steps[i] = api.ExplainedStep(s)
	}
	if t := e.Approval; t != nil {
		out.Approval = &api.ApprovalTerms{Risk: t.Risk, RequiredApprovals: t.Required, ApproverRole: t.Role, SLAMinutes: t.SLAMinutes,
			EscalateToRole: string(t.Escalate), OnTimeout: t.OnTimeout, Policy: gatedBy(t.Policy)}
	}
	return out, nil
}

func (p *Platform) listPolicies(ctx context.Context, c *edge.Caller, in *api.Page) (*api.List[api.ApprovalPolicy], error) {
	return list(ctx, p.Store.View(c.Tenant), *in, "approval-policies", store.View.Policies, func(x api.ApprovalPolicy) id.PolicyID { return x.ID })
}

func (p *Platform) createPolicy(ctx context.Context, c *edge.Caller, in *createPolicy) (*api.ApprovalPolicy, error) {
	out, err := change(ctx, p, c, with1((*store.Tx).CreatePolicy, &in.Body))
	return told(ctx, p, access(c), out, err)
}

func (p *Platform) getPolicy(ctx context.Context, c *edge.Caller, in *onePolicy) (*api.ApprovalPolicy, error) {
	return p.Store.View(c.Tenant).Policy(ctx, in.ID)
}

func (p *Platform) updatePolicy(ctx context.Context, c *edge.Caller, in *patchPolicy) (*api.ApprovalPolicy, error) {
	out, err := change(ctx, p, c, with2((*store.Tx).UpdatePolicy, in.ID, &in.Body))
	return told(ctx, p, access(c), out, err)
}

func (p *Platform) deletePolicy(ctx context.Context, c *edge.Caller, in *onePolicy) (*edge.Empty, error) {
	out, err := change(ctx, p, c, none1((*store.Tx).DeletePolicy, in.ID))
	return removed(ctx, p, access(c), out, err)
}
