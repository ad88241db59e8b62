// Package sweep finds work that nobody else would find: timers that are due, entities of every
// durable kind that have something to do and no activation, rows that retention has
// passed. It names no kind: what it looks for is in the kinds' descriptions. It is no actor
// and runs on every node, for the shards that the node owns.
//
// A due timer is claimed durably for ten seconds, under the node's lease, and its
// owner is told durable.TimerDue; the commit of what the timer causes deletes its
// row, else it is due again. What turns out to have moved meanwhile is given back.
//
// The Work of a kind (durable.Traits) finds its entities that have something to do: one
// query for a page of them, in the order of their shards. Those without an activation are
// woken, and also those that have one and let their work become a second late. A kind may
// have another entity woken in their place, as a queued run is through its thread.
//
// Shards that the node gains, at its start all, were another process's, and what was told
// there may have died with it: the claims on their timers are ended and the work in them
// looked for, at once and again a second later: a former owner that lives may have gone
// on until it heard of the move. Besides, every few seconds a pass goes over all shards of
// the node; it makes good what got lost on the way between two actors.
//
// Order: timers by due time; the work of a kind one tenant after another, so that thousands
// of one tenant do not hold up the few of another. Limits: one query at a time, pages
// of fixed size, a bounded number of pages and of wakes in a tick, so that a
// takeover comes in portions; a bounded number of entities that wait to be
// woken, beyond which a tenant with more than its part is looked at again when the others
// were served. Loss: none that the next tick or pass does not make good;
// telling twice is harmless, because an actor looks at its rows and the clock again.
//
// Timers and the work of each kind have a loop each, so that a statement of one that hangs
// delays no other.
//
// Retention: each set of rows that goes when it is old, of a kind (Traits.Keep) or of a
// table without a kind, has a loop of its own. A pass takes a batch, and goes on behind the last one, so that it costs what it takes; one that fails takes half as
// much a minute later. All of them together use two connections of the node. Nodes take
// different rows; that all of them do it costs a few small queries a minute each.
//
// Every few seconds it looks at what deleted end users left behind, by what each kind says
// of it (Traits.Erase): entities of the node's own shards are ended by their actors, and
// what has ended is erased, by whichever node comes first (docs/adr/0027). That is a loop
// of its own, behind which no timer waits. It looks at a bounded number of people at a
// time, in turn, and takes a bounded number of rows of theirs, fewer where that did not
// end in time; it rests after each look.
//
// Stored files that dead processes did not finish, or whose rows they did not commit, are
// removed by whichever node comes first; once soon after the start of a node, and then
// about once an hour, all files are compared with the rows that name them.
package sweep
