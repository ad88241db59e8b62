package trigger_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"agentsvc/actors/durable"
	"agentsvc/actors/sweep"
	"agentsvc/actors/trigger"
	"agentsvc/cluster"
	"agentsvc/persistence/feed"
	"agentsvc/persistence/store"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/testkit"
)

func TestADueTimeStartsARun(t *testing.T) {
	w := newWorld(t)
	due := at(t, "2026-05-06T07:00:00Z")
	g := w.schedule("0 * * * *", "UTC", due)
	w.clock.set(due.Add(20 * time.Millisecond))
	n := w.start(trigger.Config{}, nil)
	w.tell(n, g)
	w.moves(g, due.Add(time.Hour))
	w.runs(g, due)
	if row := w.row(g); row.LastFiredAt == nil || !row.LastFiredAt.Equal(w.clock.now()) || !row.UpdatedAt.Equal(row.CreatedAt) {
		t.Errorf("%+v", row)
	}
	var run, log string
	w.must(w.admin.QueryRow(t.Context(), `SELECT agent_version || ' ' || (input->>'text') FROM runs WHERE id = $1`, trigger.RunAt(g, due)).Scan(&run))
	w.must(w.admin.QueryRow(t.Context(), `SELECT actor || ' ' || target_kind || ' ' || target_id || ' ' || (detail->>'run_id') FROM audit_log WHERE action = 'trigger.fire'`).Scan(&log))
	if want := "trigger:" + g.String() + " trigger " + g.String() + " " + trigger.RunAt(g, due).String(); run != "1 hi" || log != want {
		t.Errorf("the run is %q, the log says %q", run, log)
	}
	w.rests(n, g)
}

// One firing for each due time, however many activations on however many nodes are
// told, and however often.
func TestADueTimeIsFiredOnceOverTheCluster(t *testing.T) {
	w := newWorld(t)
	due := at(t, "2026-05-06T07:00:00Z")
	g := w.schedule("* * * * *", "UTC", due)
	nodes := []*cluster.Node{w.start(trigger.Config{}, nil), w.start(trigger.Config{}, nil)}
	var dues []time.Time
	for range 30 {
		dues = append(dues, due)
		w.clock.set(due.Add(time.Second))
		var all sync.WaitGroup
		for _, n := range nodes {
			all.Go(func() {
				for range 3 {
					w.tell(n, g)
				}
			})
		}
		all.Wait()
		due = due.Add(time.Minute)
		w.moves(g, due)
	}
	for _, n := range nodes {
		w.rests(n, g)
	}
	w.runs(g, dues...)
	var fired int
	w.must(w.admin.QueryRow(t.Context(), `SELECT count(*)::int FROM audit_log WHERE action = 'trigger.fire'`).Scan(&fired))
	if fired != len(dues) {
		t.Errorf("the log says %d times that it fired", fired)
	}
}

// Whoever dies between the start of the run and the move is followed by one who
// starts nothing more, on another node too.
func TestACrashBetweenTheStartAndTheMove(t *testing.T) {
	w := newWorld(t)
	due := at(t, "2026-05-06T07:00:00Z")
	g := w.schedule("* * * * *", "UTC", due)
	w.clock.set(due)
	dead := &lossy{Writer: w.writer}
	first := w.startWith(dead, trigger.Config{}, nil)
	w.tell(first, g)
	testkit.Eventually(w.t, "the commit is lost", func() bool { return dead.lost.Load() > 0 })
	w.runs(g, due)
	if row := w.row(g); !row.NextFireAt.Equal(due) || row.LastFiredAt != nil {
		t.Fatalf("%+v", row)
	}
	w.clock.set(due.Add(10 * time.Second))
	w.tell(w.start(trigger.Config{}, nil), g)
	w.moves(g, due.Add(time.Minute))
	w.runs(g, due)
}

// Without storage nothing is lost: the timer stays, and comes again.
func TestAFiringThatFailsLeavesItsTimer(t *testing.T) {
	w := newWorld(t)
	due := at(t, "2026-05-06T07:00:00Z")
	g := w.schedule("* * * * *", "UTC", due)
	w.clock.set(due)
	rows := &unread{Store: w.schedules}
	rows.fails.Store(1)
	var away atomic.Int64
	n := w.start(trigger.Config{Store: rows}, func(context.Context, any) error {
		if away.Add(1) == 1 {
			return problem.Unavailable("Storage is not available.", time.Second)
		}
		return nil
	})
	w.tell(n, g) // a read that fails is repeated by the host
	testkit.Eventually(w.t, "the start is refused", func() bool { return away.Load() == 1 })
	if rows.fails.Load() >= 0 {
		t.Error("no read was lost")
	}
	w.rests(n, g)
	w.runs(g)
	if timer, _ := w.timer(g); !timer.Equal(due) {
		t.Fatalf("the timer is due at %v", timer)
	}
	w.tell(n, g)
	w.moves(g, due.Add(time.Minute))
	w.runs(g, due)
}

// open-parts.md, triggers: times missed while everything was down are run once,
// then the next is awaited.
func TestMissedTimesAreOneRun(t *testing.T) {
	w := newWorld(t)
	due := at(t, "2026-05-06T07:00:00Z")
	g := w.schedule("*/10 * * * *", "UTC", due)
	w.clock.set(due.Add(25*time.Hour + 3*time.Minute))
	n := w.start(trigger.Config{}, nil)
	w.tell(n, g)
	next := at(t, "2026-05-07T08:10:00Z")
	w.moves(g, next)
	w.rests(n, g)
	w.tell(n, g)
	w.rests(n, g)
	w.runs(g, due)
	w.clock.set(next)
	w.tell(n, g)
	w.moves(g, next.Add(10*time.Minute))
	w.runs(g, due, next)
}

// Both changes of the clock, through the actor: what is skipped comes due after the
// gap, what is shown twice comes due once.
func TestDaylightSaving(t *testing.T) {
	w := newWorld(t)
	n := w.start(trigger.Config{}, nil)
	for name, row := range map[string]struct {
		cron  string
		dues  []string
		quiet []string // told then, nothing happens
	}{
		"spring, once a day": {"30 2 * * *", []string{"2026-03-07T02:30:00-05:00", "2026-03-08T03:00:00-04:00", "2026-03-09T02:30:00-04:00", "2026-03-10T02:30:00-04:00"},
			[]string{"2026-03-08T01:59:59-05:00"}},
		"autumn, once a day": {"30 1 * * *", []string{"2026-10-31T01:30:00-04:00", "2026-11-01T01:30:00-04:00", "2026-11-02T01:30:00-05:00", "2026-11-03T01:30:00-05:00"},
			[]string{"2026-11-01T01:30:00-05:00"}},
		"spring, every hour": {"15 * * * *", []string{"2026-03-08T01:15:00-05:00", "2026-03-08T03:00:00-04:00", "2026-03-08T03:15:00-04:00", "2026-03-08T04:15:00-04:00"},
			[]string{"2026-03-08T01:59:59-05:00"}},
		"autumn, every hour": {"15 * * * *", []string{"2026-11-01T01:15:00-04:00", "2026-11-01T02:15:00-05:00", "2026-11-01T03:15:00-05:00"},
			[]string{"2026-11-01T01:15:00-05:00"}},
	} {
		t.Run(name, func(t *testing.T) {
			w.t = t
			var dues []time.Time
			for _, s := range row.dues {
				dues = append(dues, at(t, s))
			}
			g := w.schedule(row.cron, "America/New_York", dues[0])
			fired := 0
			for i := range dues[:len(dues)-1] {
				for _, s := range row.quiet {
					if when := at(t, s); when.Before(dues[i]) && (i == 0 || when.After(dues[i-1])) {
						w.clock.set(when)
						w.tell(n, g)
						w.rests(n, g)
						w.runs(g, dues[:i]...)
						fired++
					}
				}
				w.clock.set(dues[i])
				w.tell(n, g)
				w.moves(g, dues[i+1])
			}
			w.runs(g, dues[:len(dues)-1]...)
			if fired != len(row.quiet) {
				t.Errorf("%d of %d quiet moments were met", fired, len(row.quiet))
			}
		})
	}
}

// A pause that comes while a run is being started holds: the run was decided
// before it, and nothing comes after it.
func TestAPauseWhileItFires(t *testing.T) {
	w := newWorld(t)
	due := at(t, "2026-05-06T07:00:00Z")
	g := w.schedule("* * * * *", "UTC", due)
	w.clock.set(due)
	begun, goOn := make(chan struct{}), make(chan struct{})
	n := w.start(trigger.Config{}, func(context.Context, any) error {
		close(begun)
		<-goOn
		return nil
	})
	w.tell(n, g)
	<-begun
	off := false
	w.change(func(ctx context.Context, tx *store.Tx) error {
		_, err := tx.UpdateTrigger(ctx, g, &api.TriggerPatch{Enabled: &off})
		return err
	})
	w.tell(n, g) // is not begun beside it: begun would be closed twice
	close(goOn)
	w.rests(n, g)
	w.runs(g, due)
	if row := w.row(g); row.Enabled || row.NextFireAt != nil || row.LastFiredAt != nil {
		t.Errorf("%+v", row)
	}
	if timer, _ := w.timer(g); !timer.IsZero() {
		t.Errorf("a paused schedule has a timer at %v", timer)
	}
	w.tell(n, g)
	w.rests(n, g)
	w.runs(g, due)
}

// A firing that waits for its place starts what the schedule says by then.
func TestAChangeWhileAFiringWaits(t *testing.T) {
	w := newWorld(t)
	due := at(t, "2026-05-06T07:00:00Z")
	w.clock.set(due)
	first, paused, deleted, changed := w.schedule("* * * * *", "UTC", due), w.schedule("* * * * *", "UTC", due), w.schedule("* * * * *", "UTC", due), w.schedule("* * * * *", "UTC", due)
	begun, goOn := make(chan struct{}), make(chan struct{})
	rows := &loads{Store: w.schedules}
	n := w.start(trigger.Config{Store: rows, Most: 1}, func(_ context.Context, m any) error {
		if m.(msg.StartOne).Run == trigger.RunAt(first, due) {
			close(begun)
			<-goOn
		}
		return nil
	})
	w.tell(n, first)
	<-begun
	before := rows.n.Load()
	for _, g := range []id.TriggerID{paused, deleted, changed} {
		w.tell(n, g)
	}
	testkit.Eventually(t, "their rows are read", func() bool { return rows.n.Load() == before+3 })
	off := false
	w.change(func(ctx context.Context, tx *store.Tx) error {
		_, err := tx.UpdateTrigger(ctx, paused, &api.TriggerPatch{Enabled: &off})
		return errors.Join(err, tx.DeleteTrigger(ctx, deleted))
	})
	w.change(func(ctx context.Context, tx *store.Tx) error {
		_, err := tx.UpdateTrigger(ctx, changed, &api.TriggerPatch{Input: api.Some(api.Value(`{"text": "other"}`))})
		return err
	})
	close(goOn)
	w.moves(first, due.Add(time.Minute))
	w.moves(changed, due.Add(time.Minute))
	for _, g := range []id.TriggerID{paused, deleted} {
		w.rests(n, g)
		w.runs(g)
		if timer, _ := w.timer(g); !timer.IsZero() {
			t.Errorf("there is a timer at %v", timer)
		}
	}
	w.runs(changed, due)
	var text string
	w.must(w.admin.QueryRow(t.Context(), `SELECT input ->> 'text' FROM runs WHERE origin_id = $1`, changed).Scan(&text))
	if text != "other" {
		t.Errorf("the changed schedule started %q", text)
	}
}

// A due time that comes while another one is being fired is not left to the next
// claim of its timer.
func TestATimerThatComesDueWhileItFires(t *testing.T) {
	w := newWorld(t)
	due := at(t, "2026-05-06T07:00:00Z")
	g := w.schedule("* * * * *", "UTC", due)
	w.clock.set(due)
	begun, goOn := make(chan struct{}, 2), make(chan struct{}, 2)
	n := w.start(trigger.Config{}, func(context.Context, any) error {
		begun <- struct{}{}
		<-goOn
		return nil
	})
	w.tell(n, g)
	<-begun
	w.clock.set(due.Add(time.Minute))
	w.tell(n, g)
	goOn <- struct{}{}
	goOn <- struct{}{}
	w.moves(g, due.Add(2*time.Minute))
	w.rests(n, g)
	w.runs(g, due, due.Add(time.Minute))
}

// A target that cannot be started is passed over, and the schedule goes on.
func TestATargetThatCannotBeStarted(t *testing.T) {
	for name, row := range map[string]struct {
		sql     string
		refuses error
	}{
		"nothing published": {`UPDATE agents SET published_version = NULL`, nil},
		"archived":          {`UPDATE agents SET archived_at = now()`, nil},
		"refused for good":  {`SELECT 1`, problem.Invalid("input", "cannot be stored")},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			due := at(t, "2026-05-06T07:00:00Z")
			g := w.schedule("* * * * *", "UTC", due)
			w.exec(row.sql)
			w.clock.set(due)
			n := w.start(trigger.Config{}, func(context.Context, any) error { return row.refuses })
			skipped := counted(t, "svc_trigger_skipped_total")
			w.tell(n, g)
			w.moves(g, due.Add(time.Minute))
			w.rests(n, g)
			w.runs(g)
			if last := w.row(g).LastFiredAt; last != nil {
				t.Errorf("it fired at %v", last)
			}
			if got := counted(t, "svc_trigger_skipped_total") - skipped; got != 1 {
				t.Errorf("%v due times were counted as passed over", got)
			}
		})
	}
}

// counted is the value of a counter without labels.
func counted(t *testing.T, name string) float64 {
	t.Helper()
	all := prometheus.NewRegistry()
	all.MustRegister(trigger.Traits.Collectors...)
	families, err := all.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	t.Fatalf("there is no %s", name)
	return 0
}

// Who is told too early, or for nothing, makes the timer agree and starts nothing.
func TestWhoIsToldForNothing(t *testing.T) {
	w := newWorld(t)
	due := at(t, "2026-05-06T07:00:00Z")
	g := w.schedule("* * * * *", "UTC", due)
	n := w.start(trigger.Config{}, nil)
	w.clock.set(due.Add(-time.Microsecond))
	w.exec(`UPDATE timers SET due_at = $2 WHERE entity_id = $1`, g, due.Add(-time.Hour))
	w.tell(n, g)
	w.rests(n, g)
	w.runs(g)
	w.moves(g, due) // its timer is there and not claimed
	gone := id.TriggerID{UUID: id.NewAnywhere()}
	w.exec(`INSERT INTO timers (tenant_id, kind, entity_id, name, due_at) VALUES ($1, 'trigger', $2, 'due', now())`, w.tenant, gone)
	w.tell(n, gone)
	w.rests(n, gone)
	if timer, _ := w.timer(gone); !timer.IsZero() {
		t.Error("a timer of nothing stayed")
	}
	w.clock.set(due)
	// Another tenant's address is that of nothing, and its timer goes.
	foreign := cluster.Address{Kind: msg.KindTrigger, Tenant: w.neighbour().tenant, ID: g.UUID}
	w.exec(`INSERT INTO timers (tenant_id, kind, entity_id, name, due_at) VALUES ($1, 'trigger', $2, 'due', now())`, foreign.Tenant, g)
	if _, err := n.Ask(t.Context(), foreign, durable.TimerDue{Name: "due"}); err != nil {
		t.Error(err)
	}
	testkit.Eventually(w.t, "an activation that knows nothing ends", func() bool { return !n.Active(foreign) })
	var timers int
	w.must(w.admin.QueryRow(t.Context(), `SELECT count(*)::int FROM timers WHERE tenant_id = $1 AND entity_id = $2`, foreign.Tenant, g).Scan(&timers))
	if timers != 0 {
		t.Error("a timer at another tenant's address stayed")
	}
	w.runs(g)
	w.moves(g, due) // and has not moved
}

// Firings are bounded, and a node that stops does not wait for those that wait.
func TestSoManyFiringsAtATime(t *testing.T) {
	w := newWorld(t)
	due := at(t, "2026-05-06T07:00:00Z")
	w.clock.set(due)
	var now, most atomic.Int64
	goOn := make(chan struct{})
	n := w.start(trigger.Config{Most: 2}, func(ctx context.Context, _ any) error {
		if c := now.Add(1); c > most.Load() {
			most.Store(c)
		}
		defer now.Add(-1)
		select {
		case <-goOn:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	var all []id.TriggerID
	for range 6 {
		g := w.schedule("* * * * *", "UTC", due)
		all = append(all, g)
		w.tell(n, g)
	}
	testkit.Eventually(w.t, "two are at work", func() bool { return now.Load() == 2 })
	for range 6 {
		goOn <- struct{}{}
	}
	for _, g := range all {
		w.moves(g, due.Add(time.Minute))
		w.runs(g, due)
	}
	if most.Load() != 2 {
		t.Errorf("%d were at work at a time", most.Load())
	}
	w.clock.set(due.Add(time.Minute))
	for _, g := range all {
		w.tell(n, g)
	}
	testkit.Eventually(w.t, "two are at work", func() bool { return now.Load() == 2 }) // and end with the node
}

// A tenant with more due schedules than a node can fire delays no other tenant's.
func TestTenantsFireInTurn(t *testing.T) {
	w := newWorld(t)
	other := w.neighbour()
	due := at(t, "2026-05-06T07:00:00Z")
	w.clock.set(due)
	rows := &loads{Store: w.schedules}
	var now atomic.Int64
	n := w.start(trigger.Config{Store: rows, Most: 4, Each: 2}, func(ctx context.Context, m any) error {
		if m.(msg.StartOne).AgentID != w.agent {
			return nil
		}
		now.Add(1)
		defer now.Add(-1)
		<-ctx.Done() // their target never answers
		return ctx.Err()
	})
	const many = 200
	w.exec(`INSERT INTO triggers SELECT (jsonb_populate_record(t, jsonb_build_object('id', new_id(now())))).* FROM triggers t, generate_series(2, $2) WHERE t.id = $1`,
		w.schedule("* * * * *", "UTC", due), many)
	ids, err := w.admin.Query(t.Context(), `SELECT id FROM triggers`)
	w.must(err)
	all, err := pgx.CollectRows(ids, pgx.RowTo[id.TriggerID])
	w.must(err)
	for _, g := range all {
		w.tell(n, g)
	}
	testkit.Eventually(t, "all are read, and two are at work", func() bool { return rows.n.Load() >= many+2 && now.Load() == 2 })
	g := other.schedule("* * * * *", "UTC", due)
	other.tell(n, g)
	other.moves(g, due.Add(time.Minute))
	other.runs(g, due)
	if len(all) != many || now.Load() > 2 {
		t.Errorf("of %d schedules %d are at work", len(all), now.Load())
	}
}

// From the timer to the run, by the sweeps of two nodes that both own the shard.
func TestTheSweepFindsWhatIsDue(t *testing.T) {
	w := newWorld(t)
	due := time.Now().Add(-time.Minute).Truncate(time.Minute)
	var all []id.TriggerID
	for range 20 {
		g := w.schedule("0 0 1 1 *", "UTC", due)
		w.exec(`UPDATE timers SET claimed_until = NULL WHERE entity_id = $1`, g)
		all = append(all, g)
	}
	for range 2 {
		n := w.start(trigger.Config{}, nil)
		s := sweep.New(sweep.Config{Node: n, Rows: feed.NewSweep(w.db.System(t)), Every: 5 * time.Millisecond, Log: zerolog.Nop()})
		w.must(s.Start(t.Context()))
		t.Cleanup(s.Stop)
	}
	for _, g := range all {
		w.moves(g, time.Date(due.Year()+1, 1, 1, 0, 0, 0, 0, time.UTC))
		w.runs(g, due)
	}
}

func TestRunAt(t *testing.T) {
	g, due := id.TriggerID{UUID: id.New(777)}, time.Date(2026, 5, 6, 7, 8, 0, 0, time.UTC)
	r := trigger.RunAt(g, due)
	if r.Shard() != 777 || !r.Time().Equal(due) || r.UUID[6]>>4 != 7 || r.UUID[8]>>6 != 2 {
		t.Errorf("%s in shard %d at %v", r, r.Shard(), r.Time())
	}
	if trigger.RunAt(g, due.In(time.FixedZone("X", 3600))) != r {
		t.Error("the zone of a time matters")
	}
	if trigger.RunAt(g, due.Add(time.Minute)) == r || trigger.RunAt(id.TriggerID{UUID: id.New(777)}, due) == r {
		t.Error("two due times have one run")
	}
}
