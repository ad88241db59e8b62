// Package approval is one tool call that waits for a person: the decisions on it so far,
// and its outcome (service.md, Approval status).
//
// An approval is the row approvals/<id>, opened by the run that waits for it; its address
// is approval/<tenant>/<approval id>. The edge asks it Decide; the sweep tells it
// that its timers expire and escalate are due. When it has ended it tells its run
// ApprovalsDecided.
//
//	          approve, edit: fewer than required; escalate: once
//	         +---------+
//	         v         |
//	(run) pending -----+--> approved   approve: the last one required
//	         |              edited     the same, with edited arguments
//	         |              rejected   reject: at once
//	         |              responded  respond: at once
//	         |              expired    the SLA has elapsed
//	         +------------> cancelled  by the commit that ends the run
//
// Order: decisions are processed one after another, each on the current row; a
// terminal status never changes. A commit of an approval requires that the run still
// waits. A run that ended first has cancelled the approval in its own commit, and the
// approval notices that when its swap fails. Edited arguments are checked against the
// tool's schema outside of the mailbox (CheckArgs), and the edit is decided after that. The
// answer also says how the ledger shows them: without the credentials of the connections.
//
// Decisions are idempotent: an entry of the ledger keeps the operation, and a repeat gets the
// standing right after that entry.
//
// The webhook events of an escalation and of the end are in the same commit. The run reports
// that an approval was requested or cancelled.
//
// Limits: one entry of the ledger for each principal; feedback of up to 4,000
// characters; arguments as large as a model's call may be, and 8 MiB of edits for all approvals of
// a run.
//
// Loss: none. An approval owes nothing: the commit of a terminal decision sets a timer that
// wakes the run, and the message to the run after it only saves that second.
//
// An approval leaves memory after each message: approvals are few and decided seldom, and the
// run writes this row too, so each decision reads it.
package approval
