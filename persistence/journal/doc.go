// Package journal is what actors commit: the group-commit writer and its rows.
//
// Every decision of an actor becomes one Commit, a list of rows, and Do answers once it is
// durable. Tables are data (Table, docs/adr/0042): the writer makes the statements for one
// row and for many from them, and the queries that settle what became of a row. It names
// only the tables that every kind writes: idempotency keys, timers, usage, the audit log
// and webhook deliveries.
//
// A Writer has lanes that share the shards, and a side lane for tenants with few commits
// while the other lanes are full or rest. Each lane is one connection and one goroutine. A
// lane takes the queued commits and writes them in one transaction, a flush: the fence of
// its own process, then one statement for the rows of each Write, in the order of the tables,
// then COMMIT. All rows of a Commit are written or none. After a slow flush of several but
// not many commits a lane rests for milliseconds, so that the next flush has more commits
// (docs/adr/0025).
//
// Ownership: the lane's goroutine owns its connection and the commits it has taken. Start
// begins the goroutines and Stop waits for them. A *Commit belongs to the writer from the
// call of Do, also after Do has returned ErrUnsettled.
//
// Order: commits of one entity are written in the order of their calls. Accepted work goes
// before new work, and new work always has a share of each flush. If two activations of one
// entity commit at once, the second commit goes to the next flush, where its compare-and-swap
// misses. The rows of a commit have no order of their own. A swap goes before the rows that
// are inserted under its row, so that the swap detects a stale owner, and not a key that the
// row's present owner has used.
//
// Limits: a flush has at most 512 commits. New work needs a ticket (Admit), of which a tenant
// gets a fair share, and then waits while much new work is in flight; tenants enter in
// round-robin order (docs/adr/0025). Accepted work is bounded by the number of activations,
// since each waits for its own commit.
//
// Losers: a commit that misses its swap, or whose idempotency key was used, loses all its
// rows. The flush is rolled back and sent again without it, so the other commits are written.
// A commit that the database refuses is isolated by halving the flush. Then its rows are
// read: it is refused only if its entity has not changed; otherwise it is a conflict.
//
// A flush is one round trip (docs/adr/0022): the statements and the end of the transaction go
// out together, and the database refuses the whole transaction if a row does not take effect
// that must. COPY is not used: the database refuses it on tables with row-level security.
//
// Forgotten (docs/adr/0026): a decision makes no event if the node remembers that its tenant
// has no endpoint. When it forgets that (Outdate), each commit that was decided before and is
// not in a flush yet is answered ErrOutdated, to be decided again, and Outdate returns when
// the flushes have ended. A commit costs a comparison of two numbers for it.
//
// Overload (docs/adr/0040): new work whose caller will have stopped waiting before it can be
// written is withdrawn before it is sent. Work that was sent is written, even if its caller
// leaves: a caller that leaves never voids a flush.
//
// Loss: while the database is unavailable, accepted work waits and new work is refused. When
// a connection is lost after the end of a transaction was sent, the lane ends the old backend
// and reads the row that the flush inserted into the table flushes: the row exists if and
// only if the flush was committed (docs/adr/0039). Then the lane answers the commits or sends
// them again: nothing is written twice and nothing answered is lost. Lazy rows (Touch) may be
// lost; nothing durable depends on them.
package journal
