// Package run is one run of an agent: the loop of model and tools, one step
// after another, to an answer or a failure (service.md, Run status).
//
// A run is the row runs/<id> with its rows in run_steps; its address is
// run/<tenant>/<run id>. Its thread tells it Proceed when no earlier run of the thread is
// open; the row of a run that was accepted first in its thread says so from the start. A run
// without a thread begins with StartOne. Any actor may send it CancelRun. An approval
// that is decided tells it ApprovalsDecided. It tells its thread RunEnded.
//
//	StartOne ─┐                          ┌──────── next step ────────┐
//	          v    Proceed, SlotGranted  v                           │
//	  ──► queued ───────────────────► running ── ModelAnswered ──────┤
//	          │                        ^ │ │ │   (calls, or broken)  │
//	          │ CancelRun              │ │ │ ├── ToolAnswered ───────┘
//	          │                        │ │ │ │   (the last of a turn)
//	          │  all decided           │ │ │ └── text ──► succeeded
//	          │                        │ │ └──── ModelFailed, limits, refused
//	          │                        │ v       rows, OUTPUT_INVALID ──► failed
//	          │                 waiting_approval ── frozen arguments changed ──► failed
//	          v                        │
//	      cancelled ◄── CancelRun ─────┴─ from anywhere; an approval expired
//	                                      that ends the run
//
// What a run owes is a function of its committed state: a slot while it is queued and
// ready, the answer of the model while a model step is open, the answers of the calls that
// run. Each call is a step. The call is sealed in its step before it is sent, and the
// number of its tool.called is the receipt. A gated call has no receipt until people
// have decided: when the ungated calls of the turn have ended, one commit opens all
// approvals of the turn, and the run waits. That commit is the checkpoint. A waiting run
// owes nothing and is not in memory. The commit that decides an approval sets a timer of the
// run, and the approval tells the run after that commit. The run is then read again with its
// approvals, and resumes once all are decided: the commit of run.resumed holds the
// receipts of the calls. The arguments must equal the approved ones, byte by byte.
//
// After a crash an open step has no owner. A model step is abandoned, and the model is asked
// again in a new step, in the commit that claims the run. A call is sent again under its key
// if it is idempotent; else its outcome is unknown, and the model is told so. It is also told so
// of a call that can be sent again and is then refused before it is sent: the first attempt may
// have taken effect.
//
// Webhook events of the run (its end, the opening and the cancelling of its approvals) are
// in the commit that they report, if the tenant has an endpoint. A commit that ends the run
// cancels its approvals in the versions that the run read: if one has changed, the
// commit fails, and the run reads and decides again. A child run reports its approvals but
// not its end.
//
// A run with evidence first owes a search of the agent's knowledge bases, in a step of kind
// retrieval; evidence.go has a drawing. A call of kb.search is a call whose step has that kind.
//
// A handoff is the last call of its turn. From then on the other agent's manifest holds,
// its limits included.
//
// StartOne and CancelRun are idempotent: a repeat gets the first answer.
//
// Order: steps count from 0 without a gap, facts from 1. Calls start in call order, run in
// parallel, and are committed as they answer. The model gets their results in call
// order, and after them what people said instead. No gated call begins before the last
// approval of its turn is decided.
//
// Limits: those of the manifest; 128 calls per turn and 5 handoffs; 4 MiB of output per
// turn; 8 MiB of history, of which a run keeps at most 256 KiB in memory between its effects;
// 256 KiB of attachments, 64 KiB of lines that name them, and 4 MiB of messages per request. Large requests wait for a part of
// the node (history.go), and long turns too (transport/model). The state column holds the running time, four flags
// and the speaker. Running time counts from commit to commit of the activations in
// status running. The time between a crash and the next activation does not count,
// nor does waiting.
//
// Loss: live text of a step is lost with its process. The tokens of a turn that was
// cut off are not known; those of a turn that failed midway are estimated. A call that runs
// when its run ends may have taken effect; its answer is dropped.
//
// A run leaves memory when it has ended, when it waits for people, and when it has been queued
// behind another run of its thread for a few seconds. A run that waits for a slot stays in
// memory with its input, also after a restart, when the sweep has found it.
package run
