package approval

import (
	"encoding/json"
	"time"
)

// What I accept is in package msg, Decide, and in package durable, TimerDue. I
// reply msg.Decided and tell my run msg.ApprovalsDecided.

// CheckArgs asks whether edited arguments fit the tool's schema; ArgsChecked answers.
// A schema may be expensive to check against, so that is not done in a decision.
type (
	CheckArgs   struct{ Schema, Args json.RawMessage }
	ArgsChecked struct{ Reason string } // why they do not fit; empty: they do
)

// Facts: what becomes true with a commit.
type (
	// Voted is a person's decision that was added to the ledger.
	Voted struct{ Entry Entry }
	// Expired ends the approval because its SLA has elapsed.
	Expired struct{}
	// Escalated hands the approval to the higher role.
	Escalated struct{}
	// Rearmed sets a timer that was told too early to its moment again.
	Rearmed struct {
		Name string
		At   time.Time
	}
	// Disarmed deletes a timer that has nothing to do any more.
	Disarmed struct{ Name string }
)
