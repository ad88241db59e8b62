// Package journal is what actors commit: the group-commit writer and its rows.
//
// Every decision of an actor becomes one Commit, a list of rows, and Do answers once it is
// durable. Tables are data (Table, docs/adr/0042): the writer makes the statements for one
// row and for many from them, and the queries that settle what became of a row. It names
// only the tables that every kind writes: idempotency keys, timers, usage, the audit log
// and webhook deliveries.
//
// A Writer has lanes that share the shards, and a side lane
// for tenants with few commits while those are crowded or rest; each is one connection
// and one goroutine. A lane takes what is queued and writes it in one transaction: the
// fence of the own process first, then one statement for the rows of each Write, in the
// order of the tables, then COMMIT. All rows of a Commit are written or none. After a slow flush of some but not many
// commits a lane rests for milliseconds, so that the next one has more (docs/adr/0025).
//
// Owner of what: the lane's goroutine owns its connection and the commits it has
// taken; Start begins and Stop waits for them. A *Commit belongs to the writer
// from Do on, also when Do came back with ErrUnsettled.
//
// Order: commits of one thread or run are written in the order of their calls;
// accepted work goes before new work, which always has a share of each flush. Two
// activations of one entity may meet in a flush: the second's commit goes to the
// next one, where it loses its compare-and-swap. The rows of a commit have no order of
// their own: a swap goes before what is inserted under its row, so that it is the swap that
// tells a stale owner, and not a key that the row's owner has used since.
//
// Limits: a flush takes at most 512 commits; new work needs a ticket (Admit),
// of which a tenant gets a fair share, and then waits for its turn, one tenant
// after another, while much is under way (docs/adr/0025); accepted work is bounded
// by the number of activations, since each waits for its own commit.
//
// Who loses (a swap, a used idempotency key) loses all its rows, the others of
// the flush are written: the flush is rolled back and done again without the
// losers. A commit that the database refuses is isolated by halving the flush,
// and looked at: only who has the row as it is is refused, who lost it has lost.
//
// A flush is one round trip (docs/adr/0022): the statements and the end of the
// transaction go out together, and it is the database that refuses the whole of it
// when a row that must take effect does not. There is no COPY: the database refuses it on
// tables with row-level security.
//
// Overload (docs/adr/0040): new work whose caller will have stopped waiting before it
// can be written is withdrawn before it is sent. What was sent is written, whoever
// leaves: a caller that leaves never voids a flush.
//
// Loss: while the database cannot serve, accepted work waits and new work is
// refused. When a connection is lost after the end of a transaction was sent, the
// lane ends the old backend and looks for the row that the flush inserted into the
// table flushes: it is there if and only if the flush was committed
// (docs/adr/0039). Then the lane answers or sends again: nothing is written twice
// and nothing answered is lost. Lazy rows (Touch) may be lost; nothing durable
// depends on them.
package journal
