package approval

import (
	"encoding/json"
	"time"

	"agentsvc/schemas/id"
)

// An approval accepts msg.Decide and durable.TimerDue. It replies msg.Decided and tells its
// run msg.ApprovalsDecided.

// CheckArgs asks whether edited arguments fit the tool's schema, and how they are shown;
// ArgsChecked answers. A check may be expensive, and credentials are opened for what is shown,
// so neither is part of a decision.
type (
	CheckArgs struct {
		Schema, Args json.RawMessage
		SkillRun     *id.SkillRunID
		// Given are the arguments as they were sent: a value that was masked is still masked.
		Given json.RawMessage
		// Agent or Workflow makes the call.
		Agent    *id.AgentID
		Workflow *id.WorkflowID
	}
	ArgsChecked struct {
		Reason string          // why they do not fit; empty if they do
		Shown  json.RawMessage // Given without secrets
	}
)

// Facts of a decision.
type (
	// Voted is a person's decision that was added to the ledger.
	Voted struct{ Entry Entry }
	// Expired ends the approval because its SLA has elapsed.
	Expired struct{}
	// Escalated hands the approval to the higher role.
	Escalated struct{}
	// Rearmed sets a timer that came early to its due time again.
	Rearmed struct {
		Name string
		At   time.Time
	}
	// Disarmed deletes a timer that has nothing more to do.
	Disarmed struct{ Name string }
)
