package flow

import (
	"encoding/json"
	"slices"

	"agentsvc/schemas/check"
	"agentsvc/schemas/lifecycle"
)

// kind is what a field holds.
type kind byte

const (
	anUUID     kind = iota
	aText           // a template of one text
	aName           // a text without placeholders
	aValue          // a template of any JSON value
	anObject        // a template of an object
	aSchema         // a JSON Schema
	aCEL            // an expression
	anInteger       // from least to most
	aNumber         // from least to most
	aPositive       // a number above 0, up to most
	oneOf           // one of names
	aCondition      // an expression, a boolean or a number
)

// field is a field of a node or an edge. Validation and the JSON Schema are both made of it.
type field struct {
	name        string
	kind        kind
	need        bool
	least, most float64 // of a text in characters
	names       []string
	doc         string
}

func names[T ~string](of []T) []string {
	out := make([]string, len(of))
	for i, n := range of {
		out[i] = string(n)
	}
	return out
}

// approvalFields are those of a gate and a human task, with the rules of an approval policy.
var approvalFields = []field{
	{name: "title", kind: aText, need: true, least: 1, most: maxTitle, doc: "What the approver is asked; may hold placeholders."},
	{name: "risk", kind: oneOf, names: names(lifecycle.Risks), doc: "Label on the approval. Omitted: medium."},
	{name: "approver_role", kind: oneOf, names: names([]lifecycle.Role{lifecycle.RoleOwner, lifecycle.RoleAdmin, lifecycle.RoleManager, lifecycle.RoleMember}), doc: "The least role that decides. Omitted: admin."},
	{name: "required_approvals", kind: anInteger, least: 1, most: 5, doc: "Distinct approvers. Omitted: 1."},
	{name: "sla_minutes", kind: aPositive, most: maxWait, doc: "Minutes until the approval expires, also fractions. Omitted: 1440."},
	{name: "escalate_to_role", kind: oneOf, names: names([]lifecycle.Role{lifecycle.RoleOwner, lifecycle.RoleAdmin, lifecycle.RoleManager, lifecycle.RoleMember}), doc: "Who is asked when part of the time has passed."},
}

// fieldsOf are the fields of each type beside id and type (open-parts.md, Workflows, triggers,
// hooks).
var fieldsOf = map[NodeType][]field{
	Agent: {
		{name: "agent_id", kind: anUUID, need: true, doc: "The agent that the child run uses."},
		{name: "input", kind: aValue, need: true, doc: "The input of the child run; strings may hold placeholders."},
	},
	Tool: {
		{name: "tool", kind: aName, need: true, least: 1, most: maxTool, doc: "The tool's name, bare or qualified."},
		{name: "args", kind: anObject, doc: "The arguments; strings may hold placeholders. Omitted: none."},
	},
	Gate:      approvalFields,
	HumanTask: append(slices.Clone(approvalFields), field{name: "form", kind: aSchema, doc: "A JSON Schema of the answer, without references to the outside."}),
	Condition: {{name: "expression", kind: aCEL, need: true, doc: "CEL; the edges whose when equals the result are taken."}},
	Set:       {{name: "values", kind: anObject, need: true, doc: "Variables by name; strings may hold placeholders."}},
	WaitEvent: {
		{name: "event", kind: aText, need: true, least: 1, most: maxEvent, doc: "The name of the event; may hold placeholders."},
		{name: "timeout_minutes", kind: aPositive, most: maxWait, doc: "Minutes, also fractions. Omitted: no timeout."},
	},
	Delay: {{name: "seconds", kind: aNumber, need: true, least: 0, most: maxWait * 60, doc: "How long the branch rests, also fractions."}},
}

var edgeFields = []field{
	{name: "from", kind: aName, need: true, least: 1, most: 64, doc: "The id of a node."},
	{name: "to", kind: aName, need: true, least: 1, most: 64, doc: "The id of a node."},
	{name: "when", kind: aCondition, doc: "CEL. Behind a condition it is compared with the result, else it is a boolean expression. Omitted: taken whenever its source ends."},
}

// Schema returns the JSON Schema (draft 2020-12) of a definition. It states what one field
// allows; that nodes and edges fit together is for Validate.
func Schema() json.RawMessage {
	type m = map[string]any
	var types []any
	for _, t := range NodeTypes {
		properties := m{"id": m{"type": "string", "pattern": nodeID.String()}, "type": m{"type": "string", "enum": []string{string(t)}}}
		need := []string{"id", "type"}
		for _, f := range fieldsOf[t] {
			properties[f.name] = f.schema()
			if f.need {
				need = append(need, f.name)
			}
		}
		types = append(types, m{"title": string(t), "type": "object", "required": need, "properties": properties, "additionalProperties": false})
	}
	edge := m{}
	for _, f := range edgeFields {
		edge[f.name] = f.schema()
	}
	doc, err := json.Marshal(m{
		"description": "A directed acyclic graph. A node starts when all of its incoming edges are settled and at least one of them is taken; else it is skipped. Strings may hold {{input.x}}, {{variables.x}}, {{nodes.<id>.text}} and {{nodes.<id>.json.x}}.",
		"type":        "object",
		"required":    []string{"nodes"},
		"properties": m{
			"nodes":     m{"type": "array", "description": "What is done, in any order.", "minItems": 1, "maxItems": MaxNodes, "items": m{"oneOf": types}},
			"edges":     m{"type": "array", "description": "Which nodes follow which.", "maxItems": MaxEdges, "items": m{"type": "object", "required": []string{"from", "to"}, "properties": edge, "additionalProperties": false}},
			"variables": m{"type": "object", "description": "The first values of variables. A run may replace and add some."},
		},
		"additionalProperties": false,
	})
	if err != nil {
		panic(err) // it is made of constants
	}
	return doc
}

func (f *field) schema() map[string]any {
	s := map[string]any{"description": f.doc}
	switch f.kind {
	case anUUID:
		s["type"], s["format"] = "string", "uuid"
	case aText, aName:
		s["type"], s["minLength"], s["maxLength"] = "string", f.least, f.most
	case aCEL:
		s["type"], s["minLength"] = "string", 1
	case anObject, aSchema:
		s["type"] = "object"
	case anInteger:
		s["type"], s["minimum"], s["maximum"] = "integer", f.least, f.most
	case aNumber:
		s["type"], s["minimum"], s["maximum"] = "number", f.least, f.most
	case aPositive:
		s["type"], s["exclusiveMinimum"], s["maximum"] = "number", 0, f.most
	case oneOf:
		s["type"], s["enum"] = "string", f.names
	case aCondition:
		s["anyOf"] = []map[string]any{{"type": "string"}, {"type": "boolean"}, {"type": "number"}}
	}
	return s
}

// formOptions are those with which an approval checks edited arguments against its schema
// (schemas/tool), so that a form that is saved can be used.
var formOptions = check.Options{Formats: true}
