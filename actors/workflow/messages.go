package workflow

import (
	"encoding/json"
	"time"

	"agentsvc/schemas/flow"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
)

// What a run accepts besides the messages of schemas/msg and package durable: the results
// of its own effects.
type (
	// Walked is how far a walk came, and the plan of the call that it led to, if there is one.
	Walked struct {
		N     int
		Parts []Part
		Flow  flow.State
		Call  *Planned
		// Output is the run's, if the walk reached its end.
		Output  json.RawMessage
		Failure *flow.Failure
		Fault   string // the reason of an internal error
	}
	// Found is the published version of the agent of a step; 0: it cannot start.
	Found struct {
		Idx     int
		Version int
	}
	// ChildGone says that a child of a run that has ended has ended too. Used is what all children
	// of the run have used, as read after that.
	ChildGone struct {
		Run  id.RunID
		Used Used
	}
)

// Part is what followed from one end.
type Part struct {
	End   End
	Facts []Fact
}

// Fact is a fact of a walk. Shown is its redacted input if the node started, its redacted
// output if it ended.
type Fact struct {
	flow.Fact
	Shown json.RawMessage
}

// ReadChild is the question how a child run is. The answer is a Child, whose zero value means
// that there is none.
type ReadChild struct{ Run id.RunID }

// Child is a child run as its row says.
type Child struct {
	Status              lifecycle.RunStatus
	Output              json.RawMessage
	Code, Message       string
	TokensIn, TokensOut int64
	CostUSD             float64
}

// Used is what child runs have used together.
type Used struct {
	TokensIn, TokensOut int64
	CostUSD             float64
}

// Facts of a decision, in the order in which they became true. Rows and frames are made of
// them.
type (
	// Created is a run that was accepted.
	Created struct{}
	// Began is a run that left queued.
	Began struct{}
	// NodeBegan is a node that started.
	NodeBegan struct {
		Step    *Step
		Status  lifecycle.StepStatus
		Shown   json.RawMessage
		Started int64 // number of node.started
	}
	// NodePaused is a node that waits.
	NodePaused struct {
		Step *Step
		Seq  int64
	}
	// NodeEnded is a node that ended. Kept is what later nodes read of it, nil if it failed or
	// ended with its run.
	NodeEnded struct {
		Step   *Step
		Status lifecycle.StepStatus
		Shown  json.RawMessage
		Kept   *kept
		Child  *id.RunID
		Seq    int64

		TokensIn, TokensOut int64
		CostUSD             float64
	}
	// NodeSkipped is a node that does not run.
	NodeSkipped struct {
		Node int
		Seq  int64
	}
	// TimerSet and TimerGone change a timer of the run.
	TimerSet struct {
		Name string
		Due  time.Time
	}
	TimerGone struct{ Name string }
	// EventCame is an event that was accepted.
	EventCame struct {
		Event Event
		ID    string
		Op    id.OpID
	}
	// EventKnown is an event that was accepted before, with an Idempotency-Key of its own.
	EventKnown struct{}
	// EventTaken is an event that woke a step.
	EventTaken struct{ Seq, Idx int }
	// ChildBegan is the child run of a step, in a version of its agent.
	ChildBegan struct {
		Step    *Step
		Run     id.RunID
		Agent   id.AgentID
		Version int
		At      time.Time
	}
	// ChildEnded is a child of a run that has ended which needs no cancel any more.
	ChildEnded struct{ Run id.RunID }
	// Ended is a run that became terminal; its frame has the run's last number.
	Ended struct{}
	// Stopped is a cancel on request, for the audit log.
	Stopped struct{}
)
