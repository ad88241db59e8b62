// Package cache is the only package that talks to Redis, which carries messages that may be
// lost.
//
// A Feed sends messages to the members of a cluster: each member has one Redis stream,
// `svc:feed:<member>`, which only it reads and the others append to. The messages queued for
// a member go as one entry, without a timer. Messages from one sender to one member keep
// their order and arrive at most once, unless Redis itself repeats. Any may be lost: when a
// queue is full, when Redis is slow, down, restarted or flushed, or when the reader falls
// behind the bound of its stream. Nothing is sent again and Send never blocks; a protocol
// that must detect loss numbers its messages. Keys expire once nothing writes to them, and
// entries, streams and queues are bounded.
//
// The URL of Redis may hold a password: no error and no log contains it.
package cache
