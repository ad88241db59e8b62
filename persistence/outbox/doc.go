// Package outbox claims webhook deliveries for sending and settles their results: the rows
// that commits have written (journal.Event), claimed before they are sent and settled
// afterwards (docs/adr/0026).
//
// An Outbox combines the requests of all endpoints of a process into one transaction at a
// time. A Turn that arrives during a flush is part of the next one; there is no timer. A
// flush is one round trip, in this order: the fence of this process, results, claims, and
// when each endpoint's next delivery is due. Turns are answered once the flush is durable.
//
// Owner of what: one goroutine owns the connection; Start begins it and Stop waits for it.
// The outbox owns the rows of webhook_deliveries while they are pending, together with the
// transactions that disable an endpoint or send a delivery again. No flush waits for a lock
// on such a row: a locked delivery is not claimed, and a result for it is written by a later
// flush.
//
// Order: the deliveries of an endpoint are claimed in the order in which they are due. Two
// Turns of one endpoint are never in the same flush.
//
// Limits: a flush takes at most 256 Turns. The bodies of a Turn's claims are at most 8 MiB
// together, or less if it asks for less, and those of a flush 64 MiB; the body that exceeds a
// limit is the last. A Turn that claims nothing because the flush was full is told to ask
// again 100 ms later.
//
// Loss: a result can be written twice, since it is guarded by its attempt (the number, and
// when it began). While the database is down a result waits, until its caller leaves. A claim
// is not answered if the outcome of its commit is unknown, or if its caller has left. In the
// first case the delivery is due again at the time that the claim set, with that attempt
// counted and its outcome unknown; in the second it is given back. A process that is killed
// between a claim and its result leaves the same state as the first.
package outbox
