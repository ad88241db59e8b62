package store

import (
	"context"
	"hash/maphash"
	"sync"
	"time"
)

const cacheShards = 64

// Cache caches values with a bounded number of entries and a time to live. Drop takes effect
// at once, also for a Load in progress: a value that was read before a Drop is neither
// returned nor kept after it.
type Cache[K comparable, V any] struct {
	cfg    CacheConfig
	seed   maphash.Seed
	shards [cacheShards]cacheShard[K, V]
}

// CacheConfig holds the bounds of a Cache.
type CacheConfig struct {
	Max int           // entries
	TTL time.Duration // 0: no time limit
	Now func() time.Time
	// Live, if set, reports whether the node still holds its lease; while it does not, the
	// cache counts as empty.
	Live func() bool
}

type cacheShard[K comparable, V any] struct {
	mu    sync.RWMutex // guards the fields below
	m     map[K]cacheEntry[V]
	drops uint64
}

type cacheEntry[V any] struct {
	value   V
	expires int64 // UnixNano; 0 means never
}

// NewCache returns an empty cache.
func NewCache[K comparable, V any](cfg CacheConfig) *Cache[K, V] {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Cache[K, V]{cfg: cfg, seed: maphash.MakeSeed()}
}

func (c *Cache[K, V]) shard(k K) *cacheShard[K, V] {
	return &c.shards[maphash.Comparable(c.seed, k)%cacheShards]
}

// Get returns the cached value.
func (c *Cache[K, V]) Get(k K) (V, bool) {
	s := c.shard(k)
	s.mu.RLock()
	e, ok := s.m[k]
	s.mu.RUnlock()
	if !ok || e.expires != 0 && e.expires <= c.cfg.Now().UnixNano() || c.cfg.Live != nil && !c.cfg.Live() {
		var none V
		return none, false
	}
	return e.value, true
}

// Load returns the cached value, or else the value that read finds. If read returns ok false,
// Load does too and caches nothing. A read during which k was dropped is repeated.
func (c *Cache[K, V]) Load(ctx context.Context, k K, read func(context.Context) (v V, ok bool, err error)) (V, bool, error) {
	if v, ok := c.Get(k); ok {
		return v, true, nil
	}
	return c.read(ctx, k, read, false)
}

// Renew reads a cached value again and replaces it, or drops it if read returns ok false. An
// error changes nothing.
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

// Keep caches a value that never changes.
func (c *Cache[K, V]) Keep(k K, v V) {
	s := c.shard(k)
	s.mu.Lock()
	c.put(s, k, v)
	s.mu.Unlock()
}

// put stores a value; if the cache is full it removes an expired entry, or else any.
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
		if len(s.m) >= max(c.cfg.Max/cacheShards, 1) { // fewer than eight, none of them expired
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

// Drop removes k. After it returns, no caller gets a value that was read before.
func (c *Cache[K, V]) Drop(k K) {
	s := c.shard(k)
	s.mu.Lock()
	s.drops++
	delete(s.m, k)
	s.mu.Unlock()
}

// Clear removes every entry.
func (c *Cache[K, V]) Clear() {
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.Lock()
		s.drops++
		clear(s.m)
		s.mu.Unlock()
	}
}
