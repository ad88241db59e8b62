// Package msg holds what actors say to each other and what the edge says to
// them. Messages are plain values: a Codec can encode them, and a receiver
// ignores fields it does not know. A message that changes something carries an
// id and may be delivered twice.
//
// What is asked is Repeatable (package cluster) where its receiver answers it the
// second time as the first, and does nothing more: the owner may have died between
// the commit and the reply, and nobody but the rows knows which. What is told is
// sent once; whoever has to hear it looks at the rows as well.
package msg

import (
	"encoding/json"
	"time"

	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
)

// Actor kinds, as they stand in addresses and in the timers table.
const (
	KindThread   = "thread"
	KindRun      = "run"
	KindApproval = "approval"
	KindLimit    = "limit"
	KindStream   = "stream"
	KindDelivery = "delivery" // the deliveries of one webhook endpoint
	KindTrigger  = "trigger"
)

// Origin says what started a run.
type Origin struct {
	Kind lifecycle.OriginKind `json:"kind"`
	ID   id.UUID              `json:"id"`
}

// Idempotency is the row that the accepting commit keeps for a request with an
// Idempotency-Key. An actor whose answer depends on what it decides seals
// Response itself.
type Idempotency struct {
	Digest      [32]byte `json:"digest"`
	Fingerprint [32]byte `json:"fingerprint"`
	Status      int      `json:"status"`
	Response    []byte   `json:"response"` // sealed
}

// By is who asks, for the audit log.
type By struct {
	Actor string `json:"actor"` // apikey:<id>, user:<id>, system, …
	IP    string `json:"ip"`
}

// Post appends a user's message to a thread and queues the run that answers it.
// Ids are minted by the sender in the thread's shard: a Post that comes twice
// with the same Run is accepted once. Replies Posted or an error: NOT_FOUND,
// AGENT_NOT_PUBLISHED; in a thread of the embed API EMBED_THREAD_FULL and
// EMBED_RUN_IN_FLIGHT (service.md, Embed rules).
type Post struct {
	Message id.MessageID `json:"message"`
	Run     id.RunID     `json:"run"`
	// Visitor is the visitor of the embed API whose thread it has to be; nil: it may be
	// any thread of the tenant.
	Visitor *Visitor `json:"visitor,omitempty"`
	// New says that the message begins a thread of Visitor.
	New         bool            `json:"begins,omitempty"`
	Content     string          `json:"content"`
	Attachments json.RawMessage `json:"attachments,omitempty"` // as the message shows them
	Input       json.RawMessage `json:"input"`                 // as the run shows it
	Origin      Origin          `json:"origin"`
	EndUserID   *id.EndUserID   `json:"end_user_id,omitempty"`
	By          By              `json:"by"`
	Idempotency *Idempotency    `json:"idempotency,omitempty"`
}

// Repeatable: the run says which Post it is, and its row whether it was accepted.
func (Post) Repeatable() {}

// Visitor is a visitor of the embed API, who talks to one agent.
type Visitor struct {
	Agent     id.AgentID `json:"agent"`
	CreatedBy string     `json:"created_by"` // embed:eu:<id> or embed:vid:<id>
}

// Posted answers a Post that was accepted.
type Posted struct {
	Run     id.RunID     `json:"run"`
	Message id.MessageID `json:"message"`
}

// DeleteThread ends a thread: its messages are deleted, its open runs
// cancelled. Replies Done; a thread that is gone is NOT_FOUND.
type DeleteThread struct {
	// Op is minted by the sender in the thread's shard, for each request a new one:
	// who asks again with the one that deleted the thread is answered Done again.
	Op id.OpID `json:"op,omitzero"`
	By By      `json:"by"`
}

// Repeatable: the operation stays with the audit row of the deletion.
func (DeleteThread) Repeatable() {}

// RunEnded tells a thread that one of its runs is terminal.
type RunEnded struct {
	Run id.RunID `json:"run"`
}

// Done is the reply of an order that has nothing else to say.
type Done struct{}

// StartOne accepts a run without a thread. It is sent to the run itself.
// Replies Started or an error.
type StartOne struct {
	Run          id.RunID        `json:"run"`
	AgentID      id.AgentID      `json:"agent_id"`
	AgentVersion int             `json:"agent_version"`
	Input        json.RawMessage `json:"input"`
	Origin       Origin          `json:"origin"`
	EndUserID    *id.EndUserID   `json:"end_user_id,omitempty"`
	By           By              `json:"by"`
	Idempotency  *Idempotency    `json:"idempotency,omitempty"`
}

// Repeatable: the run says which StartOne it is, and is there once it was accepted.
func (StartOne) Repeatable() {}

// Started answers a StartOne.
type Started struct {
	Run id.RunID `json:"run"`
}

// Proceed tells a queued run that its turn in its thread has come, now or when it
// was accepted. Accepted
// carries the row as its thread has just committed it, so that the run starts
// without a read; nil makes it read.
type Proceed struct {
	Accepted *Accepted `json:"accepted,omitempty"`
}

// Accepted is a run as it was committed in status queued, version 1.
type Accepted struct {
	Run          id.RunID        `json:"run"`
	AgentID      id.AgentID      `json:"agent_id"`
	AgentVersion int             `json:"agent_version"`
	ThreadID     *id.ThreadID    `json:"thread_id,omitempty"`
	ThreadSeq    int64           `json:"thread_seq,omitempty"`
	Input        json.RawMessage `json:"input"`
	Origin       Origin          `json:"origin"`
	EndUserID    *id.EndUserID   `json:"end_user_id,omitempty"`
	CreatedAt    time.Time       `json:"created_at"`
	// State is its state column: what a run keeps. Empty is nothing.
	State []byte `json:"state,omitempty"`
}

// CancelRun ends a run that has not ended. Replies Status: the status it has
// now, which for a run that ended before is the one it ended in.
type CancelRun struct {
	By          By           `json:"by"`
	Idempotency *Idempotency `json:"idempotency,omitempty"`
}

// Repeatable: a run ends once, and both the one that ended it and whoever comes
// later are answered how.
func (CancelRun) Repeatable() {}

// Status answers CancelRun.
type Status struct {
	Run    id.RunID            `json:"run"`
	Status lifecycle.RunStatus `json:"status"`
}

// AcquireSlot asks the tenant's limiter for one of its running places. Replies
// nothing: the run is told SlotGranted when its turn has come, at once or later.
type AcquireSlot struct {
	Run       id.RunID  `json:"run"`
	CreatedAt time.Time `json:"created_at"` // the oldest is served first
}

// SlotGranted tells a queued run that it may run.
type SlotGranted struct{}

// ReleaseSlot gives a place back, or withdraws the wish for one.
type ReleaseSlot struct {
	Run id.RunID `json:"run"`
}

// TakeSlot tells the tenant's limiter that a run goes on running after it waited
// for an approval: it is counted, and waits for nobody.
type TakeSlot struct {
	Run id.RunID `json:"run"`
}

// Timers of approvals. A run's timer that calls it to look at its approvals is
// named by the approval's id.
const (
	TimerExpire   = "expire"
	TimerEscalate = "escalate"
)

// Decide decides an approval, or adds to the decision (service.md, Approval
// status). Replies Decided or an error: FORBIDDEN, ALREADY_DECIDED, VALIDATION,
// INVALID_ARGS.
type Decide struct {
	// Op is minted by the sender, for each request a new one. The ledger keeps it: who
	// asks again with it is answered what the decision came to.
	Op        id.OpID        `json:"op,omitzero"`
	Principal string         `json:"principal"` // apikey:<id> or user:<id>
	Role      lifecycle.Role `json:"role"`      // in the tenant
	// Manages says that the principal manages an org node on the approval's chain.
	Manages     bool             `json:"manages,omitempty"`
	Action      lifecycle.Action `json:"action"` // approve, edit, reject or respond
	EditedArgs  json.RawMessage  `json:"edited_args,omitempty"`
	Feedback    string           `json:"feedback,omitempty"`
	By          By               `json:"by"`
	Idempotency *Idempotency     `json:"idempotency,omitempty"` // Response is sealed by the approval
}

// Repeatable: the ledger says which operations it has taken.
func (Decide) Repeatable() {}

// Decided answers Decide.
type Decided struct {
	Status         lifecycle.ApprovalStatus `json:"status"`
	ApprovalsSoFar int                      `json:"approvals_so_far"`
}

// ApprovalsDecided tells a waiting run to look at its approvals: one of them is
// decided for good.
type ApprovalsDecided struct{}
