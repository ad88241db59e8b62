package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
)

// approvalSQL reads an approval, its run and that run's open steps in one
// statement, which is one moment: a row for each step, one without a step where
// none is open.
var approvalSQL = "SELECT asked.*, r.*, s.* FROM (" + queries.Get("approval") + ") asked" +
	" JOIN LATERAL (" + ofAsked(runSQL) + " OFFSET 0) r ON true" +
	" LEFT JOIN LATERAL (" + ofAsked(openStepsSQL) + ") s ON true ORDER BY s.idx"

// ofAsked makes a query about a run one about the run that an approval is of.
func ofAsked(sql string) string { return strings.ReplaceAll(sql, "$2", "asked.run_id") }

// Approval is an approval's row as its actor needs it.
type Approval struct {
	Run         id.RunID
	Status      lifecycle.ApprovalStatus
	Tool        string
	Risk        lifecycle.Risk
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

// Approval is the row, and its run with its open steps, all as they stood at one
// moment; nil where there is none.
func (s *Store) Approval(ctx context.Context, tenant id.TenantID, approval id.ApprovalID) (*Approval, *Run, error) {
	var (
		a      Approval
		r      Run
		digest []byte
		found  bool
	)
	rows, err := s.pool.Query(ctx, approvalSQL, tenant, approval)
	if err == nil {
		var step openRow
		to := []any{&a.Run, &a.Status, &a.Tool, &a.Risk, &a.Assignee, &a.Escalate, &a.Required, &a.SoFar, &a.Shown, &a.Schema, &a.Frozen, &digest, &a.Decisions,
			&a.Decision, &a.Feedback, &a.EscalatedAt, &a.EscalateAt, &a.ExpiresAt, &a.DecidedAt, &a.Version, &a.Epoch}
		_, err = pgx.ForEachRow(rows, slices.Concat(to, r.columns(), step.columns()), func() error {
			found = true
			if step.idx == nil {
				return nil
			}
			return r.began(&step)
		})
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read approval %s: %w", approval, err)
	}
	if !found {
		return nil, nil, nil
	}
	a.Digest = [32]byte(digest)
	return &a, &r, nil
}
