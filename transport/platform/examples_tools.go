package platform

import (
	"agentsvc/schemas/agent"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/tool"
	"agentsvc/transport/edge"
)

var (
	sampleServer = api.MCPServer{ID: id.ServerID{UUID: sample(40)}, Slug: "orders", Name: "Orders", Transport: tool.HTTP, Endpoint: "https://tools.example.com/mcp",
		AuthKind: tool.AuthBearer, Enabled: true, Meta: api.Object(`{"team":"logistics"}`), CreatedAt: sampleTime, UpdatedAt: sampleTime,
		Health: api.Health{State: api.HealthOK, At: &sampleTime}}
	sampleListedTool = api.ListedTool{Tool: "orders.orders.refund", Source: tool.MCP, MCPServerID: &sampleServer.ID, Description: "Refunds an order.",
		InputSchema: api.Value(`{"type":"object"}`), ListedAt: &sampleTime, Access: map[string]api.ToolAccess{sampleAgentID.String(): api.AccessGate}}
	sampleTested     = api.MCPServerTested{OK: true, Tools: []api.MCPTool{{Name: "orders.read", Description: "Reads an order."}}}
	sampleConnection = api.Connection{ID: id.ConnectionID{UUID: sample(41)}, MCPServerID: sampleServer.ID, Name: "Warehouse account", HasCredential: true,
		CredentialMeta: api.Object(`{"account":"warehouse@example.com"}`), CreatedAt: sampleTime, UpdatedAt: sampleTime, LastUsedAt: &sampleTime}
	sampleGrant = api.ToolGrant{ID: id.GrantID{UUID: sample(42)}, Source: tool.MCP, MCPServerID: &sampleServer.ID, ToolPattern: "orders.*", Effect: tool.Allow,
		AgentID: &sampleAgentID, CreatedAt: sampleTime, UpdatedAt: sampleTime}
	samplePolicy = api.ApprovalPolicy{ID: id.PolicyID{UUID: sample(43)}, Name: "Refunds", ToolPattern: "orders.refund", Risk: lifecycle.RiskHigh,
		RequiredApprovals: 2, ApproverRole: lifecycle.RoleManager, SLAMinutes: 120, EscalateToRole: ptr(lifecycle.RoleAdmin), Enabled: true,
		CreatedAt: sampleTime, UpdatedAt: sampleTime}
	sampleGatedBy    = api.GatedBy{ID: &samplePolicy.ID, Name: samplePolicy.Name, Kind: string(tool.KindPolicy)}
	sampleAgentTools = []api.AgentTool{{Tool: "orders.orders.refund", Source: tool.MCP, Description: "Refunds an order.",
		InputSchema: api.Value(`{"type":"object","properties":{"order":{"type":"string"}},"required":["order"]}`), GatedBy: &sampleGatedBy}}
	sampleExplanation = api.ToolExplanation{Tool: "orders.orders.refund", Source: string(tool.MCP), Verdict: string(tool.Gated),
		Why: "The policy Refunds asks for an approval.",
		Steps: []api.ExplainedStep{
			{What: "manifest", Pattern: "orders.*", Matched: true, Decided: true},
			{What: "grant", ID: sampleGrant.ID.String(), Pattern: "orders.*", Matched: true, Decided: true, Note: "allow"},
			{What: "policy", ID: samplePolicy.ID.String(), Pattern: "orders.refund", Matched: true, Decided: true},
		},
		GrantID: &sampleGrant.ID, ConnectionID: &sampleConnection.ID,
		Approval: &api.ApprovalTerms{Risk: samplePolicy.Risk, RequiredApprovals: 2, ApproverRole: samplePolicy.ApproverRole, SLAMinutes: samplePolicy.SLAMinutes,
			EscalateToRole: string(lifecycle.RoleAdmin), OnTimeout: agent.TimeoutReject, Policy: sampleGatedBy}}
)

// describeTools adds the descriptions of this section's types.
func describeTools(t *edge.Table) {
	edge.Enum(t, api.ToolSources...)
	edge.Doc[api.Health](t, "How the last exchange with a tool server went.")
	edge.Doc[api.ListedTool](t, "A tool of the tenant, and what happens when agents call it.")
	edge.Doc[api.List[api.ListedTool]](t, "A page of tools.")
	edge.Doc[api.MCPServer](t, "A tool server.")
	edge.Doc[api.MCPServerCreate](t, "A tool server to create.")
	edge.Doc[api.MCPServerPatch](t, "A change of a tool server; omitted fields stay.")
	edge.Doc[api.MCPServerUpdated](t, "A tool server as it is now, and whether its connections lost their credentials.")
	edge.Doc[api.MCPServerTest](t, "How to test a tool server.")
	edge.Doc[api.MCPServerTested](t, "The response of a tool server.")
	edge.Doc[api.MCPTool](t, "A tool as its server describes it.")
	edge.Doc[api.Connection](t, "A connection, without its credential.")
	edge.Doc[api.ConnectionCredentials](t, "The credential of a connection: one of the members.")
	edge.Doc[api.ConnectionCreate](t, "A connection to create.")
	edge.Doc[api.ConnectionPatch](t, "A change of a connection; omitted fields stay.")
	edge.Doc[api.ToolGrant](t, "Allows or denies tool calls to agents.")
	edge.Doc[api.ToolGrantCreate](t, "A tool grant to create.")
	edge.Doc[api.ToolGrantPatch](t, "A change of a tool grant; omitted fields stay.")
	edge.Doc[api.ApprovalPolicy](t, "Says which tool calls wait for a person.")
	edge.Doc[api.ApprovalPolicyCreate](t, "An approval policy to create.")
	edge.Doc[api.ApprovalPolicyPatch](t, "A change of an approval policy; omitted fields stay.")
	edge.Doc[api.Whole[api.AgentTool]](t, "The tools that an agent may call now.")
	edge.Doc[api.AgentTool](t, "A tool that an agent may call.")
	edge.Doc[api.GatedBy](t, "The rule that requires an approval.")
	edge.Doc[api.ToolExplanation](t, "The explanation of a decision on a tool.")
	edge.Doc[api.ExplainedStep](t, "One rule that was checked.")
	edge.Doc[api.ApprovalTerms](t, "The terms of an approval.")
	edge.Doc[api.List[api.MCPServer]](t, "A page of tool servers.")
	edge.Doc[api.List[api.Connection]](t, "A page of connections.")
	edge.Doc[api.List[api.ToolGrant]](t, "A page of tool grants.")
	edge.Doc[api.List[api.ApprovalPolicy]](t, "A page of approval policies.")
}
