package thread

import "agentsvc/schemas/msg"

// Line is what a read of the open runs found: the result of ReadLine.
type Line struct {
	Look int
	Open []Turn
	More bool
	// NextSeq is what it was when the read was decided on: posts since then may
	// not have been seen.
	NextSeq int64
}

// Facts of a decision.
type (
	// Posted is an accepted message and its run.
	Posted struct{ Accepted *msg.Accepted }
	// Deleted is the thread's end.
	Deleted struct{}
	// Again is an order that may have been carried out before. The rows say whether
	// it was; if not, Else is replied, and nothing happens.
	Again struct {
		Else any
		// Unheard is an order that names what is not known here: where the row has moved
		// on, this activation is an old one, and has no answer.
		Unheard bool
	}
	// Emptied is a deleted thread whose last run has ended: what that one still
	// wrote goes too.
	Emptied struct{}
)
