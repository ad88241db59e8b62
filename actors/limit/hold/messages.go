package hold

import (
	"agentsvc/cluster"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
)

// Hold asks to be one of at most Max holders. Replies Held. A holder that holds already
// gets the same answer again.
type Hold struct {
	Holder id.UUID     `json:"holder"`
	Member id.MemberID `json:"member"`
	Max    int         `json:"max"`
}

// Repeatable marks Hold as idempotent: the id names the holder.
func (Hold) Repeatable() {}

// Held answers Hold: OK is a hold, Wait asks to ask again, and neither is a refusal.
type Held struct {
	OK   bool `json:"ok,omitempty"`
	Wait bool `json:"wait,omitempty"`
}

// Release ends a hold. It may be lost.
type Release struct {
	Holder id.UUID `json:"holder"`
}

// Holders asks a node for its holders of a semaphore: those that hold, and those that ask
// to. Replies HeldHere.
type Holders struct {
	Of cluster.Address `json:"of"`
}

// HeldHere answers Holders.
type HeldHere struct {
	Holders []id.UUID `json:"holders,omitempty"`
}

// Claim asks for shards, which the asker will count (package handover). It has two steps.
// With Stop, a node stops counting the shards. When all nodes have stopped, each answers
// the second one with its holders. Replies Claimed.
type Claim struct {
	Shards []id.Shard `json:"shards"`
	Stop   bool       `json:"stop,omitempty"`
}

// Claimed answers Claim. Later lists the shards that have to be asked for again.
type Claimed struct {
	Later   []id.Shard `json:"later,omitempty"`
	Holding []HeldAt   `json:"holding,omitempty"`
}

// HeldAt lists the holders of a semaphore on a node.
type HeldAt struct {
	Of      cluster.Address `json:"of"`
	Holders []id.UUID       `json:"holders"`
}

// AddTo lets the messages of this package cross nodes.
func AddTo(c *msg.Codec) {
	for name, v := range map[string]any{
		"holds_hold": Hold{}, "holds_held": Held{}, "holds_release": Release{}, "holds_holders": Holders{}, "holds_here": HeldHere{},
		"holds_claim": Claim{}, "holds_claimed": Claimed{},
	} {
		c.Add(name, v)
	}
}
