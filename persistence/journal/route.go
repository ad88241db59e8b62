package journal

import (
	"sync"

	"agentsvc/schemas/id"
)

const (
	// crowd is from how many commits on their way a lane is worth avoiding.
	crowd = 2
	// fewCommits is how many commits a tenant may have in flight and use the side lane.
	fewCommits = 4
)

// routes choose the lane of a commit: that of its shard, or the side lane for a tenant with
// few commits in flight while the lane of the shard is full or rests. So a tenant with few
// commits does not wait for a flush of many. Commits that lock one entity's row are never in
// two lanes at a time.
type routes struct {
	lanes []*lane // of shards
	side  *lane
	crowd int

	mu      sync.Mutex // guards the fields below
	under   map[*lane]int
	tenants map[id.TenantID]*route
	filled  map[*lane]map[id.TenantID]int // of a lane that rests: the commits of its last flush, by tenant
}

// route is the state of a tenant's commits.
type route struct {
	n       int             // commits in flight
	aside   bool            // further commits take the side lane
	entered map[id.UUID]int // entities with commits in the side lane
}

func newRoutes(lanes []*lane, side *lane) *routes {
	return &routes{lanes: lanes, side: side, crowd: crowd, under: map[*lane]int{}, tenants: map[id.TenantID]*route{}, filled: map[*lane]map[id.TenantID]int{}}
}

// of returns the lane that c takes. ended is called once c was answered.
func (r *routes) of(c *Commit) *lane {
	own := r.lanes[int(c.Shard)%len(r.lanes)]
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.tenants[c.Tenant]
	if t == nil {
		t = &route{}
		r.tenants[c.Tenant] = t
	}
	if t.n == 0 {
		t.aside = r.avoids(own, c.Tenant)
	} else if t.n >= fewCommits {
		t.aside = false
	}
	t.n++
	l := own
	if t.aside || t.met(c) {
		l = r.side
		if t.entered == nil {
			t.entered = map[id.UUID]int{}
		}
		c.locked(func(u id.UUID) { t.entered[u]++ })
	}
	r.under[l]++
	return l
}

// avoids reports whether a tenant without commits on their way begins aside: the
// lane is crowded, and the side lane is not; or the lane rests, for others. The
// lock is held.
func (r *routes) avoids(own *lane, tenant id.TenantID) bool {
	if filled, rests := r.filled[own]; rests {
		return filled[tenant] < fewCommits
	}
	return r.under[own] >= r.crowd && 2*r.under[r.side] < r.under[own]
}

// rests notes that l rests. filled is the number of commits of its last flush by tenant, and must
// not change until rested.
func (r *routes) rests(l *lane, filled map[id.TenantID]int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.filled[l] = filled
}

// rested notes that l works again.
func (r *routes) rested(l *lane) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.filled, l)
}

// met reports whether c's entities have commits in the side lane.
func (t *route) met(c *Commit) (met bool) {
	if len(t.entered) > 0 {
		c.locked(func(u id.UUID) { met = met || t.entered[u] > 0 })
	}
	return met
}

// ended says that l has answered c.
func (r *routes) ended(c *Commit, l *lane) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.under[l]--
	t := r.tenants[c.Tenant]
	if l == r.side {
		c.locked(func(u id.UUID) {
			if t.entered[u]--; t.entered[u] == 0 {
				delete(t.entered, u)
			}
		})
	}
	if t.n--; t.n == 0 {
		delete(r.tenants, c.Tenant)
	}
}

// locked calls f with each entity whose row c locks: those that it swaps or makes, and
// those that a swap looks at, which c may leave as they are.
func (c *Commit) locked(f func(id.UUID)) {
	var v Values
	for _, r := range c.Rows {
		if w := r.Write(); !w.entity && w.locking < 0 {
			continue
		}
		v.measure(r)
		for _, u := range v.ids {
			if !u.IsZero() {
				f(u)
			}
		}
	}
}
