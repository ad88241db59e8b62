// Package sweep finds work that no message announces: due timers, entities of every durable
// kind with open work and no activation, and rows whose retention has ended. It names no
// kind: it iterates over the descriptions of the kinds (durable.Traits). It is no actor. It
// runs on every node, for the shards that the node owns.
//
// Timers: the sweep claims a due timer durably for ten seconds, under the node's lease, and
// tells the owner durable.TimerDue. The commit of the timer's effect deletes its row;
// otherwise the timer is due again when the claim ends. If the shard of a claimed timer has
// moved, the sweep ends the claim.
//
// Work: the Work of a kind finds its entities with open work, one page at a time, in the
// order of their shards. The sweep wakes those without an activation, and also those with
// one whose work is a second late. A kind may name another entity to wake instead: a queued
// run is woken through its thread.
//
// Gained shards: what the former owner of a shard was told may have been lost with its
// process. When the node gains shards (at its start: all of its shards), the sweep ends the
// claims on their timers and searches them for work, at once and again a second later,
// because a live former owner may continue until it learns of the move. Every few seconds a
// pass over all shards of the node finds the rest, such as lost messages between actors.
//
// Order: timers by due time, but once a tick has told 100 timers of a tenant, those of the
// other tenants go first; the work of a kind in rotation between tenants. So the backlog of one
// tenant does not delay another. Limits: one query at a time in each loop,
// pages of fixed size, a bounded number of pages and of wakes in each tick, and a bounded
// queue of entities to wake. When the queue is full, a tenant with more than its share of it
// is searched again later. Loss: the next tick or pass repeats what was lost. Telling an
// actor twice is harmless, because it checks its row and the clock again.
//
// Timers and the work of each kind have a loop each, so that a statement that hangs delays
// no other loop.
//
// Retention: each set of rows that a kind (Traits.Keep) or a table without a kind deletes at
// a certain age has a loop of its own. A pass deletes one batch and remembers its position,
// so that its cost depends on the rows deleted. After a failure the next batch is half as
// large. All of these loops together use two connections of the node. All nodes run them:
// they delete different rows, and an idle pass costs a few small queries a minute.
//
// Erasure (docs/adr/0027): every few seconds the sweep erases rows of deleted end users, as
// each kind describes it (Traits.Erase): the actors of the node's shards end their entities,
// and then any node deletes the rows of entities that have ended. A pass reads a bounded
// number of people and deletes a bounded number of rows, fewer after a time-out, and then
// rests. The erasure has a loop of its own, so that no timer waits for it.
//
// Files: the first node that finds them removes stored files that a dead process left
// unfinished or whose rows it did not commit. Soon after the start of a node, and then about
// once an hour, all files are compared with the rows that name them.
package sweep
