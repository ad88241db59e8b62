package approval

import (
	"encoding/json"
	"fmt"
	"time"

	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
)

// State is what an approval is: its row, and what it has to know of its run.
type State struct {
	Tenant id.TenantID
	ID     id.ApprovalID
	Run    id.RunID
	Tool   string // its qualified name
	Risk   lifecycle.Risk
	// Waiting says that the run waits for its approvals.
	Waiting bool

	Status   lifecycle.ApprovalStatus
	Assignee lifecycle.Role
	Escalate lifecycle.Role // empty: nobody
	Required int
	SoFar    int
	Ledger   []Entry // of distinct principals, in order
	// Decision is the action that decided, empty while pending.
	Decision lifecycle.Action
	// Feedback is that of a rejection or a response.
	Feedback    *string
	ExpiresAt   time.Time
	EscalateAt  *time.Time // nil: no timer is set
	EscalatedAt *time.Time
	DecidedAt   *time.Time

	Schema json.RawMessage
	// Shown are the arguments as people see them, Frozen as the model gave
	// them; Frozen is nil where they cannot be opened.
	Shown, Frozen json.RawMessage
	// Digest is of the arguments that will be called.
	Digest [32]byte
	// Edited are the arguments that this decision puts in the place of Frozen; the
	// row keeps them sealed, and they are not read again.
	Edited json.RawMessage
}

// Entry is what one principal decided. But for Op it is what the API shows: the
// edited arguments are redacted.
type Entry struct {
	Op         id.OpID          `json:"op,omitzero"` // which decision it was
	Principal  string           `json:"principal"`
	Action     lifecycle.Action `json:"action"`
	Feedback   *string          `json:"feedback"`
	EditedArgs json.RawMessage  `json:"edited_args"`
	At         time.Time        `json:"at"`
}

// encodeLedger is the ledger as its column keeps it.
func encodeLedger(l []Entry) (json.RawMessage, error) {
	if len(l) == 0 {
		return json.RawMessage("[]"), nil
	}
	return json.Marshal(l)
}

// decodeLedger reads what encodeLedger made.
func decodeLedger(doc json.RawMessage) ([]Entry, error) {
	var l []Entry
	if err := json.Unmarshal(doc, &l); err != nil {
		return nil, fmt.Errorf("read the ledger of an approval: %w", err)
	}
	return l, nil
}
