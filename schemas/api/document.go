package api

import (
	"encoding/json"
	"reflect"

	"github.com/danielgtaylor/huma/v2"

	"agentsvc/schemas/agent"
	"agentsvc/schemas/flow"
)

// Manifest is an agent's manifest exactly as it was sent. Package schemas/agent validates it
// and names every field that breaks a rule.
type Manifest json.RawMessage

// MarshalJSON returns the document.
func (m Manifest) MarshalJSON() ([]byte, error) { return json.RawMessage(m).MarshalJSON() }

// UnmarshalJSON keeps the document.
func (m *Manifest) UnmarshalJSON(b []byte) error { return (*json.RawMessage)(m).UnmarshalJSON(b) }

// ShownAs is the extension of a schema without constraints: the document shows the named
// component instead.
const ShownAs = "x-shown-as"

// Schema has no constraints, because complaints about a manifest come from one place; the
// document shows agent.Manifest.
func (Manifest) Schema(r huma.Registry) *huma.Schema {
	shown := r.Schema(reflect.TypeFor[agent.Manifest](), true, "")
	m := r.SchemaFromRef(shown.Ref)
	m.Properties["output_schema"].Type = huma.TypeObject
	m.Examples = []any{manifestExample}
	return &huma.Schema{Extensions: map[string]any{ShownAs: shown.Ref}}
}

// manifestExample has every field.
var manifestExample = json.RawMessage(`{
	"model": {"provider": "anthropic", "name": "claude-sonnet", "temperature": 0.2, "max_output_tokens": 4096, "thinking": {"budget_tokens": 2048}},
	"instructions": "You answer questions about orders. Say so when you do not know.",
	"tools": {
		"builtin": ["kb.search"],
		"mcp": [{"server": "orders", "allow": ["orders.read", "refunds.*"]}],
		"browser_skills": [{"skill": "carrier-claim", "allow": ["dry_run"]}]
	},
	"knowledge_bases": ["01a1fe1a-f0b8-76f3-9442-f6225bb3af01"],
	"hitl": {"rules": [{"tool": "orders.refunds.*", "source": "mcp", "risk": "high", "required_approvals": 2, "approver_role": "manager",
		"sla_minutes": 120, "escalate_to_role": "admin", "on_timeout": "cancel_run"}]},
	"output_schema": {"type": "object", "required": ["answer"], "properties": {"answer": {"type": "string"}}},
	"guardrails": {"output": [{"kind": "regex", "pattern": "[0-9]{16}", "action": "redact"}, {"kind": "max_chars", "value": 4000, "action": "block"}]},
	"limits": {"max_steps": 8, "max_seconds": 300, "max_tokens": 50000, "max_cost_usd": 0.5},
	"memory": {"max_messages": 20},
	"handoffs": ["billing"]
}`)

// Definition is a workflow's definition exactly as it was sent. Package schemas/flow validates
// it and names every field that breaks a rule.
type Definition json.RawMessage

// MarshalJSON returns the document.
func (d Definition) MarshalJSON() ([]byte, error) { return json.RawMessage(d).MarshalJSON() }

// UnmarshalJSON keeps the document.
func (d *Definition) UnmarshalJSON(b []byte) error { return (*json.RawMessage)(d).UnmarshalJSON(b) }

// Schema has no constraints, because complaints about a definition come from one place; the
// document shows flow.Schema.
func (Definition) Schema(r huma.Registry) *huma.Schema {
	const name = "Definition"
	shown := &huma.Schema{}
	if err := json.Unmarshal(flow.Schema(), &shown.Extensions); err != nil {
		panic(err) // it is made of constants
	}
	r.Map()[name] = shown
	return &huma.Schema{Extensions: map[string]any{ShownAs: "#/components/schemas/" + name}}
}

// Value is any JSON value, kept as it was sent. An absent value and SQL's NULL are null.
type Value json.RawMessage

// MarshalJSON returns the value.
func (v Value) MarshalJSON() ([]byte, error) { return json.RawMessage(v).MarshalJSON() }

// orNull makes an absent value null.
func (v *Value) orNull() {
	if *v == nil {
		*v = Value("null")
	}
}

// UnmarshalJSON keeps the value.
func (v *Value) UnmarshalJSON(b []byte) error { return (*json.RawMessage)(v).UnmarshalJSON(b) }

// Schema accepts every value.
func (Value) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Description: "Any JSON value."}
}
