// Package agent is what an agent is made of: its manifest (open-parts.md,
// Agents, versions, manifest) with every rule that can be checked when a version
// is saved. The document itself is stored and returned as it was sent; what runs
// is the Manifest, with the defaults filled in.
package agent

import (
	"encoding/json"
	"fmt"
	"slices"

	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
)

// Providers that are there without a row in model_providers.
const (
	ProviderSimulated = "simulated"
	ProviderOpenAI    = "openai"
	ProviderAnthropic = "anthropic"
)

// Providers lists the built-in ones: a tenant's own takes one of these names
// only to go before the deployment's, and simulated is nobody else's.
var Providers = []string{ProviderSimulated, ProviderOpenAI, ProviderAnthropic}

// Builtin tools, by the names a manifest gives them.
const BuiltinKBSearch = "kb.search"

// Builtins lists every tool that tools.builtin may name.
var Builtins = []string{BuiltinKBSearch}

// Manifest is a valid manifest, ready to run.
type Manifest struct {
	Model          Model           `json:"model"`
	Instructions   string          `json:"instructions,omitempty"`
	Tools          Tools           `json:"tools,omitzero"`
	KnowledgeBases []id.UUID       `json:"knowledge_bases,omitempty"`
	HITL           HITL            `json:"hitl,omitzero"`
	OutputSchema   json.RawMessage `json:"output_schema,omitempty"`
	Guardrails     Guardrails      `json:"guardrails,omitzero"`
	Limits         Limits          `json:"limits,omitzero"`
	Memory         Memory          `json:"memory,omitzero"`
	Handoffs       []string        `json:"handoffs,omitempty"` // agent slugs
}

// Model says who answers.
type Model struct {
	Provider        string    `json:"provider"`
	Name            string    `json:"name"`
	Temperature     *float64  `json:"temperature,omitempty"`
	MaxOutputTokens int       `json:"max_output_tokens,omitempty"` // 0: the provider's default
	Thinking        *Thinking `json:"thinking,omitempty"`
}

// Thinking asks the model to think before it answers.
type Thinking struct {
	BudgetTokens int `json:"budget_tokens"`
}

// Tools is what the agent may ask for; grants decide what it gets.
type Tools struct {
	Builtin       []string          `json:"builtin,omitempty"`
	MCP           []MCPTools        `json:"mcp,omitempty"`
	BrowserSkills []BrowserSkillUse `json:"browser_skills,omitempty"`
}

// MCPTools narrows one tool server to some patterns. Without allow it is all
// that is granted, an empty list is nothing.
type MCPTools struct {
	Server string   `json:"server"`
	Allow  []string `json:"allow"`
}

// BrowserSkillUse is one browser skill and what may be done with it: run,
// dry_run or, by default, both.
type BrowserSkillUse struct {
	Skill string   `json:"skill"`
	Allow []string `json:"allow"`
}

// HITL holds the agent's own approval rules.
type HITL struct {
	Rules []Rule `json:"rules,omitempty"`
}

// What happens when an approval that a rule asked for expires.
const (
	TimeoutReject    = "reject"
	TimeoutCancelRun = "cancel_run"
)

// Rule asks for an approval of the tool calls that match. The zero value of a
// field says nothing about it.
type Rule struct {
	Tool              string         `json:"tool"`
	Source            string         `json:"source,omitempty"`
	Risk              string         `json:"risk,omitempty"`
	RequiredApprovals int            `json:"required_approvals,omitempty"`
	ApproverRole      lifecycle.Role `json:"approver_role,omitempty"`
	SLAMinutes        float64        `json:"sla_minutes,omitempty"`
	EscalateToRole    lifecycle.Role `json:"escalate_to_role,omitempty"`
	OnTimeout         string         `json:"on_timeout,omitempty"` // default reject
}

// Guardrails check what the agent says before anybody hears it.
type Guardrails struct {
	Output []Guardrail `json:"output,omitempty"`
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
	Kind    string `json:"kind"`
	Pattern string `json:"pattern,omitempty"` // of regex, RE2
	Value   int    `json:"value,omitempty"`   // of max_chars
	Action  string `json:"action"`
}

// Limits of one run; passing one fails it with LIMIT_EXCEEDED.
type Limits struct {
	MaxSteps   int     `json:"max_steps"`
	MaxSeconds int     `json:"max_seconds"`
	MaxTokens  int64   `json:"max_tokens,omitempty"`   // 0: no limit
	MaxCostUSD float64 `json:"max_cost_usd,omitempty"` // 0: no limit
}

// Memory is how much of its thread an agent reads again.
type Memory struct {
	MaxMessages int `json:"max_messages"`
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

// Parse checks a manifest as a person sent it and returns what runs. Every
// complaint is a field of one VALIDATION problem, with paths that begin with at
// (manifest.limits.max_steps).
func Parse(at string, doc json.RawMessage) (*Manifest, error) {
	if err := check(at, doc); err != nil {
		return nil, err
	}
	return Load(doc)
}

// Load reads a manifest that was checked when it was stored. It does not check
// again: a rule that came later does not stop what runs already.
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
