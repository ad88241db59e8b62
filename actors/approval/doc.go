// Package approval is one tool call that waits for a person: who has decided
// what on it so far, and what became of it (service.md, Approval status).
//
// I am the row approvals/<id>, opened by the run that waits for me; my address
// is approval/<tenant>/<approval id>. The edge asks me Decide, the sweep tells me
// that my timers expire and escalate are due. When I have ended I tell my run
// ApprovalsDecided.
//
//	          approve, edit: fewer than required; escalate: once
//	         +---------+
//	         v         |
//	(run) pending -----+--> approved   approve: the last one required
//	         |              edited     the same, and somebody edited
//	         |              rejected   reject: at once
//	         |              responded  respond: at once
//	         |              expired    the SLA has elapsed
//	         +------------> cancelled  by the commit that ends the run
//
// Order: decisions are taken one after another, each on the row as it stands; a
// terminal status never changes. A commit of mine counts only while the run
// waits: a run that ended first has cancelled me in its own commit, and I find
// that out by the swap that misses. Edited arguments are checked against the tool's
// schema outside of my mailbox (CheckArgs), and the edit is decided after that.
//
// A decision that comes twice is taken once: its entry keeps the operation, and the
// repeat is answered how the approval stood right after it.
//
// Webhook endpoints hear of my escalation and of my end by the same commit; that I was requested, and cancelled, is my run's to report.
//
// Limits: one entry of the ledger for each principal; feedback of up to 4,000
// characters; the arguments are as large as a model's call may be.
//
// Loss: none. I owe nothing: the commit of a terminal decision sets a timer by which
// the run looks at its approvals, and what I tell it after that only makes it quick.
//
// I leave memory after each message: approvals are few and decided seldom, and
// so nobody is answered from a row that the run has written meanwhile.
package approval
