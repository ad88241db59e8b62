package thread

import (
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
)

// Line is what a read of the open runs found: the result of ReadLine.
type Line struct {
	Look int
	Open []Turn
	More bool
	// NextSeq is what it was when the read was decided on: posts since then may
	// not have been seen.
	NextSeq int64
}

// Questions, which the rows answer.
type (
	// Accepted asks whether the run was accepted in this thread before: a bool.
	Accepted struct{ Run id.RunID }
	// Erased asks whether the operation has deleted this thread: a bool.
	Erased struct{ Op id.OpID }
	// Admission asks whether a post may be accepted: an Admitted.
	Admission struct {
		Run id.RunID
		// Embed says that the rules of the embed API hold. NextSeq is the thread's then: an
		// answer from before another post is none.
		Embed   bool
		NextSeq int64
		// Agent is the agent whose published version is wanted; zero: it is known.
		Agent id.AgentID
	}
	// Admitted answers Admission.
	Admitted struct {
		Before  bool  // the run was accepted before
		Refusal error // why the thread takes no message now
		Version int   // of the agent, where it was asked for
		Silent  error // why the agent answers no messages
	}
)

// Facts of a decision.
type (
	// Posted is an accepted message and its run.
	Posted struct{ Accepted *msg.Accepted }
	// Deleted is the thread's end.
	Deleted struct{}
	// Emptied is a deleted thread whose last run has ended: what that one still
	// wrote goes too.
	Emptied struct{}
)
