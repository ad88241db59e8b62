// Package placement says which member of the cluster owns a shard: rendezvous
// hashing over member ids. It is pure: every node that sees the same members
// computes the same owners, in whatever order it learned of them, and a member
// that comes or goes moves only the shards that it gains or loses.
package placement

import (
	"encoding/binary"
	"errors"
	"slices"

	"agentsvc/schemas/id"
)

// ErrNoMembers: a placement without members would leave every shard without an owner.
var ErrNoMembers = errors.New("placement: no members")

// Table is the owner of every shard. It is immutable.
type Table struct {
	members []id.MemberID
	owner   [id.Shards]uint16 // index into members
}

// New places the shards over members; duplicates count once.
func New(members []id.MemberID) (*Table, error) {
	if len(members) == 0 {
		return nil, ErrNoMembers
	}
	t := &Table{members: slices.Clone(members)}
	slices.SortFunc(t.members, func(a, b id.MemberID) int { return slices.Compare(a.UUID[:], b.UUID[:]) })
	t.members = slices.Compact(t.members)
	for s := range t.owner {
		var best uint64
		for i, m := range t.members {
			if w := weight(m, uint64(s)); i == 0 || w > best {
				best, t.owner[s] = w, uint16(i)
			}
		}
	}
	return t, nil
}

// Owner is the member that owns s.
func (t *Table) Owner(s id.Shard) id.MemberID { return t.members[t.owner[s]] }

// Members are the members of the table, sorted.
func (t *Table) Members() []id.MemberID { return slices.Clone(t.members) }

// Has reports whether m is a member of the table.
func (t *Table) Has(m id.MemberID) bool { return slices.Contains(t.members, m) }

// Shards are the shards that m owns, in ascending order.
func (t *Table) Shards(m id.MemberID) []id.Shard {
	var out []id.Shard
	for s, i := range t.owner {
		if t.members[i] == m {
			out = append(out, id.Shard(s))
		}
	}
	return out
}

// weight mixes all 128 bits of a member id with the shard. Ids of members that
// start together share their leading bytes, so each half is mixed on its own.
func weight(m id.MemberID, s uint64) uint64 {
	h := mix(s + 0x9e3779b97f4a7c15)
	h = mix(h ^ binary.BigEndian.Uint64(m.UUID[:8]))
	return mix(h ^ binary.BigEndian.Uint64(m.UUID[8:]))
}

// mix is the finaliser of splitmix64: every input bit reaches every output bit.
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}
