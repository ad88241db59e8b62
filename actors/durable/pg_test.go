package durable

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"agentsvc/cluster"
	"agentsvc/persistence/journal"
	"agentsvc/persistence/journal/journaltest"
	"agentsvc/persistence/pgtest"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/testkit"
)

// postgres keeps the toy's rows in a real database, written by the real writer.
type postgres struct {
	*journal.Writer
	t    testing.TB
	exec func(sql string, args ...any)
	read func(ctx context.Context, a cluster.Address) (row, error)
}

func newPostgres(t testing.TB) *postgres {
	t.Helper()
	db := pgtest.New(t)
	_, err := db.Admin(t).Exec(t.Context(), `
		CREATE TABLE toys (tenant_id uuid NOT NULL, id uuid PRIMARY KEY, version bigint NOT NULL DEFAULT 1,
		                   owner_epoch bigint NOT NULL DEFAULT 0, state json NOT NULL, last_op uuid);
		GRANT ALL ON toys TO svc_system`)
	if err != nil {
		t.Fatal(err)
	}
	pool := db.System(t)
	p := &postgres{t: t}
	p.exec = func(sql string, args ...any) {
		t.Helper()
		if _, err := pool.Exec(context.Background(), sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	p.read = func(ctx context.Context, a cluster.Address) (r row, err error) {
		err = pool.QueryRow(ctx, `SELECT state, version, owner_epoch FROM toys WHERE tenant_id = $1 AND id = $2`, a.Tenant, a.ID).
			Scan(&r.state, &r.version, &r.epoch)
		return r, err
	}
	p.Writer = journaltest.Writer(t, db, journal.Config{Tables: []*journal.Table{toys}})
	return p
}

func (p *postgres) load(ctx context.Context, a cluster.Address) (Loaded[ledger], error) {
	r, err := p.read(ctx, a)
	if errors.Is(err, sql.ErrNoRows) {
		return Loaded[ledger]{}, problem.NotFound("toy")
	}
	if err != nil {
		return Loaded[ledger]{}, err
	}
	return r.loaded()
}

func (p *postgres) row(a cluster.Address) (row, ledger) {
	r, err := p.read(context.Background(), a)
	if err != nil {
		p.t.Fatal(err)
	}
	l, err := r.loaded()
	if err != nil {
		p.t.Fatal(err)
	}
	return r, l.State
}

func (p *postgres) put(a cluster.Address, s ledger) {
	p.exec(`INSERT INTO toys (tenant_id, id, version, owner_epoch, state) VALUES ($1, $2, 1, 0, $3)`, a.Tenant, a.ID, s)
}

func (p *postgres) kind(w *world) Kind[ledger] {
	k := toyKind(newMemory(), w)
	k.Load = p.load
	return k
}

func TestPostgresRecipe(t *testing.T) {
	p, w, a := newPostgres(t), newWorld(), address()
	n := node(t, host(p.kind(w), p, Config{}))
	if _, err := n.Ask(t.Context(), a, sum{}); !errors.Is(err, problem.NotFound("")) {
		t.Fatalf("before its beginning: %v", err)
	}
	if got := ask(t, n, a, open{N: 1}); got != total(1) {
		t.Fatalf("got %v", got)
	}
	if got := ask(t, n, a, add{ID: "s", N: 2}); got != total(3) {
		t.Fatalf("got %v", got)
	}
	if got := ask(t, n, a, add{ID: "c", N: 3, Charge: true}); got != total(6) {
		t.Fatalf("got %v", got)
	}
	testkit.Eventually(t, "both are done", func() bool { _, s := p.row(a); return status(s, "s") == "sent" && status(s, "c") == "sent" })
	if r, _ := p.row(a); r.version != 5 || r.epoch != 1 {
		t.Fatalf("%+v", r)
	}
	other := node(t, host(p.kind(w), p, Config{}))
	if got := ask(t, other, a, open{N: 9}); got != total(6) {
		t.Fatalf("a second beginning: %v", got)
	}
}

func TestPostgresTwoHostsOnOneRowExactlyOneCommits(t *testing.T) {
	p, w, a := newPostgres(t), newWorld(), address()
	p.put(a, ledger{Orders: []order{}})
	var lost atomic.Int32
	counting := writerFunc(func(ctx context.Context, c *journal.Commit) error {
		err := p.Do(ctx, c)
		if errors.Is(err, journal.ErrConflict) {
			lost.Add(1)
		}
		return err
	})
	nodes := []*cluster.Node{node(t, host(p.kind(w), counting, Config{})), node(t, host(p.kind(w), counting, Config{}))}
	for _, n := range nodes {
		ask(t, n, a, sum{})
	}
	var wg sync.WaitGroup
	for i, n := range nodes {
		wg.Go(func() { ask(t, n, a, add{ID: fmt.Sprint(i), N: 1, Charge: true}) })
	}
	wg.Wait()
	if _, s := p.row(a); lost.Load() == 0 || s.Count != 2 {
		t.Fatalf("%d swaps were lost, count %d", lost.Load(), s.Count)
	}
	for _, key := range []string{"charge:0", "charge:1"} {
		if c := w.times(a, key); c > 1 {
			t.Fatalf("%s performed %d times", key, c)
		}
	}
}

// TestPostgresCrashLaw is TestCrashLaw on the real table and the real writer.
func TestPostgresCrashLaw(t *testing.T) {
	p := newPostgres(t)
	rapid.Check(t, func(rt *rapid.T) {
		crashLaw(rt, rapid.IntRange(1, 12).Draw(rt, "steps"), p, p.load, p.row, p.put)
	})
}
