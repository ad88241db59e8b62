// Package cache is the one door to Redis, which carries what may be lost.
//
// A Feed brings messages to the members of a cluster: each member has one Redis
// stream, `svc:feed:<member>`, which it alone reads and which the others append
// to. What is queued for a member goes as one entry, without a timer. Messages
// of one sender to one member keep their order; they come at most once, unless
// Redis itself repeats; any may be lost: when a queue is full, when Redis is
// slow, away, restarted or emptied, or when the reader falls behind the bound of
// its stream. Nothing is sent again and nobody is ever blocked: who must not miss
// anything numbers what it sends. Keys expire when nobody writes any more, and
// entries, streams and queues are bounded.
//
// The URL of Redis may hold a password: it appears in no error and no log.
package cache
