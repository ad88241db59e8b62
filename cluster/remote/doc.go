// Package remote carries messages between the members of a cluster: it is the Peers of a
// cluster.Node, and passes to that Node what other members send.
//
// One gRPC stream runs from each member to each other one that it sends to; replies come back
// on the same stream. Messages travel in batches of what is queued, without a timer.
// msg.Codec encodes a message's body, so that only registered types leave the process, and
// nodes of two versions can exchange the types that both know. A type that the receiver does
// not know gets an error as its answer; the stream stays open.
//
// Security: TLS 1.3 with mutual authentication. All members hold one ed25519 key that is
// derived from the cluster's secret, and each checks that the other one holds it too. A
// client without a certificate, or with another secret, gets no answer at all. The first
// frame names the intended member, so that a process that got a dead member's address is not
// taken for it.
//
// Order: messages of one sender to one address are received in order, also across a broken
// stream: a new one is served only once no more messages of the previous one can arrive.
//
// Loss: a message is sent at most once. If the stream breaks before a message was handed to
// it, the message has not been received: cluster.ErrUnknownMember. Once handed to it, it may
// have been received: cluster.ErrLost. Queued Tells survive a broken stream, but not the
// member's removal from the list; Tells handed to a stream are lost with it. A Tell that
// arrives at a member that does not own its shard is dropped and counted, not forwarded: two
// members whose lists differ would forward it in a circle. Anything that must not be lost is
// in rows.
//
// Liveness: a member sends on each stream at least once a second. A stream that is silent for
// two and a half seconds is broken, so that an Ask to a paused or unreachable member fails
// before its own deadline. A lost stream is opened again at once and then with a back-off of
// 5 to 200 ms, as long as the member is in the list.
//
// Limits: a body has at most 32 MiB; an oversized one fails alone. 65,536 messages or 64 MiB
// wait for a member; past that a Tell fails and an Ask is UNAVAILABLE. The same limits hold
// for replies to a member that does not read; past them its stream is cut. At most 256 calls
// of one member run at a time and 4,096 wait; Asks take only a place in the actor's mailbox.
package remote
