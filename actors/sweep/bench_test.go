package sweep

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"agentsvc/cluster"
	"agentsvc/cluster/placement"
	"agentsvc/persistence/feed"
	"agentsvc/persistence/pgtest"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
)

// survivor is a node on which everything lives but what was the dead one's.
type survivor struct {
	table *placement.Table
	self  id.MemberID
	busy  func(run id.UUID) bool

	mu   sync.Mutex
	told map[cluster.Address]time.Time
	last time.Time
	any  chan struct{} // capacity 1: told has grown
}

func (s *survivor) Shards() []id.Shard   { return s.table.Shards(s.self) }
func (s *survivor) Owns(n id.Shard) bool { return s.table.Owner(n) == s.self }
func (s *survivor) Active(a cluster.Address) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, told := s.told[a]
	return told || s.busy(a.ID)
}

func (s *survivor) Tell(a cluster.Address, _ any) {
	s.mu.Lock()
	s.last = time.Now()
	s.told[a] = s.last
	s.mu.Unlock()
	select {
	case s.any <- struct{}{}:
	default:
	}
}

// knowsAll makes a sweep that looked at the shards of its start before.
func (s *Sweep) knowsAll() {
	s.toTimers.begun = true
	for _, w := range s.searches {
		w.gains.begun = true
	}
}

// BenchmarkTakeover has 200,000 open runs, half of which wait for people, and a
// node of three that dies with 1000 running ones of 50 tenants, 600 of them one
// tenant's. It measures the time from Gained to the last wake of a survivor, and
// what a pass costs that finds nothing to do, for a node of 1, 3 and 50. Run it
// with -benchtime=3x.
func BenchmarkTakeover(b *testing.B) {
	db := pgtest.New(b)
	pool, ctx := db.System(b), b.Context()
	exec := func(sql string, args ...any) {
		if _, err := pool.Exec(ctx, sql, args...); err != nil {
			b.Fatal(err)
		}
	}
	members := make([]id.MemberID, 50)
	for i := range members {
		members[i] = id.MemberID{UUID: id.NewAnywhere()}
	}
	place := func(m []id.MemberID) *placement.Table {
		t, err := placement.New(m)
		if err != nil {
			b.Fatal(err)
		}
		return t
	}
	three, two := place(members[:3]), place(members[:2])
	dead := map[id.Shard]bool{}
	for _, n := range three.Shards(members[2]) {
		dead[n] = true
	}
	tenants := make([]id.UUID, 50)
	agent := id.NewAnywhere()
	for i := range tenants {
		tenants[i] = id.NewAnywhere()
		exec("INSERT INTO tenants (id, name) VALUES ($1, 't')", tenants[i])
	}
	const open, orphans = 200_000, 1000
	running := map[id.UUID]bool{} // of the dead one
	var of, runs []id.UUID
	var status []string
	for i := range open {
		s := "waiting_approval"
		u := id.New(id.Shard(i * 37 % id.Shards))
		tenant := tenants[i%len(tenants)]
		switch {
		case i < orphans:
			gone := three.Shards(members[2])
			s, u = "running", id.New(gone[i%len(gone)])
			if running[u] = true; i < 600 {
				tenant = tenants[0]
			}
		case i%2 == 1:
			s = "running"
		}
		of, runs, status = append(of, tenant), append(runs, u), append(status, s)
	}
	for part := range slices.Chunk(runs, 20_000) {
		n := len(part)
		exec(`INSERT INTO runs (tenant_id, id, status, agent_id, origin_kind, origin_id, created_at)
			SELECT t, u, s, $4, 'api_key', t, now() FROM unnest($1::uuid[], $2::uuid[], $3::text[]) AS i (t, u, s)`, of[:n], part, status[:n], agent)
		of, status = of[n:], status[n:]
	}
	if _, err := db.Admin(b).Exec(ctx, "VACUUM ANALYZE runs"); err != nil {
		b.Fatal(err)
	}
	busy := func(u id.UUID) bool { return !running[u] }
	node := func(t *placement.Table, self id.MemberID, busy func(id.UUID) bool) (*survivor, *Sweep) {
		v := &survivor{table: t, self: self, busy: busy, told: map[cluster.Address]time.Time{}, any: make(chan struct{}, 1)}
		return v, New(Config{Rows: feed.NewSweep(pool), Kinds: rarely, Node: v, Log: zerolog.Nop()})
	}
	tick := func(s *Sweep) {
		if _, err := s.runOnce(ctx); err != nil {
			b.Fatal(err)
		}
	}
	var takeover, smallest time.Duration
	woken := 0
	b.ResetTimer()
	for range b.N {
		v, s := node(two, members[0], busy)
		s.knowsAll()
		s.searchOf(msg.KindRun).nextPass = time.Now().Add(time.Hour)
		var gained []id.Shard
		for _, n := range v.Shards() {
			if dead[n] {
				gained = append(gained, n)
			}
		}
		start := time.Now()
		s.Gained(gained)
		if err := s.Start(context.Background()); err != nil {
			b.Fatal(err)
		}
		want := 0
		for u := range running {
			if v.Owns(u.Shard()) {
				want++
			}
		}
		for n := 0; n < want; {
			<-v.any
			v.mu.Lock()
			n = len(v.told)
			v.mu.Unlock()
		}
		s.Stop()
		takeover += v.last.Sub(start)
		few := start
		for a, at := range v.told {
			if a.Kind == msg.KindRun && a.Tenant.UUID != tenants[0] && at.After(few) {
				few = at
			}
		}
		smallest += few.Sub(start)
		woken += want
	}
	n := float64(b.N)
	b.ReportMetric(float64(woken)/n, "woken")
	b.ReportMetric(float64(takeover.Microseconds())/1000/n, "ms-to-last")
	b.ReportMetric(float64(smallest.Microseconds())/1000/n, "ms-to-last-of-the-few")
	everyone := func(id.UUID) bool { return true }
	for _, c := range []struct {
		nodes int
		unit  string
	}{{1, "ms-idle-pass-of-1"}, {3, "ms-idle-pass-of-3"}, {50, "ms-idle-pass-of-50"}} {
		_, s := node(place(members[:c.nodes]), members[0], everyone)
		s.knowsAll()
		var spent time.Duration
		for range b.N {
			s.searchOf(msg.KindRun).nextPass = time.Now()
			start := time.Now()
			for tick(s); s.searchOf(msg.KindRun).pass != nil; {
				tick(s)
			}
			spent += time.Since(start)
		}
		b.ReportMetric(float64(spent.Microseconds())/1000/n, c.unit)
	}
	b.ReportMetric(0, "ns/op")
}
