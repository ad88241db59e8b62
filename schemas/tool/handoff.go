package tool

import (
	"encoding/json"
	"slices"
)

// HandoffName is the bare name of the tool that hands a conversation over to
// another agent.
const HandoffName = "handoff"

// HandoffSpec returns the tool `handoff { to, note? }` of an agent whose manifest names these
// slugs (open-parts.md, Handoff). Policies match builtin:handoff.
func HandoffSpec(slugs []string) Spec {
	to := slices.Compact(slices.Sorted(slices.Values(slugs)))
	if to == nil {
		to = []string{}
	}
	schema, err := json.Marshal(map[string]any{
		"type": "object",
		"properties": map[string]any{
			"to":   map[string]any{"type": "string", "enum": to, "description": "The agent that takes over."},
			"note": map[string]any{"type": "string", "description": "What that agent should know."},
		},
		"required":             []string{"to"},
		"additionalProperties": false,
	})
	if err != nil {
		panic(err) // strings can always be encoded
	}
	return Spec{
		Source: Builtin, Name: HandoffName, Schema: schema, Idempotent: true,
		Description: "Hands the conversation over to another agent, who answers from here on.",
	}
}
