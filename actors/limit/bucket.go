package limit

import (
	"encoding/binary"
	"net/netip"
	"time"

	"agentsvc/cluster"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
)

// Recall asks a node to give back the tokens of a bucket that it has leased.
type Recall struct{ Bucket cluster.Address }

// recalling answers a Lease when other nodes were asked to give back: ask again.
type recalling struct{}

// settle asks a bucket whether it may leave memory.
type settle struct{}

// TenantBucket is the address of a tenant's bucket.
func TenantBucket(t id.TenantID) cluster.Address {
	return cluster.Address{Kind: msg.KindLimit, Tenant: t, ID: t.UUID}
}

// What the id of a bucket without a tenant says of its client.
const (
	version8 = 0x80 // an id of our own making: its shard is its hash
	family4  = 4
	family6  = 6
	shared   = 0xff // strangers who share a bucket
)

// IPBucket is the address of a client's bucket. IPv6 clients count by /64.
func IPBucket(addr netip.Addr) cluster.Address {
	addr = addr.Unmap()
	if addr.Is4() {
		b := addr.As4()
		return stranger(family4, [8]byte{4: b[0], b[1], b[2], b[3]})
	}
	b := addr.As16()
	return stranger(family6, [8]byte(b[:8]))
}

func stranger(family byte, who [8]byte) cluster.Address {
	u := id.UUID{6: version8, 7: family}
	copy(u[:6], who[:6])
	copy(u[8:10], who[6:])
	return cluster.Address{Kind: msg.KindLimit, ID: u}
}

func sharedBucket(n uint64) cluster.Address {
	var who [8]byte
	binary.BigEndian.PutUint64(who[:], n)
	return stranger(shared, who)
}

// Recaller brings a Recall to the Ledger of a node. It does not block.
type Recaller interface {
	Recall(to id.MemberID, r Recall)
}

// bucketActor is the owner of one bucket.
type bucketActor struct {
	bucket bucket
	now    func() time.Time
	recall Recaller
	armed  bool // a settle is on its way
}

// Buckets makes the kind of buckets of one rate, for node.Register(msg.KindLimit, …).
func Buckets(rate Rate, recall Recaller, now func() time.Time) func(cluster.Address) cluster.Behavior {
	return func(cluster.Address) cluster.Behavior {
		return &bucketActor{bucket: newBucket(rate, now()), now: now, recall: recall}
	}
}

func (b *bucketActor) Receive(c cluster.Context, m any) {
	now := b.now()
	switch m := m.(type) {
	case msg.Lease:
		a := b.bucket.lease(now, m.Node, m.Want, m.Spent)
		for _, to := range a.recall {
			recalls.Inc()
			b.recall.Recall(to, Recall{c.Self()})
		}
		if a.wait {
			c.Reply(recalling{})
		} else {
			c.Reply(msg.Leased{Granted: a.granted, RetryAfter: a.retry})
		}
	case msg.GiveBack:
		b.bucket.giveBack(now, m.Node, m.Tokens)
	case settle:
		b.armed = false
	}
	b.rest(c, now)
}

// rest ends a bucket that is as a new one would be, or looks again later.
func (b *bucketActor) rest(c cluster.Context, now time.Time) {
	if b.armed {
		return
	}
	d, ok := b.bucket.restful(now)
	if ok && d == 0 {
		c.Stop()
		return
	}
	b.armed = true
	ref := c.Ref()
	c.Node().After(max(d, 2*tickEvery), func() { ref.Send(settle{}) })
}

func (b *bucketActor) Stopped() {}
