// Package limit says how often and how many at a time (service.md, Limits), over
// all nodes of the cluster.
//
// Three kinds of actor live here, in memory only. A bucket (kind limit) is the
// token bucket of one tenant, of one user, of one client IP, IPv6 by /64, or of one of
// the embed API's keys and visitors. Slots (kind
// slots) hand out a tenant's running places. A count (kind holds) is who holds
// something of which only so many may be held.
//
//	Ledger ──Lease──► bucket ──Recall──► the other nodes' Ledgers
//	       ◄─Leased──        ◄─GiveBack─
//	Queue  ──AcquireSlot, ReleaseSlot, Wishes──► slots ──SlotGranted──► run
//	Holds  ──Hold, Release──► count ──Holders──► the other nodes' Holds
//
// Buckets. The edge of each node asks its Ledger, which has tokens leased and so
// needs no message for most requests. A node's first use leases one token for
// each waiting request; later it leases beside those at most what it spent in the
// last 100 ms, and gives back what it does not use within 200 ms, and all it has
// after a second. The owner counts what is leased as still in the bucket until
// its node has said that it is spent, and how long ago, so that over any time at
// most capacity + refill × time is admitted. Before it refuses it recalls what
// other nodes have leased and waits at most 50 ms for them: no request is refused
// while tokens are idle on a node that answers. Who cannot ask the owner within 3.5 s is
// not refused either: it is UNAVAILABLE. Every Lease has a number and repeats what
// was given back, so that messages may come twice, late or never.
//
// The embed API's buckets are refilled by the minute, each at its own rate (Bucket).
// The rate is the key's, which a PATCH changes at any time: it travels with the Lease,
// and the owner goes by the last one that it was asked with. Such a bucket is a minute
// of credit, and a rate says what a token costs of it. So it keeps how full it is when
// its rate changes, never holds more than its rate says, and never admits more than a
// bucket that has had the highest of its rates all the time, also while nodes hear of
// a change one after another. What a node holds by the former rate goes back before it
// asks by the new one. A node leases ahead of such a bucket at most what comes back in
// a second: nothing beside those who wait below 60 a minute, where no token is ever
// idle and no recall is needed.
//
// Who owns a bucket follows from the member list, which nodes learn of one after
// another; who has it does not. Its Keeper has it: a Keeper that is asked for a
// bucket whose shard it does not have fetches the shard from all who live, and a
// Keeper that stops brings its buckets to their owners. So a planned move admits
// nothing beyond the capacity and refuses nothing below it. Where a node that lives
// does not answer for a second, buckets begin empty: it may have admitted all.
//
// Slots. A tenant's oldest run is served first. A run that waits for an approval
// holds no place; one that goes on after it is counted at once, so that for a while
// more runs than the limit may run, and waits for nobody. A node's Queue tells
// what its runs wish and repeats it until it is known to have been heard, at once
// when members change. Slots read from Postgres who runs; those that may have
// lived on another node lately do so twice, half a second apart, before they grant.
//
// Time in a bucket is this machine's monotonic clock, never a time of day, and nodes send
// each other durations only: a clock that steps, the machine's or Postgres', neither
// stops a bucket nor fills it.
//
// Holds. The holders are the truth. Nobody is refused before the nodes of those who
// hold were asked, within 50 ms, whether they still do. Who begins to count a shard
// first stops whoever counts it and then asks every node who holds there.
//
// There may be a bucket and a count for each visitor who reads. So what they know is
// some words with their node's Keeper and Holds, and those of a shard share one
// mailbox.
//
// Order: a bucket and a count serve in the order of their mailbox. Loss: a bucket
// whose owner dies starts full, which admits one extra capacity. What is leased
// to or held on a member that is no member any more is free at once. Slots whose
// owner dies may grant a place again that was granted in its last half second.
// Limits: a Ledger keeps MaxStrangers client IPs of each scope; when these are all in
// use, IPs beyond them share a fixed number of buckets by hash, so that strangers can
// fill no memory and can slow down each other only. Of keys and visitors it keeps those
// that asked in the last minute, and of visitors, whose tokens it does not lease ahead,
// those of the last second. Both were made by the service: a visitor asks with a
// session, and a client gets 30 of these a minute, a key ten times its rate, so that at
// most so many visitors of a key as may begin within a session's life are known. A
// bucket leaves memory within a second after it is full again, slots ten seconds
// after nobody holds or wants one, a count when nobody holds.
package limit
