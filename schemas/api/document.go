package api

import (
	"encoding/json"

	"github.com/danielgtaylor/huma/v2"
)

// Manifest is an agent's manifest exactly as it was sent. Its rules are checked
// by schemas/agent, which names every field that breaks one.
type Manifest json.RawMessage

// MarshalJSON is the document.
func (m Manifest) MarshalJSON() ([]byte, error) { return json.RawMessage(m).MarshalJSON() }

// UnmarshalJSON keeps the document.
func (m *Manifest) UnmarshalJSON(b []byte) error { return (*json.RawMessage)(m).UnmarshalJSON(b) }

// Schema describes the document. It constrains nothing: the complaints about a
// manifest come from one place.
func (Manifest) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{
		Description: "What the agent is made of. `model` (`provider`, `name`, `temperature?`, `max_output_tokens?`, `thinking?`) is required; " +
			"`instructions` (up to 64,000 characters), `tools` (`builtin`, `mcp`, `browser_skills`), `knowledge_bases`, `hitl.rules`, " +
			"`output_schema` (a JSON Schema of the final answer), `guardrails.output`, `limits` (`max_steps` 32, `max_seconds` 900, `max_tokens`, `max_cost_usd`), " +
			"`memory.max_messages` (40) and `handoffs` are optional. Unknown fields are refused.",
		Examples: []any{map[string]any{
			"model":        map[string]any{"provider": "simulated", "name": "sim"},
			"instructions": "You are a friendly assistant.",
			"limits":       map[string]any{"max_steps": 8},
		}},
	}
}

// Value is any JSON value, kept as it was sent. Absent and SQL's NULL are null.
type Value json.RawMessage

// MarshalJSON is the value.
func (v Value) MarshalJSON() ([]byte, error) { return json.RawMessage(v).MarshalJSON() }

// UnmarshalJSON keeps the value.
func (v *Value) UnmarshalJSON(b []byte) error { return (*json.RawMessage)(v).UnmarshalJSON(b) }

// Schema lets everything pass.
func (Value) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Description: "Any JSON value."}
}
