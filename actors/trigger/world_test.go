package trigger_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"agentsvc/actors/durable"
	"agentsvc/actors/run"
	"agentsvc/actors/trigger"
	"agentsvc/actors/workflow"
	"agentsvc/cluster"
	"agentsvc/cluster/clustertest"
	"agentsvc/persistence/engine"
	"agentsvc/persistence/journal"
	"agentsvc/persistence/journal/journaltest"
	"agentsvc/persistence/pgtest"
	"agentsvc/persistence/store"
	"agentsvc/persistence/vault"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/testkit"
	"agentsvc/transport/model/simulated"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// clock stands still until it is set.
type clock struct{ at atomic.Pointer[time.Time] }

func (c *clock) now() time.Time   { return *c.at.Load() }
func (c *clock) set(at time.Time) { c.at.Store(&at) }

// world is a database, an agent, and nodes that own every shard each: two
// activations of one schedule may live at once.
type world struct {
	t         testing.TB
	db        *pgtest.DB
	admin     *pgxpool.Pool
	tables    *store.Store
	schedules *store.Schedules
	keys      *vault.Vault
	writer    *journal.Writer
	clock     *clock
	tenant    id.TenantID
	agent     id.AgentID
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{t: t, db: pgtest.New(t), keys: vault.New(vault.NewSecret32([32]byte{1})), clock: &clock{}}
	w.clock.set(time.Now())
	w.admin, w.tables, w.schedules = w.db.System(t), store.New(w.db.API(t), w.keys), store.NewSchedules(w.db.System(t))
	w.enrol()
	w.writer = journaltest.Writer(t, w.db, journal.Config{Tables: slices.Concat(workflow.Traits.Tables, trigger.Traits.Tables)})
	return w
}

// neighbour is the same world as another tenant sees it.
func (w *world) neighbour() *world {
	w.t.Helper()
	other := *w
	other.enrol()
	return &other
}

// enrol makes the world's tenant and its agent.
func (w *world) enrol() {
	w.t.Helper()
	made, err := store.System(w.db.System(w.t), w.keys).CreateTenant(w.t.Context(), store.NewTenant{Name: "T", OwnerEmail: "o@example.com", KeyName: "first"})
	w.must(err)
	w.tenant = made.Tenant
	w.change(func(ctx context.Context, tx *store.Tx) error {
		a, err := tx.CreateAgent(ctx, &api.AgentCreate{Name: "Agent"})
		if err != nil {
			return err
		}
		w.agent = a.ID
		if _, _, err = tx.CreateVersion(ctx, a.ID, json.RawMessage(`{"model": {"provider": "simulated", "name": "sim"}}`)); err != nil {
			return err
		}
		_, _, err = tx.Publish(ctx, a.ID, 1)
		return err
	})
}

// asking reaches the runs of a node; before, where set, may refuse.
type asking struct {
	node   *cluster.Node
	before func(ctx context.Context, m any) error
}

func (a *asking) Ask(ctx context.Context, kind string, t id.TenantID, to id.UUID, m any) (any, error) {
	if a.before != nil {
		if err := a.before(ctx, m); err != nil {
			return nil, err
		}
	}
	return a.node.Ask(ctx, cluster.Address{Kind: kind, Tenant: t, ID: to}, m)
}

// start begins a node. cfg has what differs from the service.
func (w *world) start(cfg trigger.Config, before func(ctx context.Context, m any) error) *cluster.Node {
	w.t.Helper()
	return w.startWith(w.writer, cfg, before)
}

// startWith begins a node whose schedules write through writer.
func (w *world) startWith(writer durable.Writer, cfg trigger.Config, before func(ctx context.Context, m any) error) *cluster.Node {
	w.t.Helper()
	n := clustertest.Node()
	durable.Register(n, w.writer, run.New(run.Config{Store: engine.New(w.db.System(w.t)), Models: &testkit.Model{Client: simulated.Client{}.Stream}, Live: testkit.NoReaders{}, Sealer: w.keys, Tell: n, Log: zerolog.Nop()}), durable.Config{})
	durable.Register(n, w.writer, workflow.New(workflow.Config{Store: engine.New(w.db.System(w.t)), Live: testkit.NoReaders{}, Sealer: w.keys, Actors: n, Published: w.schedules.Published, Log: zerolog.Nop()}), durable.Config{})
	if cfg.Store == nil {
		cfg.Store = w.schedules
	}
	cfg.Runs, cfg.Log = &asking{n, before}, zerolog.Nop()
	trigger.Register(n, writer, cfg, durable.Config{Now: w.clock.now, Log: zerolog.Nop()})
	return testkit.Start(w.t, n)
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	_, err := w.admin.Exec(context.Background(), sql, args...)
	w.must(err)
}

func (w *world) change(fn func(ctx context.Context, tx *store.Tx) error) {
	w.t.Helper()
	w.must(w.tables.Change(context.Background(), store.By{Tenant: w.tenant, Actor: "user:x"}, func(ctx context.Context, tx *store.Tx) ([]byte, error) {
		return nil, fn(ctx, tx)
	}))
}

// schedule makes a schedule that is due at a time, whatever its times say.
func (w *world) schedule(cron, zone string, due time.Time) (g id.TriggerID) {
	w.t.Helper()
	w.change(func(ctx context.Context, tx *store.Tx) error {
		made, err := tx.CreateTrigger(ctx, &api.TriggerCreate{Name: "S", Kind: lifecycle.TriggerSchedule, Target: api.TriggerTarget{AgentID: &w.agent},
			Schedule: &api.Schedule{Cron: cron, Timezone: zone}, Input: api.Value(`{"text": "hi"}`)})
		if err == nil {
			g = made.ID
		}
		return err
	})
	w.dueAt(g, due)
	return g
}

func (w *world) dueAt(g id.TriggerID, due time.Time) {
	w.t.Helper()
	w.exec(`UPDATE triggers SET next_fire_at = $2 WHERE id = $1`, g, due)
	w.exec(`UPDATE timers SET due_at = $2, claimed_until = now() + interval '1 hour' WHERE entity_id = $1`, g, due)
}

func (w *world) tell(n *cluster.Node, g id.TriggerID) {
	n.Tell(cluster.Address{Kind: msg.KindTrigger, Tenant: w.tenant, ID: g.UUID}, durable.TimerDue{Name: "due"})
}

func (w *world) row(g id.TriggerID) *api.Trigger {
	w.t.Helper()
	row, err := w.tables.View(w.tenant).Trigger(context.Background(), g)
	w.must(err)
	return row
}

// timer is when a trigger's timer is due, zero for none, and whether it is claimed.
func (w *world) timer(g id.TriggerID) (due time.Time, claimed bool) {
	w.t.Helper()
	rows, err := w.admin.Query(context.Background(), `SELECT due_at, claimed_until IS NOT NULL FROM timers WHERE kind = 'trigger' AND entity_id = $1 AND name = 'due'`, g)
	w.must(err)
	defer rows.Close()
	for rows.Next() {
		w.must(rows.Scan(&due, &claimed))
	}
	w.must(rows.Err())
	return due, claimed
}

// moves waits until a schedule is due at a time, and its timer with it.
func (w *world) moves(g id.TriggerID, to time.Time) {
	w.t.Helper()
	testkit.Eventually(w.t, "the schedule is due at "+to.String(), func() bool {
		row := w.row(g)
		return row.NextFireAt != nil && row.NextFireAt.Equal(to)
	})
	if due, claimed := w.timer(g); !due.Equal(to) || claimed {
		w.t.Errorf("the timer is due at %v (claimed: %v), the schedule at %v", due, claimed, to)
	}
}

// rests waits until nobody works on a schedule.
func (w *world) rests(n *cluster.Node, g id.TriggerID) {
	w.t.Helper()
	testkit.Eventually(w.t, "nobody works on it", func() bool { return !n.Active(cluster.Address{Kind: msg.KindTrigger, Tenant: w.tenant, ID: g.UUID}) })
}

// runs are those that a trigger started, by the due times they are of.
func (w *world) runs(g id.TriggerID, dues ...time.Time) {
	w.t.Helper()
	var n int
	w.must(w.admin.QueryRow(context.Background(), `SELECT count(*)::int FROM runs WHERE origin_kind = 'trigger' AND origin_id = $1`, g).Scan(&n))
	if n != len(dues) {
		w.t.Errorf("there are %d runs, want %d", n, len(dues))
	}
	for _, due := range dues {
		w.must(w.admin.QueryRow(context.Background(), `SELECT count(*)::int FROM runs WHERE id = $1`, trigger.RunAt(g, due)).Scan(&n))
		if n != 1 {
			w.t.Errorf("there is no run of %v", due)
		}
	}
}

func at(t testing.TB, s string) time.Time {
	t.Helper()
	v, err := time.Parse(time.RFC3339, s)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// lossy writes nothing: its node is as good as dead.
type lossy struct {
	durable.Writer
	lost atomic.Int64
}

func (l *lossy) Do(context.Context, *journal.Commit) error {
	l.lost.Add(1)
	return journal.ErrUnavailable
}

// unread fails to read so many times.
type unread struct {
	trigger.Store
	fails atomic.Int64
}

func (u *unread) Schedule(ctx context.Context, t id.TenantID, g id.TriggerID) (*store.Schedule, error) {
	if u.fails.Add(-1) >= 0 {
		return nil, errors.New("lost")
	}
	return u.Store.Schedule(ctx, t, g)
}

// loads counts the schedules that were read.
type loads struct {
	trigger.Store
	n atomic.Int64
}

func (l *loads) Schedule(ctx context.Context, t id.TenantID, g id.TriggerID) (*store.Schedule, error) {
	defer l.n.Add(1)
	return l.Store.Schedule(ctx, t, g)
}
