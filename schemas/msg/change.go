package msg

import "agentsvc/schemas/id"

// Change names an object that a commit has changed, for those who watch it (console.md, GET
// /v1/feed). It says nothing else: the receiver reads the object.
type Change struct {
	Kind string  `json:"k"` // as in the audit log, or one of those below
	ID   id.UUID `json:"i"`
}

// Kinds of changes that the audit log names otherwise, or not at all.
const (
	ChangedRun      = "run"
	ChangedApproval = "approval"
	ChangedDelivery = "delivery"
)
