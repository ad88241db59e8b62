// Package limit says how often and how many at a time (service.md, Limits).
//
// Two kinds of actor live here, in memory only. A bucket (kind limit) is the
// token bucket of one tenant, or of one client IP, IPv6 by /64. Slots (kind
// slots) hands out a tenant's running places.
//
//	Ledger ──Lease──► bucket ──Recall──► the other nodes' Ledgers
//	       ◄─Leased──        ◄─GiveBack─
//
// The edge of each node asks its Ledger, which has tokens leased and so needs no
// message for most requests. A node's first use leases one token for each
// waiting request; later it leases beside those at most what it spent in the
// last 100 ms, and gives back what it does not use within 200 ms. The owner
// counts what is leased as still in the bucket when it fills it, so that over
// any time at most capacity + refill × time is admitted. Before it refuses it
// recalls what other nodes have leased and waits at most 50 ms for them: no
// request is refused while tokens are idle on a node that answers.
//
// Order: a bucket serves in the order of its mailbox; slots serve the oldest run
// first. A run that waits for an approval holds no place; one that goes on after
// it is counted at once, so that for a while more runs than the limit may run,
// and waits for nobody. Loss: a bucket whose owner dies starts full, which admits one extra
// capacity; tokens leased to a node that dies are gone until the bucket is made
// anew. Slots are read back from Postgres: running runs hold theirs, queued ones
// ask again. Limits: a Ledger keeps MaxStrangers client IPs; when these are all
// in use, IPs beyond them share a fixed number of buckets by hash, so that
// strangers can fill no memory and can slow down each other only. A bucket
// leaves memory when it is full again, slots when nobody holds or wants one.
package limit
