package api

import (
	"time"

	"agentsvc/schemas/id"
	"agentsvc/schemas/tool"
)

// Found is an object that a search found (console.md, API that this adds).
type Found struct {
	Kind   FoundKind `json:"kind" doc:"As target_kind in the audit log."`
	ID     id.UUID   `json:"id" doc:"The object's id."`
	Title  string    `json:"title" doc:"Its name, or what stands for one."`
	Detail string    `json:"detail" doc:"What tells it from others: slug, status, e-mail, external id."`
}

// FoundKind is the kind of an object that a search found.
type FoundKind string

// Values of FoundKind.
const (
	FoundRun       FoundKind = "run"
	FoundApproval  FoundKind = "approval"
	FoundThread    FoundKind = "thread"
	FoundAgent     FoundKind = "agent"
	FoundWorkflow  FoundKind = "workflow"
	FoundBase      FoundKind = "kb"
	FoundSkill     FoundKind = "browser_skill"
	FoundEndUser   FoundKind = "end_user"
	FoundTrigger   FoundKind = "trigger"
	FoundServer    FoundKind = "mcp_server"
	FoundConnected FoundKind = "connection"
	FoundPolicy    FoundKind = "approval_policy"
	FoundWebhook   FoundKind = "webhook"
	FoundEmbedKey  FoundKind = "embed_key"
	FoundProvider  FoundKind = "model_provider"
	FoundKey       FoundKind = "api_key"
	FoundUser      FoundKind = "user"
	FoundNode      FoundKind = "org_node"
)

// FoundKinds lists the values.
var FoundKinds = []FoundKind{FoundRun, FoundApproval, FoundThread, FoundAgent, FoundWorkflow, FoundBase, FoundSkill, FoundEndUser,
	FoundTrigger, FoundServer, FoundConnected, FoundPolicy, FoundWebhook, FoundEmbedKey, FoundProvider, FoundKey, FoundUser, FoundNode}

// MaxFound is how many objects a search finds at most.
const MaxFound = 20

// ListedTool is a tool of the tenant, with what decides when each of the named agents calls it.
type ListedTool struct {
	Tool        string                `json:"tool" doc:"The qualified name."`
	Source      tool.Source           `json:"source" doc:"Where it comes from."`
	MCPServerID *id.ServerID          `json:"mcp_server_id" doc:"The tool server; null: another source."`
	Description string                `json:"description" doc:"In its source's words."`
	InputSchema Value                 `json:"input_schema" doc:"JSON Schema of the arguments; null: it has none that can be used."`
	ListedAt    *time.Time            `json:"listed_at" doc:"When its server last listed it; null: it does not come from a server."`
	Access      map[string]ToolAccess `json:"access" doc:"By agent id, for each agent_id of the query."`
}

// ToolAccess is what happens when an agent calls a tool.
type ToolAccess string

// Values of ToolAccess.
const (
	AccessAllow ToolAccess = "allow"
	AccessGate  ToolAccess = "gate" // a person decides first
	AccessDeny  ToolAccess = "deny"
)

// ToolAccesses lists the values.
var ToolAccesses = []ToolAccess{AccessAllow, AccessGate, AccessDeny}

// DeniedOrigin is an origin that an embed key refused.
type DeniedOrigin struct {
	Origin string    `json:"origin" doc:"As the browser sent it."`
	Count  int64     `json:"count" doc:"How many calls of the last 30 days were refused, up to a few seconds ago."`
	LastAt time.Time `json:"last_at" doc:"UTC."`
}
