// Package cluster runs actors at typed addresses: it finds the node that owns an
// address, starts the actor there on its first message, and stops it again.
//
// The id of an Address carries its shard, and the member list determines the shard's
// owner (package placement). A message for another member goes through Peers. A message
// for this node goes to the placer of the shard, which checks ownership, holds the live
// activations of its shards and spawns missing ones. A stop costs one map deletion. A
// kind with many actors that each get few messages may have one activation for each
// shard instead (RegisterShared).
//
// Order: messages from one sender to one address arrive in the order in which they were
// sent, also across a stop and a new activation. Messages of different senders have no
// order. An activation receives one message at a time. When a shard moves, messages that
// were told before the move stay ahead of those told after it, as seen from the node
// that sent them.
//
// Loss: on a living node no message is lost. Messages behind a stop in the mailbox, and
// later ones, go to the next activation. If that activation is on another member,
// waiting askers get ErrNotOwner and ask there, and told messages are sent there, at
// most once. An Ask that is answered with ErrMoved or ErrNotOwner is sent again until
// its deadline, so a message that changes something carries an id and is idempotent. An
// Ask whose answer was lost with the connection (ErrLost) is sent again only if its
// message is Repeatable. An Ask whose asker has given up before the message is received
// is dropped. A node that stops answers its own waiting askers with UNAVAILABLE, and the
// askers of other nodes with ErrNotOwner, so that they ask the next owner. It passes told
// messages on if it has yielded its shards before, and drops them otherwise.
//
// Limits: mailboxes are not bounded; admission is the sender's duty. Tell never blocks.
// Receive must not call Ask: two actors that ask each other would deadlock. Safety never
// depends on this package: for a moment two nodes may each have an activation of one
// address, and the commit decides.
//
// The actor runtime underneath (system, process ids, life cycle) is protoactor's package
// actor. Its cluster shell is not used, because it always opens a port, and a single
// node opens none. This is the only package that imports it.
package cluster
