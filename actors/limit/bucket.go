package limit

import (
	"context"
	"encoding/binary"
	"net/netip"

	"agentsvc/cluster"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/quota"
)

// TenantBucket is the address of a tenant's bucket.
func TenantBucket(t id.TenantID) cluster.Address {
	return cluster.Address{Kind: msg.KindLimit, Tenant: t, ID: t.UUID}
}

// What the id of a bucket without a tenant says of its client: in its eighth byte
// the sort of the bucket, 0 for the platform's, and the family of the address.
const (
	version8 = 0x80 // an id of our own making: its shard is its hash
	family4  = 4
	family6  = 6
	shared   = 0xf // strangers who share a bucket
)

// IPBucket is the address of a client's bucket. IPv6 clients count by /64.
func IPBucket(addr netip.Addr) cluster.Address { return client(ScopeIP, addr).address() }

// client is a client's bucket of a scope.
func client(s Scope, addr netip.Addr) holder {
	addr = addr.Unmap()
	if addr.Is4() {
		b := addr.As4()
		return stranger(s, family4, [8]byte{4: b[0], b[1], b[2], b[3]})
	}
	b := addr.As16()
	return stranger(s, family6, [8]byte(b[:8]))
}

func stranger(s Scope, family byte, who [8]byte) holder {
	u := id.UUID{6: version8, 7: byte(s-ScopeIP)<<4 | family}
	copy(u[:6], who[:6])
	copy(u[8:10], who[6:])
	return holder{id: u}
}

func sharedBucket(s Scope, n uint64) holder {
	var who [8]byte
	binary.BigEndian.PutUint64(who[:], n)
	return stranger(s, shared, who)
}

// NoteTake tells the request of ctx what a bucket of that rate answered to its Take.
func NoteTake(ctx context.Context, r Rate, l Leased) { quota.Note(ctx, r.quota(l.Left)) }

// holder names a bucket: a tenant's, a client's, or one of a tenant's embed keys and
// visitors; or a count.
type holder struct {
	tenant id.TenantID
	id     id.UUID
}

func holderOf(a cluster.Address) holder { return holder{a.Tenant, a.ID} }

// actor is the address of the holder's actor of a kind.
func (h holder) actor(kind string) cluster.Address {
	return cluster.Address{Kind: kind, Tenant: h.tenant, ID: h.id}
}

// address is that of the bucket.
func (h holder) address() cluster.Address { return h.actor(msg.KindLimit) }

// stranger reports whether the bucket is one client's.
func (h holder) stranger() bool { return h.tenant.IsZero() && h.id[7]&0xf != shared }

// bucketActor is the mailbox of the buckets of a shard. What they hold is with the
// Keeper, who can give it away whatever the mailbox is doing.
type bucketActor struct{ keeper *Keeper }

func (b bucketActor) Receive(c cluster.Context, m any) {
	if v := b.keeper.receive(c.Self(), m); v != nil {
		c.Reply(v)
	}
}

func (bucketActor) Stopped() {}
