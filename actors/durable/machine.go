package durable

import "time"

// Machine is the pure part of a kind: no I/O, no clock, no randomness.
type Machine[S any] interface {
	// Decide returns the changes that msg causes. It must not mutate s. An error is the reply
	// and changes nothing.
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

// Decision holds the changes that one message causes.
type Decision[S any] struct {
	Next    S
	Changed bool  // false: Next is the state as it was
	Facts   []any // facts that the commit makes true; the kind makes rows and frames of them
	Reply   any   // sent only after the commit
	// Question, if not nil, is the information that the machine needs to decide. The host
	// ignores the other fields. It reads the answer by Kind.Read, outside of the mailbox and
	// within the message's deadline, and gives the machine Answered. Only messages from
	// outside may lead to questions.
	Question any
}

// Effect is a plain value that describes I/O. Its result comes back as a message. Key is the
// same whenever the effect is performed again, and serves as idempotency key.
type Effect interface{ Key() string }

// Messages that the host itself sends to a machine.
type (
	// Activated is the first message of an activation. Effects that an older epoch began and
	// did not end have no owner any more.
	Activated struct{ Epoch int64 }
	// Refused reports that the database refuses the rows of the decision on Msg. The machine
	// decides differently or returns an error.
	Refused struct {
		Msg   any
		Cause string
	}
	// Answered is Msg with the answer to the machine's question on it. Other messages may have
	// been decided since: if the machine's question is another one now, it returns that.
	Answered struct{ Msg, Question, Answer any }
	// Repeated reports that the decision on Msg inserts an entity that exists, because another
	// activation carried out Msg before. The machine returns the same reply as then and
	// changes nothing.
	Repeated struct{ Msg any }
	// TimerDue reports that the named timer of this actor is due. The machine checks the time
	// again.
	TimerDue struct{ Name string }
	// Wake makes an actor load its row and perform the effects that it owes.
	Wake struct{}
	// Leaving is Msg for an activation that leaves its node when its effects in flight have
	// ended (Kind.Finishes). This activation does not perform effects that the decision newly
	// owes, so the decision must not begin one that only this activation can perform.
	Leaving struct{ Msg any }
	// EffectFailed is the result of an effect whose Perform panicked. Its outcome is unknown.
	// This activation does not perform it again.
	EffectFailed struct{ Key, Cause string }
)
