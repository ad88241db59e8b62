// Package bucket limits rates (service.md, Limits) with token buckets that hold over
// all nodes of the cluster.
//
// There is a bucket for each tenant, user and client IP (IPv6 by /64), and for the
// embed API's keys, visitors and clients. A bucket lives in the memory of the node that
// owns its shard. The buckets of a shard share one mailbox; their state is in the
// node's Keeper.
//
//	edge ──Take──► Ledger ──Lease──► bucket ──Recall──► the other nodes' Ledgers
//	                      ◄─Leased──        ◄─GiveBack─
//
// Leases. The edge of each node asks its Ledger, which leases tokens in advance, so
// that most requests need no message. The first use on a node leases one token for each
// waiting request. Later it also leases up to the number of tokens that it spent in the
// last 100 ms. It gives back unused tokens within 200 ms, and all tokens after one
// second. The owner counts a leased token as still in the bucket until the node reports
// when it was spent, so over any time at most capacity + refill × time is admitted.
// Before the owner refuses a request it recalls what other nodes have leased and waits
// at most 50 ms for them: no request is refused while tokens are idle on a node that
// answers. A request whose owner cannot be asked within 3.5 s is not refused either; it
// is answered UNAVAILABLE. Each Lease has a number and repeats what was given back, so
// messages may arrive twice, late or never.
//
// The embed API's buckets (Spec) are refilled by the minute, each at its own rate. A
// PATCH of the key may change the rate at any time, so the rate travels with the Lease,
// and the owner uses the rate of the last Lease. Such a bucket stores a minute of credit,
// and the rate is the price of a token. A changed rate therefore keeps the bucket
// as full as it was, and the bucket never admits more than one that has had the highest
// of its rates all the time, also while the nodes learn of a change one after another.
// A node gives back what it leased at the former rate before it asks at the new
// one. It leases in advance at most what comes back in a second, which is nothing below
// 60 a minute: there no token is ever idle, and no recall is needed.
//
// Moves. The owner of a bucket follows from the member list, which the nodes learn one
// after another. The bucket itself is handed over: a Keeper that is asked for a bucket
// whose shard it does not have fetches the shard from all living members, and a Keeper
// that stops pushes its buckets to their owners. So a planned move neither admits more
// than the capacity nor refuses less. If a living member does not answer for a second,
// the buckets begin empty, because that member may have admitted everything.
//
// Clocks. A bucket uses this machine's monotonic clock, never a time of day, and nodes
// send each other durations only. A clock that steps neither stops nor fills a bucket.
//
// Order: a bucket serves its messages in the order of the mailbox. Loss: a bucket whose
// owner dies begins full, which admits one extra capacity. Tokens leased to a member
// that has left are free at once. Limits: a Ledger has MaxStrangers accounts of client IPs
// in each scope. If all are in use, further IPs share a fixed number of buckets by hash,
// so strangers cannot fill the memory and can slow down only each other. Accounts of
// keys are kept for a minute after their last use, and those of visitors, whose tokens are not
// leased in advance, for a second. The service itself made these ids: a visitor needs a
// session, a client gets 30 sessions a minute, and a key ten times its rate. A bucket
// leaves memory within a second after it is full again.
package bucket
