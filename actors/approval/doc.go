// Package approval is one tool call that waits for a person: who has decided
// what on it so far, and what became of it (service.md, Approval status).
//
// I am the row approvals/<id>, opened by the run that waits for me; my address
// is approval/<tenant>/<approval id>. The edge asks me Decide, the sweep tells me
// that my timers expire and escalate are due. Where my run waits for me alone it
// commits the decision that ends me together with what it does by it, and I wait
// for that in the place of my own commit; else I commit alone and tell my run
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
// that out by the swap that misses. Where it is not known whether the run has
// committed the decision I do not: whoever asks again finds the row.
//
// A decision that comes twice is taken once: its entry keeps the operation, and the
// repeat is answered how the approval stood right after it.
//
// Webhook endpoints hear of my escalation and of my end by the same commit, whoever
// writes it; that I was requested, and cancelled, is my run's to report.
//
// Limits: one entry of the ledger for each principal; feedback of up to 4,000
// characters; the arguments are as large as a model's call may be.
//
// Loss: none. I owe nothing: what is to follow from a terminal decision is in the
// same commit, done by the run, or as a timer by which the run looks at its
// approvals, and what I tell it after that only makes it quick.
//
// I leave memory after each message: approvals are few and decided seldom, and
// so nobody is answered from a row that the run has written meanwhile.
package approval
