package thread_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"agentsvc/actors/durable"
	"agentsvc/actors/run"
	"agentsvc/actors/sweep"
	"agentsvc/actors/thread"
	"agentsvc/cluster"
	"agentsvc/cluster/clustertest"
	"agentsvc/persistence/engine"
	"agentsvc/persistence/feed"
	"agentsvc/persistence/journal"
	"agentsvc/persistence/journal/journaltest"
	"agentsvc/persistence/pg"
	"agentsvc/persistence/pgtest"
	"agentsvc/persistence/store"
	"agentsvc/persistence/vault"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/testkit"
	"agentsvc/transport/edge"
	"agentsvc/transport/model/simulated"
	"agentsvc/transport/platform"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// node is one host of threads and runs, and a platform that asks it. Two of them over
// one database take each other for absent: each has an activation of its own.
type node struct {
	*platform.Platform
	node *cluster.Node
}

// MintShard implements platform.Actors.
func (n *node) MintShard() id.Shard { return n.node.MintShard() }

// Ask implements platform.Actors.
func (n *node) Ask(ctx context.Context, kind string, t id.TenantID, to id.UUID, m any) (any, error) {
	return n.node.Ask(ctx, cluster.Address{Kind: kind, Tenant: t, ID: to}, m)
}

type world struct {
	t       testing.TB
	db      *pgtest.DB
	pool    *pgxpool.Pool
	tables  *store.Store
	tenant  id.TenantID
	models  *testkit.Model
	key     id.UUID // the embed key
	visitor store.Visitor
	app     string // what the writer calls itself; empty: as all tests do
	// stood, where set, is called when a thread has read how it stands for a run.
	stood func(id.RunID)
	// lost, where set, says which messages between threads and runs do not arrive. It is set
	// while no node runs.
	lost func(m any) bool
}

// tells carries messages between actors, except those that are lost.
type tells struct {
	*cluster.Node
	lost func(any) bool
}

func (t tells) Tell(a cluster.Address, m any) {
	if t.lost == nil || !t.lost(m) {
		t.Node.Tell(a, m)
	}
}

// reads is what threads read, and lets something happen between a read and its answer.
type reads struct {
	*engine.Store
	w *world
}

func (r reads) Standing(ctx context.Context, t id.TenantID, th id.ThreadID, run id.RunID) (engine.Standing, error) {
	s, err := r.Store.Standing(ctx, t, th, run)
	if r.w.stood != nil {
		r.w.stood(run)
	}
	return s, err
}

func newWorld(t testing.TB) *world {
	t.Helper()
	db := pgtest.New(t)
	w := worldIn(t, db, id.TenantID{}, store.Visitor{CreatedBy: "embed:vid:" + id.NewAnywhere().String()})
	w.tenant = pgtest.Tenant(t, w.pool)
	w.visitor.Agent = pgtest.Published(t, w.pool, w.tenant, `{"model":{"provider":"simulated","name":"sim"}}`)
	return w
}

func worldIn(t testing.TB, db *pgtest.DB, tenant id.TenantID, who store.Visitor) *world {
	return &world{t: t, db: db, pool: db.System(t), tables: store.New(db.API(t), vault.New(vault.NewSecret32([32]byte{1}))), tenant: tenant, models: &testkit.Model{Client: simulated.Client{}.Stream},
		key: id.NewAnywhere(), visitor: who}
}

// start begins a node with nothing in memory; stop ends it, and is done at last anyway.
func (w *world) start() (n *node, stop func()) {
	w.t.Helper()
	pool := w.db.Pool(w.t, pg.Options{Role: pg.System, Writer: true, AppName: w.app})
	writer := journaltest.Writer(w.t, w.db, journal.Config{Pool: pool, Tables: engine.Tables})
	n = &node{node: clustertest.Node()}
	rows, to := engine.New(w.pool), tells{n.node, w.lost}
	durable.Register(n.node, writer, run.New(run.Config{Store: rows, Models: w.models, Live: testkit.NoReaders{}, Sealer: vault.New(vault.NewSecret32([32]byte{1})), Tell: to, Log: zerolog.Nop()}), durable.Config{})
	versions := platform.NewVersions(w.tables, nil)
	thread.Register(n.node, writer, thread.Config{Store: reads{rows, w}, Tell: to, Published: versions.Published, Version: versions.Speaking, Ready: run.Kept{Ready: true}.Encode(), Log: zerolog.Nop()}, durable.Config{})
	w.must(n.node.Start(w.t.Context()))
	n.Platform = platform.New(platform.Config{Store: w.tables, Actors: n, Versions: versions})
	stop = sync.OnceFunc(func() {
		w.models.Release()
		testkit.Stop(w.t, n.node.Stop)
		testkit.Stop(w.t, writer.Stop)
	})
	w.t.Cleanup(stop)
	return n, stop
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	if _, err := w.pool.Exec(context.Background(), sql, args...); err != nil {
		w.t.Fatalf("%s: %v", sql, err)
	}
}

// text answers a query of one text.
func (w *world) text(sql string, args ...any) string {
	w.t.Helper()
	var s *string
	if err := w.pool.QueryRow(context.Background(), sql, args...).Scan(&s); err != nil {
		w.t.Fatalf("%s: %v", sql, err)
	}
	if s == nil {
		return "NULL"
	}
	return *s
}

func (w *world) is(want, sql string, args ...any) {
	w.t.Helper()
	if got := w.text(sql, args...); got != want {
		w.t.Errorf("%s\n got %s\nwant %s", sql, got, want)
	}
}

// end waits until a run has ended, and says how.
func (w *world) end(r id.RunID) (status string) {
	w.t.Helper()
	testkit.Eventually(w.t, "the run ends", func() bool {
		status = w.text(`SELECT CASE WHEN finished_at IS NULL THEN '' ELSE status::text END FROM runs WHERE id = $1`, r)
		return status != ""
	})
	return status
}

func (w *world) caller() *edge.Caller {
	return &edge.Caller{Identity: edge.Identity{Tenant: w.tenant, Role: lifecycle.RoleMember, Principal: w.visitor.CreatedBy}}
}

// saying is a message of the visitor's; nil: for a new thread.
func (w *world) saying(to *id.ThreadID, text string) platform.Saying {
	input, err := json.Marshal(map[string]string{"text": text})
	w.must(err)
	return platform.Saying{Thread: to, Visitor: &w.visitor, Content: text, Input: input,
		Origin: msg.Origin{Kind: lifecycle.OriginEmbedKey, ID: w.key}, Answer: func(s platform.Said) any { return s }}
}

func (w *world) say(n *node, to *id.ThreadID, text string) *platform.Said {
	w.t.Helper()
	said, err := n.Say(w.t.Context(), w.caller(), w.saying(to, text))
	w.must(err)
	return said
}

// filled is a thread of the visitor that no node has in memory, with as many messages,
// none of whose runs is open.
func (w *world) filled(messages int) id.ThreadID {
	w.t.Helper()
	th, r := id.ThreadID{UUID: id.New(3)}, id.RunID{UUID: id.New(3)}
	w.exec(`INSERT INTO threads (tenant_id, id, agent_id, created_by, next_seq) VALUES ($1, $2, $3, $4, 1001)`, w.tenant, th, w.visitor.Agent, w.visitor.CreatedBy)
	w.exec(`INSERT INTO runs (tenant_id, id, status, agent_id, agent_version, thread_id, thread_seq, origin_kind, origin_id, created_at, finished_at)
		VALUES ($1, $2, 'succeeded', $3, 1, $4, 1000, 'embed_key', $5, now(), now())`, w.tenant, r, w.visitor.Agent, th, w.key)
	w.exec(`INSERT INTO messages (tenant_id, thread_id, seq, id, role, content, run_id, created_at)
		SELECT $1, $2, 1001 - n, gen_random_uuid(), 'user', 'x', CASE n WHEN 1 THEN $3::uuid END, now() FROM generate_series(1, $4) n`, w.tenant, th, r, messages)
	return th
}

// waiting is a thread with a run that waits for an approval and one that is queued behind it.
func (w *world) waiting() (th id.ThreadID, waits, queued id.RunID) {
	w.t.Helper()
	th = w.filled(1)
	for i, status := range []string{"waiting_approval", "queued"} {
		r, seq := id.RunID{UUID: id.New(3)}, 1001+2*i
		w.exec(`INSERT INTO runs (tenant_id, id, status, agent_id, agent_version, thread_id, thread_seq, origin_kind, origin_id, input, created_at)
			VALUES ($1, $2, $3, $4, 1, $5, $6, 'embed_key', $7, '{"text":"x"}', now())`, w.tenant, r, status, w.visitor.Agent, th, seq, w.key)
		w.exec(`INSERT INTO messages (tenant_id, thread_id, seq, id, role, content, run_id, created_at) VALUES ($1, $2, $3, gen_random_uuid(), 'user', 'x', $4, now())`,
			w.tenant, th, seq, r)
		waits, queued = queued, r
	}
	w.exec(`UPDATE threads SET next_seq = 1005 WHERE id = $1`, th)
	return th, waits, queued
}

// timers starts the loop that tells due timers to their owners, until the test ends or it is
// stopped. It finds no other work.
func (w *world) timers(n *node) (stop func()) {
	w.t.Helper()
	s := sweep.New(sweep.Config{Node: n.node, Rows: feed.NewSweep(w.pool), Every: 10 * time.Millisecond, Log: zerolog.Nop()})
	w.must(s.Start(w.t.Context()))
	stop = sync.OnceFunc(s.Stop)
	w.t.Cleanup(stop)
	return stop
}

// emptied waits until nothing of a deleted thread is left to do, and nothing of its messages.
func (w *world) emptied(th id.ThreadID) {
	w.t.Helper()
	testkit.Eventually(w.t, "the deleted thread is empty", func() bool {
		return w.text(`SELECT concat_ws(' ', (SELECT count(*) FROM runs WHERE thread_id = $1 AND finished_at IS NULL), (SELECT count(*) FROM messages WHERE thread_id = $1),
			(SELECT count(*) FROM timers WHERE entity_id = $1))`, th) == "0 0 0"
	})
}

// refused is the problem of an error, and the run that it names.
func refused(err error) (code problem.Code, run string) {
	var p *problem.Error
	if !errors.As(err, &p) {
		return problem.Code(fmt.Sprint(err)), ""
	}
	run, _ = p.Extensions["run_id"].(string)
	return p.Code, run
}

// posts is the visitor as threads know him.
func (w *world) posts() *msg.Visitor {
	return &msg.Visitor{Agent: w.visitor.Agent, CreatedBy: w.visitor.CreatedBy}
}

// post is a message of the visitor's to a thread.
func (w *world) post(th id.ThreadID, text string) msg.Post {
	input, err := json.Marshal(map[string]string{"text": text})
	w.must(err)
	return msg.Post{Message: id.MessageID{UUID: id.New(th.Shard())}, Run: id.RunID{UUID: id.New(th.Shard())}, Visitor: w.posts(), Content: text, Input: input,
		Origin: msg.Origin{Kind: lifecycle.OriginEmbedKey, ID: w.key}, By: msg.By{Actor: w.visitor.CreatedBy}}
}

// ask gives a thread an order.
func (w *world) ask(n *node, th id.ThreadID, m any) (any, error) {
	return n.Ask(context.Background(), msg.KindThread, w.tenant, th.UUID, m)
}

// posted asks a thread to accept a message, and is an error unless it says so.
func (w *world) posted(n *node, th id.ThreadID, p msg.Post) {
	w.t.Helper()
	if got, err := w.ask(n, th, p); err != nil || got != any(msg.Posted{Run: p.Run, Message: p.Message}) {
		w.t.Fatalf("%v, %v", got, err)
	}
}

// ofPlatform is a thread of the platform that no node has in memory.
func (w *world) ofPlatform() id.ThreadID {
	w.t.Helper()
	th := w.filled(1)
	w.exec(`UPDATE threads SET created_by = 'apikey:x' WHERE id = $1`, th)
	return th
}

func lines(s ...string) string { return strings.Join(s, "\n") }
