// Package feed holds the queries of event streams and of the sweep: the facts of one run in
// one consistent read, the positions of runs, open runs, due timers and deliveries, rows past
// their retention, what an erased person left, what svc doctor looks for, and the objects that
// changed for a console's feed.
//
// It owns no table. The reads of streams (Feed) run under a tenant. The rest crosses tenants:
// these are methods of Sweep, or take its pool, which needs the role System. The sweep changes
// only the claims of timers, and deletes rows by retention and erasure.
package feed
