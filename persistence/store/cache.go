package store

import (
	"context"
	"hash/maphash"
	"sync"
	"time"
)

const cacheShards = 64

// Cache keeps what was read, bounded, for at most a time to live. Drop takes
// effect at once, also on a Load whose read was under way: no value that was
// read before a Drop is answered or kept after it.
type Cache[K comparable, V any] struct {
	cfg    CacheConfig
	seed   maphash.Seed
	shards [cacheShards]cacheShard[K, V]
}

// CacheConfig bounds a Cache.
type CacheConfig struct {
	Max int           // entries
	TTL time.Duration // 0: as long as there is room
	Now func() time.Time
	// Valid, where set, says whether the node still holds its lease; while it
	// does not the cache counts as empty.
	Valid func() bool
}

type cacheShard[K comparable, V any] struct {
	mu    sync.RWMutex // guards the fields below
	m     map[K]cacheEntry[V]
	drops uint64
}

type cacheEntry[V any] struct {
	value   V
	expires int64 // UnixNano; 0: never
}

// NewCache makes an empty cache.
func NewCache[K comparable, V any](cfg CacheConfig) *Cache[K, V] {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Cache[K, V]{cfg: cfg, seed: maphash.MakeSeed()}
}

func (c *Cache[K, V]) shard(k K) *cacheShard[K, V] {
	return &c.shards[maphash.Comparable(c.seed, k)%cacheShards]
}

// Get is the kept value.
func (c *Cache[K, V]) Get(k K) (V, bool) {
	s := c.shard(k)
	s.mu.RLock()
	e, ok := s.m[k]
	s.mu.RUnlock()
	if !ok || e.expires != 0 && e.expires <= c.cfg.Now().UnixNano() || c.cfg.Valid != nil && !c.cfg.Valid() {
		var none V
		return none, false
	}
	return e.value, true
}

// Load is the kept value or what read finds; ok false, which is not kept, says
// that there is nothing. A read that a Drop overtook is repeated.
func (c *Cache[K, V]) Load(ctx context.Context, k K, read func(context.Context) (v V, ok bool, err error)) (V, bool, error) {
	if v, ok := c.Get(k); ok {
		return v, true, nil
	}
	return c.read(ctx, k, read, false)
}

// Renew is Load for a value that is kept already: it is read anew, and forgotten
// where there is nothing any more. An error changes nothing.
func (c *Cache[K, V]) Renew(ctx context.Context, k K, read func(context.Context) (v V, ok bool, err error)) (V, bool, error) {
	return c.read(ctx, k, read, true)
}

func (c *Cache[K, V]) read(ctx context.Context, k K, read func(context.Context) (v V, ok bool, err error), renew bool) (V, bool, error) {
	s := c.shard(k)
	for {
		s.mu.RLock()
		drops := s.drops
		s.mu.RUnlock()
		v, ok, err := read(ctx)
		if err != nil {
			return v, false, err
		}
		s.mu.Lock()
		if s.drops == drops {
			switch {
			case ok:
				c.put(s, k, v)
			case renew:
				delete(s.m, k)
			}
			s.mu.Unlock()
			return v, ok, nil
		}
		s.mu.Unlock()
		if err := ctx.Err(); err != nil {
			return v, false, err
		}
	}
}

// Keep keeps what never changes.
func (c *Cache[K, V]) Keep(k K, v V) {
	s := c.shard(k)
	s.mu.Lock()
	c.put(s, k, v)
	s.mu.Unlock()
}

// put makes room by taking out an old entry, or any.
func (c *Cache[K, V]) put(s *cacheShard[K, V], k K, v V) {
	now := c.cfg.Now()
	if s.m == nil {
		s.m = map[K]cacheEntry[V]{}
	}
	if _, there := s.m[k]; !there && len(s.m) >= max(c.cfg.Max/cacheShards, 1) {
		seen := 0
		for old, e := range s.m {
			if seen++; seen == 8 || len(s.m) == 1 || e.expires != 0 && e.expires <= now.UnixNano() {
				delete(s.m, old)
				break
			}
		}
		if len(s.m) >= max(c.cfg.Max/cacheShards, 1) { // fewer than eight, none of them old
			for old := range s.m {
				delete(s.m, old)
				break
			}
		}
	}
	e := cacheEntry[V]{value: v}
	if c.cfg.TTL > 0 {
		e.expires = now.Add(c.cfg.TTL).UnixNano()
	}
	s.m[k] = e
}

// Drop forgets k. When it returns nobody gets a value that was read before.
func (c *Cache[K, V]) Drop(k K) {
	s := c.shard(k)
	s.mu.Lock()
	s.drops++
	delete(s.m, k)
	s.mu.Unlock()
}

// Clear forgets everything.
func (c *Cache[K, V]) Clear() {
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.Lock()
		s.drops++
		clear(s.m)
		s.mu.Unlock()
	}
}
