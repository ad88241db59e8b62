// Package feed holds the queries of event streams and of the sweep: the facts of one run in
// one consistent read, the positions of runs, open runs, due timers.
//
// It owns no table. The reads of streams run under a tenant. The reads of the sweep cross
// tenants: they are methods of Sweep and need a pool of the role System. The sweep changes
// only the claims of timers, and deletes rows by retention and erasure.
package feed
