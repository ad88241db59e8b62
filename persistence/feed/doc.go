// Package feed reads what event streams and sweeps need of what others wrote:
// the facts of one run in one consistent look, where runs stand, which runs are
// open, which timers are due.
//
// It owns no table. Stream reads work under a tenant; the sweep's reads cross
// tenants, need a pool of the system role and live in Sweep alone. What a sweep
// changes is the claim of a timer and rows that retention has passed.
package feed
