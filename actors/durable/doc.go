// Package durable hosts pure state machines as actors: decide, commit, act.
//
// A message is decided on by the machine; what it changes is committed with
// everything that belongs to it in one transaction; only after the commit is
// durable the host replies, publishes and performs the effects that the new
// state owes. Effects are a function of committed state: kill the process
// anywhere, activate again, and the same things are owed under the same keys.
//
//	         first message                 message, result, timer
//	(absent) ------------> loaded, claimed <---------------------+
//	   ^                        |                                |
//	   |                        v                                |
//	   |  error replied <--- Decide ---> Commit ---> reply, After, effects
//	   |                                    |
//	   +--- idle, done, moved, no storage --+
//
// Question: a machine that needs to know more returns a question. The host reads the
// answer outside of the mailbox, within the asker's deadline, and the machine decides
// again with it; other messages may have been decided in between. An activation does
// not leave memory for idleness while a question is open; where it ends all the same,
// the next one decides on the message from the start.
//
// Memory: a decision without rows (Kind.Rows returns nil) changes what the activation
// remembers. It is not committed, and the next activation does not know it.
//
// Claim: an activation decides Activated{Epoch} first, with the row's epoch plus
// one. What that changes is committed, and the commit claims the epoch. Where it
// changes nothing nothing is claimed, and the next commit carries the claim. Two
// activations of one row may live for a moment; the compare-and-swap on version
// and epoch lets one of them commit, and the other drops its memory.
//
// Order: messages of one actor are decided one after another, in the order of
// its mailbox. A message that was told, and could not be committed, comes again
// after a pause, behind others.
//
// Limits: Receive waits for its own load and its own commit, each at most
// Config.CommitTimeout, and for nothing else; effects and the reads of questions run in
// goroutines bound to the activation, at most Config.MaxEffects at a time and kind; further ones
// wait in a queue that the machines' Owed bounds.
//
// Loss: a message that was not replied to may or may not have been decided;
// messages that change something carry an id and are idempotent. What an asker
// gets where nothing could be committed:
//
//	journal.ErrConflict     cluster.ErrMoved: nothing happened, Ask sends again
//	journal.ErrExists       what the machine replies to Repeated: it happened before
//	journal.ErrReplay       as it is: nothing happened, the first answer stands
//	journal.ErrRefused      what the machine decides on Refused, else an internal error
//	journal.ErrUnavailable  UNAVAILABLE: nothing happened
//	journal.ErrWithdrawn    UNAVAILABLE: nothing happened, and the activation goes on
//	journal.ErrUnsettled    UNAVAILABLE: it may have happened
//	journal.ErrFenced       UNAVAILABLE: it may have happened; this process ends
//
// So UNAVAILABLE does not tell an asker whether it happened: it repeats with the
// same id. A message that was told comes again in these cases, as does Wake
// where the activation ended while something was owed. What is owed is performed
// again by the next activation.
package durable
