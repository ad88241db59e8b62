package engine

import (
	"encoding/json"
	"strconv"
	"time"

	"agentsvc/persistence/journal"
	"agentsvc/persistence/vault"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
)

// The tables of threads, runs and approvals. A table comes after the tables that it refers to.
// The swap of a row comes before the inserts under it, so that a stale owner fails at the swap
// and not on a key that the current owner has used since. Approvals come after runs, whose rows
// are locked first, and timers after both (docs/adr/0042).
//
// Each row is a typed struct: Write returns how it is written, and Put puts its values in
// the order of the columns.
var (
	threads   = journal.Actors("threads", "id uuid")
	runs      = journal.Actors("runs", "id uuid")
	steps     = journal.Plain("run_steps", "run_id uuid, idx int")
	marks     = journal.Plain("run_marks", "run_id uuid, seq bigint")
	messages  = journal.Plain("messages", "thread_id uuid, seq bigint")
	approvals = journal.Actors("approvals", "id uuid")
	artifacts = journal.Plain("artifacts", "id uuid")
	tallies   = journal.Plain("tallies", "what text")

	// Tables lists them in the order of a flush.
	Tables = []*journal.Table{threads, runs, steps, marks, messages, approvals, artifacts, tallies}
)

var (
	threadInsert = threads.Begin("agent_id uuid, title text, created_by text, end_user_id uuid, next_seq bigint, created_at timestamptz, updated_at timestamptz")
	threadSwap   = threads.Swap("next_seq bigint, updated_at timestamptz, deleted_at timestamptz keep")

	runInsert = runs.Begin("status text, agent_id uuid, agent_version int, workflow_id uuid, thread_id uuid, thread_seq bigint, parent_run_id uuid, " +
		"input json, origin_kind text, origin_id uuid, end_user_id uuid, person_id uuid, created_at timestamptz, state bytea")
	runSwap = runs.Swap("status text, output json keep, error_code text, error_message text, tokens_in bigint, tokens_out bigint, cost_usd float8, " +
		"started_at timestamptz, finished_at timestamptz, seq bigint, steps int, state bytea")

	stepInsert = steps.Insert("kind text, name text, status text, input json, sealed bytea, agent_id uuid, agent_version int, withheld boolean, " +
		"began_seq bigint, called_seq bigint, started_at timestamptz")
	stepWhole = steps.InsertAs("whole", "kind text, name text, status text, input json, output json, sealed bytea, began_seq bigint, started_at timestamptz, finished_at timestamptz")
	stepCall  = steps.Update("call", "status text, called_seq bigint, input json keep, sealed bytea keep")
	stepEnd   = steps.Update("end", "status text, output json, segments int[], sealed bytea keep, tokens_in bigint, tokens_out bigint, cost_usd float8, "+
		"ended_seq bigint, finished_at timestamptz")

	markInsert = marks.Insert("type text, data json")

	messagePurge  = messages.Delete("thread_id uuid")
	messageInsert = messages.Insert("id uuid, role text, content text, attachments json, citations json, run_id uuid, created_at timestamptz")

	approvalInsert = approvals.Insert("run_id uuid, step_idx int, agent_id uuid, node_id uuid, risk text, assignee_role text, required_approvals int, " +
		"tool text, args json, schema json, frozen bytea, digest bytea, reasoning_summary text, policy json, escalate_to_role text, on_timeout text, " +
		"expires_at timestamptz, created_at timestamptz, updated_at timestamptz, browser_skill_run_id uuid")

	tallyInsert = tallies.Insert("at timestamptz, agent_id uuid, ms bigint, first_ms bigint, tokens_in bigint, tokens_out bigint, cost_usd float8")

	// A decision counts only while the run waits for it.
	approvalDecide = approvals.SwapWhile(journal.While{
		Row:   "SELECT id FROM runs WHERE tenant_id = {tenant_id} AND id = {run_id} AND status = 'waiting_approval' FOR SHARE",
		Names: "run_id",
		And:   "t.status = 'pending'",
	}, "run_id uuid match, status text, assignee_role text, approvals_so_far int, edited bytea keep, digest bytea, decisions json, decision text, "+
		"feedback text, escalated_at timestamptz, decided_at timestamptz, updated_at timestamptz")
)

// ThreadInsert begins a thread, version 1, epoch 0, with what the same commit writes in it.
type ThreadInsert struct {
	ID        id.ThreadID
	AgentID   id.AgentID
	Title     *string
	CreatedBy string
	EndUserID *id.EndUserID
	NextSeq   int64
	CreatedAt time.Time
}

func (*ThreadInsert) Write() *journal.Write { return threadInsert }

func (t *ThreadInsert) Put(v *journal.Values) {
	v.UUID(t.ID.UUID).UUID(t.AgentID.UUID).TextOrNull(t.Title).Text(t.CreatedBy)
	journal.UUIDOrNull(v, t.EndUserID)
	v.Int8(t.NextSeq).Time(t.CreatedAt).Time(t.CreatedAt)
}

// ThreadUpdate holds the columns of a thread that a decision changes.
type ThreadUpdate struct {
	ID id.ThreadID
	journal.Guard
	NextSeq   int64
	UpdatedAt time.Time
	DeletedAt *time.Time
}

func (*ThreadUpdate) Write() *journal.Write { return threadSwap }

func (t *ThreadUpdate) Put(v *journal.Values) {
	v.UUID(t.ID.UUID).Guard(t.Guard).Int8(t.NextSeq).Time(t.UpdatedAt).TimeOrNull(t.DeletedAt)
}

// RunInsert begins an accepted run: status queued, version 1, epoch 0.
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
	// PersonID is the end user to whom the run's data belongs, which need not be its caller: the
	// run is erased with that end user. Nil: EndUserID.
	PersonID  *id.EndUserID
	CreatedAt time.Time
	State     []byte
}

func (*RunInsert) Write() *journal.Write { return runInsert }

func (n *RunInsert) Changed() msg.Change { return msg.Change{Kind: msg.ChangedRun, ID: n.ID.UUID} }

func (n *RunInsert) Put(v *journal.Values) {
	v.UUID(n.ID.UUID).Text(string(lifecycle.RunQueued))
	journal.UUIDOrNull(v, n.AgentID)
	v.IntOrNull(n.AgentVersion)
	journal.UUIDOrNull(v, n.WorkflowID)
	journal.UUIDOrNull(v, n.ThreadID)
	v.Int8OrNull(n.ThreadSeq)
	journal.UUIDOrNull(v, n.ParentRunID)
	v.JSON(n.Input).Text(string(n.OriginKind)).UUID(n.OriginID)
	journal.UUIDOrNull(v, n.EndUserID)
	person := n.PersonID
	if person == nil {
		person = n.EndUserID
	}
	journal.UUIDOrNull(v, person)
	v.Time(n.CreatedAt).Bytes(n.State)
}

// RunUpdate holds the columns of a run that a decision changes.
type RunUpdate struct {
	ID id.RunID
	journal.Guard
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

func (*RunUpdate) Write() *journal.Write { return runSwap }

func (u *RunUpdate) Changed() msg.Change { return msg.Change{Kind: msg.ChangedRun, ID: u.ID.UUID} }

func (u *RunUpdate) Put(v *journal.Values) {
	v.UUID(u.ID.UUID).Guard(u.Guard).Text(string(u.Status)).JSON(u.Output).TextOrNull(u.ErrorCode).TextOrNull(u.ErrorMessage)
	v.Int8(u.TokensIn).Int8(u.TokensOut).Float8(u.CostUSD).TimeOrNull(u.StartedAt).TimeOrNull(u.FinishedAt).Int8(u.Seq).Int(u.Steps).Bytes(u.State)
}

// StepInsert begins a step.
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

func (*StepInsert) Write() *journal.Write { return stepInsert }

func (s *StepInsert) Put(v *journal.Values) {
	v.UUID(s.Run.UUID).Int(s.Idx).Text(string(s.Kind)).Text(s.Name).Text(string(s.Status)).JSON(s.Input).Bytes(s.Sealed)
	journal.UUIDOrNull(v, s.AgentID)
	v.IntOrNull(s.AgentVersion).Bool(s.Withheld).Int8(s.BeganSeq).Int8OrNull(s.CalledSeq).Time(s.StartedAt)
}

// StepWhole is a step that begins and ends in one commit.
type StepWhole struct {
	Run           id.RunID
	Idx           int
	Kind          lifecycle.StepKind
	Name          string
	Status        lifecycle.StepStatus
	Input, Output json.RawMessage // shown
	Sealed        []byte
	BeganSeq      int64
	At            time.Time
}

func (*StepWhole) Write() *journal.Write { return stepWhole }

func (s *StepWhole) Put(v *journal.Values) {
	v.UUID(s.Run.UUID).Int(s.Idx).Text(string(s.Kind)).Text(s.Name).Text(string(s.Status)).JSON(s.Input).JSON(s.Output).Bytes(s.Sealed).Int8(s.BeganSeq).Time(s.At).Time(s.At)
}

// StepCall makes a waiting step running: its tool is called now. Nil Input and Sealed leave
// their columns unchanged.
type StepCall struct {
	Run       id.RunID
	Idx       int
	Status    lifecycle.StepStatus // empty: running
	CalledSeq int64                // 0: its tool.called is a mark
	Input     json.RawMessage      // shown
	Sealed    []byte
}

func (*StepCall) Write() *journal.Write { return stepCall }

func (s *StepCall) Put(v *journal.Values) {
	status := s.Status
	if status == "" {
		status = lifecycle.StepRunning
	}
	v.UUID(s.Run.UUID).Int(s.Idx).Text(string(status)).Int8(s.CalledSeq).JSON(s.Input).Bytes(s.Sealed)
}

// StepUpdate ends a step. A nil Sealed leaves the column unchanged.
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

func (*StepUpdate) Write() *journal.Write { return stepEnd }

func (s *StepUpdate) Put(v *journal.Values) {
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

func (*Mark) Write() *journal.Write { return markInsert }

func (m *Mark) Put(v *journal.Values) {
	v.UUID(m.Run.UUID).Int8(m.Seq).Text(m.Type).JSON(m.Data)
}

// MessageInsert adds a message to a thread, at the position that the thread assigned.
type MessageInsert struct {
	Thread      id.ThreadID
	Seq         int64
	ID          id.MessageID
	Role        string // user, assistant, system
	Content     string
	Attachments json.RawMessage
	Citations   json.RawMessage
	Run         *id.RunID
	CreatedAt   time.Time
}

func (*MessageInsert) Write() *journal.Write { return messageInsert }

func (m *MessageInsert) Put(v *journal.Values) {
	v.UUID(m.Thread.UUID).Int8(m.Seq).UUID(m.ID.UUID).Text(m.Role).Text(m.Content).JSON(m.Attachments).JSON(m.Citations)
	journal.UUIDOrNull(v, m.Run)
	v.Time(m.CreatedAt)
}

// ApprovalInsert opens an approval of a run: status pending, version 1, epoch 0.
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
	Escalate  lifecycle.Role // empty: no escalation
	OnTimeout string
	ExpiresAt time.Time
	CreatedAt time.Time
	SkillRun  *id.SkillRunID // the run of a browser skill on which it decides
}

func (*ApprovalInsert) Write() *journal.Write { return approvalInsert }

func (a *ApprovalInsert) Changed() msg.Change {
	return msg.Change{Kind: msg.ChangedApproval, ID: a.ID.UUID}
}

func (a *ApprovalInsert) Put(v *journal.Values) {
	v.UUID(a.ID.UUID).UUID(a.Run.UUID).Int(a.StepIdx)
	journal.UUIDOrNull(v, a.Agent)
	journal.UUIDOrNull(v, a.Node)
	v.Text(string(a.Risk)).Text(string(a.Assignee)).Int(a.Required).Text(a.Tool).JSON(a.Args).JSON(a.Schema).Bytes(a.Frozen).Bytes(a.Digest[:])
	v.Text(a.Reasoning).JSON(a.Policy).TextOrNull(orNull(a.Escalate)).Text(a.OnTimeout).Time(a.ExpiresAt).Time(a.CreatedAt).Time(a.CreatedAt)
	journal.UUIDOrNull(v, a.SkillRun)
}

// ApprovalUpdate holds the columns of an approval that a decision changes. Its commit is an
// ErrConflict if the row has another version, is decided, or its run no longer waits.
type ApprovalUpdate struct {
	ID  id.ApprovalID
	Run id.RunID
	journal.Guard
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
}

func (*ApprovalUpdate) Write() *journal.Write { return approvalDecide }

func (u *ApprovalUpdate) Changed() msg.Change {
	return msg.Change{Kind: msg.ChangedApproval, ID: u.ID.UUID}
}

func (u *ApprovalUpdate) Put(v *journal.Values) {
	v.UUID(u.ID.UUID).Guard(u.Guard).UUID(u.Run.UUID).Text(string(u.Status)).Text(string(u.Assignee)).Int(u.SoFar).Bytes(u.Edited).Bytes(u.Digest[:])
	v.JSON(u.Decisions).TextOrNull(orNull(u.Decision)).TextOrNull(u.Feedback).TimeOrNull(u.EscalatedAt).TimeOrNull(u.DecidedAt).Time(u.UpdatedAt)
}

// PurgeMessages deletes the messages of a thread.
type PurgeMessages struct{ Thread id.ThreadID }

func (*PurgeMessages) Write() *journal.Write { return messagePurge }

func (p *PurgeMessages) Put(v *journal.Values) { v.UUID(p.Thread.UUID) }

func orNull[T ~string](v T) *string {
	if v == "" {
		return nil
	}
	s := string(v)
	return &s
}

// StepAt returns the AAD of a step's sealed value.
func StepAt(tenant id.TenantID, run id.RunID, idx int) vault.AAD {
	return vault.AAD{Tenant: tenant, Table: "run_steps", Row: run.String() + "/" + strconv.Itoa(idx), Column: "sealed"}
}

// FrozenAt returns the AAD of an approval's frozen arguments.
func FrozenAt(tenant id.TenantID, approval id.ApprovalID) vault.AAD {
	return vault.AAD{Tenant: tenant, Table: "approvals", Row: approval.String(), Column: "frozen"}
}

// EditedAt returns the AAD of an approval's edited arguments.
func EditedAt(tenant id.TenantID, approval id.ApprovalID) vault.AAD {
	return vault.AAD{Tenant: tenant, Table: "approvals", Row: approval.String(), Column: "edited"}
}

// BoundEdits makes the commit of an edit an ErrConflict if the edits of the run's other approvals are
// larger than room by now: edits of several approvals may be decided at once.
func BoundEdits(t id.TenantID, run id.RunID, approval id.ApprovalID, room int64) journal.Statement {
	return journal.Statement{SQL: queries.Get("approval_edits"), Args: []any{t, run, approval, room}}
}

// Pending is an approval without a final decision, with the role that decides.
type Pending struct {
	ID       id.ApprovalID
	Assignee lifecycle.Role
}

// CancelApprovals cancels the pending approvals of a run, in the commit that ends the run. That
// commit is an ErrConflict if they are not the ones that were read: one was decided or escalated
// since.
func CancelApprovals(t id.TenantID, op id.OpID, run id.RunID, pending []Pending, at time.Time) journal.Statement {
	ids, roles, changes := make([]id.ApprovalID, len(pending)), make([]string, len(pending)), make([]msg.Change, len(pending))
	for i, p := range pending {
		ids[i], roles[i], changes[i] = p.ID, string(p.Assignee), msg.Change{Kind: msg.ChangedApproval, ID: p.ID.UUID}
	}
	return journal.Statement{SQL: queries.Get("approvals_cancel"), Args: []any{t, run, at, op, ids, roles}, Changes: changes}
}

// Tally is what a commit adds to the tenant's figures (GET /v1/stats).
type Tally struct {
	What      lifecycle.Tally
	At        time.Time
	Agent     *id.AgentID
	Took      *time.Duration // of a run since its start, or of a decision
	First     *time.Duration // of a run: from its acceptance to its first text
	TokensIn  int64
	TokensOut int64
	CostUSD   float64
}

func (*Tally) Write() *journal.Write { return tallyInsert }

func (t *Tally) Put(v *journal.Values) {
	v.Text(string(t.What)).Time(t.At)
	journal.UUIDOrNull(v, t.Agent)
	v.Int8OrNull(millis(t.Took)).Int8OrNull(millis(t.First)).Int8(t.TokensIn).Int8(t.TokensOut).Float8(t.CostUSD)
}

func millis(d *time.Duration) *int64 {
	if d == nil {
		return nil
	}
	ms := max(d.Milliseconds(), 0)
	return &ms
}

// RunTally returns the tally of a run that ends with u. agent is nil for a run of a workflow.
func RunTally(u *RunUpdate, agent *id.AgentID, first *time.Duration) *Tally {
	t := &Tally{What: lifecycle.Tally(u.Status), At: *u.FinishedAt, Agent: agent, First: first, TokensIn: u.TokensIn, TokensOut: u.TokensOut, CostUSD: u.CostUSD}
	if u.StartedAt != nil {
		took := u.FinishedAt.Sub(*u.StartedAt)
		t.Took = &took
	}
	return t
}

// ApprovalTimer returns the key of a timer of an approval.
func ApprovalTimer(a id.ApprovalID, name string) journal.TimerKey {
	return journal.TimerKey{Kind: msg.KindApproval, Entity: a.UUID, Name: name}
}

// WakeTimer returns the key of the timer by which a decided approval wakes its run. Its kind is KindRun also if the run
// is one of a workflow.
func WakeTimer(run id.RunID, a id.ApprovalID) journal.TimerKey {
	return journal.TimerKey{Kind: msg.KindRun, Entity: run.UUID, Name: a.String()}
}

// SkillTimer returns the key of the timer that makes a run of a browser skill look at what it waits for.
func SkillTimer(r id.SkillRunID) journal.TimerKey {
	return journal.TimerKey{Kind: msg.KindSkillRun, Entity: r.UUID, Name: msg.TimerLook}
}

// lookAfter is how long after the end of a run the timers of its runs of browser skills are due.
// The message after the commit is faster.
const lookAfter = time.Second

// SkillTimers sets the timers that end the runs of browser skills that a run made which ended at that time.
func SkillTimers(w *journal.Commit, runs []id.SkillRunID, ended time.Time) {
	for _, r := range runs {
		w.Timers = append(w.Timers, journal.Timer{TimerKey: SkillTimer(r), DueAt: ended.Add(lookAfter)})
	}
}

// RunAudit returns a row of the audit log about a run.
func RunAudit(run id.RunID, by msg.By, action string, at time.Time) journal.Audit {
	return journal.Audit{
		ID: id.AuditID{UUID: id.New(run.Shard())}, At: at, Actor: by.Actor, Action: action, TargetKind: "run", TargetID: run.UUID, IP: by.IP,
	}
}

// Started adds the audit row of the start of a run without a thread, and the row of the Idempotency-Key that came with it.
func Started(w *journal.Commit, run id.RunID, origin msg.Origin, by msg.By, i *msg.Idempotency, at time.Time) {
	w.Idempotency = journal.Remember(i, at)
	switch origin.Kind {
	case lifecycle.OriginAPIKey, lifecycle.OriginUser:
		w.Audit = append(w.Audit, RunAudit(run, by, "run.manual", at))
	case lifecycle.OriginTrigger:
		fired := RunAudit(run, by, "trigger.fire", at)
		fired.TargetKind, fired.TargetID, fired.Detail = "trigger", origin.ID, json.RawMessage(`{"run_id":"`+run.String()+`"}`)
		w.Audit = append(w.Audit, fired)
	}
}
