// Package cluster runs actors at typed addresses: it finds the node that owns an
// address, starts the actor there on its first message, and stops it again.
//
// An Address is placed by the shard that its id carries; the shard's owner
// follows from the member list (package placement). A message for another
// member goes through Peers; a message for this node goes to the placer of the
// shard, which checks ownership, holds the live activations of its shards and
// spawns missing ones. A stop costs one map deletion. A kind of which there are many,
// each for a message now and then, may have one activation for each shard instead
// (RegisterShared).
//
// Order: messages of one sender to one address arrive in the order in which
// they were sent, also over a stop and a new activation. Messages of different
// senders have no order. One message is received at a time. When a shard moves,
// what was told before and what is told after keep their order too, as seen from
// the node that they were sent on.
//
// Loss: on a node that lives, no message is lost: what lies behind a stop in
// the mailbox, and what comes later, goes to the next activation. When that one
// is another member's, waiting askers are answered ErrNotOwner and ask there, and
// what was told is sent there, at most once. An Ask that is answered with ErrMoved
// or ErrNotOwner is sent again until its deadline, so a message that changes
// something carries an id and is idempotent; one whose answer was lost with the
// way to the owner (ErrLost) is sent again only if it is Repeatable. An Ask whose
// asker has given up before the message's turn is not received at all. A node that
// stops answers its own waiting askers with UNAVAILABLE, and those of others with
// ErrNotOwner, so that they go to the next owner; what it was told it passes on if
// it has yielded its shards before, and drops else.
//
// Limits: mailboxes are not bounded, admission is the sender's duty. Tell never
// blocks. Receive must not call Ask: two actors asking each other would wait for
// ever. Safety never depends on this package: for a moment two nodes may each
// hold an activation of one address, and the commit decides.
//
// The actor runtime underneath (system, process ids, life cycle) is protoactor's
// package actor; its cluster shell is not used, because it opens a port always
// and one node opens none. This is the only package that imports it.
package cluster
