package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"agentsvc/persistence/journal"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
)

// The rows of workflow runs that other runs do not have (docs/adr/0051).

var (
	workflowSQL       = queries.Get("workflow")
	definitionSQL     = queries.Get("definition")
	workflowStepsSQL  = queries.Get("workflow_steps")
	workflowEventsSQL = queries.Get("workflow_events")
	childrenSQL       = queries.Get("children")
	usedSQL           = queries.Get("used")

	workflowApprovalsSQL = queries.Get("workflow_approvals")
)

var (
	workflowRuns   = journal.Plain("workflow_runs", "id uuid")
	workflowEvents = journal.Plain("workflow_events", "run_id uuid, seq int")

	// WorkflowTables are the tables that only workflow runs have. They refer to Tables.
	WorkflowTables = []*journal.Table{workflowRuns, workflowEvents}

	workflowInsert = workflowRuns.Insert("workflow_version int, test boolean, variables json, node_id uuid, owes boolean")
	workflowWalk   = workflowRuns.Update("walk", "progress text keep, owes boolean")

	eventInsert = workflowEvents.Insert("op uuid, event_id text, name text, payload json, created_at timestamptz")
	eventTake   = workflowEvents.Update("take", "step_idx int")
)

// WorkflowInsert is the second row of an accepted workflow run.
type WorkflowInsert struct {
	Run       id.RunID
	Version   int
	Test      bool
	Variables json.RawMessage
	Node      *id.NodeID
	Owes      bool
}

func (*WorkflowInsert) Write() *journal.Write { return workflowInsert }

func (n *WorkflowInsert) Put(v *journal.Values) {
	v.UUID(n.Run.UUID).Int(n.Version).Bool(n.Test).JSON(n.Variables)
	journal.UUIDOrNull(v, n.Node)
	v.Bool(n.Owes)
}

// WorkflowUpdate is how far the run is in its graph. A nil Progress leaves the column as it is.
type WorkflowUpdate struct {
	Run      id.RunID
	Progress *string
	Owes     bool
}

func (*WorkflowUpdate) Write() *journal.Write { return workflowWalk }

func (u *WorkflowUpdate) Put(v *journal.Values) {
	v.UUID(u.Run.UUID).TextOrNull(u.Progress).Bool(u.Owes)
}

// EventInsert is an event that was sent to a run.
type EventInsert struct {
	Run     id.RunID
	Seq     int
	Op      id.OpID
	ID      string // empty: the sender gave none
	Name    string
	Payload json.RawMessage
	At      time.Time
}

func (*EventInsert) Write() *journal.Write { return eventInsert }

func (e *EventInsert) Put(v *journal.Values) {
	v.UUID(e.Run.UUID).Int(e.Seq).UUID(e.Op.UUID).TextOrNull(orNull(e.ID)).Text(e.Name).JSON(e.Payload).Time(e.At)
}

// EventTake says which step an event woke.
type EventTake struct {
	Run id.RunID
	Seq int
	Idx int
}

func (*EventTake) Write() *journal.Write { return eventTake }

func (e *EventTake) Put(v *journal.Values) { v.UUID(e.Run.UUID).Int(e.Seq).Int(e.Idx) }

// Workflow is a workflow run with its steps and events. One that has ended has no Variables, no Input, no
// sealed values and no payloads.
type Workflow struct {
	Status       lifecycle.RunStatus
	WorkflowID   id.WorkflowID
	Version      int
	Test         bool
	Variables    json.RawMessage
	Progress     *string
	OrgNode      *id.NodeID
	Owes         bool
	Input        json.RawMessage
	ErrorCode    *string
	ErrorMessage *string
	OriginKind   lifecycle.OriginKind
	OriginID     id.UUID
	EndUserID    *id.EndUserID
	TokensIn     int64
	TokensOut    int64
	CostUSD      float64
	CreatedAt    time.Time
	StartedAt    *time.Time
	FinishedAt   *time.Time
	Seq          int64
	Steps        int
	RowVersion   int64
	Epoch        int64

	Nodes     []NodeStep // all steps, in order
	Events    []WorkflowEvent
	Approvals []NodeApproval
}

// NodeStep is the step of a node.
type NodeStep struct {
	Idx      int
	Name     string
	Status   lifecycle.StepStatus
	BeganSeq int64
	Sealed   []byte
}

// NodeApproval is the approval of a step.
type NodeApproval struct {
	ID        id.ApprovalID
	Idx       int
	Status    lifecycle.ApprovalStatus
	Decision  lifecycle.Action // empty while pending
	Edited    []byte           // sealed; nil unless the status is edited
	Decisions json.RawMessage  // nil while pending
	Risk      lifecycle.Risk
	Assignee  lifecycle.Role
	ExpiresAt time.Time
	Digest    []byte // of the arguments to call
	Version   int64
	Tool      string
}

// Shown returns edited arguments as their editor sent them, nil if there are none.
func (a *NodeApproval) Shown() (json.RawMessage, error) { return lastEdit(a.Decisions) }

// Feedback returns what the deciding person said; empty if it is pending, or nothing was said.
func (a *NodeApproval) Feedback() (string, error) {
	if len(a.Decisions) == 0 {
		return "", nil
	}
	var ledger []struct {
		Feedback *string `json:"feedback"`
	}
	if err := json.Unmarshal(a.Decisions, &ledger); err != nil {
		return "", fmt.Errorf("decode decisions: %w", err)
	}
	if n := len(ledger); n > 0 && ledger[n-1].Feedback != nil {
		return *ledger[n-1].Feedback, nil
	}
	return "", nil
}

// NodeApprovals returns the approvals of the open steps of a run.
func (s *Store) NodeApprovals(ctx context.Context, tenant id.TenantID, run id.RunID) ([]NodeApproval, error) {
	rows, err := s.pool.Query(ctx, workflowApprovalsSQL, tenant, run)
	if err != nil {
		return nil, fmt.Errorf("read the approvals of run %s: %w", run, err)
	}
	out, err := pgx.CollectRows(rows, pgx.RowToStructByPos[NodeApproval])
	if err != nil {
		return nil, fmt.Errorf("read the approvals of run %s: %w", run, err)
	}
	return out, nil
}

// WorkflowEvent is an event that was sent to a run. One that woke a node has no payload.
type WorkflowEvent struct {
	Seq     int
	Op      id.OpID
	ID      string
	Name    string
	Payload json.RawMessage
	Taken   bool
}

// Workflow returns the workflow run as of one moment; nil if there is none.
func (s *Store) Workflow(ctx context.Context, tenant id.TenantID, run id.RunID) (*Workflow, error) {
	var (
		w     Workflow
		found bool
	)
	err := s.together(ctx, func(b *pgx.Batch) {
		b.Queue(workflowSQL, tenant, run).QueryRow(func(row pgx.Row) (err error) {
			found, err = one(row.Scan(&w.Status, &w.WorkflowID, &w.Version, &w.Test, &w.Variables, &w.Progress, &w.OrgNode, &w.Owes, &w.Input, &w.ErrorCode, &w.ErrorMessage,
				&w.OriginKind, &w.OriginID, &w.EndUserID, &w.TokensIn, &w.TokensOut, &w.CostUSD, &w.CreatedAt, &w.StartedAt, &w.FinishedAt, &w.Seq, &w.Steps, &w.RowVersion, &w.Epoch))
			return err
		})
		b.Queue(workflowStepsSQL, tenant, run).Query(func(rows pgx.Rows) (err error) {
			w.Nodes, err = pgx.CollectRows(rows, pgx.RowToStructByPos[NodeStep])
			return err
		})
		b.Queue(workflowEventsSQL, tenant, run).Query(func(rows pgx.Rows) (err error) {
			w.Events, err = pgx.CollectRows(rows, pgx.RowToStructByPos[WorkflowEvent])
			return err
		})
		b.Queue(workflowApprovalsSQL, tenant, run).Query(func(rows pgx.Rows) (err error) {
			w.Approvals, err = pgx.CollectRows(rows, pgx.RowToStructByPos[NodeApproval])
			return err
		})
	})
	if err != nil {
		return nil, fmt.Errorf("read workflow run %s: %w", run, err)
	}
	if !found {
		return nil, nil
	}
	return &w, nil
}

// Definition returns the definition of a version of a workflow; nil if there is none.
func (s *Store) Definition(ctx context.Context, tenant id.TenantID, workflow id.WorkflowID, version int) (json.RawMessage, error) {
	var doc json.RawMessage
	found, err := one(s.pool.QueryRow(ctx, definitionSQL, tenant, workflow, version).Scan(&doc))
	if err != nil || !found {
		return nil, err
	}
	return doc, nil
}

// Child is a child run as its parent sees it.
type Child struct {
	ID        id.RunID
	Status    lifecycle.RunStatus
	Output    json.RawMessage
	Code      string
	Message   string
	TokensIn  int64
	TokensOut int64
	CostUSD   float64
}

// Used is what runs have used.
type Used struct {
	TokensIn  int64
	TokensOut int64
	CostUSD   float64
}

// Used returns what those of the runs that exist have used together.
func (s *Store) Used(ctx context.Context, tenant id.TenantID, runs []id.RunID) (u Used, err error) {
	if err := s.pool.QueryRow(ctx, usedSQL, tenant, runs).Scan(&u.TokensIn, &u.TokensOut, &u.CostUSD); err != nil {
		return Used{}, fmt.Errorf("read what child runs used: %w", err)
	}
	return u, nil
}

// Children returns those of the runs that exist.
func (s *Store) Children(ctx context.Context, tenant id.TenantID, runs []id.RunID) ([]Child, error) {
	rows, err := s.pool.Query(ctx, childrenSQL, tenant, runs)
	if err != nil {
		return nil, fmt.Errorf("read child runs: %w", err)
	}
	out, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Child])
	if err != nil {
		return nil, fmt.Errorf("read child runs: %w", err)
	}
	return out, nil
}
