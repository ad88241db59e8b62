package thread

import (
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
)

// QueueRead is the result of ReadQueue: the first open runs.
type QueueRead struct {
	Read int // the number of the read
	Open []OpenRun
	More bool
	// NextSeq is the thread's when the read was decided: later posts may be missing.
	NextSeq int64
}

// Questions of the machine. The rows answer them.
type (
	// Accepted asks whether the run was accepted in this thread before: a bool.
	Accepted struct{ Run id.RunID }
	// Erased asks whether the operation has deleted this thread: a bool.
	Erased struct{ Op id.OpID }
	// Admission asks whether a post may be accepted: an Admitted.
	Admission struct {
		Run id.RunID
		// Embed says that the rules of the embed API hold. NextSeq is the thread's then:
		// an answer is void once another post was accepted.
		Embed   bool
		NextSeq int64
		// Agent is the agent whose published version to read; zero: it is known.
		Agent id.AgentID
	}
	// Admitted answers Admission.
	Admitted struct {
		Before  bool  // the run was accepted before
		Refusal error // why the thread takes no message now
		Version int   // of the agent, if the question names one
		Silent  error // why the agent answers no messages, nil if it does
	}
)

// Facts of a decision.
type (
	// Posted is an accepted message and its run.
	Posted struct{ Accepted *msg.Accepted }
	// Deleted is the thread's end.
	Deleted struct{}
	// Emptied is a deleted thread whose last run has ended: messages that the run wrote
	// after the deletion are deleted.
	Emptied struct{}
)
