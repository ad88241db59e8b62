// Package run is one run of an agent: the loop of model and tools, one step
// after another, to an answer or a failure (service.md, Run status).
//
// I am the row runs/<id> and its rows in run_steps; my address is run/<tenant>/
// <run id>. A thread tells me Proceed when my turn has come; a run without a
// thread begins with StartOne, which is sent to me; anybody may tell me
// CancelRun. I tell my thread RunEnded.
//
//	StartOne ─┐                          ┌──────── next step ────────┐
//	          v    Proceed, SlotGranted  v                           │
//	  ──► queued ───────────────────► running ── ModelAnswered ──────┤
//	          │                          │  │    (calls, or broken)  │
//	          │ CancelRun                │  └── text ──► succeeded   │
//	          v                          ├── ModelFailed, limits, ──► failed
//	      cancelled ◄──── CancelRun ─────┘   refused rows, OUTPUT_INVALID
//
// What I do is a function of what is committed: queued with my turn come, I owe
// the wish for a running place; with an open model's step I owe its call. A turn
// with tool calls ends its step, answers the calls and begins the next step in
// one commit. After a crash the open step has no owner: it is abandoned and
// asked again as a new one, in the commit that claims the run.
//
// Order: steps count from 0 without a gap, facts from 1; calls are answered in
// call order. A run has one step at work at a time.
//
// Limits: those of the manifest; a turn says at most 4 MiB; attachments are read
// up to 256 KiB a turn; state keeps running time and a bit or two. Running time
// counts from commit to commit of the activations, so what passes between a
// crash and the next activation is not counted.
//
// Loss: live text of a step dies with its process. The tokens of a turn that was
// cut off are not known; of one that broke off they are estimated.
//
// I leave memory when I have ended, and after a short while when I am queued.
package run
