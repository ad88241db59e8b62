package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
)

var (
	approvalSQL = queries.Get("approval")
	// Those of Run, of the run that an approval is of.
	itsRunSQL   = ofApproval(runSQL)
	itsStepsSQL = ofApproval(openStepsSQL)
)

// ofApproval makes the second parameter of a query about a run an approval of it.
func ofApproval(sql string) string {
	return strings.ReplaceAll(sql, "$2", "(SELECT asked.run_id FROM approvals asked WHERE asked.tenant_id = $1 AND asked.id = $2)")
}

// Approval is an approval's row as its actor needs it.
type Approval struct {
	Run         id.RunID
	RunStatus   lifecycle.RunStatus
	Status      lifecycle.ApprovalStatus
	Assignee    lifecycle.Role
	Escalate    lifecycle.Role // empty: nobody
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
	EscalateAt  *time.Time // of the timer; nil: there is none
	ExpiresAt   time.Time
	DecidedAt   *time.Time
	Version     int64
	Epoch       int64
}

// Approval is the row with the status of its run, and the run with its open steps,
// all as they stood at one moment; nil where there is none.
func (s *Store) Approval(ctx context.Context, tenant id.TenantID, approval id.ApprovalID) (*Approval, *Run, error) {
	var (
		a          Approval
		r          Run
		digest     []byte
		found, its bool
	)
	err := s.together(ctx, func(b *pgx.Batch) {
		b.Queue(approvalSQL, tenant, approval).QueryRow(func(row pgx.Row) (err error) {
			found, err = one(row.Scan(&a.Run, &a.RunStatus, &a.Status, &a.Assignee, &a.Escalate, &a.Required,
				&a.SoFar, &a.Shown, &a.Schema, &a.Frozen, &digest, &a.Decisions, &a.Decision, &a.Feedback, &a.EscalatedAt, &a.EscalateAt, &a.ExpiresAt, &a.DecidedAt,
				&a.Version, &a.Epoch))
			return err
		})
		b.Queue(itsRunSQL, tenant, approval).QueryRow(r.scan(&its))
		b.Queue(itsStepsSQL, tenant, approval).Query(r.scanOpen)
	})
	if err != nil {
		return nil, nil, fmt.Errorf("read approval %s: %w", approval, err)
	}
	if !found {
		return nil, nil, nil
	}
	a.Digest = [32]byte(digest)
	return &a, &r, nil
}
