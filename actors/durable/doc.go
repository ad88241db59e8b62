// Package durable hosts pure state machines as actors: decide, commit, act.
//
// A message is decided on by the machine; what it changes is committed with
// everything that belongs to it in one transaction; only after the commit is
// durable the host replies, publishes and performs the effects that the new
// state owes. Effects are a function of committed state: kill the process
// anywhere, activate again, and the same things are owed under the same keys.
//
// Order: messages of one actor are decided one after another, in the order of
// its mailbox. Limits: Receive waits for its own commit, at most CommitTimeout,
// and for nothing else; effects run in goroutines bound to the activation.
// Loss: a message that was not replied to may or may not have been decided;
// messages that change something carry an id and are idempotent.
package durable
