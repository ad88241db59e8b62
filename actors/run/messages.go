package run

import (
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/model"
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
	}
	// ModelFailed is a turn that came to nothing.
	ModelFailed struct {
		Idx     int
		Code    lifecycle.Failure
		Message string // safe to show
		Broken  bool   // worth one more step
		// What the turn used as far as that can be known: an estimate.
		TokensIn, TokensOut int64
		Price               model.Price
	}
	// TimeUp says that limits.max_seconds have passed while the step ran.
	TimeUp struct{ Idx int }
)

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
	// StepBegan is a step that began and is running.
	StepBegan struct {
		Idx   int
		Kind  lifecycle.StepKind
		Name  string
		Input []byte // shown
		Seq   int64  // of step.started; a tool call's tool.called takes the next
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
		cut      *speech        // of a step that did not come to its end: what was said becomes the output
		failure  string         // beside it

		TokensIn, TokensOut int64
		CostUSD             float64
		Estimated           bool
	}
	// Ended is a run that became terminal; its frame has the run's last number.
	Ended struct {
		Reply string // the assistant message of a run that succeeded
	}
	// Stopped is a cancel by somebody, for the audit log.
	Stopped struct{}
)
