// Package remote carries messages between the members of a cluster: it is the
// Peers of a cluster.Node, and it gives to that Node what other members send.
//
// One gRPC stream runs from each member to each other one that it has something
// to say to; replies come back on the same stream. Messages travel in batches of
// what is queued, without a timer. A message's body is what msg.Codec makes of it,
// so that only types that were added there leave the process, and nodes of two
// versions understand each other as far as they know the same types. A type that
// the other side does not know is an answer, not the end of anything.
//
// Security: TLS 1.3 both ways. All members hold one ed25519 key that is derived
// from the cluster's secret, and each checks that the other one holds it too. A
// stranger, a client without certificate, and one with another secret get no
// answer at all. The first frame names the member that is meant, so that a process
// that got a dead member's address is not taken for it.
//
// Order: what one sender sends to one address is received in that order, also over
// a broken stream: a new one is served only when nothing of the former one will be.
//
// Loss: a message is sent at most once. What breaks with a stream before it was
// handed to it has not been received: cluster.ErrUnknownMember. What was handed to
// it may have been: cluster.ErrLost. Told messages that wait survive a broken
// stream, but not the member's leaving the list; those that were handed over are
// lost with it. A told message that comes to a member that does not own its shard
// is dropped and counted, not passed on: two members whose lists differ would pass
// it in a circle, and what must not be lost is in rows.
//
// Liveness: a member says something on each stream at least once a second. A stream
// on which nothing came for two and a half seconds is broken, so that an Ask to a
// member that was paused or cut off fails before its own deadline. A lost stream
// is opened again at once and then with a back-off of 5 to 200 ms, as long as the
// member is in the list.
//
// Limits: a body has at most 32 MiB; an oversized one fails alone. 65,536 messages
// or 64 MiB wait for a member; past that a Tell is an error and an Ask UNAVAILABLE.
// As many replies wait for a member that does not read, then its stream is cut. At
// most 256 calls of one member run at a time and 4,096 wait; Asks cost a place in
// the actor's mailbox only.
package remote
