package bucket

import (
	"time"

	"agentsvc/cluster"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
)

// Lease asks a bucket for up to Want tokens, for a node that holds none. Replies
// Leased. It may be received twice: a Lease of the same number is answered as
// the first time for as long as its tokens are out.
type Lease struct {
	Node     id.MemberID   `json:"node"`
	Seq      uint64        `json:"seq"`      // of the node's leases; later ones have higher numbers
	Want     int64         `json:"want"`     // requests that wait, and what was spent lately
	Returned int64         `json:"returned"` // tokens given back so far, in all
	Idle     time.Duration `json:"idle"`     // how long ago the last token was spent, or less
	// PerMinute is the bucket's rate from now on: it holds so many tokens, and as many
	// come back in a minute. 0: the owner's config says. An owner of a version that does
	// not know the field goes by its config for every bucket; who has the bucket after
	// it goes by the next Lease.
	PerMinute int64 `json:"per_minute,omitempty"`
}

// Repeatable: the number says which Lease it is.
func (Lease) Repeatable() {}

// Take asks a bucket for one token, which is spent at once: nothing is held, and
// nothing has to be said of it. Replies Leased, without Wait.
type Take struct{}

// Leased answers Lease and Take. Granted 0 is a refusal; RetryAfter then says when one
// token will be there. Wait is neither: other nodes may still give tokens back.
type Leased struct {
	Granted    int64         `json:"granted,omitempty"`
	RetryAfter time.Duration `json:"retry_after,omitempty"`
	Wait       bool          `json:"wait,omitempty"`
	// Left is how many tokens the bucket holds beside those that are leased. An owner
	// of a version that does not know the field says none.
	Left int64 `json:"left,omitempty"`
}

// GiveBack says that a node holds none of the tokens of its leases up to Seq:
// those that Returned does not count were spent. What it says is said again by
// the node's next Lease, so it may be lost.
type GiveBack struct {
	Node     id.MemberID   `json:"node"`
	Seq      uint64        `json:"seq"`
	Returned int64         `json:"returned"`
	Idle     time.Duration `json:"idle"`
}

// Recall asks a node to give back the tokens of a bucket that it has leased.
// Replies GiveBack, or nothing where an answer to the node is still under way.
type Recall struct {
	Bucket cluster.Address `json:"bucket"`
}

// Fetch takes the buckets of shards from a node that has them: they live on the
// asking node from then on. Replies Fetched. A Fetch of the same number comes
// again because its answer was not received.
type Fetch struct {
	No     uint64     `json:"no"`
	Shards []id.Shard `json:"shards"`
}

// Fetched answers Fetch. Later names the shards that have to be asked for again.
type Fetched struct {
	Buckets []Carried    `json:"buckets,omitempty"`
	Emptied []EmptyShard `json:"emptied,omitempty"`
	Later   []id.Shard   `json:"later,omitempty"`
}

// Push brings buckets to their owner from a node that ends. Replies msg.Done.
type Push struct {
	Buckets []Carried    `json:"buckets,omitempty"`
	Emptied []EmptyShard `json:"emptied,omitempty"`
}

// Carried is a bucket on its way to another node.
type Carried struct {
	Tenant id.TenantID    `json:"tenant"`
	ID     id.UUID        `json:"id"`
	Credit time.Duration  `json:"credit"`
	Leases []CarriedLease `json:"leases,omitempty"`
	// PerMinute is its rate as in Lease. A node of a version that does not know the
	// field hands the bucket on without it, by its config's rate.
	PerMinute int64 `json:"per_minute,omitempty"`
}

// CarriedLease is what a bucket knows of a node.
type CarriedLease struct {
	Node     id.MemberID   `json:"node"`
	Tokens   int64         `json:"tokens"`
	Each     time.Duration `json:"each,omitempty"` // what each is worth; 0: what the bucket's rate says
	Granted  int64         `json:"granted"`
	Seq      uint64        `json:"seq"`
	Done     uint64        `json:"done"`
	Returned int64         `json:"returned"`
	Age      time.Duration `json:"age"`
}

// EmptyShard is a shard whose unknown buckets count as empty since a time.
type EmptyShard struct {
	Shard id.Shard      `json:"shard"`
	For   time.Duration `json:"for"`
}

// AddTo lets the messages of this package cross nodes.
func AddTo(c *msg.Codec) {
	for name, v := range map[string]any{
		"limit_lease": Lease{}, "limit_take": Take{}, "limit_leased": Leased{}, "limit_give_back": GiveBack{}, "limit_recall": Recall{},
		"limit_fetch": Fetch{}, "limit_fetched": Fetched{}, "limit_push": Push{},
	} {
		c.Add(name, v)
	}
}
