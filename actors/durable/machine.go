package durable

import "time"

// Machine is the pure half of an actor kind: no I/O, no clock, no randomness.
type Machine[S any] interface {
	// Decide returns what msg changes. It must not mutate s. An error is
	// replied and changes nothing.
	Decide(s S, msg any, now time.Time) (Decision[S], error)
	// Owed lists the I/O that the committed state still waits for. The host
	// performs what a decision newly owes, cancels what it no longer owes, and
	// performs everything owed after an activation, so that the normal path and
	// crash recovery are one path. What is newly owed begins in the order of the list.
	// An activation performs a key once for as long
	// as it stays owed: another attempt is another key. The keys of one state
	// differ from each other.
	Owed(s S) []Effect
}

// Decision is everything that one message causes.
type Decision[S any] struct {
	Next    S
	Changed bool  // false: nothing to commit, and nothing to remember
	Facts   []any // what becomes true with the commit; the kind makes rows and frames of them
	Reply   any   // sent only after the commit
	// Question, unless nil, is what the machine has to know before it can decide. Nothing
	// else of the decision counts. The host answers it by Kind.Read, outside of the mailbox
	// and within the message's deadline, and gives the machine Answered. Only messages
	// from outside may lead to questions.
	Question any
}

// Effect is a plain value that describes I/O; its result comes back as a
// message. Key is stable over re-performance and serves as idempotency key.
type Effect interface{ Key() string }

// Messages that the host itself sends to a machine.
type (
	// Activated is the first message of an activation. What an older epoch
	// began and did not end has no owner any more.
	Activated struct{ Epoch int64 }
	// Refused says that the database refuses the rows of the decision on Msg.
	// The machine must decide something else or give up.
	Refused struct {
		Msg   any
		Cause string
	}
	// Answered is Msg with the answer to the question that the machine had on it. Other
	// messages may have been decided since: a machine that has another question now
	// returns that one.
	Answered struct{ Msg, Question, Answer any }
	// Repeated says that the decision on Msg inserts an entity that is there: another
	// activation has carried Msg out before. The machine returns the reply of the first
	// time, and changes nothing.
	Repeated struct{ Msg any }
	// TimerDue says that the named timer of this actor is due. The machine
	// checks the time again.
	TimerDue struct{ Name string }
	// Wake asks an actor to look whether it owes anything.
	Wake struct{}
	// Leaving is Msg for an activation that leaves its node as soon as it has
	// finished what is under way (Kind.Finishes). What the decision newly owes is not
	// performed by this activation: nothing may be begun by it that only the activation
	// which commits it can carry out.
	Leaving struct{ Msg any }
	// EffectFailed is the result of an effect whose Perform panicked: whether it
	// did anything is not known. The effect is not performed again by this
	// activation.
	EffectFailed struct{ Key, Cause string }
)
