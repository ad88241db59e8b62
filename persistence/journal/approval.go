package journal

import (
	"encoding/json"
	"time"

	"agentsvc/persistence/vault"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
)

// FrozenAt is where the frozen arguments of an approval are sealed to.
func FrozenAt(tenant id.TenantID, approval id.ApprovalID) vault.AAD {
	return vault.AAD{Tenant: tenant, Table: "approvals", Row: approval.String(), Column: "frozen"}
}

// EditedAt is where its edited arguments are sealed to.
func EditedAt(tenant id.TenantID, approval id.ApprovalID) vault.AAD {
	return vault.AAD{Tenant: tenant, Table: "approvals", Row: approval.String(), Column: "edited"}
}

// ApprovalInsert is an approval that a run opens, in status pending, version 1,
// epoch 0.
type ApprovalInsert struct {
	ID        id.ApprovalID
	Run       id.RunID
	StepIdx   int
	Agent     *id.AgentID
	Node      *id.NodeID
	Risk      lifecycle.Risk
	Assignee  lifecycle.Role
	Required  int
	Tool      string
	Args      json.RawMessage // shown
	Schema    json.RawMessage
	Frozen    []byte // sealed to FrozenAt
	Digest    [32]byte
	Reasoning string
	Policy    json.RawMessage
	Escalate  lifecycle.Role // empty: nobody
	OnTimeout string
	ExpiresAt time.Time
	CreatedAt time.Time
}

// ApprovalUpdate is what a decision changes in an approval's row. The swap misses,
// and its commit is an ErrConflict, where the row moved on, is decided, or its run
// does not wait any more.
type ApprovalUpdate struct {
	ID  id.ApprovalID
	Run id.RunID
	Guard
	Status      lifecycle.ApprovalStatus
	Assignee    lifecycle.Role
	SoFar       int
	Edited      []byte // sealed to EditedAt; nil leaves the column as it is
	Digest      [32]byte
	Decisions   json.RawMessage
	Decision    lifecycle.Action // empty while pending
	Feedback    *string
	EscalatedAt *time.Time
	DecidedAt   *time.Time
	UpdatedAt   time.Time
	// DropTimers are the names of those of the approval's timers that go with the
	// decision. They are not among the commit's TimersDone: see Commit.Approval.
	DropTimers []string
	// WakeRun, where set, is when a timer named by the approval makes the run look,
	// unless the run takes part in the commit.
	WakeRun *time.Time
}

// statement is the swap as it is sent. In the commit of its run the run's own swap
// goes before it, is the guard, and holds the lock on the run's row.
func (u *ApprovalUpdate) statement(c *Commit) Statement {
	args := []any{c.Tenant, u.ID, u.Run, u.Version, u.Epoch, u.SetEpoch, string(u.Status), string(u.Assignee), u.SoFar, u.Edited, u.Digest[:],
		jsonText(u.Decisions), orNull(u.Decision), u.Feedback, u.EscalatedAt, u.DecidedAt, u.UpdatedAt, c.Op}
	if u.joins(c) {
		return Statement{Swap: true, raises: true, SQL: queries.Get("approval_join"), Args: args}
	}
	return Statement{Swap: true, raises: true, SQL: queries.Get("approval_update"), Args: append(args, u.DropTimers, u.WakeRun)}
}

// joins reports whether the run that waits for the approval is swapped by c.
func (u *ApprovalUpdate) joins(c *Commit) bool { return c.Run != nil && c.Run.ID == u.Run }

// OpenApproval inserts an approval. It belongs into the commit by which the run
// begins to wait.
func OpenApproval(t id.TenantID, op id.OpID, a *ApprovalInsert) Statement {
	return Statement{SQL: queries.Get("approval_open"), Args: []any{t, a.ID, a.Run, a.StepIdx, a.Agent, a.Node, string(a.Risk), string(a.Assignee),
		a.Required, a.Tool, jsonText(a.Args), jsonText(a.Schema), a.Frozen, a.Digest[:], a.Reasoning, jsonText(a.Policy), orNull(a.Escalate), a.OnTimeout,
		a.ExpiresAt, a.CreatedAt, op}}
}

// Pending is an approval that nobody has decided for good, in the version in which
// it was read.
type Pending struct {
	ID      id.ApprovalID
	Version int64
}

// CancelApprovals cancels the pending approvals of a run. It belongs into the
// commit that ends the run, which is an ErrConflict where they are not those that
// were read: somebody has decided on one meanwhile, or it was escalated.
func CancelApprovals(t id.TenantID, op id.OpID, run id.RunID, pending []Pending, at time.Time) Statement {
	ids, versions := make([]id.ApprovalID, len(pending)), make([]int64, len(pending))
	for i, p := range pending {
		ids[i], versions[i] = p.ID, p.Version
	}
	return Statement{Swap: true, raises: true, SQL: queries.Get("approvals_cancel"), Args: []any{t, run, at, op, ids, versions}}
}

// jsonText is a document as the driver takes it: as text, and NULL for none.
func jsonText(doc json.RawMessage) any {
	if len(doc) == 0 {
		return nil
	}
	return string(doc)
}

func orNull[T ~string](v T) any {
	if v == "" {
		return nil
	}
	return string(v)
}
