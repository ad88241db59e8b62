package sweep

import "agentsvc/schemas/id"

// shards is a set of shards.
type shards [id.Shards / 64]uint64

func (s *shards) add(n id.Shard) { s[n/64] |= 1 << (n % 64) }

func (s *shards) has(n id.Shard) bool { return s[n/64]>>(n%64)&1 == 1 }

func (s *shards) empty() bool { return *s == shards{} }

// union adds all of o.
func (s *shards) union(o shards) {
	for i := range s {
		s[i] |= o[i]
	}
}

// of returns the shards of own that are in the set, in the order of own.
func (s *shards) of(own []id.Shard) []id.Shard {
	var out []id.Shard
	for _, n := range own {
		if s.has(n) {
			out = append(out, n)
		}
	}
	return out
}
