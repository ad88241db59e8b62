package api

import (
	"encoding/json"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/tool"
)

// MaxObject is the maximum size of a free-form object in bytes.
const MaxObject = 16 << 10

// Object is a free-form JSON object, kept as it was sent. An absent one counts as the empty
// object, and so does null where a PATCH accepts it.
type Object json.RawMessage

// MarshalJSON returns the object.
func (o Object) MarshalJSON() ([]byte, error) {
	if o.empty() {
		return []byte("{}"), nil
	}
	return o, nil
}

// UnmarshalJSON keeps the object.
func (o *Object) UnmarshalJSON(b []byte) error { return (*json.RawMessage)(o).UnmarshalJSON(b) }

// Text returns the object in stored form.
func (o Object) Text() string {
	if o.empty() {
		return "{}"
	}
	return string(o)
}

func (o Object) empty() bool { return len(o) == 0 || string(o) == "null" }

// Schema accepts every object.
func (Object) Schema(huma.Registry) *huma.Schema {
	s := &huma.Schema{Type: huma.TypeObject, AdditionalProperties: true}
	s.PrecomputeMessages()
	return s
}

// MCPServer is a tool server (service.md, MCP server).
type MCPServer struct {
	ID        id.ServerID    `json:"id" doc:"The id, a version 7 UUID."`
	Slug      string         `json:"slug" doc:"The name that manifests, patterns and policies use."`
	Name      string         `json:"name" doc:"For people."`
	Transport tool.Transport `json:"transport" doc:"http is Streamable HTTP."`
	Endpoint  string         `json:"endpoint" doc:"Its URL, or the name of a command of the deployment."`
	AuthKind  tool.AuthKind  `json:"auth_kind" doc:"How a connection's credential is presented; oauth is a static access token."`
	Enabled   bool           `json:"enabled" doc:"false: its tools are not offered and not called."`
	Meta      Object         `json:"meta" doc:"Free-form, not secret."`
	CreatedAt time.Time      `json:"created_at" doc:"UTC."`
	UpdatedAt time.Time      `json:"updated_at" doc:"UTC."`
	Health    Health         `json:"health" doc:"How the last exchange with it went."`
}

// Health is how the last exchange with a tool server went, over all nodes.
type Health struct {
	State HealthState `json:"state" doc:"unknown: none since it was created or its address changed."`
	At    *time.Time  `json:"at" doc:"When; at most a minute older than the last exchange of the same outcome. null: unknown."`
	Error *string     `json:"error" doc:"Why it is failing, in plain language; null: it is not."`
}

// HealthState is the state of a Health.
type HealthState string

// Values of HealthState.
const (
	HealthOK      HealthState = "ok"
	HealthFailing HealthState = "failing"
	HealthUnknown HealthState = "unknown"
)

// HealthStates lists the values.
var HealthStates = []HealthState{HealthOK, HealthFailing, HealthUnknown}

// MCPServerCreate is the body of POST /v1/mcp-servers.
type MCPServerCreate struct {
	Slug      string         `json:"slug" pattern:"^[a-z0-9][a-z0-9-]{0,62}$" doc:"The name that manifests, patterns and policies use; unique in the tenant."`
	Name      string         `json:"name" minLength:"1" maxLength:"120" doc:"For people."`
	Transport tool.Transport `json:"transport" doc:"http is Streamable HTTP."`
	Endpoint  string         `json:"endpoint" minLength:"1" maxLength:"2000" doc:"Of http: a public URL, https in production. Of stdio: the name of a command that the deployment allows."`
	AuthKind  tool.AuthKind  `json:"auth_kind" doc:"bearer and oauth: Authorization: Bearer. api_key: X-Api-Key."`
	Enabled   *bool          `json:"enabled,omitempty" default:"true" doc:"Omitted: true."`
	Meta      Object         `json:"meta,omitempty" doc:"Free-form, not secret, at most 16384 bytes."`
}

// MCPServerPatch is the body of PATCH /v1/mcp-servers/{id}.
type MCPServerPatch struct {
	Slug      *string         `json:"slug,omitempty" pattern:"^[a-z0-9][a-z0-9-]{0,62}$" doc:"Manifests, patterns and policies that use the old one match no more."`
	Name      *string         `json:"name,omitempty" minLength:"1" maxLength:"120" doc:"For people."`
	Transport *tool.Transport `json:"transport,omitempty" doc:"http is Streamable HTTP."`
	Endpoint  *string         `json:"endpoint,omitempty" minLength:"1" maxLength:"2000" doc:"As in a create. At another origin (scheme, host, port) the server's connections lose their credentials."`
	AuthKind  *tool.AuthKind  `json:"auth_kind,omitempty" doc:"Connections keep their credential, which is presented the new way."`
	Enabled   *bool           `json:"enabled,omitempty" doc:"false: its tools are not offered and not called."`
	Meta      Opt[Object]     `json:"meta,omitzero" doc:"Replaces the old one; null empties it. At most 16384 bytes."`
}

// MCPServerUpdated is the response of PATCH /v1/mcp-servers/{id}.
type MCPServerUpdated struct {
	MCPServer
	CredentialsDropped bool `json:"credentials_dropped,omitempty" doc:"true: the endpoint is at another origin now, and the server's connections have lost their credentials."`
}

// MCPServerTest is the body of POST /v1/mcp-servers/{id}/test.
type MCPServerTest struct {
	ConnectionID *id.ConnectionID `json:"connection_id,omitempty" nullable:"true" doc:"A connection of the server. Omitted: the newest that is tenant-wide."`
}

// MCPServerTested is the response to it.
type MCPServerTested struct {
	OK    bool      `json:"ok" doc:"Always true: a server that cannot be reached is MCP_UNREACHABLE."`
	Tools []MCPTool `json:"tools" doc:"As the server lists them now."`
}

// MCPTool is a tool as its server describes it.
type MCPTool struct {
	Name        string `json:"name" doc:"The bare name."`
	Description string `json:"description" doc:"In the server's words."`
	Unusable    string `json:"unusable,omitempty" doc:"Why no agent can call the tool: its inputSchema is not valid, or too expensive to check. Missing where agents can."`
}

// Connection is a credential of a tool server, without the credential
// (service.md, Connection).
type Connection struct {
	ID             id.ConnectionID `json:"id" doc:"The id, a version 7 UUID."`
	MCPServerID    id.ServerID     `json:"mcp_server_id" doc:"The tool server."`
	Name           string          `json:"name" doc:"For people."`
	CredentialMeta Object          `json:"credential_meta" doc:"A label, not secret."`
	NodeID         *id.NodeID      `json:"node_id" doc:"The org node whose agents use it; null: tenant-wide."`
	CreatedAt      time.Time       `json:"created_at" doc:"UTC."`
	UpdatedAt      time.Time       `json:"updated_at" doc:"UTC."`
	LastUsedAt     *time.Time      `json:"last_used_at" doc:"When its credential was last presented, to within a minute; null: never."`
	LastError      *string         `json:"last_error" doc:"Why the last exchange with this credential failed, in plain language; null: it did not."`
	HasCredential  bool            `json:"has_credential" doc:"false: it was dropped when the server's address changed to another origin, and calls fail with NO_CONNECTION until it is given one."`
}

// ConnectionCredentials are write-only. Exactly one is given: the one for the server's
// auth_kind.
type ConnectionCredentials struct {
	Token  *string `json:"token,omitempty" minLength:"1" maxLength:"8192" doc:"Of bearer and oauth. Write-only."`
	APIKey *string `json:"api_key,omitempty" minLength:"1" maxLength:"8192" doc:"Of api_key. Write-only."`
	Value  *string `json:"value,omitempty" minLength:"1" maxLength:"8192" doc:"Another name of api_key. Write-only."`
}

// ConnectionCreate is the body of POST /v1/connections.
type ConnectionCreate struct {
	MCPServerID    id.ServerID           `json:"mcp_server_id" doc:"A tool server of the tenant."`
	Name           string                `json:"name" minLength:"1" maxLength:"120" doc:"For people."`
	Credentials    ConnectionCredentials `json:"credentials" doc:"Stored encrypted, never returned."`
	CredentialMeta Object                `json:"credential_meta,omitempty" doc:"A label, not secret, at most 16384 bytes."`
	NodeID         *id.NodeID            `json:"node_id,omitempty" nullable:"true" doc:"An org node of the tenant, whose agents use it. Omitted: tenant-wide."`
}

// ConnectionPatch is the body of PATCH /v1/connections/{id}.
type ConnectionPatch struct {
	Name           *string                `json:"name,omitempty" minLength:"1" maxLength:"120" doc:"For people."`
	Credentials    *ConnectionCredentials `json:"credentials,omitempty" doc:"Take the place of the old ones at once."`
	CredentialMeta Opt[Object]            `json:"credential_meta,omitzero" doc:"Replaces the old one; null empties it. At most 16384 bytes."`
	NodeID         Opt[id.NodeID]         `json:"node_id,omitzero" doc:"null makes it tenant-wide."`
}

// ToolSource is a tool.Source for which grants and policies can be made: all but
// browser_skill.
type ToolSource string

// ToolSources lists every value.
var ToolSources = []ToolSource{ToolSource(tool.MCP), ToolSource(tool.Builtin), ToolSource(tool.A2A), ToolSource(tool.Connector)}

// ToolGrant allows or denies tool calls to agents (service.md, Tool grant).
type ToolGrant struct {
	ID             id.GrantID       `json:"id" doc:"The id, a version 7 UUID."`
	Source         tool.Source      `json:"source" doc:"browser_skill: made with the skill."`
	MCPServerID    *id.ServerID     `json:"mcp_server_id" doc:"The tool server of source mcp."`
	BrowserSkillID *id.SkillID      `json:"browser_skill_id" doc:"The skill of source browser_skill."`
	ToolPattern    string           `json:"tool_pattern" doc:"What it matches."`
	Effect         tool.Effect      `json:"effect" doc:"Any deny that matches denies."`
	AgentID        *id.AgentID      `json:"agent_id" doc:"The one agent that it is for."`
	NodeID         *id.NodeID       `json:"node_id" doc:"The org node whose agents it is for. With agent_id null too: every agent."`
	ConnectionID   *id.ConnectionID `json:"connection_id" doc:"The credential that it uses; null: the nearest."`
	CreatedAt      time.Time        `json:"created_at" doc:"UTC."`
	UpdatedAt      time.Time        `json:"updated_at" doc:"UTC."`
}

// ToolGrantCreate is the body of POST /v1/tool-grants.
type ToolGrantCreate struct {
	Source       ToolSource       `json:"source" doc:"Where the tools come from. a2a and connector match nothing yet."`
	MCPServerID  *id.ServerID     `json:"mcp_server_id,omitempty" nullable:"true" doc:"Required with source mcp, and only there."`
	ToolPattern  string           `json:"tool_pattern" minLength:"1" maxLength:"200" doc:"A name, or one * at the end, alone or after . or :."`
	Effect       tool.Effect      `json:"effect" doc:"Any deny that matches denies."`
	AgentID      *id.AgentID      `json:"agent_id,omitempty" nullable:"true" doc:"For this agent only."`
	NodeID       *id.NodeID       `json:"node_id,omitempty" nullable:"true" doc:"For the agents of this org node and below it. Not together with agent_id."`
	ConnectionID *id.ConnectionID `json:"connection_id,omitempty" nullable:"true" doc:"A connection of the server, to use always."`
}

// ToolGrantPatch is the body of PATCH /v1/tool-grants/{id}.
type ToolGrantPatch struct {
	ToolPattern  *string              `json:"tool_pattern,omitempty" minLength:"1" maxLength:"200" doc:"A name, or one * at the end, alone or after . or :."`
	Effect       *tool.Effect         `json:"effect,omitempty" doc:"Any deny that matches denies."`
	AgentID      Opt[id.AgentID]      `json:"agent_id,omitzero" doc:"null: not for one agent."`
	NodeID       Opt[id.NodeID]       `json:"node_id,omitzero" doc:"null: not for an org node."`
	ConnectionID Opt[id.ConnectionID] `json:"connection_id,omitzero" doc:"null: the nearest."`
}

// ApprovalPolicy says which tool calls need an approval (service.md, Approval policy).
type ApprovalPolicy struct {
	ID                id.PolicyID     `json:"id" doc:"The id, a version 7 UUID."`
	Name              string          `json:"name" doc:"For people; approvals show it."`
	ToolPattern       string          `json:"tool_pattern" doc:"What it matches."`
	Source            *tool.Source    `json:"source" doc:"null: any source."`
	AgentID           *id.AgentID     `json:"agent_id" doc:"The one agent that it is for; null: every agent."`
	Risk              lifecycle.Risk  `json:"risk" doc:"Label on the approval."`
	RequiredApprovals int             `json:"required_approvals" doc:"Distinct approvers."`
	ApproverRole      lifecycle.Role  `json:"approver_role" doc:"The least role that decides."`
	SLAMinutes        float64         `json:"sla_minutes" doc:"Minutes until the approval expires."`
	EscalateToRole    *lifecycle.Role `json:"escalate_to_role" doc:"Who is asked when part of the time has passed; null: nobody else."`
	Enabled           bool            `json:"enabled" doc:"false: it matches nothing."`
	CreatedAt         time.Time       `json:"created_at" doc:"UTC."`
	UpdatedAt         time.Time       `json:"updated_at" doc:"UTC."`
}

// ApprovalPolicyCreate is the body of POST /v1/approval-policies.
type ApprovalPolicyCreate struct {
	Name              string          `json:"name" minLength:"1" maxLength:"120" doc:"For people; approvals show it."`
	ToolPattern       string          `json:"tool_pattern" minLength:"1" maxLength:"200" doc:"A name, or one * at the end, alone or after . or :."`
	Source            *ToolSource     `json:"source,omitempty" nullable:"true" doc:"Omitted: any source. a2a and connector match nothing yet."`
	AgentID           *id.AgentID     `json:"agent_id,omitempty" nullable:"true" doc:"For this agent only."`
	Risk              *lifecycle.Risk `json:"risk,omitempty" default:"medium" doc:"Label on the approval. Omitted: medium."`
	RequiredApprovals *int            `json:"required_approvals,omitempty" minimum:"1" maximum:"5" default:"1" doc:"Distinct approvers. Omitted: 1."`
	ApproverRole      *lifecycle.Role `json:"approver_role,omitempty" default:"admin" doc:"The least role that decides. Omitted: admin."`
	SLAMinutes        *float64        `json:"sla_minutes,omitempty" exclusiveMinimum:"0" maximum:"525600" default:"1440" doc:"Minutes until the approval expires, also fractions. Omitted: 1440."`
	EscalateToRole    *lifecycle.Role `json:"escalate_to_role,omitempty" nullable:"true" doc:"Who is asked when part of the time has passed. Omitted: nobody else."`
	Enabled           *bool           `json:"enabled,omitempty" default:"true" doc:"Omitted: true."`
}

// ApprovalPolicyPatch is the body of PATCH /v1/approval-policies/{id}.
type ApprovalPolicyPatch struct {
	Name              *string             `json:"name,omitempty" minLength:"1" maxLength:"120" doc:"For people; approvals show it."`
	ToolPattern       *string             `json:"tool_pattern,omitempty" minLength:"1" maxLength:"200" doc:"A name, or one * at the end, alone or after . or :."`
	Source            Opt[ToolSource]     `json:"source,omitzero" doc:"null: any source."`
	AgentID           Opt[id.AgentID]     `json:"agent_id,omitzero" doc:"null: every agent."`
	Risk              *lifecycle.Risk     `json:"risk,omitempty" doc:"Label on the approval."`
	RequiredApprovals *int                `json:"required_approvals,omitempty" minimum:"1" maximum:"5" doc:"Distinct approvers."`
	ApproverRole      *lifecycle.Role     `json:"approver_role,omitempty" doc:"The least role that decides."`
	SLAMinutes        *float64            `json:"sla_minutes,omitempty" exclusiveMinimum:"0" maximum:"525600" doc:"Minutes until the approval expires, also fractions."`
	EscalateToRole    Opt[lifecycle.Role] `json:"escalate_to_role,omitzero" doc:"null: nobody else."`
	Enabled           *bool               `json:"enabled,omitempty" doc:"false: it matches nothing."`
}

// AgentTool is one tool that an agent may call now.
type AgentTool struct {
	Tool        string      `json:"tool" doc:"The qualified name."`
	Source      tool.Source `json:"source" doc:"Where it comes from."`
	Description string      `json:"description" doc:"In its source's words."`
	InputSchema Value       `json:"input_schema" doc:"JSON Schema of the arguments."`
	GatedBy     *GatedBy    `json:"gated_by,omitempty" doc:"What makes its calls wait for a person; absent: nothing does."`
}

// GatedBy names the rule that requires an approval.
type GatedBy struct {
	ID   *id.PolicyID `json:"id" doc:"Of a policy; null where it is none."`
	Name string       `json:"name" doc:"For people."`
	Kind string       `json:"kind" enum:"policy,manifest,skill,option" doc:"policy: an approval policy. manifest: a rule of the agent. skill: the browser skill's own policy. option: a message's option."`
}

// ToolExplanation is the response of GET /v1/agents/{id}/tools/explain.
type ToolExplanation struct {
	Tool         string           `json:"tool" doc:"The qualified name, or what was asked for where that is no tool."`
	Source       string           `json:"source,omitempty" doc:"Where it comes from."`
	Verdict      string           `json:"verdict" enum:"allow,gate,deny" doc:"gate: a person decides first."`
	Why          string           `json:"why" doc:"What decided, in one sentence."`
	Steps        []ExplainedStep  `json:"steps" doc:"What was looked at, in order."`
	GrantID      *id.GrantID      `json:"grant_id" doc:"The grant that decided."`
	ConnectionID *id.ConnectionID `json:"connection_id" doc:"The credential that a call uses."`
	Approval     *ApprovalTerms   `json:"approval" doc:"What an approval is asked for with; null: none is."`
}

// ExplainedStep is one rule that was checked.
type ExplainedStep struct {
	What    string `json:"what" doc:"server, manifest, option, grant, connection, policy or rule."`
	ID      string `json:"id,omitempty" doc:"Of the grant, policy or connection."`
	Pattern string `json:"pattern,omitempty" doc:"What was compared with the tool."`
	Matched bool   `json:"matched" doc:"It matches the tool."`
	Decided bool   `json:"decided" doc:"It took part in the outcome."`
	Note    string `json:"note,omitempty" doc:"For people."`
}

// ApprovalTerms are the terms of an approval.
type ApprovalTerms struct {
	Risk              lifecycle.Risk `json:"risk" doc:"Label on the approval."`
	RequiredApprovals int            `json:"required_approvals" doc:"Distinct approvers."`
	ApproverRole      lifecycle.Role `json:"approver_role" doc:"The least role that decides."`
	SLAMinutes        float64        `json:"sla_minutes" doc:"Minutes until it expires."`
	EscalateToRole    string         `json:"escalate_to_role,omitempty" doc:"Who is asked when part of the time has passed."`
	OnTimeout         string         `json:"on_timeout" doc:"reject or cancel_run."`
	Policy            GatedBy        `json:"policy" doc:"What asks for it."`
}
