// Package outbox is how webhook deliveries leave the database and how what became
// of them comes back: the rows that commits have put there (journal.Event), claimed
// before they are sent and settled afterwards (docs/adr/0026).
//
// An Outbox makes one transaction of what all endpoints of a process ask for at a
// time. A Turn that comes while a flush is under way is part of the next one; there
// is no timer. A flush is one round trip, in this order: the fence of the own
// process, results, claims, and when each endpoint's next delivery is due. Turns are
// answered when it is durable.
//
// Owner of what: one goroutine owns the connection; Start begins it and Stop waits
// for it. It owns the rows of webhook_deliveries while they are pending, together
// with who disables an endpoint or sends a delivery again. No flush waits for a lock
// on such a row: what somebody else holds is not claimed, and a result for it is
// written by a later flush.
//
// Order: the deliveries of an endpoint are claimed in the order in which they are
// due. Two Turns of one endpoint are never in the same flush.
//
// Limits: a flush takes at most 256 Turns. The bodies of a Turn's claims are at most
// 8 MiB together, or fewer where it asks for that, and those of a flush 64 MiB, or one
// for each Turn where a single one is larger.
//
// Loss: a result can be written twice, since it is guarded by the attempt it is of
// (its number, and when it was begun);
// while the database is gone it waits, until its caller leaves. A claim whose commit
// is in doubt, or whose caller has left before the answer, is not answered. In the
// first case its delivery is due again at the time that the claim has set, with that
// attempt counted and its outcome not known; in the second it is given back. A
// process that is killed between a claim and its result leaves the same as the first.
package outbox
