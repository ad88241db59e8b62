// Package workflow is one run of a workflow: its nodes, one after another and side by side, to
// an output or a failure (open-parts.md, Workflows). schemas/flow decides what follows;
// this package carries it out.
//
// A run is the row runs/<id> with its row in workflow_runs, its steps in run_steps and its
// events in workflow_events; its address is workflow/<tenant>/<run id>. Messages that are sent
// to run/<tenant>/<run id> come here too (decision 51).
//
//	StartWorkflow                              ┌──── something outside ────┐
//	     │        SlotGranted     Walked       v                          │
//	     └──► queued ───────► (walk) ───► running ── a node ended ──► (walk)
//	             │                         │   │                       │
//	             │ CancelRun               │   └── all ended ──► succeeded
//	             v                         │
//	         cancelled ◄───────────────────┴── a node failed ──► failed
//
// Something outside is a timer (delay, the timeout of wait_event), an event, or the end of a
// child run. It ends a node: the end is queued in memory, and the effect Walk takes the queue
// through the graph beside the mailbox, one walk at a time. What follows without I/O is part
// of the walk, so one commit holds the ends and everything that they lead to. A call that is
// all that the run does walks its own answer: its result brings the walk along.
//
// Each started node is one step; a skipped one has none. The sealed value of an open step is
// what the node works with, that of an ended one what it left. From these and from progress,
// one letter per node and edge and the size, an activation restores the walk.
//
// What a run owes is a function of its committed state: a slot while it is queued, the version
// of an agent whose child run has not begun, the plan, the preview and the answer of a call, and
// the cancel of children that outlive the run.
// The row says whether it owes anything, which is how the sweep finds it. A run that waits
// for time, events or children owes nothing and is not in memory.
//
// A child run is inserted, queued, by the commit that follows the look-up of its agent's
// version. Its id is derived from the run and the step. The commit that ends or pauses the
// child sets a timer of this run; the child tells ChildChanged after it. Then the child's row
// is read.
//
// A node that fails fails the run: in one commit all open steps end, those whose end is queued with
// what came back, timers are deleted, and the children that are open are noted. Each of them is asked to cancel until it has ended,
// also after a crash.
//
// StartWorkflow, InjectEvent and CancelRun are idempotent: a repeat gets the first answer.
//
// Order: steps count from 0 without a gap in the order in which nodes start, facts from 1.
// Events wake waiting nodes of their name, the oldest first, each event one node.
//
// Limits: those of package flow; 1,000 events, of which 8 MiB may wait. A node walks at most as
// many runs at a time as it has CPUs, and at most half as many that are not quick; tenants take turns.
//
// Loss: none. A queued end that is lost with its activation comes again from its row.
package workflow
