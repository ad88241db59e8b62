// Package durable hosts pure state machines as actors: decide, commit, act.
//
// The machine decides on a message. The host commits the changes, with all rows that belong
// to them, in one transaction. Only when the commit is durable does it reply, publish and
// perform the effects that the new state owes. Effects are a function of committed state: if
// the process is killed at any point, the next activation owes the same effects under the
// same keys.
//
//	         first message                 message, result, timer
//	(absent) ------------> loaded, claimed <---------------------+
//	   ^                        |                                |
//	   |                        v                                |
//	   |  error replied <--- Decide ---> Commit ---> reply, After, effects
//	   |                                    |
//	   +--- idle, done, moved, no storage --+
//
// Question: a machine that needs more information returns a question. The host reads the
// answer outside of the mailbox, within the asker's deadline, and the machine decides again
// with it. Other messages may be decided in between. An idle activation stays in memory while
// a question is open. If it ends for another reason, the next activation decides on the
// message from the start.
//
// Memory: a decision without rows (Kind.Rows returns nil) changes only the memory of the
// activation. It is not committed, and the next activation does not know it.
//
// Claim: an activation first decides Activated{Epoch}, with the row's epoch plus one. If that
// changes the state, its commit claims the epoch; otherwise the next commit does. Two
// activations of one row may be live for a moment: the compare-and-swap on version and epoch
// lets one of them commit, and the other one drops its memory.
//
// Order: the messages of one actor are decided one after another, in the order of its
// mailbox. A told message that could not be committed comes again after a pause, behind
// other messages. Of messages of the sweep that say the same to one actor, one waits.
//
// Limits: Receive waits for its own load and its own commit, each at most
// Config.CommitTimeout, and for nothing else. Effects and the reads of questions run in
// goroutines bound to the activation, at most Config.MaxEffects at a time for each kind, half
// of them of one tenant; further ones wait in queues that the machines' Owed bounds, and
// tenants take turns. An effect that waits for too long ends without having begun (Kind.Late).
//
// Loss: a message without a reply may or may not have been decided; messages that change
// something carry an id and are idempotent. The replies to an asker without a commit:
//
//	journal.ErrConflict     cluster.ErrMoved: nothing was written, Ask sends again
//	journal.ErrExists       the machine's reply to Repeated: it was written before
//	journal.ErrReplay       the error itself: nothing was written, the first answer stands
//	journal.ErrRefused      the machine's decision on Refused, else an internal error
//	journal.ErrOutdated     none yet: the rows are made again, and committed
//	journal.ErrUnavailable  UNAVAILABLE: nothing was written
//	journal.ErrWithdrawn    UNAVAILABLE: nothing was written, and the activation goes on
//	journal.ErrUnsettled    UNAVAILABLE: it may have been written
//	journal.ErrFenced       UNAVAILABLE: it may have been written; this process ends
//
// So after UNAVAILABLE an asker sends the message again with the same id. In these cases a
// told message comes again, and so does Wake if the activation ended with effects owed. The
// next activation performs the effects again.
package durable
