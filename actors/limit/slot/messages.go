package slot

import (
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
)

// Wishes repeats which runs of a node wait for a running place, which gave theirs
// back, and which went on after an approval. Replies Granted; it may be received
// twice.
type Wishes struct {
	Waiting  []msg.AcquireSlot `json:"waiting,omitempty"`
	Released []id.RunID        `json:"released,omitempty"`
	Taken    []id.RunID        `json:"taken,omitempty"`
}

// Repeatable: a wish that is known is no other one.
func (Wishes) Repeatable() {}

// Granted answers Wishes with those of the waiting runs that are known to run.
type Granted struct {
	Running []id.RunID `json:"running,omitempty"`
}

// AddTo lets the messages of this package cross nodes.
func AddTo(c *msg.Codec) {
	c.Add("slots_wishes", Wishes{})
	c.Add("slots_granted", Granted{})
}
