// Package pgtest gives tests a real Postgres: New a migrated database of their
// own in a server that all tests of the machine's user share, Private a server
// of their own that they may stop and kill.
//
// The shared server belongs to no test process, since those of one `go test
// ./...` come and go. The first that needs it starts a daemon, which is the test
// binary again in a session of its own; the daemon owns the server. Every test
// process holds a shared lock for its life. The daemon stops the server, removes
// its files and ends when nobody has held that lock for ten seconds. Locks end
// with their process, so a killed run leaves nothing that counts, and when the
// daemon is killed its server dies with it.
//
// The server lies in memory where the machine has /dev/shm, and does not sync:
// what a power cut would do is tested with Private and Fsync.
package pgtest
