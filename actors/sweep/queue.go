package sweep

import (
	"agentsvc/persistence/feed"
	"agentsvc/schemas/id"
)

// queue holds entities that wait to be woken and hands them out one tenant after another,
// so that a tenant with thousands does not hold up the few of another.
type queue struct {
	limit   int // from here on only tenants with less than their part get in
	n       int
	found   map[id.TenantID][]feed.Found
	tenants []id.TenantID // those with entities, next one first
}

func newQueue(limit int) *queue {
	return &queue{limit: limit, found: map[id.TenantID][]feed.Found{}}
}

// push reports whether there was room.
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

// pop returns the next entity; ok is false where there is none.
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
