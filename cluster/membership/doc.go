// Package membership is this process's lease in the database, and the list of
// those who hold one: a row of members that the process renews, and whose loss
// ends it.
//
// The lease says how long others must wait before they may declare this process
// dead; dead is only who somebody marked so in the row. A process whose lease
// ran out is suspended: it begins nothing that relies on being alone, and goes
// on when a renewal succeeds. A process that was marked dead, or whose row is
// gone, is fenced: OnFenced is called once and the process ends, since the
// fence of its commits fails from then on.
//
// One-node rule: without a cluster address one process serves a database. Join
// waits for another member's lease to lapse and then marks that member dead; a
// lease that is renewed meanwhile belongs to a living process, and Join fails. A
// process with an address does the same beside one without.
//
// The list: a member looks at all rows four times a second, each time a little
// earlier or later, one statement of a fraction of a millisecond: 200 a second
// from 50 members. A look sees the whole table or nothing, so the list is never
// partial. We look and do not LISTEN: it needs no connection of its own, works
// through every pool, and what it also has to see, a lease that has run out, is
// no event in the database. A process without an address looks at each beat.
//
// The clock: nodes tell the time by Postgres' clock (Now), which each beat and each look
// reads. The members agree on it to the quickest of their readings, 0.2 ms where all is
// on one machine under load. The order in which a tenant's runs take turns relies on
// that being less than the commit between two posts.
//
// Marking: a member is marked dead when its lease has run out by Postgres'
// clock, or when its port refused a connection since its last renewal and that
// was more than half a lease ago, which is a beat missed. A row is marked only as
// it was seen: one renewed meanwhile is left alone. A member marks nobody within
// one lease after its own first renewal, at the start and after each outage (a
// beat that failed, or took longer than the time between two), nor while its own
// last renewal is older than half a lease: when Postgres stood still, everybody's
// lease has run out by its clock. Marking waits for commits whose fence holds the
// row; of a member that was stopped in the midst of one, the commit is cut off.
//
// Revocation: a counter in the database moves after a revocation is committed.
// The beat that sees it move has OnRevoked empty the caches before the lease
// counts as extended, and the next one, which follows at once, writes so in the
// row. Whoever revokes waits, for each member that did not answer it directly,
// until the row says so or that lease has run out (Announce, Forgotten).
//
// The package owns the beat and the look, one statement at a time, who watches the
// deadline, who tells the changes, and who marks. At most four connections of the
// pool are used at once: for these two, a mark, the cut of what holds it up, and
// one question of a caller; further callers wait in line. Nothing here makes
// writes safe: that is the fence on the row inside every commit.
package membership
