package approval

import (
	"encoding/json"
	"fmt"
	"time"

	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
)

// State is an approval: its row, and whether its run waits.
type State struct {
	Tenant id.TenantID
	ID     id.ApprovalID
	Run    id.RunID
	Agent  *id.AgentID // nil: a step of a workflow asks
	// Workflow is the workflow of the run; nil: it is a run of an agent.
	Workflow *id.WorkflowID
	Asked    time.Time // when it was opened
	Tool     string    // its qualified name
	// SkillRun is the run of a browser skill on which it decides; nil: there is none.
	SkillRun *id.SkillRunID
	Risk     lifecycle.Risk
	// Waiting says that the run waits for its approvals.
	Waiting bool

	Status   lifecycle.ApprovalStatus
	Assignee lifecycle.Role
	Escalate lifecycle.Role // empty: no role
	Required int
	SoFar    int
	Ledger   []Entry // of distinct principals, in order
	// Decision is the action that decided, empty while pending.
	Decision lifecycle.Action
	// Feedback belongs to a rejection or a response.
	Feedback    *string
	ExpiresAt   time.Time
	EscalateAt  *time.Time // nil: no timer is set
	EscalatedAt *time.Time
	DecidedAt   *time.Time

	Schema json.RawMessage
	// Shown are the arguments as people see them, Frozen as the model gave
	// them; Frozen is nil if they cannot be opened.
	Shown, Frozen json.RawMessage
	// OtherEdits is the size of the edits of the run's other approvals.
	OtherEdits int64
	// Digest is the digest of the arguments to call.
	Digest [32]byte
	// Edited are the arguments by which this decision replaces Frozen; the row keeps
	// them sealed, and they are not read again.
	Edited json.RawMessage
}

// Entry is the decision of one principal. The API shows it without Op; the edited
// arguments are redacted.
type Entry struct {
	Op         id.OpID          `json:"op,omitzero"` // the id of the decision's message
	Principal  string           `json:"principal"`
	Action     lifecycle.Action `json:"action"`
	Feedback   *string          `json:"feedback"`
	EditedArgs json.RawMessage  `json:"edited_args"`
	At         time.Time        `json:"at"`
}

// encodeLedger returns the value of the ledger's column.
func encodeLedger(l []Entry) (json.RawMessage, error) {
	if len(l) == 0 {
		return json.RawMessage("[]"), nil
	}
	return json.Marshal(l)
}

// decodeLedger reads the ledger's column.
func decodeLedger(doc json.RawMessage) ([]Entry, error) {
	var l []Entry
	if err := json.Unmarshal(doc, &l); err != nil {
		return nil, fmt.Errorf("read the ledger of an approval: %w", err)
	}
	return l, nil
}
