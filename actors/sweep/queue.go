package sweep

import (
	"agentsvc/persistence/feed"
	"agentsvc/schemas/id"
)

// queue holds runs that wait to be woken and hands them out one tenant after
// another, so that a tenant with thousands holds up nobody's few.
type queue struct {
	limit   int // from here on only tenants with less than their part get in
	n       int
	runs    map[id.TenantID][]feed.OpenRun
	tenants []id.TenantID // those with runs, next one first
}

func newQueue(limit int) *queue {
	return &queue{limit: limit, runs: map[id.TenantID][]feed.OpenRun{}}
}

// push reports whether there was room.
func (q *queue) push(o feed.OpenRun) bool {
	own := q.runs[o.Tenant]
	if q.n >= q.limit && len(own) >= q.limit/max(len(q.tenants), 1) {
		return false
	}
	if len(own) == 0 {
		q.tenants = append(q.tenants, o.Tenant)
	}
	q.runs[o.Tenant] = append(own, o)
	q.n++
	return true
}

// pop is the next run; not ok where there is none.
func (q *queue) pop() (o feed.OpenRun, ok bool) {
	if q.n == 0 {
		return o, false
	}
	tenant := q.tenants[0]
	q.tenants = q.tenants[1:]
	own := q.runs[tenant]
	if o = own[0]; len(own) > 1 {
		q.runs[tenant] = own[1:]
		q.tenants = append(q.tenants, tenant)
	} else {
		delete(q.runs, tenant)
	}
	q.n--
	return o, true
}
