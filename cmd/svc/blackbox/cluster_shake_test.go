package blackbox

import (
	"context"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// shaker does to a bed what machines and networks do.
type shaker struct {
	*load
	kills int
	last  time.Time // of a kill
}

// apart is how long it is from one kill to the next.
const apart = 3 * time.Second

// pauseFor waits; false: the test is over.
func pauseFor(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// settle waits until all nodes are ready.
func (s *shaker) settle(ctx context.Context) {
	s.scene.t.Helper()
	for _, m := range s.nodes {
		m.back(ctx)
	}
}

// kill kills a node, but never the last one that lives, and starts it again soon:
// the next kill may come before it is back.
func (s *shaker) kill(ctx context.Context) {
	s.scene.t.Helper()
	if !pauseFor(ctx, time.Until(s.last.Add(apart))) {
		return
	}
	least := min(2, len(s.nodes))
	eventually(s.scene.t, ctx, "another node than the next victim lives", func() bool { return len(s.healthy()) >= least })
	from := s.healthy()
	m := from[rand.IntN(len(from))]
	crash := s.disturbs()
	m.kill()
	s.book.calms(crash, false)
	s.last = time.Now()
	s.kills++
	if len(s.nodes) == 1 {
		m.begin()
		s.loops.Go(func() { s.returned(m, crash) })
		return
	}
	away := rand.N(2 * time.Second)
	s.loops.Go(func() {
		timer := time.NewTimer(away)
		defer timer.Stop()
		select {
		case <-timer.C:
			m.begin()
			s.returned(m, crash)
		case <-s.over:
		}
	})
	if !pauseFor(ctx, away) {
		return
	}
}

// returned waits until a node that was killed is ready again, and says so.
func (s *shaker) returned(m *member, crash *unrest) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !m.healthy.Load() || !m.alive() {
		select {
		case <-tick.C:
		case <-s.over:
			return
		}
	}
	s.book.calms(crash, true)
}

// busy waits until a process has called tools lately.
func (s *shaker) busy(ctx context.Context, m *member) (calls int) {
	s.scene.t.Helper()
	eventually(s.scene.t, ctx, "node "+m.name+" calls tools", func() bool {
		calls = s.yard.since(m.pid(), time.Now().Add(-2*time.Second))
		return calls > 0
	})
	return calls
}

// toDatabase cuts the node's way to Postgres, or makes it whole.
func (m *member) toDatabase(to cut) {
	m.bed.book.event("the way from node %s to Postgres is %s", m.name, to)
	if m.bed.net != nil {
		m.bed.net.cutOff(m.i, to)
		return
	}
	m.database.set("", to)
}

// cutOff cuts a node off from Postgres for longer than its lease.
func (s *shaker) cutOff(ctx context.Context, m *member, how cut) {
	s.scene.t.Helper()
	s.settle(ctx)
	quiet := silence{pid: m.pid(), before: s.busy(ctx, m)}
	m.expect()
	cut := s.disturbs()
	m.toDatabase(how)
	quiet.from = time.Now().Add(s.lease)
	ok := pauseFor(ctx, 2*s.lease+time.Second)
	quiet.to = time.Now()
	s.book.silent(quiet)
	m.toDatabase(whole)
	if ok {
		s.settle(ctx)
		s.book.calms(cut, true)
	}
}

// crash crashes Postgres and starts it again after a while. No node ends because of it.
func (s *shaker) crash(ctx context.Context, down time.Duration) {
	s.scene.t.Helper()
	s.settle(ctx)
	s.book.event("Postgres crashes")
	crash := s.disturbs()
	s.pg.Crash(s.scene.t)
	gone := span{from: time.Now()}
	for end := gone.from.Add(down); time.Now().Before(end) && pauseFor(ctx, 100*time.Millisecond); {
		once, cancel := context.WithTimeout(ctx, time.Second)
		s.request(once, 1) // there is one that begins and ends in it
		cancel()
	}
	gone.to = time.Now()
	s.pg.Start(s.scene.t)
	back := time.Now()
	s.book.event("Postgres is back")
	s.book.outage(gone)
	s.heal(ctx, back)
	s.book.calms(crash, true)
}

// heal waits until all nodes are ready, and holds the law of healing against how
// long after Postgres they are.
func (s *shaker) heal(ctx context.Context, back time.Time) {
	s.scene.t.Helper()
	s.settle(ctx)
	took := time.Since(back)
	s.book.rule(lawHeals, took <= 10*time.Second, "all nodes are ready only %s after Postgres", took)
}

// roll restarts all nodes in order, one after another, as an upgrade does. A node of its own has no other
// one that would take over its buckets.
func (s *shaker) roll(ctx context.Context) {
	s.scene.t.Helper()
	s.settle(ctx)
	if len(s.nodes) == 1 {
		lost := s.disturbs()
		defer s.book.calms(lost, true)
	}
	for _, m := range s.nodes {
		m.term()
		m.begin()
		m.back(ctx)
	}
}

// rows shows what is stored of a run.
func (l *load) rows(t *testing.T, run string) {
	for _, q := range []string{
		`SELECT 'run ' || row_to_json(r)::text FROM (SELECT status, version, owner_epoch, seq, steps FROM runs WHERE id = $1) r`,
		`SELECT 'step ' || row_to_json(s)::text FROM (SELECT idx, kind, name, status, began_seq, called_seq FROM run_steps WHERE run_id = $1 ORDER BY idx) s`,
		`SELECT 'approval ' || row_to_json(a)::text FROM (SELECT id, step_idx, status, version, owner_epoch, decisions, decided_at FROM approvals WHERE run_id = $1 ORDER BY step_idx) a`,
		`SELECT 'timer ' || row_to_json(t)::text FROM timers t WHERE entity_id = $1 OR entity_id IN (SELECT id FROM approvals WHERE run_id = $1)`,
	} {
		rows, err := l.admin.Query(context.WithoutCancel(t.Context()), q, run)
		if err != nil {
			t.Log(err)
			continue
		}
		texts, err := pgx.CollectRows(rows, pgx.RowTo[string])
		t.Log(strings.Join(texts, "\n"), err)
	}
}

// weighed is what a storm must have met, so that its laws are not void.
func (l *load) weighed(t *testing.T, r *rulings, f *findings, laws ...string) {
	t.Helper()
	l.book.report(t)
	r.report(t)
	l.book.notVoid(t, laws...)
	r.notVoid(t)
	for _, x := range l.tales {
		if len(x.wrong) == 0 && x.err == nil {
			continue
		}
		t.Logf("%s, run %s: %v; wrong: %v; it asked:", x.title(), x.run, x.err, x.wrong)
		for _, a := range l.book.requests() {
			if a.story == x.title() {
				t.Logf("%8.3f to %8.3f node %s (%d) %s %s: %d %v", a.at.Sub(l.book.begun).Seconds(), a.end.Sub(l.book.begun).Seconds(), a.node.name, a.pid, a.method, a.path, a.status, a.err)
			}
		}
		l.rows(t, x.run)
	}
	repeats, resumed, lost, total := 0, 0, 0, 0
	seen := map[string]bool{}
	for _, a := range l.book.requests() {
		total++
		if a.resumes {
			resumed++
		}
		if !a.accepted() && a.mutates() && a.status != 409 && a.bucket == "" {
			lost++
		}
	}
	for _, x := range f.chores {
		seen[x.polled], seen["cancelled "+x.cancelled] = true, true
	}
	if repeats = f.repeated(); len(l.nodes) > 1 && (resumed == 0 || lost == 0) {
		t.Errorf("%d streams went on at another node, %d posts were not answered at first: the test is void", resumed, lost)
	}
	if !seen["cancelled cancelled"] || !seen["succeeded"] {
		t.Errorf("the ends of runs that were seen are %v: the test is void", seen)
	}
	t.Logf("%d requests, %d runs of %d talks, %d chores, %d tales; %d streams went on at another node, %d posts were not answered at first, %d ungated calls were repeated", total,
		len(f.ends), len(f.talks), len(f.chores), len(f.tales), resumed, lost, repeats)
}

// seen waits, while the load goes on, until there was a case of all that the load
// itself brings about.
func (s *shaker) seen(ctx context.Context) {
	s.scene.t.Helper()
	for _, law := range []string{lawCrowd, lawStalled, lawKeyed, lawReadEnd, lawRevoked, lawCutOff, lawPlaces, lawForeign} {
		eventually(s.scene.t, ctx, "a case of "+law, func() bool { return s.book.ruled(law) })
	}
	events := []string{"a run was succeeded", "a cancel was answered cancelled"}
	if s.crowd.drainers > 0 {
		events = append(events, askedAgain)
	}
	for _, x := range allStories {
		events = append(events, "told: "+x.name)
	}
	for _, x := range flowStories {
		events = append(events, "told: "+x.name)
	}
	for _, event := range events {
		eventually(s.scene.t, ctx, event, func() bool { return s.hasMet(event) })
	}
}
