package journal

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"agentsvc/persistence/pg"
	"agentsvc/persistence/pgtest"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/testkit"
)

// TestCommitOfUnknownOutcome cuts the connection around COMMIT, for flushes with each
// kind of row.
func TestCommitOfUnknownOutcome(t *testing.T) {
	for what, mode := range map[string]cut{"the flush did not arrive": cutCommit, "the answer did not arrive": cutAnswer} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			k := &cutter{}
			x := worldIn(t, db, func(c *Config) { c.Pool, c.Lanes = k.pool(t, db.URL), 1 })
			thread := x.newThread(0)
			run := x.accept(0)
			x.must(run)
			commit := func(c draft) *draft {
				c.Op, c.Tenant = newOp(), x.tenant
				return &c
			}
			for name, c := range map[string]struct {
				commit *draft
				table  string
				rows   int
			}{
				"thread":      {commit(draft{Thread: &ThreadUpdate{ID: thread, Guard: Guard{Version: 1}, UpdatedAt: noon}}), `threads WHERE version = 2`, 1},
				"new thread":  {commit(draft{New: true, NewThread: x.newborn(0)}), `threads WHERE created_by = 'embed:vid:1'`, 1},
				"run update":  {advance(run, 1), `runs WHERE version = 2`, 1},
				"run insert":  {x.accept(0), `runs WHERE version = 1 AND id <> '` + run.Accept.ID.String() + `'`, 1},
				"idempotency": {commit(draft{Idempotency: key("k")}), `idempotency`, 1},
				"message":     {commit(draft{Messages: []Message{{Thread: thread, Seq: 1, ID: id.MessageID{UUID: id.New(0)}, Role: "user", CreatedAt: noon}}}), `messages`, 1},
				"usage":       {commit(draft{Usage: []Usage{{ID: id.UsageID{UUID: id.New(0)}, At: noon, Kind: lifecycle.UsageLLM}}}), `usage_records`, 1},
				"audit":       {x.auditOnly(0), `audit_log`, 1},
				"timer":       {commit(draft{Timers: []Timer{{TimerKey{"run", id.New(0), "t"}, noon}}}), `timers`, 1},
				"statement": {commit(draft{Statements: []Statement{{SQL: `INSERT INTO agents (tenant_id, id, slug, name) VALUES ($1, $2, 'b', 'B')`,
					Args: []any{x.tenant, id.NewAnywhere()}}}}), `agents WHERE slug = 'b'`, 1},
			} {
				before := k.done()
				k.arm(mode)
				if err := x.do(c.commit); err != nil {
					t.Errorf("%s: %v", name, err)
				}
				if k.done() != before+1 {
					t.Errorf("%s: the connection was not cut", name)
				}
				if n := x.count(`SELECT count(*) FROM ` + c.table); n != c.rows {
					t.Errorf("%s: %d rows, want %d", name, n, c.rows)
				}
			}
		})
	}
}

// TestBackendKilledBeforeCommit: everything of the flush is sent again, once.
func TestBackendKilledBeforeCommit(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	x := worldIn(t, db, nil)
	admin := db.Admin(t)
	var once sync.Once
	kill := func(pid uint32) {
		once.Do(func() {
			if _, err := admin.Exec(context.Background(), "SELECT pg_terminate_backend($1, 10000)", pid); err != nil {
				t.Error(err)
			}
		})
	}
	for name, arm := range map[string]func(){
		"before the flush": func() { x.w.hooks.beforeFlush = kill },
		"after COMMIT":     func() { x.w.hooks.afterCommit = kill },
	} {
		release := x.block() // the hooks may change while the lanes are held
		once = sync.Once{}
		var commits []*draft
		for range 20 {
			c := x.accept(2)
			c.Audit = []Audit{x.audit()}
			commits = append(commits, c)
		}
		var wg sync.WaitGroup
		errs := make([]error, len(commits))
		for i, c := range commits {
			wg.Go(func() { errs[i] = x.do(c) })
		}
		testkit.Eventually(x.t, "all are queued", func() bool { return x.queued() == len(commits) })
		release()
		wg.Wait()
		again := x.block()
		arm()
		for i := range commits {
			commits[i] = x.accept(2)
			commits[i].Audit = []Audit{x.audit()}
			wg.Go(func() { errs[i] = x.do(commits[i]) })
		}
		testkit.Eventually(x.t, "all are queued", func() bool { return x.queued() == len(commits) })
		again()
		wg.Wait()
		for i, err := range errs {
			if err != nil {
				t.Errorf("%s: commit %d: %v", name, i, err)
			}
		}
		for i, c := range commits {
			if n := x.count(`SELECT count(*) FROM runs WHERE id = $1`, c.Accept.ID); n != 1 {
				t.Errorf("%s: commit %d has %d rows", name, i, n)
			}
		}
	}
}

// TestServerStoppedAndStarted: while it is gone nothing new is admitted and no
// success is answered; accepted work waits and is written when it is back.
func TestServerStoppedAndStarted(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string]func(*pgtest.Cluster, testing.TB){
		"in order": (*pgtest.Cluster).Stop,
		"by crash": (*pgtest.Cluster).Crash,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := pgtest.Private(t, pgtest.PrivateOptions{Fsync: true})
			x := worldIn(t, &cluster.DB, nil)
			started := x.accept(0)
			x.must(started)

			stop(cluster, t)
			x.noticed()
			_, err := x.w.Admit(t.Context(), x.tenant)
			var p *problem.Error
			if !errors.As(err, &p) || p.Code != problem.CodeUnavailable || p.RetryAfter <= 0 {
				t.Errorf("admission while storage is down: %v", err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			withdrawn := x.accept(0)
			if err := x.w.Do(ctx, withdrawn.commit()); !errors.Is(err, ErrUnavailable) {
				t.Errorf("new work while storage is down: %v", err)
			}
			waits := make(chan error)
			go func() { waits <- x.do(advance(started, 1)) }()
			testkit.Eventually(x.t, "accepted work waits", func() bool { return x.queued() == 1 })

			cluster.Start(t)
			if err := <-waits; err != nil {
				t.Errorf("accepted work: %v", err)
			}
			testkit.Eventually(x.t, "the writer is healthy again", func() bool { return x.w.Down() == nil })
			release, err := x.w.Admit(t.Context(), x.tenant)
			if err != nil {
				t.Errorf("admission after the outage: %v", err)
			} else {
				release()
			}
			x.must(x.accept(0))
			x.pool.Reset()
			if n := x.count(`SELECT count(*) FROM runs WHERE id = $1`, withdrawn.Accept.ID); n != 0 {
				t.Error("withdrawn work was written")
			}
			if n := x.count(`SELECT version FROM runs WHERE id = $1`, started.Accept.ID); n != 2 {
				t.Errorf("the started run has version %d, want 2", n)
			}
		})
	}
}

// TestCrashUnderLoad: whatever was answered with success is there, once.
func TestCrashUnderLoad(t *testing.T) {
	t.Parallel()
	cluster := pgtest.Private(t, pgtest.PrivateOptions{Fsync: true})
	x := worldIn(t, &cluster.DB, nil)
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var mu sync.Mutex
	versions := map[id.RunID]int64{}
	total := 0
	for i := range 32 {
		wg.Go(func() {
			for ctx.Err() == nil {
				c := x.accept(id.Shard(i))
				c.New = false
				if err := x.do(c); err != nil {
					t.Errorf("accept: %v", err)
					return
				}
				for v := range int64(3) {
					if err := x.do(advance(c, v+1)); err != nil {
						t.Errorf("advance: %v", err)
						return
					}
				}
				mu.Lock()
				versions[c.Accept.ID] = 4
				total++
				mu.Unlock()
			}
		})
	}
	reached := func(n int) func() bool {
		return func() bool { mu.Lock(); defer mu.Unlock(); return total >= n }
	}
	testkit.Eventually(x.t, "work is done", reached(100))
	cluster.Crash(t)
	cluster.Start(t)
	mu.Lock()
	more := total + 100
	mu.Unlock()
	testkit.Eventually(x.t, "work goes on", reached(more))
	stop()
	wg.Wait()
	x.pool.Reset()
	mu.Lock()
	defer mu.Unlock()
	if n := x.count(`SELECT count(*) FROM runs WHERE version = 4`); n != len(versions) {
		t.Errorf("%d runs are complete, %d were answered", n, len(versions))
	}
}

// TestANumberOfAnotherLoginsSession: after a restart of the server the number of a lane's lost
// backend belongs to a session of another login. The lane connects, and that session stays.
func TestANumberOfAnotherLoginsSession(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	x := worldIn(t, db, nil)
	other, err := db.Admin(t).Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Release()
	c, err := connect(t.Context(), db.Writer(t), x.w.schema.texts, backend{pid: other.Conn().PgConn().PID(), started: time.Now().Add(-time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	c.close()
	if err := other.Ping(t.Context()); err != nil {
		t.Errorf("the other session: %v", err)
	}
}

// TestAFlushThatTheStandbyDoesNotHave: commits wait for a standby that is cut off, and the
// connection of a flush that waits breaks. Ending its backend makes the flush visible, and it is
// not answered before the standby has it.
func TestAFlushThatTheStandbyDoesNotHave(t *testing.T) {
	t.Parallel()
	cluster := pgtest.Private(t, pgtest.PrivateOptions{Settings: map[string]string{"wal_level": "replica", "max_wal_senders": "1", "synchronous_commit": "on"}})
	x := worldIn(t, &cluster.DB, func(c *Config) { c.Lanes = 1 })
	x.must(x.auditOnly(0))
	admin := cluster.Admin(t)
	set := func(standbys string) {
		t.Helper()
		for _, sql := range []string{`ALTER SYSTEM SET synchronous_standby_names = '` + standbys + `'`, `SELECT pg_reload_conf()`} {
			if _, err := admin.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
	}
	waiting := func() (n int) {
		if err := admin.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}

	set("nobody")
	defer set("")
	probing, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	wg.Go(func() {
		for probing.Err() == nil {
			_, _ = admin.Exec(probing, `COMMENT ON SCHEMA public IS $$probe$$`) // the last one is cut off
		}
	})
	testkit.Eventually(t, "commits wait for the standby", func() bool { return waiting() == 1 })
	stop()
	wg.Wait()
	testkit.Eventually(t, "no commit waits", func() bool { return waiting() == 0 })

	wire, old := x.w.lanes[0].conn.raw.PgConn().Conn(), x.w.lanes[0].conn.backend.pid
	got := make(chan error, 1)
	go func() { got <- x.do(x.auditOnly(0)) }()
	testkit.Eventually(t, "the flush waits for the standby", func() bool { return waiting() == 1 })
	wire.Close()
	testkit.Eventually(t, "the flush is visible, and its proof waits for the standby", func() bool {
		select {
		case err := <-got:
			t.Fatalf("it was answered %v before the standby had it", err)
		default:
		}
		return x.count(`SELECT count(*) FROM audit_log`) == 2 && waiting() == 1 &&
			x.count(`SELECT count(*) FROM pg_stat_activity WHERE pid = $1`, old) == 0
	})

	set("")
	if err := <-got; err != nil {
		t.Error(err)
	}
}

func TestStopWhileStorageIsDown(t *testing.T) {
	t.Parallel()
	cluster := pgtest.Private(t, pgtest.PrivateOptions{})
	x := worldIn(t, &cluster.DB, nil)
	cluster.Stop(t)
	x.noticed()
	got := make(chan error)
	go func() { got <- x.do(x.auditOnly(0)) }()
	testkit.Eventually(x.t, "it waits", func() bool { return x.queued() == 1 })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := x.w.Stop(ctx); err == nil {
		t.Error("Stop did not say that its time was up")
	}
	if err := <-got; !errors.Is(err, ErrUnavailable) {
		t.Errorf("what was queued: %v", err)
	}
}

// TestFullOrReadOnlyIsNotPoison: the database says that it cannot serve, and
// later can.
func TestFullOrReadOnlyIsNotPoison(t *testing.T) {
	t.Parallel()
	for _, code := range []string{"53100", "53200", "53300", "25006", "57P03", "58030"} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			x := newWorld(t, nil)
			x.execAsOwner(fmt.Sprintf(`CREATE TABLE trouble (on_it bool); INSERT INTO trouble VALUES (true);
				GRANT SELECT ON trouble TO svc_system;
				CREATE FUNCTION trouble() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
				IF (SELECT on_it FROM trouble) THEN RAISE EXCEPTION 'trouble' USING ERRCODE = '%s'; END IF; RETURN new; END $$;
				CREATE TRIGGER trouble BEFORE INSERT ON runs FOR EACH ROW EXECUTE FUNCTION trouble()`, code))
			c := x.accept(0)
			c.New = false
			got := make(chan error)
			go func() { got <- x.do(c) }()
			testkit.Eventually(x.t, "storage is down", func() bool { return x.w.Down() != nil })
			x.execAsOwner(`UPDATE trouble SET on_it = false`)
			if err := <-got; err != nil {
				t.Errorf("after the trouble: %v", err)
			}
			testkit.Eventually(x.t, "storage is up", func() bool { return x.w.Down() == nil })
		})
	}
}

func (x *world) execAsOwner(sql string) {
	x.t.Helper()
	conn, err := x.pool.Acquire(context.Background())
	if err != nil {
		x.t.Fatal(err)
	}
	defer conn.Release()
	if _, err := conn.Conn().PgConn().Exec(context.Background(), "RESET ROLE; "+sql+"; SET ROLE "+string(pg.System)).ReadAll(); err != nil {
		x.t.Fatalf("%s: %v", sql, err)
	}
}

// TestALockedRowStopsOnlyItsCommit: another session holds the row for longer
// than the writer waits; the commit is given back, the others are written.
func TestALockedRowStopsOnlyItsCommit(t *testing.T) {
	t.Parallel()
	x := newWorld(t, func(c *Config) { c.Lanes = 1 })
	locked := x.accept(0)
	x.must(locked)
	release := x.lock(`SELECT FROM runs WHERE id = $1 FOR UPDATE`, locked.Accept.ID)
	commits := []*draft{x.accept(0), x.accept(0), advance(locked, 1), x.accept(0)}
	for i, err := range x.all(commits) {
		if i == 2 && !errors.Is(err, ErrUnavailable) || i != 2 && err != nil {
			t.Errorf("commit %d: %v", i, err)
		}
	}
	release()
	x.must(advance(locked, 1))
}

// TestALockedFenceIsWaitedFor: a peer may be about to declare this process dead;
// until it has decided nothing is written and nothing is refused.
func TestALockedFenceIsWaitedFor(t *testing.T) {
	t.Parallel()
	x := newWorld(t, func(c *Config) { c.Lanes = 1 })
	release := x.lock(`SELECT FROM members WHERE id = $1 FOR UPDATE`, x.member)
	got := make(chan error, 1)
	go func() { got <- x.do(x.auditOnly(0)) }()
	testkit.Eventually(x.t, "the writer has given up a first time", func() bool {
		select {
		case err := <-got:
			t.Fatalf("a commit was answered %v while its process may be being declared dead", err)
		default:
		}
		return x.w.Down() != nil
	})
	release()
	if err := <-got; err != nil {
		t.Error(err)
	}
}

// lock holds what sql locks until release.
func (x *world) lock(sql string, args ...any) (release func()) {
	x.t.Helper()
	tx, err := x.pool.Begin(x.t.Context())
	if err != nil {
		x.t.Fatal(err)
	}
	var once sync.Once
	release = func() {
		once.Do(func() {
			if err := tx.Rollback(context.Background()); err != nil {
				x.t.Error(err)
			}
		})
	}
	x.t.Cleanup(release) // a test that failed meanwhile would wait for ever for its pool
	if _, err := tx.Exec(x.t.Context(), sql, args...); err != nil {
		x.t.Fatal(err)
	}
	return release
}

// A flush that the database cannot write in its time is not sent again as it was:
// it becomes smaller, and where it is one commit it gets more time.
func TestAFlushThatTakesTooLongBecomesLess(t *testing.T) {
	t.Parallel()
	x := newWorld(t, func(c *Config) { c.Lanes, c.patience = 1, 300*time.Millisecond })
	x.execAsOwner(`CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.03); RETURN NEW; END $$;
		CREATE TRIGGER dawdle BEFORE INSERT ON audit_log FOR EACH ROW EXECUTE FUNCTION dawdle()`)
	large := x.auditOnly(0)
	for range 24 { // 0.75 s
		large.Audit = append(large.Audit, x.audit())
	}
	x.must(large)
	var wg sync.WaitGroup
	for range 40 { // 1.2 s together
		wg.Go(func() {
			if err := x.do(x.auditOnly(0)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := x.count(`SELECT count(*) FROM audit_log`); n != 25+40 {
		t.Errorf("%d rows, want each of 65 once", n)
	}
}
