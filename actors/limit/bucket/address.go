package bucket

import (
	"encoding/binary"
	"net/netip"

	"agentsvc/cluster"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
)

// The id of a bucket without a tenant names its client. Its eighth byte has the scope, as
// the distance to ScopeIP, and the family of the address.
const (
	version8 = 0x80 // a version 8 UUID: its shard is its hash
	family4  = 4
	family6  = 6
	shared   = 0xf // a bucket that strangers share
)

// client returns the name of a client's bucket of a scope. IPv6 clients count by /64.
func client(s Scope, addr netip.Addr) name {
	addr = addr.Unmap()
	if addr.Is4() {
		b := addr.As4()
		return stranger(s, family4, [8]byte{4: b[0], b[1], b[2], b[3]})
	}
	b := addr.As16()
	return stranger(s, family6, [8]byte(b[:8]))
}

func stranger(s Scope, family byte, who [8]byte) name {
	u := id.UUID{6: version8, 7: byte(s-ScopeIP)<<4 | family}
	copy(u[:6], who[:6])
	copy(u[8:10], who[6:])
	return name{id: u}
}

// sharedBucket returns the name of one of the buckets that the strangers of a scope share.
func sharedBucket(s Scope, n uint64) name {
	var who [8]byte
	binary.BigEndian.PutUint64(who[:], n)
	return stranger(s, shared, who)
}

// name identifies a bucket: a tenant's, a client's, or one of a tenant's embed keys and
// visitors.
type name struct {
	tenant id.TenantID
	id     id.UUID
}

func nameOf(a cluster.Address) name { return name{a.Tenant, a.ID} }

// address returns the bucket's address.
func (h name) address() cluster.Address {
	return cluster.Address{Kind: msg.KindLimit, Tenant: h.tenant, ID: h.id}
}

// stranger reports whether the bucket belongs to one client IP.
func (h name) stranger() bool { return h.tenant.IsZero() && h.id[7]&0xf != shared }

// bucketActor is the mailbox of the buckets of a shard. Their state is in the Keeper,
// which can hand it over at any time.
type bucketActor struct{ keeper *Keeper }

func (b bucketActor) Receive(c cluster.Context, m any) {
	if v := b.keeper.receive(c.Self(), m); v != nil {
		c.Reply(v)
	}
}

func (bucketActor) Stopped() {}
