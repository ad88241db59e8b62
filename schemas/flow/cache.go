package flow

import (
	"container/list"
	"crypto/sha256"
	"encoding/json"
	"sync"
)

// Limits of the cache of plans.
const (
	maxCached      = 2_000
	maxCachedBytes = 64 << 20
	// exprBytes is what a compiled expression takes in memory, about.
	exprBytes = 12 << 10
)

// plans keeps the plans of recent documents, and with each the expressions that its runs have
// compiled: a compilation takes as long as ten evaluations. A plan depends only on the text.
var plans = cache{kept: map[[sha256.Size]byte]*list.Element{}, order: list.New()}

type cache struct {
	mu    sync.Mutex // guards the fields below
	kept  map[[sha256.Size]byte]*list.Element
	order *list.List // of *cached, the most recently used first
	bytes int
}

type cached struct {
	key    [sha256.Size]byte
	plan   *Plan
	weight int
}

// Cached is Load with a cache of recent plans.
func Cached(doc json.RawMessage) (*Plan, error) {
	key := sha256.Sum256(doc)
	if p := plans.find(key); p != nil {
		return p, nil
	}
	p, err := Load(doc)
	if err != nil {
		return nil, err
	}
	plans.keep(&cached{key, p, p.weight(len(doc))})
	return p, nil
}

// weight estimates the memory of a plan with all its expressions.
func (p *Plan) weight(doc int) int {
	n := 8*doc + 1<<10*(len(p.nodes)+1)
	for i := range p.nodes {
		if p.nodes[i].cel != nil {
			n += exprBytes
		}
		n += 64 * (len(p.nodes[i].value) + len(p.nodes[i].text))
	}
	for i := range p.edges {
		if p.edges[i].when != nil {
			n += exprBytes
		}
	}
	return n
}

func (c *cache) find(key [sha256.Size]byte) *Plan {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.kept[key]
	if !ok {
		return nil
	}
	c.order.MoveToFront(e)
	return e.Value.(*cached).plan
}

func (c *cache) keep(made *cached) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, twice := c.kept[made.key]; twice {
		return
	}
	c.kept[made.key] = c.order.PushFront(made)
	c.bytes += made.weight
	for c.bytes > maxCachedBytes || len(c.kept) > maxCached {
		last := c.order.Remove(c.order.Back()).(*cached)
		delete(c.kept, last.key)
		c.bytes -= last.weight
	}
}
