// Package pgtest gives tests a real Postgres. New makes a migrated database in a server that
// all tests of the machine's user share; Private starts a server of the test's own that it
// may stop and kill. Tenant, Agent, Published, Member, Expired and Dead write the first rows of
// a test.
//
// The shared server belongs to no test process, since the processes of one `go test ./...`
// come and go. The first that needs it starts a daemon, which is the test binary again in a
// session of its own; the daemon owns the server. Every test process holds a shared lock for
// its life. When that lock has been free for half a minute, the daemon stops the server,
// removes its files and ends. Locks end with their process, so a killed run leaves nothing
// behind, and when the daemon is killed its server dies with it.
//
// The server lies in memory if the machine has /dev/shm, and does not sync: tests of a power
// cut use Private with Fsync.
package pgtest
