// Package run is one run of an agent: the loop of model and tools, one step
// after another, to an answer or a failure (service.md, Run status).
//
// I am the row runs/<id> and its rows in run_steps; my address is run/<tenant>/
// <run id>. A thread tells me Proceed when my turn has come, which my row
// may say since I was accepted; a run without a thread begins with StartOne, which
// is sent to me; anybody may tell me CancelRun; an approval that is decided tells
// me ApprovalsDecided. I tell my thread RunEnded.
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
// What I do is a function of what is committed: queued with my turn come, I owe
// the wish for a running place; with an open model's step I owe its call; with
// calls that run I owe those. A call is a step of its own, and what is sent is
// sealed in it before it is sent: the number of its tool.called is the receipt.
// Gated calls have none until people have decided: when the ungated calls of the
// turn have ended, one commit opens all approvals together and I wait. That
// commit is the checkpoint, and waiting I owe nothing and am not in memory. A
// decision that ends an approval sets a timer of mine in its commit and tells me after
// it; I am then read anew with my approvals, and go on once all are decided: the commit
// of run.resumed holds the receipts of the calls. The arguments must be those that were
// approved, to the byte.
//
// After a crash the open step has no owner. A model's is abandoned and asked
// again as a new one, in the commit that claims the run. A call is sent again
// under its key where that is safe; else its outcome is not known, and the model
// hears so.
//
// What webhook endpoints hear of me, my end and the opening and cancelling of my
// approvals, is in the commit that makes it true, for tenants that have an endpoint.
// What I cancel with my end has to be what I read: else the commit is lost, and I
// read and decide again. A child run reports its approvals and not its end.
//
// A handoff is the last call of its turn to be carried out; from then on the run
// goes by the other agent's manifest, its limits included.
//
// What comes twice is done once: a StartOne finds the run, a CancelRun how it has
// ended, and both are answered as the first time.
//
// Order: steps count from 0 without a gap, facts from 1; calls start in call
// order, run in parallel and are committed as they answer; the model hears them
// in call order, and behind them what people said instead. A gated call begins
// after the last approval of its turn is decided.
//
// Limits: those of the manifest; 128 calls a turn and 5 handoffs; a turn says at
// most 4 MiB; attachments are read up to 256 KiB a turn; state keeps running
// time, a bit or two and who speaks. Running time counts from commit to commit of
// the activations in status running, so what passes between a crash and the next
// activation is not counted, nor is waiting.
//
// Loss: live text of a step dies with its process. The tokens of a turn that was
// cut off are not known; of one that broke off they are estimated. A call that
// runs when its run ends may have taken effect; nobody waits for its answer.
//
// I leave memory when I have ended, when I wait for people, and after a short
// while when I am queued.
package run
