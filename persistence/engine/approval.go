package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
)

var approvalSQL = queries.Get("approval")

// Approval holds the columns of an approval that its actor needs.
type Approval struct {
	Run         id.RunID
	Agent       *id.AgentID
	Workflow    *id.WorkflowID // of the run
	CreatedAt   time.Time
	RunStatus   lifecycle.RunStatus
	Status      lifecycle.ApprovalStatus
	Tool        string
	Risk        lifecycle.Risk
	Assignee    lifecycle.Role
	Escalate    lifecycle.Role // empty: no escalation
	Required    int
	SoFar       int
	Shown       json.RawMessage // the arguments, redacted
	Schema      json.RawMessage
	Frozen      []byte // sealed
	Digest      [32]byte
	Decisions   json.RawMessage
	Decision    lifecycle.Action // empty while pending
	Feedback    *string
	EscalatedAt *time.Time
	EscalateAt  *time.Time // from the timer; nil: there is none
	OtherEdits  int64      // bytes of the edits of the run's other approvals
	ExpiresAt   time.Time
	DecidedAt   *time.Time
	SkillRun    *id.SkillRunID // the run of a browser skill on which it decides
	Version     int64
	Epoch       int64
}

// Approval returns the approval with the status of its run, nil if there is none.
func (s *Store) Approval(ctx context.Context, tenant id.TenantID, approval id.ApprovalID) (*Approval, error) {
	var (
		a      Approval
		digest []byte
	)
	found, err := one(s.pool.QueryRow(ctx, approvalSQL, tenant, approval).Scan(&a.Run, &a.RunStatus, &a.Status, &a.Tool, &a.Risk, &a.Assignee, &a.Escalate,
		&a.Required, &a.SoFar, &a.Shown, &a.Schema, &a.Frozen, &digest, &a.Decisions, &a.Decision, &a.Feedback, &a.EscalatedAt, &a.EscalateAt, &a.OtherEdits, &a.ExpiresAt,
		&a.DecidedAt, &a.SkillRun, &a.Agent, &a.Workflow, &a.CreatedAt, &a.Version, &a.Epoch))
	if err != nil {
		return nil, fmt.Errorf("read approval %s: %w", approval, err)
	}
	if !found {
		return nil, nil
	}
	a.Digest = [32]byte(digest)
	return &a, nil
}
