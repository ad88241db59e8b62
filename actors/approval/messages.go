package approval

import "time"

// What I accept is in package msg, Decide, and in package durable, TimerDue. I
// reply msg.Decided and tell my run msg.ApprovalsDecided, unless it knows.

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
	// Joined says that the run has committed the decision with what it does by it:
	// it need not be told. It is no fact of a decision, but of its commit.
	Joined struct{}
)
