package run

import (
	"time"

	"agentsvc/schemas/guardrail"
	"agentsvc/schemas/id"
	"agentsvc/schemas/knowledge"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/model"
	"agentsvc/schemas/tool"
)

// What a run accepts besides the messages of schemas/msg and package durable:
// the results of its own effects.
type (
	// ModelAnswered is the complete answer of the step's model.
	ModelAnswered struct {
		Idx      int
		Result   *model.Result
		Price    model.Price
		Segments []int32
		Heard    time.Time // when the first text of the turn came; zero: there was none
		// Plan holds the plan of each call of the turn; nil if the agent has no tools.
		// Unplanned says why there is no plan: INTERNAL, or LIMIT_EXCEEDED because the
		// run's time was up.
		Plan      []tool.Planned
		Unplanned lifecycle.Failure
		// Verdict is the result of the check of the turn's text; nil if the turn has
		// calls.
		Verdict *Verdict
	}
	// ModelFailed is a turn that failed.
	ModelFailed struct {
		Idx     int
		Code    lifecycle.Failure
		Message string // safe to show
		Broken  bool   // worth one more step
		// Interrupted: this node lost its lease in the middle of the answer. It is
		// worth another step, however often it happens.
		Interrupted bool
		// TokensIn and TokensOut estimate what the turn used.
		TokensIn, TokensOut int64
		Price               model.Price
	}
	// TimeUp says that limits.max_seconds have passed while the step ran.
	TimeUp struct{ Idx int }
	// ToolAnswered is the outcome of a step's call.
	ToolAnswered struct {
		Idx     int
		Outcome tool.Outcome
	}
	// Previewed is the end of what comes before the approval of a step's call. A nil Outcome
	// means that the approval can open.
	Previewed struct {
		Idx     int
		Outcome *tool.Outcome
	}
	// HandedOver is the agent that a step's handoff found. If it found none, Outcome
	// says why.
	HandedOver struct {
		Idx      int
		Outcome  tool.Outcome
		From, To string // slugs
		AgentID  id.AgentID
		Version  int
		Agent    *Agent // nil: there is no handoff
	}
)

// Verdict is the result of an agent's guardrails and output_schema on a final text.
type Verdict struct {
	Answer guardrail.Answer // if neither of the others is set
	// Citations are the chunks retrieved in the run that the text cites, in its order.
	Citations []knowledge.Citation
	Reason    string // why the text is refused; safe to show
	Late      bool   // the run's time was up before the check was done
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
		Called int64  // of tool.called, 0 if the step is no call or not called yet
		call   *Call  // to be sealed, if the call is still to be carried out
	}
	// StepCalled is the begin of a call that waited.
	StepCalled struct {
		Call   *Call
		Called int64 // of tool.called, 0 for a handoff
		Edited bool  // the arguments are not those of its begin
	}
	// StepEnded is a step that ended. A tool call that is refused begins and
	// ends in one decision.
	StepEnded struct {
		Idx      int
		Kind     lifecycle.StepKind
		Status   lifecycle.StepStatus
		Output   []byte // shown
		Segments []int32
		History  *model.Message // for the model's history, to be sealed
		Seq      int64          // of tool.result, else 0
		// Cut says that the model's step was cut off: its output is the text so far,
		// with Failure beside it.
		Cut     bool
		Failure string

		TokensIn, TokensOut int64
		CostUSD             float64
		Estimated           bool
	}
	// Asked is a call whose approval opens. Its mark is approval.required.
	Asked struct {
		Call    *Call
		Seq     int64
		Expires time.Time
	}
	// Waits is a run that waits for its approvals. Its mark is run.waiting.
	Waits struct{ Seq int64 }
	// Resumed is a run that continues after a decision. Its mark is run.resumed.
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
	// Withdrawn are the calls that end with their run before they were called, as they
	// stood: their pending approvals are cancelled.
	Withdrawn struct{ Calls []*Call }
	// SkillsLeft are the runs of browser skills that calls have made which ended with their run, or
	// before their approval opened. Each of them ends too, unless its commit was begun.
	SkillsLeft struct{ Runs []id.SkillRunID }
	// TimerDone is a timer of a decided approval that has nothing more to do.
	TimerDone struct{ Approval id.ApprovalID }
	// Ended is a run that became terminal; its frame has the run's last number.
	Ended struct {
		Reply     string // the assistant message of a run that succeeded
		Citations []knowledge.Citation
	}
	// Stopped is a cancel on request, for the audit log.
	Stopped struct{}
)
