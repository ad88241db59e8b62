package tool

import (
	"bytes"
	"encoding/json"
	"time"

	"agentsvc/schemas/agent"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
)

// Source is the origin of a tool (service.md, Tool grant).
type Source string

// Values of Source. A2A and Connector are reserved: rules with them are stored and match
// nothing.
const (
	MCP          Source = "mcp"
	Builtin      Source = "builtin"
	A2A          Source = "a2a"
	Connector    Source = "connector"
	BrowserSkill Source = "browser_skill" // internal: created only by the routes of browser skills
)

// Sources lists every value.
var Sources = []Source{MCP, Builtin, A2A, Connector, BrowserSkill}

// Effect is the effect of a grant.
type Effect string

// Values of Effect.
const (
	Allow Effect = "allow"
	Deny  Effect = "deny"
)

// Effects lists every value.
var Effects = []Effect{Allow, Deny}

// Transport is the protocol of a tool server.
type Transport string

// Values of Transport.
const (
	HTTP  Transport = "http" // Streamable HTTP
	Stdio Transport = "stdio"
)

// Transports lists every value.
var Transports = []Transport{HTTP, Stdio}

// AuthKind is how calls to a tool server are authenticated.
type AuthKind string

// Values of AuthKind.
const (
	AuthNone   AuthKind = "none"
	AuthBearer AuthKind = "bearer"
	AuthAPIKey AuthKind = "api_key"
	AuthOAuth  AuthKind = "oauth" // a static access token
)

// AuthKinds lists every value.
var AuthKinds = []AuthKind{AuthNone, AuthBearer, AuthAPIKey, AuthOAuth}

// Spec is one tool as its source describes it.
type Spec struct {
	Source Source `json:"source"`
	// Owner is the slug of its tool server or skill, empty for builtin tools.
	Owner string `json:"owner,omitempty"`
	// Skill is the id of the browser skill, nil for all others.
	Skill       *id.SkillID     `json:"skill,omitempty"`
	Name        string          `json:"name"` // the bare name
	Description string          `json:"description,omitempty"`
	Schema      json.RawMessage `json:"schema,omitempty"` // of the arguments, which are an object
	ReadOnly    bool            `json:"read_only,omitempty"`
	Idempotent  bool            `json:"idempotent,omitempty"`
	// Unusable is why the tool cannot be called, "" if it can: its schema is invalid or too
	// expensive to check. Such a tool has no Schema and is never offered.
	Unusable string `json:"unusable,omitempty"`
}

// Server holds the fields of a tool server that resolution needs.
type Server struct {
	ID        id.ServerID
	Slug      string
	Transport Transport
	Endpoint  string
	AuthKind  AuthKind
	Enabled   bool
	UpdatedAt time.Time
}

// Connection is a credential of a server, without the credential.
type Connection struct {
	ID        id.ConnectionID
	Server    id.ServerID
	Node      *id.NodeID // nil: tenant-wide
	CreatedAt time.Time
	// Empty means that its credential was dropped because the server moved to another origin.
	// It is still chosen: a call never falls back to another account.
	Empty bool
}

// Skill holds the fields of a browser skill that resolution needs.
type Skill struct {
	ID      id.SkillID
	Slug    string
	Node    *id.NodeID // limits it to agents on the node or below; nil: no limit
	Enabled bool
	// DryRunOnly means that its policy offers agents no run.
	DryRunOnly bool
	// Terms are those of the approval that its policy forces on a run; nil: it forces none.
	// Policies and rules only tighten them.
	Terms *Terms
}

// Grant is a tool grant. At most one of Agent and Node is set.
type Grant struct {
	ID         id.GrantID
	Source     Source
	Server     *id.ServerID
	Skill      *id.SkillID
	Pattern    string
	Effect     Effect
	Agent      *id.AgentID
	Node       *id.NodeID
	Connection *id.ConnectionID
	CreatedAt  time.Time
}

// Policy is an enabled approval policy.
type Policy struct {
	ID       id.PolicyID
	Name     string
	Pattern  string
	Source   Source // empty: any
	Agent    *id.AgentID
	Risk     lifecycle.Risk
	Required int
	Role     lifecycle.Role
	// SLAMinutes may be a fraction.
	SLAMinutes float64
	Escalate   lifecycle.Role // empty: no escalation
	CreatedAt  time.Time
}

// Access holds everything of a tenant that decides what one agent may call, as of one moment.
// It may include grants, connections and policies of other agents and of org nodes outside
// Chain: they match nothing. Skills without any grant may be left out: nothing of them is
// granted.
type Access struct {
	Agent       id.AgentID
	Chain       []id.NodeID // the agent's org node and its ancestors, the nearest first
	Servers     []Server
	Skills      []Skill
	Connections []Connection
	Grants      []Grant
	Policies    []Policy
}

// Options are the per-turn options of a message that affect tools; they only restrict.
type Options struct {
	RequireApproval bool      // option autonomy
	Tools           *[]string // nil: not narrowed
}

// Caller is the agent or the workflow of a run for which tools are offered, planned and called.
type Caller struct {
	Tenant id.TenantID
	Run    id.RunID
	// Workflow is set for a tool node: grants and policies alone decide, and the fields below
	// are empty.
	Workflow *id.WorkflowID
	Agent    id.AgentID // the agent that speaks; after a handoff not the run's own agent
	Manifest *agent.Manifest
	Options  Options // the options of the turn
	// EndUser is the person on whose behalf the run is; nil: there is none. Searches find what
	// that person may see.
	EndUser *id.EndUserID
}

// What returns the word for the caller in messages.
func (c *Caller) What() string {
	if c.Workflow != nil {
		return "workflow"
	}
	return "agent"
}

// PolicyKind is the kind of rule that requires an approval.
type PolicyKind string

// Values of PolicyKind (open-parts.md, Questions settled, Approval).
const (
	KindPolicy   PolicyKind = "policy"
	KindManifest PolicyKind = "manifest"
	KindSkill    PolicyKind = "skill"
	KindOption   PolicyKind = "option"
)

// PolicyRef names the rule that requires an approval.
type PolicyRef struct {
	ID   *id.PolicyID `json:"id"`
	Name string       `json:"name"`
	Kind PolicyKind   `json:"kind"`
}

// Terms are the terms of an approval.
type Terms struct {
	Risk       lifecycle.Risk `json:"risk"`
	Required   int            `json:"required_approvals"`
	Role       lifecycle.Role `json:"approver_role"`
	SLAMinutes float64        `json:"sla_minutes"`
	Escalate   lifecycle.Role `json:"escalate_to_role,omitempty"`
	OnTimeout  string         `json:"on_timeout"` // agent.TimeoutReject or agent.TimeoutCancelRun
	Policy     PolicyRef      `json:"policy"`
}

// SLA returns how long the approval may take.
func (t *Terms) SLA() time.Duration { return time.Duration(t.SLAMinutes * float64(time.Minute)) }

// Verdict is the decision on a call.
type Verdict string

// Values of Verdict.
const (
	Callable Verdict = "allow"
	Gated    Verdict = "gate" // needs an approval first
	Refused  Verdict = "deny"
)

// Resolution is the decision on the calls of one tool by one agent in one turn.
type Resolution struct {
	Verdict Verdict
	// Why gives the reason in one sentence.
	Why string
	// Grant is the deciding grant: the allow that won, or the deny that matched.
	Grant *Grant
	// Connection is the credential to use; nil if the server takes none.
	Connection *id.ConnectionID
	// NoConnection means that the server requires a credential and none fits: the call fails
	// with ErrNoConnection.
	NoConnection bool
	// Terms are set if the verdict is Gated.
	Terms *Terms
}

// Offer is one tool that an agent may call.
type Offer struct {
	Spec
	Resolution
}

// Explanation is the response of GET /v1/agents/{id}/tools/explain: the decision on a tool,
// step by step.
type Explanation struct {
	Tool    string  `json:"tool"` // the qualified name, or the requested name
	Source  Source  `json:"source,omitempty"`
	Verdict Verdict `json:"verdict"`
	Why     string  `json:"why"`
	// Steps are the rules checked, in order.
	Steps      []ExplainedStep  `json:"steps"`
	GrantID    *id.GrantID      `json:"grant_id"`
	Connection *id.ConnectionID `json:"connection_id"`
	Approval   *Terms           `json:"approval"`
}

// ExplainedStep is one rule that was checked.
type ExplainedStep struct {
	// What is server, skill, manifest, option, grant, connection, policy or rule.
	What string `json:"what"`
	// ID is the id of the grant or policy, empty if it has none.
	ID string `json:"id,omitempty"`
	// Pattern is the pattern that was compared with the tool.
	Pattern string `json:"pattern,omitempty"`
	// Matched reports whether it matched, Decided whether it affected the result.
	Matched bool   `json:"matched"`
	Decided bool   `json:"decided"`
	Note    string `json:"note,omitempty"`
}

// Planned is the plan for one call that a model requested. It is sealed in the call's step
// and is used again after a crash.
type Planned struct {
	CallID string `json:"call_id"` // the id given by the model
	// Tool is the qualified name, or the model's text if that is not a tool.
	Tool string `json:"tool"`
	// Args are sent as exactly these bytes; idempotency_key is filled in.
	Args json.RawMessage `json:"args"`
	// Shown are Args without secrets, for steps, previews and approvals.
	Shown json.RawMessage `json:"-"`
	// Schema is the tool's schema, for approvals.
	Schema json.RawMessage `json:"schema,omitempty"`
	// Repeat means that the same call may be sent again if its outcome is unknown.
	Repeat  bool `json:"repeat,omitempty"`
	Handoff bool `json:"handoff,omitempty"`
	// Retrieval means that the call is a search in knowledge bases.
	Retrieval bool `json:"retrieval,omitempty"`
	// Refused is set if nothing runs: the result that the model gets instead.
	Refused *Outcome `json:"-"`
	// Terms are set if the call needs an approval; Approval is the id that it will have.
	Terms    *Terms         `json:"terms,omitempty"`
	Approval *id.ApprovalID `json:"approval,omitempty"`
	// Node is the agent's org node, where the chain of managers begins.
	Node *id.NodeID `json:"node,omitempty"`
	// Skill is set for a call of a browser skill.
	Skill *SkillCall `json:"skill,omitempty"`
}

// DecidesOn returns the run of a browser skill on which the approval of the call decides, nil if there is none.
func (p *Planned) DecidesOn() *id.SkillRunID {
	if s := p.Skill; s != nil && s.Previews {
		return &s.Run
	}
	return nil
}

// SkillCall is the run of a browser skill that a call makes.
type SkillCall struct {
	Run id.SkillRunID `json:"run"`
	// Previews means that the run begins before the approval of the call opens, and that the
	// approval decides on it.
	Previews bool `json:"previews,omitempty"`
	// Joins means that another call, of the same turn or of an open node of the same workflow run,
	// makes the same run. The call begins when that one has ended, and gets its result.
	Joins bool `json:"joins,omitempty"`
	// Reason is the argument of that name, for the person who approves.
	Reason string `json:"reason,omitempty"`
}

// SkillKey returns a text that is the same for two calls of a browser skill with the same tool and
// values: the reason does not count. It is empty for any other call. Bound arguments have one form,
// with the reason last.
func (p *Planned) SkillKey() string {
	if p.Skill == nil {
		return ""
	}
	values := p.Args
	if i := bytes.LastIndex(values, []byte(`"reason":`)); i >= 0 {
		values = bytes.TrimSuffix(values[:i], []byte(","))
	} else {
		values = bytes.TrimSuffix(values, []byte("}"))
	}
	return p.Tool + "\x00" + string(values)
}

// Joined returns the call as one that gets the result of another call's run, without an approval.
func (p *Planned) Joined(run id.SkillRunID) Planned {
	out := *p
	out.Skill, out.Terms, out.Approval = &SkillCall{Run: run, Joins: true}, nil, nil
	return out
}

// Outcome is the result of a call.
type Outcome struct {
	Content string          // for the model
	Shown   json.RawMessage // for steps and previews: redacted, always JSON
	IsError bool
	// Unsent says that this attempt carried nothing out. An earlier attempt may have.
	Unsent bool `json:"-"`
}

// After returns the outcome of a call that may have been carried out before this attempt. If
// this one was not carried out, what became of the call is unknown.
func (o Outcome) After() Outcome {
	if o.Unsent {
		return UnknownOutcome
	}
	return o
}

// UnknownOutcome is the outcome of a call that was begun, and whose answer was lost.
var UnknownOutcome = FailedResult(ErrUnknownOutcome, "The call was begun and its answer was lost. It may have taken effect.")

// Retrieval is the outcome of a search that a run makes by itself.
type Retrieval struct {
	Outcome
	Bases int // that exist, of the manifest's
	Hits  int
}

// Error codes of failed tool results, as the model gets them.
const (
	ErrNotGranted     = "TOOL_NOT_GRANTED"
	ErrNoConnection   = "NO_CONNECTION"
	ErrInvalidArgs    = "INVALID_ARGS"
	ErrUnknownOutcome = "UNKNOWN_OUTCOME"
	ErrToolFailed     = "TOOL_FAILED"  // the server could not be called, or its response was invalid
	ErrToolTimeout    = "TOOL_TIMEOUT" // it did not answer in time
)

// Listed is a tool of the tenant, whatever is granted.
type Listed struct {
	Spec
	Server *id.ServerID // nil: it comes from no tool server
	At     *time.Time   // when its server last listed it; nil: it comes from no tool server
}
