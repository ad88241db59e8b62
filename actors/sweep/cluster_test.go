package sweep

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"

	"agentsvc/actors/durable"
	"agentsvc/cluster"
	"agentsvc/persistence/feed"
	"agentsvc/persistence/pgtest"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/testkit"
)

// town is some nodes on one database, without a way between them: a message to an
// actor of another node is a mistake.
type town struct {
	t      *testing.T
	pool   *pgxpool.Pool
	tenant id.TenantID
	agent  id.UUID

	mu    sync.Mutex
	heard map[string]int // node, kind, id and message
	any   chan struct{}  // capacity 1: heard has changed
}

func newTown(t *testing.T) *town {
	w := &town{t: t, pool: pgtest.New(t).System(t), tenant: id.TenantID{UUID: id.NewAnywhere()}, agent: id.NewAnywhere(), heard: map[string]int{}, any: make(chan struct{}, 1)}
	w.exec("INSERT INTO tenants (id, name) VALUES ($1, 't')", w.tenant)
	w.exec("INSERT INTO agents (tenant_id, id, slug, name) VALUES ($1, $2, 'a', 'a')", w.tenant, w.agent)
	return w
}

func (w *town) exec(sql string, args ...any) {
	w.t.Helper()
	if _, err := w.pool.Exec(w.t.Context(), sql, args...); err != nil {
		w.t.Fatal(err)
	}
}

// house is a node with its sweep.
type house struct {
	*cluster.Node
	name  string
	sweep *Sweep
	// deaf actors hear and do nothing; others delete the timer they are told of.
	deaf bool
}

func (w *town) house(name string, every time.Duration, deaf bool) *house {
	w.t.Helper()
	h := &house{name: name, deaf: deaf}
	h.Node = cluster.New(cluster.Config{Member: pgtest.Member(w.t, w.pool), Log: zerolog.Nop(), Peers: nobody{w.t}})
	for _, kind := range []string{msg.KindRun, msg.KindThread, msg.KindDelivery} {
		h.Register(kind, func(a cluster.Address) cluster.Behavior { return &ear{w, h, a} })
	}
	h.sweep = New(Config{Rows: feed.NewSweep(w.pool), Kinds: rarely, Node: h, Member: h.Member(), Log: zerolog.Nop(), Every: every})
	h.OnChange(func(c cluster.Change) { h.sweep.Gained(c.Gained) })
	testkit.Start(w.t, h.Node)
	w.t.Cleanup(h.sweep.Stop)
	return h
}

func (w *town) begin(houses ...*house) {
	for _, h := range houses {
		if err := h.sweep.Start(w.t.Context()); err != nil {
			w.t.Fatal(err)
		}
	}
}

func (w *town) members(h *house, members ...*house) {
	w.t.Helper()
	var ids []id.MemberID
	for _, m := range members {
		ids = append(ids, m.Member())
	}
	h.Yield(true)
	if err := h.SetMembers(ids); err != nil {
		w.t.Fatal(err)
	}
}

// kill is how peers know a process that died: marked, and nothing of it goes on.
func (w *town) kill(h *house) {
	h.sweep.Stop()
	w.exec("UPDATE members SET dead_at = now() WHERE id = $1", h.Member())
}

type nobody struct{ t *testing.T }

func (n nobody) Ask(context.Context, id.MemberID, cluster.Address, any) (any, error) {
	n.t.Error("asked another node")
	return nil, cluster.ErrUnknownMember
}

func (n nobody) Tell(_ id.MemberID, a cluster.Address, m any) error {
	n.t.Errorf("%s of another node is told %+v", a, m)
	return nil
}

func (n nobody) Call(context.Context, id.MemberID, string, any) (any, error) {
	n.t.Error("called another node")
	return nil, cluster.ErrUnknownMember
}

// ear is an actor that hears.
type ear struct {
	w *town
	h *house
	a cluster.Address
}

func (e *ear) Receive(_ cluster.Context, m any) {
	what := "wake"
	if due, ok := m.(durable.TimerDue); ok {
		what = due.Name
		if !e.h.deaf {
			if _, err := e.w.pool.Exec(context.Background(), "DELETE FROM timers WHERE entity_id = $1", e.a.ID); err != nil {
				e.w.t.Error(err)
			}
		}
	}
	e.w.mu.Lock()
	e.w.heard[fmt.Sprint(e.h.name, " ", e.a.ID, " ", what)]++
	e.w.mu.Unlock()
	select {
	case e.w.any <- struct{}{}:
	default:
	}
}

func (e *ear) Stopped() {}

// hears waits until exactly these messages were heard, each once.
func (w *town) hears(want []string) {
	w.t.Helper()
	slices.Sort(want)
	deadline := time.After(time.Minute)
	for {
		w.mu.Lock()
		n := len(w.heard)
		w.mu.Unlock()
		if n >= len(want) {
			break
		}
		select {
		case <-w.any:
		case <-deadline:
			w.t.Fatalf("heard %d of %d", n, len(want))
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if got := slices.Sorted(maps.Keys(w.heard)); !slices.Equal(got, want) {
		w.t.Fatalf("heard %d, want %d; the first that differ: %v", len(got), len(want), firstOf(got, want))
	}
	for what, n := range w.heard {
		if n != 1 {
			w.t.Errorf("%s: %d times", what, n)
		}
	}
	clear(w.heard)
}

func firstOf(got, want []string) []string {
	var out []string
	for i := range max(len(got), len(want)) {
		if i >= len(got) || i >= len(want) || got[i] != want[i] {
			return append(out, got[min(i, len(got)):min(i+1, len(got))]...)
		}
	}
	return out
}

// timers writes n due timers of every place, and some of foreign ids.
func (w *town) timers(n int) []id.UUID {
	w.t.Helper()
	ids := make([]id.UUID, n)
	for i := range ids {
		if ids[i] = id.New(id.Shard(i % id.Shards)); i%20 == 7 {
			ids[i][6] = ids[i][6]&0xf | 0x40
		}
	}
	w.exec("INSERT INTO timers (tenant_id, kind, entity_id, name, due_at) SELECT $1, 'run', u, 'due', now() FROM unnest($2::uuid[]) u", w.tenant, ids)
	return ids
}

// runs writes n running runs of every place, and some of foreign ids.
func (w *town) runs(n int) []id.UUID {
	w.t.Helper()
	ids := make([]id.UUID, n)
	for i := range ids {
		if ids[i] = id.New(id.Shard(i * 7 % id.Shards)); i%20 == 7 {
			ids[i][6] = ids[i][6]&0xf | 0x40
		}
	}
	w.exec(`INSERT INTO runs (tenant_id, id, status, agent_id, origin_kind, origin_id, created_at)
		SELECT $1, u, 'running', $2, 'api_key', $1, now() FROM unnest($3::uuid[]) u`, w.tenant, w.agent, ids)
	return ids
}

// endpoints writes n webhook endpoints of every place, with a few due deliveries each.
func (w *town) endpoints(n int) []id.UUID {
	w.t.Helper()
	ids := make([]id.UUID, n)
	for i := range ids {
		if ids[i] = id.New(id.Shard(i * 11 % id.Shards)); i%20 == 7 {
			ids[i][6] = ids[i][6]&0xf | 0x40
		}
	}
	w.exec("INSERT INTO webhooks (tenant_id, id, url, events, secret) SELECT $1, u, 'https://example.org', '{*}', '\\x00' FROM unnest($2::uuid[]) u", w.tenant, ids)
	w.exec(`INSERT INTO webhook_deliveries (tenant_id, id, webhook_id, event_id, type, body, next_attempt_at, created_at)
		SELECT $1, new_id(now()), u, u, 'run.failed', '{}', now(), now() FROM unnest($2::uuid[]) u, generate_series(1, 3)`, w.tenant, ids)
	return ids
}

// at is what is heard where the ids live.
func at(what string, ids []id.UUID, houses ...*house) []string {
	var out []string
	for _, u := range ids {
		for _, h := range houses {
			if h.Owns(u.Shard()) {
				out = append(out, fmt.Sprint(h.name, " ", u, " ", what))
			}
		}
	}
	return out
}

func TestEveryTimerAndRunIsToldOnceByItsOwner(t *testing.T) {
	w := newTown(t)
	a, b := w.house("a", 10*time.Millisecond, false), w.house("b", 10*time.Millisecond, false)
	w.members(a, a, b)
	w.members(b, a, b)
	timers, wakes := w.timers(700), append(w.runs(700), w.endpoints(500)...)
	w.begin(a, b)
	w.hears(append(at("due", timers, a, b), at("wake", wakes, a, b)...))
	// What comes due later is told as well.
	w.hears(at("due", w.timers(300), a, b))
}

// Only the tick of the gain is there to do it: there is no other for an hour.
func TestWhatAKilledOwnerWasToldGoesOnAtTheNewOwnerAtOnce(t *testing.T) {
	w := newTown(t)
	a, b := w.house("a", 10*time.Millisecond, true), w.house("b", time.Hour, false)
	w.members(a, a, b)
	w.members(b, a, b)
	timers, runs := w.timers(500), w.runs(300)
	w.begin(a, b)
	w.hears(append(at("due", timers, a, b), at("wake", runs, a, b)...))
	var of []id.UUID
	for _, u := range append(slices.Clone(timers), runs...) {
		if a.Owns(u.Shard()) {
			of = append(of, u)
		}
	}
	if len(of) < 200 {
		t.Fatalf("the killed node had %d: void", len(of))
	}
	w.kill(a)
	timers = slices.DeleteFunc(timers, func(u id.UUID) bool { return !slices.Contains(of, u) })
	runs = slices.DeleteFunc(runs, func(u id.UUID) bool { return !slices.Contains(of, u) })
	w.members(b, b)
	w.hears(append(at("due", timers, b), at("wake", runs, b)...))
}

// A process that does not know yet that it is held for dead takes no timer away.
func TestADeadProcessClaimsNothing(t *testing.T) {
	w := newTown(t)
	a, b := w.house("a", time.Hour, true), w.house("b", time.Hour, false)
	w.exec("UPDATE members SET dead_at = now() WHERE id = $1", a.Member())
	timers := w.timers(100)
	if r, err := a.sweep.runOnce(t.Context()); err != nil || r.timers != 0 {
		t.Fatalf("%+v %v", r, err)
	}
	w.begin(b)
	w.hears(at("due", timers, b))
}

func TestAllShardsMoveAtOnce(t *testing.T) {
	w := newTown(t)
	a, b := w.house("a", 10*time.Millisecond, true), w.house("b", 10*time.Millisecond, false)
	w.members(b, a)
	timers, wakes := w.timers(1500), append(w.runs(2500), w.endpoints(1100)...)
	w.begin(a, b)
	w.hears(append(at("due", timers, a), at("wake", wakes, a)...))
	w.kill(a)
	w.members(b, b)
	w.hears(append(at("due", timers, b), at("wake", wakes, b)...))
	if len(b.Shards()) != id.Shards {
		t.Errorf("%d shards", len(b.Shards()))
	}
}
