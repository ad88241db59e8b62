// Package msg holds the messages between actors and from the edge to actors. Messages are
// plain values: a Codec can encode them, and a receiver ignores fields it does not know. A
// message that changes something carries an id and may be delivered twice.
//
// An asked message is Repeatable (package cluster) if its receiver answers a repeat like the
// first one and does nothing more: the owner may have died between the commit and the reply,
// so only the rows tell whether it was handled. A told message is sent once; a receiver that
// must not miss it reads the rows too.
package msg

import (
	"encoding/json"
	"time"

	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
)

// Actor kinds, as used in addresses and in the timers table.
const (
	KindThread   = "thread"
	KindRun      = "run"
	KindApproval = "approval"
	KindLimit    = "limit"
	KindStream   = "stream"
	KindDelivery = "delivery" // the deliveries of one webhook endpoint
	KindTrigger  = "trigger"
	KindWorkflow = "workflow" // a run of a workflow, at the id of the run
	KindIngest   = "ingest"   // the index of one document of a knowledge base
	KindSync     = "sync"     // the syncs of one source of a knowledge base
	KindSkillRun = "skillrun" // a run of a browser skill
)

// Origin is what started a run.
type Origin struct {
	Kind lifecycle.OriginKind `json:"kind"`
	ID   id.UUID              `json:"id"`
}

// Idempotency is the row that the accepting commit stores for a request with an
// Idempotency-Key. An actor whose response depends on its decision seals Response itself.
type Idempotency struct {
	Digest      [32]byte `json:"digest"`
	Fingerprint [32]byte `json:"fingerprint"`
	Status      int      `json:"status"`
	Response    []byte   `json:"response"` // sealed
}

// By is the caller, for the audit log.
type By struct {
	Actor string `json:"actor"` // apikey:<id>, user:<id>, System, …
	IP    string `json:"ip"`
}

// System is the actor in the audit log for changes without a person or key.
const System = "system"

// Post appends a user's message to a thread and queues the run that answers it. The sender
// mints the ids in the thread's shard. A repeat of a Post with the same Run is accepted only
// once. Replies Posted or an error: NOT_FOUND, AGENT_NOT_PUBLISHED; in a thread of the embed
// API EMBED_THREAD_FULL and EMBED_RUN_IN_FLIGHT (service.md, Embed rules).
type Post struct {
	Message id.MessageID `json:"message"`
	Run     id.RunID     `json:"run"`
	// Visitor is the required owner of the thread, a visitor of the embed API; nil accepts
	// any thread of the tenant.
	Visitor *Visitor `json:"visitor,omitempty"`
	// New means that the message begins a thread of Visitor.
	New         bool            `json:"begins,omitempty"`
	Content     string          `json:"content"`
	Attachments json.RawMessage `json:"attachments,omitempty"` // as the message shows them
	Input       json.RawMessage `json:"input"`                 // as the run shows it
	Origin      Origin          `json:"origin"`
	EndUserID   *id.EndUserID   `json:"end_user_id,omitempty"`
	By          By              `json:"by"`
	Idempotency *Idempotency    `json:"idempotency,omitempty"`
}

// Repeatable: the run identifies the Post, and its row tells whether it was accepted.
func (Post) Repeatable() {}

// Visitor is a visitor of the embed API, which talks to one agent.
type Visitor struct {
	Agent     id.AgentID `json:"agent"`
	CreatedBy string     `json:"created_by"` // embed:eu:<id> or embed:vid:<id>
}

// Posted is the reply to an accepted Post.
type Posted struct {
	Run     id.RunID     `json:"run"`
	Message id.MessageID `json:"message"`
}

// DeleteThread ends a thread: its messages are deleted, its open runs
// cancelled. Replies Done; a thread that is gone is NOT_FOUND.
type DeleteThread struct {
	// Op is minted by the sender in the thread's shard, a new one for each request: a repeat
	// with the Op that deleted the thread is answered Done again.
	Op id.OpID `json:"op,omitzero"`
	By By      `json:"by"`
}

// Repeatable: the audit row of the deletion holds the operation.
func (DeleteThread) Repeatable() {}

// RunEnded tells a thread that one of its runs is terminal.
type RunEnded struct {
	Run id.RunID `json:"run"`
}

// Done is the reply of an order without a result.
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

// Repeatable: the run identifies the StartOne, and its row exists once it was accepted.
func (StartOne) Repeatable() {}

// Started is the reply to a StartOne.
type Started struct {
	Run id.RunID `json:"run"`
}

// StartWorkflow accepts a run of a workflow. It is sent to the run itself.
// Replies Started or an error.
type StartWorkflow struct {
	Run       id.RunID        `json:"run"`
	Workflow  id.WorkflowID   `json:"workflow"`
	Version   int             `json:"version"`
	Test      bool            `json:"test,omitempty"` // its end is not reported to webhooks
	Input     json.RawMessage `json:"input"`
	Variables json.RawMessage `json:"variables,omitempty"` // an object
	Node      *id.NodeID      `json:"node,omitempty"`      // the workflow's org node
	Origin    Origin          `json:"origin"`
	// EndUserID is the person for whom the run works. Its child runs work for the same person,
	// and their searches find what that person may see.
	EndUserID   *id.EndUserID `json:"end_user_id,omitempty"`
	By          By            `json:"by"`
	Idempotency *Idempotency  `json:"idempotency,omitempty"`
}

// Repeatable: the run identifies the StartWorkflow, and its row exists once it was accepted.
func (StartWorkflow) Repeatable() {}

// InjectEvent sends an event to a workflow run. Replies Done; RUN_TERMINAL if the run has
// ended.
type InjectEvent struct {
	// Op is minted by the sender, a new one for each request. The event's row stores it.
	Op      id.OpID         `json:"op"`
	ID      string          `json:"id,omitempty"` // the sender's: a repeat counts once
	Name    string          `json:"name"`
	Payload json.RawMessage `json:"payload,omitempty"`
	By      By              `json:"by"` // empty: sent by a node of an earlier version

	Idempotency *Idempotency `json:"idempotency,omitempty"`
}

// Repeatable: the rows hold the operations of all events.
func (InjectEvent) Repeatable() {}

// ChildChanged tells a workflow run that one of its child runs has ended, or waits for an
// approval.
type ChildChanged struct {
	Run id.RunID `json:"run"`
}

// ChildTimer returns the name of the timer of a workflow run by which a child run wakes it.
func ChildTimer(child id.RunID) string { return TimerChild + child.String() }

// TimerChild begins the names of these timers.
const TimerChild = "child/"

// Proceed tells a queued run that it is ready: no earlier run of its thread is open, now or
// since it was accepted. Accepted carries the row as its thread has just committed it, so that the run
// starts without a read; if it is nil, the run reads its row.
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
	// Parent is the workflow run whose child this run is.
	Parent *id.RunID `json:"parent,omitempty"`
	// State is the state column of the run; it may be empty.
	State []byte `json:"state,omitempty"`
}

// CancelRun cancels a run that has not ended. Replies Status: the run's status now, which for
// a run that had already ended is its final one.
type CancelRun struct {
	By          By           `json:"by"`
	Idempotency *Idempotency `json:"idempotency,omitempty"`
}

// Repeatable: a run ends once, and every CancelRun is answered with the final status.
func (CancelRun) Repeatable() {}

// Status is the reply to CancelRun.
type Status struct {
	Run    id.RunID            `json:"run"`
	Status lifecycle.RunStatus `json:"status"`
}

// AcquireSlot asks the tenant's limiter for a slot for a running run. It has no reply: the
// run is told SlotGranted, at once or when a slot is free.
type AcquireSlot struct {
	Run       id.RunID  `json:"run"`
	CreatedAt time.Time `json:"created_at"` // the oldest run is served first
}

// SlotGranted tells a queued run that it may run.
type SlotGranted struct{}

// ReleaseSlot releases a slot, or withdraws the request for one.
type ReleaseSlot struct {
	Run id.RunID `json:"run"`
}

// TakeSlot tells the tenant's limiter that a run continues after waiting for an approval: it
// takes a slot without waiting.
type TakeSlot struct {
	Run id.RunID `json:"run"`
}

// Timers of approvals. The timer that makes a run check its approvals is named by the
// approval's id.
const (
	TimerExpire   = "expire"
	TimerEscalate = "escalate"
)

// Decide decides an approval, or adds a decision to it (service.md, Approval status). Replies
// Decided or an error: FORBIDDEN, ALREADY_DECIDED, VALIDATION, INVALID_ARGS.
type Decide struct {
	// Op is minted by the sender, a new one for each request. The ledger stores it: a repeat
	// with the same Op gets the result of that decision.
	Op        id.OpID        `json:"op,omitzero"`
	Principal string         `json:"principal"` // apikey:<id> or user:<id>
	Role      lifecycle.Role `json:"role"`      // the role in the tenant
	// Manages says that the principal manages an org node on the approval's chain.
	Manages     bool             `json:"manages,omitempty"`
	Action      lifecycle.Action `json:"action"` // approve, edit, reject or respond
	EditedArgs  json.RawMessage  `json:"edited_args,omitempty"`
	Feedback    string           `json:"feedback,omitempty"`
	By          By               `json:"by"`
	Idempotency *Idempotency     `json:"idempotency,omitempty"` // the approval seals its Response
}

// Repeatable: the ledger holds the operations that it has accepted.
func (Decide) Repeatable() {}

// Decided is the reply to Decide.
type Decided struct {
	Status         lifecycle.ApprovalStatus `json:"status"`
	ApprovalsSoFar int                      `json:"approvals_so_far"`
}

// ApprovalsDecided tells a waiting run to check its approvals: one of them is finally
// decided, or escalated.
type ApprovalsDecided struct{}
