package hold

import (
	"agentsvc/cluster"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
)

// Hold asks to be one of at most Max holders. Replies Held. A holder that holds
// already is answered so again.
type Hold struct {
	Holder id.UUID     `json:"holder"`
	Member id.MemberID `json:"member"`
	Max    int         `json:"max"`
}

// Repeatable: the holder's id says which one it is.
func (Hold) Repeatable() {}

// Held answers Hold: not OK is a refusal, Wait is neither: ask again.
type Held struct {
	OK   bool `json:"ok,omitempty"`
	Wait bool `json:"wait,omitempty"`
}

// Release says that a holder holds no more. It may be lost.
type Release struct {
	Holder id.UUID `json:"holder"`
}

// Holders asks a node which holders of something live there, and so still hold or
// have asked to. Replies HeldHere.
type Holders struct {
	Of cluster.Address `json:"of"`
}

// HeldHere answers Holders.
type HeldHere struct {
	Holders []id.UUID `json:"holders,omitempty"`
}

// Claim says that the asker counts the holders of shards from now on. It comes in
// two steps: when all nodes have heard Stop, none of them counts any more; then
// each says who holds there. Replies Claimed.
type Claim struct {
	Shards []id.Shard `json:"shards"`
	Stop   bool       `json:"stop,omitempty"`
}

// Claimed answers Claim. Later names the shards that have to be asked for again.
type Claimed struct {
	Later   []id.Shard `json:"later,omitempty"`
	Holding []HeldAt   `json:"holding,omitempty"`
}

// HeldAt are the holders of something on a node.
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
