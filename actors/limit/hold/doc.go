// Package hold limits how many holders something has at a time (service.md, Limits):
// semaphores that hold over all nodes of the cluster. The live streams of a visitor and
// of a tenant are counted this way.
//
// A semaphore is counted in the memory of the node that owns its shard. The semaphores
// of a shard share one mailbox; their state is in the node's Semaphores.
//
//	Semaphores ──Hold, Release──► semaphore ──Holders──► the other nodes' Semaphores
//
// The holders are the truth, and a semaphore follows from them. No holder is refused
// before the nodes of the present holders were asked, for at most 50 ms, whether they
// still hold. So a lost Release refuses no one.
//
// Moves. A node that begins to count a shard first stops every member that counts it,
// and then asks every member for its holders in the shard (Claim). It waits a second for
// each of these answers.
//
// Order: a semaphore serves its messages in the order of the mailbox. Loss: what is held
// on a member that has left is free at once. A new owner does not know the holders on a
// living member that does not answer in time; those on all other members are known. Such a
// member may also count the shard itself until it follows the member list. Limits: a
// semaphore leaves memory when it has no holder, and semaphores without messages are checked
// every minute.
package hold
