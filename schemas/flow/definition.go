package flow

import (
	"encoding/json"
	"fmt"
	"regexp"

	"agentsvc/schemas/flow/scan"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
)

// Limits of a definition (open-parts.md, Changes, Workflows).
const (
	MaxNodes = 200
	MaxEdges = 400
	MaxBytes = 256 << 10
)

// Limits that the specification leaves open.
const (
	maxDepth       = 64       // nesting of the document
	maxExpressions = 64 << 10 // bytes of all expressions together
	maxTitle       = 1_000    // characters of a title
	maxEvent       = 200      // characters of the name of an event
	maxTool        = 200      // characters of the name of a tool
	maxWait        = 525_600  // minutes, one year
)

var nodeID = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// ValidNodeID reports whether s can be the id of a node.
func ValidNodeID(s string) bool { return nodeID.MatchString(s) }

// NodeType is what a node does.
type NodeType string

// Values of NodeType (open-parts.md, Workflows, triggers, hooks).
const (
	Agent     NodeType = "agent"
	Tool      NodeType = "tool"
	Gate      NodeType = "gate"
	HumanTask NodeType = "human_task"
	Condition NodeType = "condition"
	Set       NodeType = "set"
	WaitEvent NodeType = "wait_event"
	Delay     NodeType = "delay"
)

// NodeTypes lists every value, in the specification's order.
var NodeTypes = []NodeType{Agent, Tool, Gate, HumanTask, Condition, Set, WaitEvent, Delay}

// Definition is a valid definition. Validate checks the document; Load reads one that was
// valid when it was stored.
type Definition struct {
	Nodes     []Node                     `json:"nodes"`
	Edges     []Edge                     `json:"edges,omitempty"`
	Variables map[string]json.RawMessage `json:"variables,omitempty"`
}

// Node is one node. Only the fields of its type are set; Validate refuses the others.
type Node struct {
	ID   string   `json:"id"`
	Type NodeType `json:"type"`

	AgentID id.AgentID      `json:"agent_id,omitzero"`
	Input   json.RawMessage `json:"input,omitempty"` // of an agent: a template

	Tool string          `json:"tool,omitempty"` // bare or qualified name
	Args json.RawMessage `json:"args,omitempty"` // a template

	Title             string          `json:"title,omitempty"` // of a gate or a human task: a template
	Risk              lifecycle.Risk  `json:"risk,omitempty"`
	ApproverRole      lifecycle.Role  `json:"approver_role,omitempty"`
	RequiredApprovals int             `json:"required_approvals,omitempty"`
	SLAMinutes        float64         `json:"sla_minutes,omitempty"`
	EscalateToRole    lifecycle.Role  `json:"escalate_to_role,omitempty"`
	Form              json.RawMessage `json:"form,omitempty"` // a JSON Schema

	Expression string          `json:"expression,omitempty"`
	Values     json.RawMessage `json:"values,omitempty"` // a template

	Event          string  `json:"event,omitempty"` // a template
	TimeoutMinutes float64 `json:"timeout_minutes,omitempty"`
	Seconds        float64 `json:"seconds,omitempty"`
}

// Edge leads from one node to another. It is taken when its source has ended and When allows.
type Edge struct {
	From string `json:"from"`
	To   string `json:"to"`
	When When   `json:"when,omitempty"` // empty: always
}

// When is a CEL expression. A definition may also hold a boolean or a number, which stands for
// itself: YAML reads when: true as a boolean.
type When string

// UnmarshalJSON reads a string, or the text of a boolean or a number.
func (w *When) UnmarshalJSON(b []byte) error {
	switch scan.KindOf(b) {
	case scan.String:
		*w = When(scan.Text(b))
	case scan.Bool, scan.Number:
		*w = When(b)
	case scan.Null:
		*w = ""
	default:
		return fmt.Errorf("when is neither text nor a boolean nor a number")
	}
	return nil
}
