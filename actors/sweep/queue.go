package sweep

import (
	"agentsvc/persistence/feed"
	"agentsvc/schemas/id"
)

// queue holds the entities to wake. It returns them in rotation between tenants, so that the
// backlog of one tenant does not delay another.
type queue struct {
	limit   int // above it a tenant may only add entities up to its share
	n       int
	found   map[id.TenantID][]feed.Found
	tenants []id.TenantID // tenants with entities, in the order of the rotation
}

func newQueue(limit int) *queue {
	return &queue{limit: limit, found: map[id.TenantID][]feed.Found{}}
}

// push adds an entity and reports whether there was room.
func (q *queue) push(o feed.Found) bool {
	own := q.found[o.Tenant]
	if q.n >= q.limit && len(own) >= q.limit/max(len(q.tenants), 1) {
		return false
	}
	if len(own) == 0 {
		q.tenants = append(q.tenants, o.Tenant)
	}
	q.found[o.Tenant] = append(own, o)
	q.n++
	return true
}

// pop returns the next entity; ok is false if there is none.
func (q *queue) pop() (o feed.Found, ok bool) {
	if q.n == 0 {
		return o, false
	}
	tenant := q.tenants[0]
	q.tenants = q.tenants[1:]
	own := q.found[tenant]
	if o = own[0]; len(own) > 1 {
		q.found[tenant] = own[1:]
		q.tenants = append(q.tenants, tenant)
	} else {
		delete(q.found, tenant)
	}
	q.n--
	return o, true
}
