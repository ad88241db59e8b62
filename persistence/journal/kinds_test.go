package journal

import (
	"encoding/json"
	"slices"
	"time"

	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
)

// The tables that these tests write, and a commit as they write it down: with a field for
// each kind of row. What others refer to comes first. The swap of
// a row comes before what is inserted under it, so that it is the swap that tells a stale
// owner, and not a key that the row's owner has used since. Approvals come after runs,
// whose rows are locked first, and timers after both.
var (
	threads   = Actors("threads", "id uuid")
	runs      = Actors("runs", "id uuid")
	steps     = Plain("run_steps", "run_id uuid, idx int")
	marks     = Plain("run_marks", "run_id uuid, seq bigint")
	messages  = Plain("messages", "thread_id uuid, seq bigint")
	approvals = Actors("approvals", "id uuid")

	kinds = []*Table{threads, runs, steps, marks, messages, approvals}
)

var (
	threadInsert = threads.Begin("agent_id uuid, title text, created_by text, end_user_id uuid, next_seq bigint, created_at timestamptz, updated_at timestamptz")
	threadSwap   = threads.Swap("next_seq bigint, updated_at timestamptz, deleted_at timestamptz keep")

	runInsert = runs.Begin("status text, agent_id uuid, agent_version int, workflow_id uuid, thread_id uuid, thread_seq bigint, parent_run_id uuid, " +
		"input json, origin_kind text, origin_id uuid, end_user_id uuid, person_id uuid, created_at timestamptz, state bytea")
	runSwap = runs.Swap("status text, output json, error_code text, error_message text, tokens_in bigint, tokens_out bigint, cost_usd float8, " +
		"started_at timestamptz, finished_at timestamptz, seq bigint, steps int, state bytea")

	stepInsert = steps.Insert("kind text, name text, status text, input json, sealed bytea, agent_id uuid, agent_version int, withheld boolean, " +
		"began_seq bigint, called_seq bigint, started_at timestamptz")
	stepCall = steps.Update("call", "status text, called_seq bigint, input json keep, sealed bytea keep")
	stepEnd  = steps.Update("end", "status text, output json, segments int[], sealed bytea keep, tokens_in bigint, tokens_out bigint, cost_usd float8, "+
		"ended_seq bigint, finished_at timestamptz")

	markInsert = marks.Insert("type text, data json")

	messagePurge  = messages.Delete("thread_id uuid")
	messageInsert = messages.Insert("id uuid, role text, content text, attachments json, run_id uuid, created_at timestamptz")

	approvalInsert = approvals.Insert("run_id uuid, step_idx int, agent_id uuid, node_id uuid, risk text, assignee_role text, required_approvals int, " +
		"tool text, args json, schema json, frozen bytea, digest bytea, reasoning_summary text, policy json, escalate_to_role text, on_timeout text, " +
		"expires_at timestamptz, created_at timestamptz, updated_at timestamptz")

	// A decision counts only while the run waits for it.
	approvalDecide = approvals.SwapWhile(While{
		Row:   "SELECT id FROM runs WHERE tenant_id = {tenant_id} AND id = {run_id} AND status = 'waiting_approval' FOR SHARE",
		Names: "run_id",
		And:   "t.status = 'pending'",
	}, approvalColumns)
)

const approvalColumns = "run_id uuid match, status text, assignee_role text, approvals_so_far int, edited bytea keep, digest bytea, decisions json, decision text, " +
	"feedback text, escalated_at timestamptz, decided_at timestamptz, updated_at timestamptz"

// ThreadInsert is a thread that begins with what its commit writes in it, version 1,
// epoch 0.
type ThreadInsert struct {
	ID        id.ThreadID
	AgentID   id.AgentID
	Title     *string
	CreatedBy string
	EndUserID *id.EndUserID
	NextSeq   int64
	CreatedAt time.Time
}

func (*ThreadInsert) Write() *Write { return threadInsert }

func (t *ThreadInsert) Put(v *Values) {
	v.UUID(t.ID.UUID).UUID(t.AgentID.UUID).TextOrNull(t.Title).Text(t.CreatedBy)
	UUIDOrNull(v, t.EndUserID)
	v.Int8(t.NextSeq).Time(t.CreatedAt).Time(t.CreatedAt)
}

// ThreadUpdate is what a thread's decision changes in its row.
type ThreadUpdate struct {
	ID id.ThreadID
	Guard
	NextSeq   int64
	UpdatedAt time.Time
	DeletedAt *time.Time
	// PurgeMessages deletes the thread's messages in the same transaction.
	PurgeMessages bool
}

func (*ThreadUpdate) Write() *Write { return threadSwap }

func (t *ThreadUpdate) Put(v *Values) {
	v.UUID(t.ID.UUID).Guard(t.Guard).Int8(t.NextSeq).Time(t.UpdatedAt).TimeOrNull(t.DeletedAt)
}

// RunInsert is an accepted run, in status queued, version 1, epoch 0.
type RunInsert struct {
	ID           id.RunID
	AgentID      *id.AgentID
	AgentVersion *int
	WorkflowID   *id.WorkflowID
	ThreadID     *id.ThreadID
	ThreadSeq    *int64
	ParentRunID  *id.RunID
	Input        json.RawMessage
	OriginKind   lifecycle.OriginKind
	OriginID     id.UUID
	EndUserID    *id.EndUserID
	// PersonID is whose data the run is, by whomever it was asked for: it is erased with
	// that end user. Nil: EndUserID.
	PersonID  *id.EndUserID
	CreatedAt time.Time
	State     []byte
}

func (*RunInsert) Write() *Write { return runInsert }

func (n *RunInsert) Put(v *Values) {
	v.UUID(n.ID.UUID).Text(string(lifecycle.RunQueued))
	UUIDOrNull(v, n.AgentID)
	v.IntOrNull(n.AgentVersion)
	UUIDOrNull(v, n.WorkflowID)
	UUIDOrNull(v, n.ThreadID)
	v.Int8OrNull(n.ThreadSeq)
	UUIDOrNull(v, n.ParentRunID)
	v.JSON(n.Input).Text(string(n.OriginKind)).UUID(n.OriginID)
	UUIDOrNull(v, n.EndUserID)
	person := n.PersonID
	if person == nil {
		person = n.EndUserID
	}
	UUIDOrNull(v, person)
	v.Time(n.CreatedAt).Bytes(n.State)
}

// RunUpdate is what a run's decision changes in its row.
type RunUpdate struct {
	ID id.RunID
	Guard
	Status       lifecycle.RunStatus
	Output       json.RawMessage
	ErrorCode    *string
	ErrorMessage *string
	TokensIn     int64
	TokensOut    int64
	CostUSD      float64
	StartedAt    *time.Time
	FinishedAt   *time.Time
	Seq          int64
	Steps        int
	State        []byte
}

func (*RunUpdate) Write() *Write { return runSwap }

func (u *RunUpdate) Put(v *Values) {
	v.UUID(u.ID.UUID).Guard(u.Guard).Text(string(u.Status)).JSON(u.Output).TextOrNull(u.ErrorCode).TextOrNull(u.ErrorMessage)
	v.Int8(u.TokensIn).Int8(u.TokensOut).Float8(u.CostUSD).TimeOrNull(u.StartedAt).TimeOrNull(u.FinishedAt).Int8(u.Seq).Int(u.Steps).Bytes(u.State)
}

// StepInsert is a step that begins.
type StepInsert struct {
	Run          id.RunID
	Idx          int
	Kind         lifecycle.StepKind
	Name         string
	Status       lifecycle.StepStatus // running, or waiting for a gated call
	Input        json.RawMessage      // shown
	Sealed       []byte
	AgentID      *id.AgentID
	AgentVersion *int
	Withheld     bool
	BeganSeq     int64
	CalledSeq    *int64 // of a tool that is called at once
	StartedAt    time.Time
}

func (*StepInsert) Write() *Write { return stepInsert }

func (s *StepInsert) Put(v *Values) {
	v.UUID(s.Run.UUID).Int(s.Idx).Text(string(s.Kind)).Text(s.Name).Text(string(s.Status)).JSON(s.Input).Bytes(s.Sealed)
	UUIDOrNull(v, s.AgentID)
	v.IntOrNull(s.AgentVersion).Bool(s.Withheld).Int8(s.BeganSeq).Int8OrNull(s.CalledSeq).Time(s.StartedAt)
}

// StepCall is a step that waited and is called now: it becomes running. Nil
// Input and Sealed leave their columns as they are.
type StepCall struct {
	Run       id.RunID
	Idx       int
	CalledSeq int64
	Input     json.RawMessage // shown
	Sealed    []byte
}

func (*StepCall) Write() *Write { return stepCall }

func (s *StepCall) Put(v *Values) {
	v.UUID(s.Run.UUID).Int(s.Idx).Text(string(lifecycle.StepRunning)).Int8(s.CalledSeq).JSON(s.Input).Bytes(s.Sealed)
}

// StepUpdate is a step that ends. A nil Sealed leaves the column as it is.
type StepUpdate struct {
	Run        id.RunID
	Idx        int
	Status     lifecycle.StepStatus
	Output     json.RawMessage // shown
	Segments   []int32
	Sealed     []byte
	TokensIn   int64
	TokensOut  int64
	CostUSD    float64
	EndedSeq   *int64
	FinishedAt time.Time
}

func (*StepUpdate) Write() *Write { return stepEnd }

func (s *StepUpdate) Put(v *Values) {
	v.UUID(s.Run.UUID).Int(s.Idx).Text(string(s.Status)).JSON(s.Output).Ints(s.Segments).Bytes(s.Sealed)
	v.Int8(s.TokensIn).Int8(s.TokensOut).Float8(s.CostUSD).Int8OrNull(s.EndedSeq).Time(s.FinishedAt)
}

// Mark is a fact of a run that has no row of its own.
type Mark struct {
	Run  id.RunID
	Seq  int64
	Type string
	Data json.RawMessage
}

func (*Mark) Write() *Write { return markInsert }

func (m *Mark) Put(v *Values) {
	v.UUID(m.Run.UUID).Int8(m.Seq).Text(m.Type).JSON(m.Data)
}

// Message is one message of a thread at the place the thread gave it.
type Message struct {
	Thread      id.ThreadID
	Seq         int64
	ID          id.MessageID
	Role        string // user, assistant, system
	Content     string
	Attachments json.RawMessage
	Run         *id.RunID
	CreatedAt   time.Time
}

func (*Message) Write() *Write { return messageInsert }

func (m *Message) Put(v *Values) {
	v.UUID(m.Thread.UUID).Int8(m.Seq).UUID(m.ID.UUID).Text(m.Role).Text(m.Content).JSON(m.Attachments)
	UUIDOrNull(v, m.Run)
	v.Time(m.CreatedAt)
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

func (*ApprovalInsert) Write() *Write { return approvalInsert }

func (a *ApprovalInsert) Put(v *Values) {
	v.UUID(a.ID.UUID).UUID(a.Run.UUID).Int(a.StepIdx)
	UUIDOrNull(v, a.Agent)
	UUIDOrNull(v, a.Node)
	v.Text(string(a.Risk)).Text(string(a.Assignee)).Int(a.Required).Text(a.Tool).JSON(a.Args).JSON(a.Schema).Bytes(a.Frozen).Bytes(a.Digest[:])
	v.Text(a.Reasoning).JSON(a.Policy).TextOrNull(orNull(a.Escalate)).Text(a.OnTimeout).Time(a.ExpiresAt).Time(a.CreatedAt).Time(a.CreatedAt)
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

func (*ApprovalUpdate) Write() *Write { return approvalDecide }

func (u *ApprovalUpdate) Put(v *Values) {
	v.UUID(u.ID.UUID).Guard(u.Guard).UUID(u.Run.UUID).Text(string(u.Status)).Text(string(u.Assignee)).Int(u.SoFar).Bytes(u.Edited).Bytes(u.Digest[:])
	v.JSON(u.Decisions).TextOrNull(orNull(u.Decision)).TextOrNull(u.Feedback).TimeOrNull(u.EscalatedAt).TimeOrNull(u.DecidedAt).Time(u.UpdatedAt)
}

// PurgeMessages deletes the messages of a thread.
type PurgeMessages struct{ Thread id.ThreadID }

func (*PurgeMessages) Write() *Write { return messagePurge }

func (p *PurgeMessages) Put(v *Values) { v.UUID(p.Thread.UUID) }

func orNull[T ~string](v T) *string {
	if v == "" {
		return nil
	}
	s := string(v)
	return &s
}

// draft is a commit with a field for each kind of row.
type draft struct {
	Op     id.OpID
	Tenant id.TenantID
	Shard  id.Shard
	New    bool
	Until  time.Time

	Idempotency *Idempotency
	NewThread   *ThreadInsert
	Thread      *ThreadUpdate
	Accept      *RunInsert
	Run         *RunUpdate
	Began       []StepInsert
	Called      []StepCall
	Ended       []StepUpdate
	Marks       []Mark
	Messages    []Message
	Opens       *ApprovalInsert
	Approval    *ApprovalUpdate
	Timers      []Timer
	TimersDone  []TimerKey
	Usage       []Usage
	Audit       []Audit
	Events      []Event
	Statements  []Statement
	Rows        []Row
}

// commit is the draft as the writer takes it. The rows are in no order: each table has its
// place in a flush.
func (d *draft) commit() *Commit {
	c := &Commit{Op: d.Op, Tenant: d.Tenant, Shard: d.Shard, New: d.New, Until: d.Until, Idempotency: d.Idempotency, Timers: slices.Clone(d.Timers),
		TimersDone: slices.Clone(d.TimersDone), Usage: d.Usage, Audit: d.Audit, Events: d.Events, Statements: d.Statements, Rows: slices.Clone(d.Rows)}
	if u := d.Approval; u != nil {
		c.Rows = append(c.Rows, u)
		for _, name := range u.DropTimers {
			c.TimersDone = append(c.TimersDone, TimerKey{"approval", u.ID.UUID, name})
		}
		if u.WakeRun != nil {
			c.Timers = append(c.Timers, Timer{TimerKey{"run", u.Run.UUID, u.ID.String()}, *u.WakeRun})
		}
	}
	if d.Opens != nil {
		c.Rows = append(c.Rows, d.Opens)
	}
	for i := range d.Messages {
		c.Rows = append(c.Rows, &d.Messages[i])
	}
	for i := range d.Marks {
		c.Rows = append(c.Rows, &d.Marks[i])
	}
	for i := range d.Ended {
		c.Rows = append(c.Rows, &d.Ended[i])
	}
	for i := range d.Called {
		c.Rows = append(c.Rows, &d.Called[i])
	}
	for i := range d.Began {
		c.Rows = append(c.Rows, &d.Began[i])
	}
	if d.Run != nil {
		c.Rows = append(c.Rows, d.Run)
	}
	if d.Accept != nil {
		c.Rows = append(c.Rows, d.Accept)
	}
	if d.Thread != nil {
		c.Rows = append(c.Rows, d.Thread)
		if d.Thread.PurgeMessages {
			c.Rows = append(c.Rows, &PurgeMessages{d.Thread.ID})
		}
	}
	if d.NewThread != nil {
		c.Rows = append(c.Rows, d.NewThread)
	}
	return c
}

// Pending is an approval without a final decision, with the role that decides.
type Pending struct {
	ID       id.ApprovalID
	Assignee lifecycle.Role
}

// CancelApprovals cancels the pending approvals of a run, which are those that were read.
func CancelApprovals(t id.TenantID, op id.OpID, run id.RunID, pending []Pending, at time.Time) Statement {
	ids, roles := make([]id.ApprovalID, len(pending)), make([]string, len(pending))
	for i, p := range pending {
		ids[i], roles[i] = p.ID, string(p.Assignee)
	}
	return Statement{SQL: cancelApprovals, Args: []any{t, run, at, op, ids, roles}}
}

const cancelApprovals = `WITH own AS MATERIALIZED (
  SELECT id, assignee_role FROM approvals WHERE (tenant_id = $1) IS TRUE AND run_id = $2 AND decided_at IS NULL ORDER BY id FOR UPDATE
), cancelled AS (
  UPDATE approvals a
  SET version = a.version + 1, status = 'cancelled', decision = 'cancel', decided_at = $3, updated_at = $3, last_op = $4
  FROM own WHERE a.tenant_id = $1 AND a.id = own.id
)
SELECT FROM own LEFT JOIN unnest($5::uuid[], $6::text[]) AS known (id, role) ON known.id = own.id AND known.role = own.assignee_role
HAVING CASE WHEN count(*) <> cardinality($5::uuid[]) OR count(known.id) <> count(*) THEN svc_missed() END`
