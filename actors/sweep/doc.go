// Package sweep finds what nobody else would do: timers that are due, open runs
// whose activation went with its process, webhook deliveries that are due and of
// which nobody knows, rows that retention has passed. It is no actor and runs on
// every node, for the shards that the node owns.
//
// A due timer is claimed durably for ten seconds, under the node's lease, and its
// owner is told durable.TimerDue; the commit of what the timer causes deletes its
// row, else it is due again. What turns out to have moved meanwhile is given back.
// An open run that has no activation is woken; a queued run of a thread, and any
// of a deleted thread, through its thread.
//
// Shards that the node gains, at its start all, were another process's, and who
// was told there may have died with it: the claims on their timers are ended and
// their open runs looked at, at once and again a second later: a former owner that
// lives may have gone on until it heard of the move. Besides, every few seconds a
// pass goes over the open runs of all shards of the node; it makes good what got
// lost on the way between two actors.
//
// Every second, and at once where shards were gained, a pass goes over the webhook
// endpoints that have something pending, whosever they are: it costs by the endpoint
// and not by the delivery. Of those of the node's shards of which something is due,
// who has no activation is told durable.Wake, and also who has one and has let it
// become a second late: the word of a new event may have been lost, or there is more
// than the endpoint takes.
//
// Order: timers by due time; runs one tenant after another, so that thousands of
// one tenant do not hold up the few of another. Limits: one query at a time, pages
// of fixed size, a bounded number of pages and of wakes in a tick, so that a
// takeover comes in portions; a bounded number of runs that wait to be woken,
// beyond which a tenant with more than its part is looked at again when the
// others were served. Loss: none that the next tick or pass does not make good;
// telling twice is harmless, because who is told looks at its rows and the clock
// again.
//
// Timers, open runs and endpoints have a loop each, so that a statement of one that hangs
// delays no other.
//
// Retention: every kind of old rows has a loop of its own. A pass takes a batch, and goes
// on behind the last one, so that it costs what it takes; one that fails takes half as
// much a minute later. All kinds together use two connections of the node. Nodes take
// different rows; that all of them do it costs a few small queries a minute each. With it
// goes what a commit has put into the outbox while its endpoint was being disabled: it is
// ended.
//
// Every few seconds it looks at what deleted end users left behind: threads of its own
// shards are told to be deleted, and runs, threads and people of whom nothing is under
// way are erased, by whichever node comes first (docs/adr/0027). That is a loop of its
// own, behind which no timer waits. It looks at a bounded number of people at a time, in
// turn, and takes a bounded number of rows of theirs, fewer where that did not end in
// time; it rests after each look.
//
// Stored files that dead processes did not finish, or whose rows they did not commit, are
// removed by whichever node comes first; once soon after the start of a node, and then
// about once an hour, all files are compared with the rows that name them.
package sweep
