package check

import (
	"container/list"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"agentsvc/schemas/id"
	"agentsvc/schemas/turn"
)

// Limits of the cache.
const (
	maxCached      = 4_000
	maxCachedBytes = 48 << 20
)

// cache keeps recent compilation results by their text, including refusals. A result depends only
// on the text. Above the limits it drops the least recently used results of the tenant that has
// the most bytes, so that one tenant's schemas push out its own.
type cache struct {
	mu    sync.Mutex // guards the fields below
	kept  map[cacheKey]*list.Element
	order *list.List // of *cached, the most recently used first
	bytes int
	of    map[id.TenantID]int // bytes of the results that a tenant asked for first
}

type cacheKey struct {
	sum [sha256.Size]byte
	of  textKind
}

// textKind is what a text is, and how it is compiled.
type textKind struct{ patterns, formats, dynamic bool }

type cached struct {
	key    cacheKey
	made   any // a *Schema or []*Pattern; nil if err is set
	err    error
	weight int
	tenant id.TenantID
}

func newCache() *cache {
	return &cache{kept: map[cacheKey]*list.Element{}, order: list.New(), of: map[id.TenantID]int{}}
}

var compiled = newCache()

// Cached is Compile with a cache of recent results. Options.Patterns must be nil.
func Cached(ctx context.Context, doc json.RawMessage, o Options) (*Schema, error) {
	return compiled.schema(ctx, doc, o)
}

// CachedPatterns compiles the patterns of one document within one bound, with a cache of
// recent results. The error names the position in the list.
func CachedPatterns(ctx context.Context, exprs []string) ([]*Pattern, error) {
	return compiled.patterns(ctx, exprs)
}

func (c *cache) schema(ctx context.Context, doc json.RawMessage, o Options) (*Schema, error) {
	if len(doc) > MaxBytes {
		return nil, &Refusal{Reason: ErrLong}
	}
	made, err := c.get(ctx, doc, textKind{formats: o.Formats, dynamic: o.Dynamic}, func() (any, int, error) {
		s, err := compile(doc, o)
		var r *Refusal
		if errors.As(err, &r) {
			return nil, 0, &Refusal{At: r.At, Reason: r.Reason} // without the quoted text
		}
		return s, s.weight, nil
	})
	if err != nil {
		return nil, err
	}
	return made.(*Schema), nil
}

func (c *cache) patterns(ctx context.Context, exprs []string) ([]*Pattern, error) {
	text, err := json.Marshal(exprs)
	if err != nil {
		return nil, err
	}
	made, err := c.get(ctx, text, textKind{patterns: true}, func() (any, int, error) {
		var bound Patterns
		out := make([]*Pattern, len(exprs))
		for i, expr := range exprs {
			if out[i], err = bound.Compile(expr); err != nil {
				return nil, 0, &PatternError{Place: i, Err: err}
			}
		}
		return out, len(text) + 120*bound.used, nil
	})
	if err != nil {
		return nil, err
	}
	return made.([]*Pattern), nil
}

// PatternError names the one of several patterns that cannot be used.
type PatternError struct {
	Place int
	Err   error
}

// Error returns the reason with the position.
func (e *PatternError) Error() string { return fmt.Sprintf("pattern %d %v", e.Place, e.Err) }

// Unwrap returns the reason.
func (e *PatternError) Unwrap() error { return e.Err }

// get returns the cached result for a text, or compiles it when it is its turn.
func (c *cache) get(ctx context.Context, text []byte, of textKind, compile func() (any, int, error)) (any, error) {
	key := cacheKey{sha256.Sum256(text), of}
	if found := c.find(key); found != nil {
		return found.made, found.err
	}
	done, err := begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	if found := c.find(key); found != nil { // compiled by another caller meanwhile
		return found.made, found.err
	}
	e := &cached{key: key, tenant: turn.Tenant(ctx)}
	e.made, e.weight, e.err = compile()
	e.weight += 1 << 10
	c.keep(e)
	return e.made, e.err
}

func (c *cache) find(key cacheKey) *cached {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.kept[key]
	if !ok {
		return nil
	}
	c.order.MoveToFront(e)
	return e.Value.(*cached)
}

func (c *cache) keep(made *cached) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, twice := c.kept[made.key]; twice {
		return
	}
	c.kept[made.key] = c.order.PushFront(made)
	c.bytes += made.weight
	c.of[made.tenant] += made.weight
	for c.bytes > maxCachedBytes || len(c.kept) > maxCached {
		c.drop()
	}
}

// drop removes the least recently used result of the tenant with the most bytes.
func (c *cache) drop() {
	var heaviest id.TenantID
	most := 0
	for t, n := range c.of {
		if n > most {
			heaviest, most = t, n
		}
	}
	for e := c.order.Back(); e != nil; e = e.Prev() {
		last := e.Value.(*cached)
		if last.tenant != heaviest {
			continue
		}
		c.order.Remove(e)
		delete(c.kept, last.key)
		c.bytes -= last.weight
		if c.of[heaviest] -= last.weight; c.of[heaviest] == 0 {
			delete(c.of, heaviest)
		}
		return
	}
}
