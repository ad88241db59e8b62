package bucket

import (
	"time"

	"agentsvc/cluster"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
)

// Lease asks a bucket for up to Want tokens, for a node that has none. Replies Leased. It
// may be received twice: a Lease with the same number gets the same answer for as long as
// its tokens are leased.
type Lease struct {
	Node     id.MemberID   `json:"node"`
	Seq      uint64        `json:"seq"`      // the number of the Lease; later ones have higher numbers
	Want     int64         `json:"want"`     // the waiting requests, plus the tokens spent lately
	Returned int64         `json:"returned"` // the total of tokens given back so far
	Idle     time.Duration `json:"idle"`     // at most the time since the last token was spent
	// PerMinute is the bucket's rate from now on: its capacity, and the number of tokens that
	// come back in a minute. 0: the rate of the owner's config.
	PerMinute int64 `json:"per_minute,omitempty"`
}

// Repeatable marks Lease as idempotent: Seq is its number.
func (Lease) Repeatable() {}

// Take asks a bucket for one token, which is spent at once and needs no report. Replies
// Leased, without Wait.
type Take struct{}

// Leased answers Lease and Take. Granted 0 without Wait is a refusal, and RetryAfter is the
// time until there is a token. Wait asks to ask again: other nodes may still give tokens
// back.
type Leased struct {
	Granted    int64         `json:"granted,omitempty"`
	RetryAfter time.Duration `json:"retry_after,omitempty"`
	Wait       bool          `json:"wait,omitempty"`
	// Left is how many tokens the bucket has beside the leased ones.
	Left int64 `json:"left,omitempty"`
}

// GiveBack ends a node's leases up to Seq: tokens that Returned does not count were spent.
// It may be lost, because the node's next Lease repeats it.
type GiveBack struct {
	Node     id.MemberID   `json:"node"`
	Seq      uint64        `json:"seq"`
	Returned int64         `json:"returned"`
	Idle     time.Duration `json:"idle"`
}

// Recall asks a node to give back the tokens of a bucket that it leased. Replies GiveBack,
// or nothing while an answer to the node's own Lease is in flight.
type Recall struct {
	Bucket cluster.Address `json:"bucket"`
}

// Fetch takes the buckets of shards from a node (package handover). Replies Fetched. A Fetch
// with the same number is a retry, because the answer was not received. A higher number
// acknowledges the answers before it.
type Fetch struct {
	No     uint64     `json:"no"`
	Shards []id.Shard `json:"shards"`
}

// Fetched answers Fetch. Later lists the shards that have to be asked for again.
type Fetched struct {
	Buckets []Carried    `json:"buckets,omitempty"`
	Emptied []EmptyShard `json:"emptied,omitempty"`
	Later   []id.Shard   `json:"later,omitempty"`
}

// Push sends buckets to their owner from a node that stops. Replies msg.Done.
type Push struct {
	Buckets []Carried    `json:"buckets,omitempty"`
	Emptied []EmptyShard `json:"emptied,omitempty"`
}

// Carried is a bucket as it is sent to another node.
type Carried struct {
	Tenant id.TenantID    `json:"tenant"`
	ID     id.UUID        `json:"id"`
	Credit time.Duration  `json:"credit"`
	Leases []CarriedLease `json:"leases,omitempty"`
	// PerMinute is its rate as in Lease.
	PerMinute int64 `json:"per_minute,omitempty"`
}

// CarriedLease is a node's lease of a bucket.
type CarriedLease struct {
	Node     id.MemberID   `json:"node"`
	Tokens   int64         `json:"tokens"`
	Each     time.Duration `json:"each,omitempty"` // the worth of each token
	Granted  int64         `json:"granted"`
	Seq      uint64        `json:"seq"`
	Done     uint64        `json:"done"`
	Returned int64         `json:"returned"`
	Age      time.Duration `json:"age"`
}

// EmptyShard is a shard whose unknown buckets count as empty for that long.
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
