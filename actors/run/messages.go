package run

import (
	"time"

	"agentsvc/schemas/guardrail"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/model"
	"agentsvc/schemas/tool"
)

// What a run accepts besides the messages of schemas/msg and package durable:
// the results of its own effects.
type (
	// ModelAnswered is a finished turn of the step's model.
	ModelAnswered struct {
		Idx      int
		Result   *model.Result
		Price    model.Price
		Segments []int32
		// Plan says what becomes of each call of the turn; nil where the agent has
		// no tools. Unplanned says why there is none: INTERNAL, or LIMIT_EXCEEDED
		// because the run's time was up.
		Plan      []tool.Planned
		Unplanned lifecycle.Failure
		// Verdict is what the check of the turn's text came to; nil where the turn has
		// calls.
		Verdict *Verdict
	}
	// ModelFailed is a turn that came to nothing.
	ModelFailed struct {
		Idx     int
		Code    lifecycle.Failure
		Message string // safe to show
		Broken  bool   // worth one more step
		// Interrupted: by this node, which lost its lease in the middle of the answer;
		// worth another step however often it happens.
		Interrupted bool
		// What the turn used as far as that can be known: an estimate.
		TokensIn, TokensOut int64
		Price               model.Price
	}
	// TimeUp says that limits.max_seconds have passed while the step ran.
	TimeUp struct{ Idx int }
	// ToolAnswered is what the call of a step came to.
	ToolAnswered struct {
		Idx     int
		Outcome tool.Outcome
	}
	// HandedOver is the agent that a step's handoff found; the Outcome of one that
	// found none says why.
	HandedOver struct {
		Idx      int
		Outcome  tool.Outcome
		From, To string // slugs
		AgentID  id.AgentID
		Version  int
		Agent    *Agent // nil: there is no handoff
	}
)

// Verdict is what the guardrails and the output_schema of an agent say about a
// final text.
type Verdict struct {
	Answer guardrail.Answer // where neither of the others is set
	Reason string           // why the text is no answer; safe to show
	Late   bool             // the run's time was up before the check was done
}

// Said is the live text of a step so far, with the lengths of its parts:
// thinking and text by turns, thinking first.
type Said struct {
	Thinking, Text string
	Segments       []int32
}

// Facts of a decision, in the order in which they became true. Rows and frames
// are made of them.
type (
	// Created is a run without a thread that was accepted.
	Created struct{}
	// Began is a run that left queued.
	Began struct{}
	// StepBegan is a step that began: it runs, or waits for people.
	StepBegan struct {
		Idx    int
		Kind   lifecycle.StepKind
		Name   string
		Status lifecycle.StepStatus
		Input  []byte // shown
		Seq    int64  // of step.started
		Called int64  // of tool.called, 0 for what is no call or not called yet
		call   *Call  // to be sealed, of a call that is still to be carried out
	}
	// StepCalled is a step that waited and is called now.
	StepCalled struct {
		Call   *Call
		Called int64 // of tool.called, 0 for a handoff
		Edited bool  // with other arguments than it began with
	}
	// StepEnded is a step that ended. A tool call that is refused begins and
	// ends in one decision.
	StepEnded struct {
		Idx      int
		Kind     lifecycle.StepKind
		Status   lifecycle.StepStatus
		Output   []byte // shown
		Segments []int32
		Turn     *model.Message // what the model's history needs, to be sealed
		Seq      int64          // of tool.result, else 0
		// Cut says that the model's step was cut off: its output is what the model
		// had said by then, with Failure beside it.
		Cut     bool
		Failure string

		TokensIn, TokensOut int64
		CostUSD             float64
		Estimated           bool
	}
	// Asked is a call about which people are asked. Its mark is approval.required.
	Asked struct {
		Call    *Call
		Seq     int64
		Expires time.Time
	}
	// Waits is a run that waits for its approvals. Its mark is run.waiting.
	Waits struct{ Seq int64 }
	// Resumed is a run that goes on after a decision. Its mark is run.resumed.
	Resumed struct {
		Approval id.ApprovalID
		Decision lifecycle.Action
		Seq      int64
	}
	// Handoff is a conversation that was handed over. Its mark is handoff.
	Handoff struct {
		From, To string // slugs
		Seq      int64
	}
	// Withdrawn are the calls about which people were asked and that end with their
	// run, as they stood: what is pending of their approvals is cancelled.
	Withdrawn struct{ Calls []*Call }
	// Looked is a timer by which an approval called for a look that was taken.
	Looked struct{ Approval id.ApprovalID }
	// Ended is a run that became terminal; its frame has the run's last number.
	Ended struct {
		Reply string // the assistant message of a run that succeeded
	}
	// Stopped is a cancel by somebody, for the audit log.
	Stopped struct{}
)
