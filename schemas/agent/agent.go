// Package agent defines an agent's manifest (open-parts.md, Agents, versions, manifest) with
// every rule that can be checked when a version is saved. The document itself is stored and
// returned as it was sent; runs use the Manifest, with the defaults filled in.
package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
)

// Providers that exist without a row in model_providers. A tenant's own provider may take one of
// these names except simulated, and then replaces the deployment's.
const (
	ProviderSimulated = "simulated"
	ProviderOpenAI    = "openai"
	ProviderAnthropic = "anthropic"
)

// Builtin tools, by their names in a manifest.
const BuiltinKBSearch = "kb.search"

// Builtins lists every tool that tools.builtin may name.
var Builtins = []string{BuiltinKBSearch}

// Manifest is a valid manifest, ready to run. The tags besides json are for the OpenAPI
// document; check.go does the checks, and a test compares the two.
type Manifest struct {
	Model          Model           `json:"model" doc:"Who answers."`
	Instructions   string          `json:"instructions,omitempty" maxLength:"64000" doc:"The system prompt."`
	Tools          Tools           `json:"tools,omitzero" doc:"What the agent may ask for; grants decide what it gets, a manifest only narrows."`
	KnowledgeBases []id.UUID       `json:"knowledge_bases,omitempty" maxItems:"100" doc:"Ids of the knowledge bases that kb.search searches."`
	HITL           HITL            `json:"hitl,omitzero" doc:"Human in the loop: the agent's own approval rules."`
	OutputSchema   json.RawMessage `json:"output_schema,omitempty" doc:"A JSON Schema of the final answer, at most 131072 bytes, without references to the outside. The answer is parsed and checked against it and lands in output.json."`
	Guardrails     Guardrails      `json:"guardrails,omitzero" doc:"Checks of what the agent says. Any entry of output withholds llm.delta from the embed relay."`
	Limits         Limits          `json:"limits,omitzero" doc:"Limits of one run. Passing one fails it with LIMIT_EXCEEDED."`
	Memory         Memory          `json:"memory,omitzero" doc:"How much of its thread the agent reads again."`
	Handoffs       []string        `json:"handoffs,omitempty" maxItems:"100" pattern:"^[a-z0-9][a-z0-9-]{0,62}$" doc:"Slugs of the agents that this one may hand the conversation to."`
}

// Model names the model that answers.
type Model struct {
	Provider        string    `json:"provider" pattern:"^[a-z0-9][a-z0-9-]{0,62}$" doc:"simulated, openai, anthropic, or the slug of a model provider of the tenant."`
	Name            string    `json:"name" minLength:"1" maxLength:"200" doc:"The model's name at its provider."`
	Temperature     *float64  `json:"temperature,omitempty" minimum:"0" maximum:"2" nullable:"false" doc:"Omitted: the provider's default."`
	MaxOutputTokens int       `json:"max_output_tokens,omitempty" minimum:"1" maximum:"10000000" doc:"Of one answer. Omitted: the provider's default."`
	Thinking        *Thinking `json:"thinking,omitempty" null:"true" doc:"Asks the model to think before it answers."`
}

// Thinking asks the model to think before it answers.
type Thinking struct {
	BudgetTokens int `json:"budget_tokens" minimum:"1" maximum:"10000000" doc:"Tokens that the model may think for."`
}

// Tools lists the tools that the agent requests; grants decide which it gets.
type Tools struct {
	Builtin       []string          `json:"builtin,omitempty" maxItems:"100" enum:"kb.search" doc:"Names of builtin tools."`
	MCP           []MCPTools        `json:"mcp,omitempty" maxItems:"100" doc:"Tool servers and what of them."`
	BrowserSkills []BrowserSkillUse `json:"browser_skills,omitempty" maxItems:"100" doc:"Browser skills and what of them."`
}

// MCPTools narrows one tool server to some patterns. Without allow it means everything
// granted; an empty list means nothing.
type MCPTools struct {
	Server string   `json:"server" pattern:"^[a-z0-9][a-z0-9-]{0,62}$" doc:"The server's slug."`
	Allow  []string `json:"allow" required:"false" maxItems:"100" minLength:"1" maxLength:"200" pattern:"^(\\*|[^*\\s]+|[^*\\s]*[.:]\\*)$" doc:"Tool patterns: a name, or one * at the end, alone or after . or :. Omitted: all that is granted; empty: nothing."`
}

// BrowserSkillUse is one browser skill and the allowed operations: run, dry_run or, by
// default, both.
type BrowserSkillUse struct {
	Skill string   `json:"skill" pattern:"^[a-z0-9][a-z0-9-]{0,62}$" doc:"The skill's slug."`
	Allow []string `json:"allow" required:"false" maxItems:"2" enum:"run,dry_run" doc:"Omitted: both."`
}

// HITL holds the agent's own approval rules.
type HITL struct {
	Rules []Rule `json:"rules,omitempty" maxItems:"100" doc:"A tool call that matches a rule waits for an approval."`
}

// TimeoutReject and TimeoutCancelRun are the consequences of the expiry of an approval that a rule required.
const (
	TimeoutReject    = "reject"
	TimeoutCancelRun = "cancel_run"
)

// Rule requires an approval of matching tool calls. A zero field matches everything.
type Rule struct {
	Tool              string         `json:"tool" minLength:"1" maxLength:"200" pattern:"^(\\*|[^*\\s]+|[^*\\s]*[.:]\\*)$" doc:"A tool pattern: a name, or one * at the end, alone or after . or :."`
	Source            string         `json:"source,omitempty" enum:"mcp,builtin,a2a,connector" doc:"Omitted: any source."`
	Risk              string         `json:"risk,omitempty" enum:"low,medium,high,critical" doc:"Label on the approval. Omitted: medium."`
	RequiredApprovals int            `json:"required_approvals,omitempty" minimum:"1" maximum:"5" doc:"Distinct approvers. Omitted: 1."`
	ApproverRole      lifecycle.Role `json:"approver_role,omitempty" enum:"owner,admin,manager,member" doc:"The least role that decides. Omitted: admin."`
	SLAMinutes        float64        `json:"sla_minutes,omitempty" exclusiveMinimum:"0" maximum:"525600" doc:"Minutes until the approval expires, also fractions. Omitted: 1440."`
	EscalateToRole    lifecycle.Role `json:"escalate_to_role,omitempty" enum:"owner,admin,manager,member" doc:"Who is asked when part of the time has passed."`
	OnTimeout         string         `json:"on_timeout,omitempty" enum:"reject,cancel_run" default:"reject" doc:"What happens when the approval expires."`
}

// Guardrails check an agent's answers before they leave the run.
type Guardrails struct {
	Output []Guardrail `json:"output,omitempty" maxItems:"100" doc:"Applied to the final answer, in order."`
}

// Kinds and actions of a guardrail.
const (
	GuardRegex    = "regex"
	GuardMaxChars = "max_chars"
	GuardBlock    = "block"
	GuardRedact   = "redact"
)

// Guardrail is one check of the final answer.
type Guardrail struct {
	Kind    string `json:"kind" enum:"regex,max_chars" doc:"regex needs pattern, max_chars needs value; each refuses the other."`
	Pattern string `json:"pattern,omitempty" minLength:"1" maxLength:"1000" doc:"Of regex: a regular expression (RE2)."`
	Value   int    `json:"value,omitempty" minimum:"1" maximum:"1000000" doc:"Of max_chars: characters that pass."`
	Action  string `json:"action" enum:"block,redact" doc:"block fails the run with OUTPUT_INVALID, redact takes out what matched."`
}

// Limits of one run; exceeding one fails the run with LIMIT_EXCEEDED.
type Limits struct {
	MaxSteps   int     `json:"max_steps" required:"false" minimum:"1" maximum:"10000" default:"32" doc:"Persisted steps."`
	MaxSeconds int     `json:"max_seconds" required:"false" minimum:"1" maximum:"604800" default:"900" doc:"Seconds in status running, added up."`
	MaxTokens  int64   `json:"max_tokens,omitempty" minimum:"1" maximum:"1000000000000" doc:"Tokens in and out. Omitted: no limit."`
	MaxCostUSD float64 `json:"max_cost_usd,omitempty" exclusiveMinimum:"0" maximum:"1000000" doc:"US dollars. Omitted: no limit."`
}

// Memory is how much of its thread an agent rereads.
type Memory struct {
	MaxMessages int `json:"max_messages" required:"false" minimum:"1" maximum:"1000" default:"40" doc:"Newest messages of the thread that the model is sent."`
}

// Defaults of the table in open-parts.md.
const (
	DefaultMaxSteps    = 32
	DefaultMaxSeconds  = 900
	DefaultMaxMessages = 40
)

// WithholdsDeltas reports whether live text is kept from the embed relay.
func (m *Manifest) WithholdsDeltas() bool { return len(m.Guardrails.Output) > 0 }

// HasBuiltin reports whether tools.builtin names the tool.
func (m *Manifest) HasBuiltin(name string) bool { return slices.Contains(m.Tools.Builtin, name) }

// Parse validates a manifest as it was sent and returns the Manifest to run. Every complaint
// is a field of one VALIDATION problem, with paths that begin with at
// (manifest.limits.max_steps). It may wait for its turn to compile a schema; it returns the
// error of ctx if that ends meanwhile.
func Parse(ctx context.Context, at string, doc json.RawMessage) (*Manifest, error) {
	if err := validate(ctx, at, doc, false); err != nil {
		return nil, err
	}
	return Load(doc)
}

// Load reads a manifest that was validated when it was stored. It does not validate again: a
// later rule does not stop existing agents.
func Load(doc json.RawMessage) (*Manifest, error) {
	var m Manifest
	if err := json.Unmarshal(doc, &m); err != nil {
		return nil, fmt.Errorf("read a manifest: %w", err)
	}
	if m.Limits.MaxSteps == 0 {
		m.Limits.MaxSteps = DefaultMaxSteps
	}
	if m.Limits.MaxSeconds == 0 {
		m.Limits.MaxSeconds = DefaultMaxSeconds
	}
	if m.Memory.MaxMessages == 0 {
		m.Memory.MaxMessages = DefaultMaxMessages
	}
	for i := range m.Tools.MCP {
		if m.Tools.MCP[i].Allow == nil {
			m.Tools.MCP[i].Allow = []string{"*"}
		}
	}
	for i := range m.Tools.BrowserSkills {
		if m.Tools.BrowserSkills[i].Allow == nil {
			m.Tools.BrowserSkills[i].Allow = slices.Clone(skillOps)
		}
	}
	for i := range m.HITL.Rules {
		if m.HITL.Rules[i].OnTimeout == "" {
			m.HITL.Rules[i].OnTimeout = TimeoutReject
		}
	}
	if string(m.OutputSchema) == "null" {
		m.OutputSchema = nil
	}
	return &m, nil
}
