// Package membership holds this process's lease in the database and the list of members: a
// row of the table members that the process renews. Losing it ends the process.
//
// The lease says how long others must wait before they may declare this process dead; a
// process is dead only when another one has marked it so in the row. A process whose lease
// has expired is suspended: it begins nothing that relies on being alone, and continues after
// a successful renewal. A process that was marked dead, or whose row is gone, is fenced:
// OnFenced is called once and the process ends, since the fence of its commits fails from
// then on.
//
// One-node rule: without a cluster address one process serves a database. Join waits for
// another member's lease to expire and then marks that member dead; if the lease is renewed
// meanwhile, its process is alive, and Join fails. A process with an address does the same if
// there is one without.
//
// The list: a member reads all rows four times a second, at slightly varying times, with one
// statement of a fraction of a millisecond: 200 a second from 50 members. A read returns the
// whole table or nothing, so the list is never partial. It polls instead of using LISTEN:
// polling needs no connection of its own, works through every pool, and also notices expired
// leases, for which the database sends no event. A process without an address reads the list
// at each beat.
//
// The clock: nodes use Postgres' clock (Now), which each beat and each read of the list
// measures. The members agree on it to within their fastest round trip, 0.2 ms with
// everything on one machine under load. The order in which a tenant's runs take turns relies
// on this being less than the time of the commit between two posts.
//
// Marking: a member is marked dead when its lease has expired by Postgres' clock, or when its row has not changed for as
// long as its lease is: that clock may have been set back. It is also
// marked when its port has refused a connection since its last renewal, and that renewal was
// more than half a lease ago, which means a missed beat. A row is marked only in the state in
// which it was read: one renewed meanwhile is left alone. A member marks no other within one
// lease after its own first renewal, at the start and after each outage (a beat that failed,
// or took longer than the interval), nor while its own last renewal is older than half a
// lease: after a pause of Postgres all leases have expired by its clock. The same holds when that
// clock was set by more than a sixth of a lease: a member marks no other within one lease after it
// has measured that. Marking waits for
// commits whose fence holds the row; if the member was stopped in the middle of one, the
// commit is cut off.
//
// Addresses: of two living members with one address the one that joined later calls OnTwin. A former process of the
// address does not count: its row is not renewed any more.
//
// Revocation: a counter in the database is incremented after a revocation is committed. The
// beat that sees a new value calls OnRevoked, which empties the caches, before the lease
// counts as extended, and the next beat, which follows at once, writes that into the row. The
// revoking node waits, for each member that did not answer it directly, until the row says so
// or that member's lease has expired (Announce, Forgotten).
//
// The package's goroutines send the beats and read the list, one statement at a time, watch
// the deadline, report changes, and mark members. At most four connections of the pool are
// used at once: for beats and reads, for a mark, for cutting off a commit that blocks it, and
// for one question of a caller; further callers wait in line. This package does not make
// writes safe: the fence on the row in every commit does.
package membership
