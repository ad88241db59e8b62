// Package skillrun is one run of a browser skill: a form is filled, a person decides on what it
// looks like, and one click commits it (service.md, Browser skill approval modes and Browser skill
// run outcomes).
//
// A run is the row browser_skill_runs/<id>, minted in the shard of the run that calls it, an agent's or
// a workflow's; its address is skillrun/<tenant>/<id>. It begins with StartSkill, from a tool call of
// such a run or from a dry run of a person. The phases and their events are the table of
// schemas/skill:
//
//	preparing ── landed ──► waiting ── CommitSkill ──► repreparing ── ready ──► committing ──► committed
//	    │                      │ (without a commit step: reading)                   │              │
//	    └── failed             └── refused, cancelled: rejected            unknown_outcome    compensating
//
// The browser is an effect. A page is open only while an effect runs: a run that waits for a
// person holds a row, and is not in memory.
//
// The receipt: the commit of phase committing is durable before the click. It follows from the
// result of Reprepare, which leaves its page open for Commit of the same activation. So a page
// that was made ready before a crash is gone with its process, and nothing clicks twice: an
// activation that finds the row in committing or committed ends it with unknown_outcome.
//
// The approval is opened by the agent's run, together with those of the other gated calls of its
// turn, or by the workflow's run (decision 58). When all are decided, the call of the tool sends
// CommitSkill, and the run reads the approval itself: status and digest must be those of the
// arguments. A refused approval and the end of the calling run set the timer look in their own
// commit, and the run reads what happened. The receipt locks the row of the calling run, and misses
// once that has ended. The check of skill and grants is made before a form is
// filled and again before the receipt: the grants of the agent, or of the workflow whose run the row
// of the calling run names.
//
// One key: a run holds its idempotency key while it is open, and for good once the receipt is
// written. A unique index refuses a second one. Values that the approver edited have a key of their own, which
// the run takes with the decision; if another run has that, this one ends.
//
// Order: messages are decided one after another. Commit runs click, later steps and checks in one
// effect, so that a node that leaves finishes them.
//
// Limits: four browser sessions at a time on a node, two of one tenant, in turn, and first what
// people decided on. How many runs wait is bounded; a further one ends as where there is no browser. The
// executor bounds the time of each part.
//
// Loss: none before the receipt. After it, the outcome of a run whose process died.
package skillrun
