// Package sweep finds what nobody else would do: timers that are due, open runs
// whose activation went with its process, rows that retention has passed. It is
// no actor and runs on every node.
//
// A due timer is claimed durably for ten seconds, by one node of all, and its
// owner is told durable.TimerDue; the commit of what the timer causes deletes its
// row, else it is due again. An open run of a shard of this node that has no
// activation is woken; a queued run of a thread, and any of a deleted thread,
// through its thread. At the start all claims are ended, because who was told
// may have died with its process, and the first pass over the open runs goes to
// the end: after a restart everything continues at once. Later passes go on page
// by page, a bounded number of pages each tick.
//
// Order: timers by due time, runs by id. Limits: one query at a time, batches of
// fixed size. Loss: none that the next tick does not make good; telling twice is
// harmless, because who is told looks at its rows and the clock again.
package sweep
