package slot

import (
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
)

// Wishes repeats which runs of a node wait for a slot, which released theirs, and which
// continued after an approval. Replies Granted. It may be received twice.
type Wishes struct {
	Waiting  []msg.AcquireSlot `json:"waiting,omitempty"`
	Released []id.RunID        `json:"released,omitempty"`
	Taken    []id.RunID        `json:"taken,omitempty"`
}

// Repeatable marks Wishes as idempotent: each wish names its run.
func (Wishes) Repeatable() {}

// Granted answers Wishes with the waiting runs that are known to be running.
type Granted struct {
	Running []id.RunID `json:"running,omitempty"`
}

// AddTo lets the messages of this package cross nodes.
func AddTo(c *msg.Codec) {
	c.Add("slots_wishes", Wishes{})
	c.Add("slots_granted", Granted{})
}
