package workflow

import (
	"encoding/json"
	"slices"
	"strconv"
	"time"

	"agentsvc/schemas/flow"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
)

// State is a workflow run: its rows, and what its activation remembers. The zero Status means
// that the run has not been accepted.
type State struct {
	Tenant id.TenantID
	ID     id.RunID

	Workflow  id.WorkflowID
	Version   int
	Test      bool
	Input     json.RawMessage
	Variables json.RawMessage // those that the run was started with
	Origin    msg.Origin
	EndUserID *id.EndUserID // child runs inherit it
	CreatedAt time.Time

	Status     lifecycle.RunStatus
	Output     json.RawMessage
	Error      *Failure
	TokensIn   int64
	TokensOut  int64
	CostUSD    float64
	StartedAt  *time.Time
	FinishedAt *time.Time
	Seq        int64 // facts so far
	Steps      int   // persisted steps

	// Plan is the definition; nil if it cannot be read. Flow is how far the run is in it,
	// once the run has begun. It is nil in an activation of an ended run.
	Plan *flow.Plan
	Flow flow.State
	// Open are the steps of nodes that have started and not ended, by Idx.
	Open []*Step
	// Events are those that woke no node, in the order in which they came.
	Events []Event
	// Seen are the operations and the senders' ids of all events.
	Seen  map[string]bool
	Heard int // events so far
	// Children are child runs that a run that has ended has to cancel.
	Children []id.RunID
	// Owes is the row's column.
	Owes bool

	// Damage says which of the run's rows could not be read; empty if all could. A
	// damaged run can only fail or be cancelled.
	Damage string
	// Unread says that the definition could not be read: the run is not accepted.
	Unread bool
	// OrgNode is where the chain of managers of the workflow begins.
	OrgNode *id.NodeID

	// The rest is not stored.

	Granted bool  // a queued run has a slot
	Queue   []End // ends of nodes that have not been walked
	Walks   int   // walks so far
}

// Failure is why a run ended badly.
type Failure struct {
	Code    lifecycle.Failure
	Message string
}

// Step is the open step of a node. A Step in a State is immutable.
type Step struct {
	Idx  int
	Node int   // starts: the definition does not have it
	Seq  int64 // of its step.started
	// Input is what the node works with, all templates rendered.
	Input json.RawMessage
	// Text is the name of the event of a wait_event.
	Text string
	// Begun says that the child run of an agent is in the database.
	Begun bool
	// Approval is that of a gate or a human task.
	Approval *Approval
	// Call is that of a tool, once it is planned.
	Call *Call
	// Shown is the output of a failed step.
	Shown json.RawMessage
}

// timer returns the name of the timer of a delay, and of the timeout of a wait_event.
func (s *Step) timer() string { return nodeTimer + strconv.Itoa(s.Idx) }

const nodeTimer = "node/"

// Event is an event that woke no node so far.
type Event struct {
	Seq     int
	Name    string
	Payload json.RawMessage
}

// End is the end of a node that the next walk takes through the graph.
type End struct {
	Node   int // starts: the beginning of the run
	Output flow.Output
	Event  *int // Seq of the event that woke the node
	// Decided is the approval that ended the node.
	Decided *Decided
	Shown   json.RawMessage // the shown output of a tool
	// TokensIn, TokensOut and CostUSD are those of a child run.
	TokensIn, TokensOut int64
	CostUSD             float64
}

// starts stands for a node in the End that begins a run.
const starts = -1

// step returns the open step of a node, nil if it has none.
func (s *State) step(node int) *Step {
	i := slices.IndexFunc(s.Open, func(o *Step) bool { return o.Node == node })
	if i < 0 {
		return nil
	}
	return s.Open[i]
}

// at returns the open step with an index, nil if there is none.
func (s *State) at(idx int) *Step {
	i := slices.IndexFunc(s.Open, func(o *Step) bool { return o.Idx == idx })
	if i < 0 {
		return nil
	}
	return s.Open[i]
}

// ofChild returns the open step whose child run that is, nil if there is none.
func (s *State) ofChild(run id.RunID) *Step {
	i := slices.IndexFunc(s.Open, func(o *Step) bool { return s.typeOf(o) == flow.Agent && child(s.ID, o.Idx) == run })
	if i < 0 {
		return nil
	}
	return s.Open[i]
}

// typeOf returns the type of a step's node, empty if the definition has no such node.
func (s *State) typeOf(o *Step) flow.NodeType {
	if s.Plan == nil || o.Node < 0 {
		return ""
	}
	return s.Plan.Node(o.Node).Type
}

// broken reports whether the run cannot go on because its rows could not be read.
func (s *State) broken() bool { return !s.Status.Terminal() && (s.Plan == nil || s.Damage != "") }

// ends reports whether the end of a node is queued.
func (s *State) ends(node int) bool {
	return slices.ContainsFunc(s.Queue, func(e End) bool { return e.Node == node })
}

// stepKind returns the kind of the step of a node (open-parts.md, Workflows).
func stepKind(t flow.NodeType) lifecycle.StepKind {
	switch t {
	case flow.Agent:
		return lifecycle.StepAgent
	case flow.Tool:
		return lifecycle.StepTool
	case flow.Gate, flow.HumanTask:
		return lifecycle.StepApproval
	}
	return lifecycle.StepNode
}

// pauses reports whether a node of that type waits once it has started.
func pauses(t flow.NodeType) bool {
	switch t {
	case flow.WaitEvent, flow.Delay, flow.Gate, flow.HumanTask:
		return true
	}
	return false
}
