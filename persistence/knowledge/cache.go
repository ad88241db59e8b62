package knowledge

import (
	"container/list"
	"sync"

	"agentsvc/schemas/id"
)

// partAt names the vectors of a part of one generation of a document, which do not change once it is
// shown: nothing cached is stale.
type partAt struct {
	tenant id.TenantID
	part   visible
}

// cache keeps the vectors that were used last, up to a number of bytes. Whether a search may use them
// is not its matter.
type cache struct {
	limit int64

	mu    sync.Mutex // guards the fields below
	bytes int64
	order *list.List // of *cached, the last used first
	at    map[partAt]*list.Element
}

type cached struct {
	key   partAt
	value *matrix
	bytes int64
}

func newCache(limit int64) *cache {
	return &cache{limit: limit, order: list.New(), at: map[partAt]*list.Element{}}
}

func (c *cache) get(k partAt) (*matrix, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.at[k]
	if e == nil {
		return nil, false
	}
	c.order.MoveToFront(e)
	return e.Value.(*cached).value, true
}

// put keeps vectors. Those larger than a quarter of the limit are not kept.
func (c *cache) put(k partAt, m *matrix) {
	bytes := m.bytes()
	if bytes > c.limit/4 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.at[k] != nil {
		return
	}
	c.at[k] = c.order.PushFront(&cached{k, m, bytes})
	c.bytes += bytes
	for c.bytes > c.limit {
		old := c.order.Remove(c.order.Back()).(*cached)
		delete(c.at, old.key)
		c.bytes -= old.bytes
	}
	cachedBytes.Set(float64(c.bytes))
}
