package journal

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/webhook"
)

// What a commit can end with besides success. Only ErrUnsettled leaves open
// whether the rows are there; the writer settles it by the operation's id.
var (
	// ErrConflict: the row moved on; another activation owns the id.
	ErrConflict = errors.New("journal: the row moved on")
	// ErrExists: an entity that this commit begins is there already, by another
	// operation; nothing of this commit was written.
	ErrExists = errors.New("journal: the entity exists")
	// ErrReplay: a row of the same Idempotency-Key was there first; nothing of
	// this commit was written. Where the row moved on as well it is ErrConflict, and
	// where the entity exists ErrExists: they say whether it was this order.
	ErrReplay = errors.New("journal: the idempotency key was used before")
	// ErrRefused: the database refuses the rows of this commit whenever they
	// are sent (a constraint, a value it cannot hold), and nobody else has moved
	// the row on or used the key: else it is ErrConflict or ErrReplay.
	ErrRefused = errors.New("journal: refused by the database")
	// ErrFenced: this process was declared dead.
	ErrFenced = errors.New("journal: this process no longer holds its lease")
	// ErrUnavailable: the database cannot be reached or is full; nothing of
	// this commit was written.
	ErrUnavailable = errors.New("journal: storage is not available")
	// ErrWithdrawn is an ErrUnavailable of new work that was not sent: its caller left, or
	// it could not have been written before its caller's deadline. The database may be well.
	ErrWithdrawn = fmt.Errorf("%w: withdrawn before it was sent", ErrUnavailable)
	// ErrUnsettled: the caller's deadline passed while the commit was under way.
	ErrUnsettled = errors.New("journal: the outcome is not known yet")
)

// Commit is everything that one decision makes durable, in one transaction: all
// of it or none. Rows of other tenants than Tenant cannot be written by it.
type Commit struct {
	Op     id.OpID
	Tenant id.TenantID
	Shard  id.Shard // of the deciding entity
	New    bool     // new work: waits behind accepted work and may be withdrawn before it is sent
	// Until is when the caller of new work stops waiting, if that is before the end of Do's
	// context. Zero: it is not.
	Until time.Time

	Idempotency *Idempotency
	NewThread   *ThreadInsert // a thread begins
	Thread      *ThreadUpdate
	Accept      *RunInsert // a run begins
	Run         *RunUpdate
	Began       []StepInsert
	Called      []StepCall
	Ended       []StepUpdate
	Marks       []Mark
	Messages    []Message
	Timers      []Timer
	TimersDone  []TimerKey
	Usage       []Usage
	Audit       []Audit
	// Events become a delivery for each of the tenant's enabled endpoints that hear
	// of them, as the endpoints are when the commit is written.
	Events []Event
	// Approval swaps an approval's row. Where Run is the run that waits for it, both
	// are swapped or none; else the run has to be waiting. Its timers follow the lock
	// on the run's row, as everywhere: they are not to be among Timers and TimersDone.
	Approval   *ApprovalUpdate
	Statements []Statement // of kinds too rare for a bulk statement of their own
}

// Idempotency remembers the first answer to an Idempotency-Key.
type Idempotency struct {
	Digest      [32]byte // of principal, method, path and key
	Fingerprint [32]byte // of the request
	Status      int
	Response    []byte // sealed
	At          time.Time
}

// Guard is the compare-and-swap on an actor's row: the swap succeeds only while
// the row has Version and Epoch, and leaves Version+1 and SetEpoch.
type Guard struct {
	Version  int64
	Epoch    int64
	SetEpoch int64
}

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

// StepCall is a step that waited and is called now: it becomes running. Nil
// Input and Sealed leave their columns as they are.
type StepCall struct {
	Run       id.RunID
	Idx       int
	CalledSeq int64
	Input     json.RawMessage // shown
	Sealed    []byte
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

// Mark is a fact of a run that has no row of its own.
type Mark struct {
	Run  id.RunID
	Seq  int64
	Type string
	Data json.RawMessage
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

// TimerKey names a due moment of an actor.
type TimerKey struct {
	Kind   string
	Entity id.UUID
	Name   string
}

// Timer sets or moves a due moment.
type Timer struct {
	TimerKey
	DueAt time.Time
}

// Usage is one billed use.
type Usage struct {
	ID        id.UsageID
	At        time.Time
	Kind      lifecycle.UsageKind
	Run       *id.RunID
	Agent     *id.AgentID
	Model     string
	TokensIn  int64
	TokensOut int64
	CostUSD   float64
	Detail    json.RawMessage
}

// Audit is one row of the audit log.
type Audit struct {
	ID         id.AuditID
	At         time.Time
	Actor      string
	Action     string
	TargetKind string
	TargetID   id.UUID
	IP         string
	Detail     json.RawMessage
}

// Event is something that the tenant's webhook endpoints may hear of.
type Event struct {
	ID   id.EventID
	Type webhook.Type
	Body []byte // the envelope: the bytes of every attempt
	At   time.Time
}

// Statement is one statement of a commit that has no bulk form. It runs after
// the bulk statements and the approval, in the order of the commit. With Swap set it must affect
// exactly one row, or raise svc_missed itself where it misses, else the commit is an
// ErrConflict.
type Statement struct {
	SQL  string
	Args []any
	Swap bool

	raises bool // of a Swap: the SQL itself raises svc_missed when it misses
}
