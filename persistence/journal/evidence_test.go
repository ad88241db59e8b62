package journal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"agentsvc/persistence/pgtest"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/testkit"
)

// repeats are orders that were carried out before and come again: their rows carry ids
// that are there already. Each says what its second commit is answered.
func repeats() map[string]func(x *world) (again *draft, want error) {
	return map[string]func(x *world) (*draft, error){
		// The audit row's id is the operation's id of the order.
		"the deletion of a thread": func(x *world) (*draft, error) {
			thread, row := x.newThread(0), x.audit()
			order := func(version int64) *draft {
				return &draft{Op: newOp(), Tenant: x.tenant, Audit: []Audit{row}, Thread: &ThreadUpdate{
					ID: thread, Guard: Guard{Version: version}, NextSeq: 1, UpdatedAt: noon, DeletedAt: ptr(noon), PurgeMessages: true}}
			}
			x.must(order(1))
			return order(1), ErrConflict
		},
		// The edge seals the answer once, before it asks.
		"the cancel of a run with a key": func(x *world) (*draft, error) {
			run, sealed := x.begun(), key(id.NewAnywhere().String())
			order := func() *draft {
				c := advance(run, 1)
				c.Idempotency = sealed
				return c
			}
			x.must(order())
			return order(), ErrConflict
		},
		"a post": func(x *world) (*draft, error) {
			thread, message := x.newThread(0), id.MessageID{UUID: id.New(0)}
			order := func() *draft {
				return &draft{Op: newOp(), Tenant: x.tenant,
					Thread:   &ThreadUpdate{ID: thread, Guard: Guard{Version: 1}, NextSeq: 2, UpdatedAt: noon},
					Messages: []Message{{Thread: thread, Seq: 1, ID: message, Role: "user", CreatedAt: noon}}}
			}
			x.must(order())
			return order(), ErrConflict
		},
		"a billed use": func(x *world) (*draft, error) {
			u := Usage{ID: id.UsageID{UUID: id.New(0)}, At: noon, Kind: lifecycle.UsageLLM}
			order := func() *draft { return &draft{Op: newOp(), Tenant: x.tenant, Usage: []Usage{u}} }
			x.must(order())
			return order(), ErrRefused
		},
		"the very same commit": func(x *world) (*draft, error) {
			run := x.begun()
			c := advance(run, 1)
			x.must(c)
			return c, nil
		},
	}
}

// innocent are commits that share a flush with a repeated order, one of each way to say
// twice that it was written: a row that must be there once, and a counter.
func (x *world) innocent(shard id.Shard) []*draft {
	run := x.accept(shard)
	run.New = false
	count := x.auditOnly(shard)
	count.Statements = []Statement{{SQL: `UPDATE agents SET published_version = coalesce(published_version, 0) + 1 WHERE id = $1`, Args: []any{x.agent}}}
	timer := x.auditOnly(shard)
	timer.Timers = []Timer{{TimerKey{"run", id.New(shard), "t"}, noon}}
	return []*draft{x.auditOnly(shard), run, count, timer}
}

// written fails the test unless each innocent commit was answered and is there once.
func (x *world) written(commits []*draft, errs []error) {
	x.t.Helper()
	for i, c := range commits {
		if errs[i] != nil {
			x.t.Errorf("innocent commit %d: %v", i, errs[i])
		}
		rows := 0
		if c.Audit != nil {
			rows = x.count(`SELECT count(*) FROM audit_log WHERE id = $1`, c.Audit[0].ID)
		} else {
			rows = x.count(`SELECT count(*) FROM runs WHERE id = $1`, c.Accept.ID)
		}
		if rows != 1 {
			x.t.Errorf("innocent commit %d was answered %v and has %d rows", i, errs[i], rows)
		}
		if c.Timers != nil && x.count(`SELECT count(*) FROM timers WHERE entity_id = $1`, c.Timers[0].Entity) != 1 {
			x.t.Errorf("innocent commit %d has no timer", i)
		}
	}
}

// TestARepeatedOrderVouchesForNobody: the end of a flush does not arrive. An order in it
// was carried out before, so rows with its ids are there. They say nothing about the other
// commits, which were rolled back: none is answered before it is written.
func TestARepeatedOrderVouchesForNobody(t *testing.T) {
	for _, lane := range []string{"the shard's lane", "the side lane"} {
		t.Run(lane, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			k := &cutter{}
			x := worldIn(t, db, func(c *Config) { c.Pool, c.Lanes = k.pool(t, db.URL), 1 })
			l := x.w.lanes[0]
			if lane == "the side lane" {
				l = x.w.routes.side
			}
			for name, order := range repeats() {
				again, want := order(x)
				before := x.count(`SELECT coalesce(published_version, 0) FROM agents WHERE id = $1`, x.agent)
				commits := append(x.innocent(0), again)
				k.arm(cutCommit)
				errs := x.flushOf(l, commits)
				if k.disarm() {
					t.Errorf("%s: the connection was not cut", name)
				}
				x.written(commits[:len(commits)-1], errs)
				if err := errs[len(errs)-1]; !errors.Is(err, want) {
					t.Errorf("%s: it is answered %v, want %v", name, err, want)
				}
				if n := x.count(`SELECT published_version FROM agents WHERE id = $1`, x.agent); n != before+1 {
					t.Errorf("%s: counted %d times", name, n-before)
				}
			}
		})
	}
}

// flushOf writes commits in one flush of the lane, and returns their errors.
func (x *world) flushOf(l *lane, commits []*draft) []error {
	x.t.Helper()
	entries := make([]*entry, len(commits))
	l.mu.Lock() // the lane takes all of them or none
	for i, c := range commits {
		entries[i] = newEntry(x.t.Context(), c.commit())
		entries[i].queued = true
		x.w.routes.enter(c, l)
		l.accepted = append(l.accepted, entries[i])
	}
	l.w.metrics.queue.WithLabelValues("accepted").Add(float64(len(commits)))
	l.mu.Unlock()
	l.signal()
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	errs := make([]error, len(commits))
	for i, e := range entries {
		select {
		case errs[i] = <-e.done:
		case <-ctx.Done():
			x.t.Fatalf("commit %d was not answered", i)
		}
	}
	return errs
}

// enter notes that c is on its way in l, as of does for the lane that it finds.
func (r *routes) enter(c *draft, l *lane) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.tenants[c.Tenant]
	if t == nil {
		t = &route{}
		r.tenants[c.Tenant] = t
	}
	t.n++
	r.under[l]++
	if l == r.side {
		if t.entered == nil {
			t.entered = map[id.UUID]int{}
		}
		c.commit().locked(func(u id.UUID) { t.entered[u]++ })
	}
}

// disarm takes the order to cut back, and reports whether it was still open.
func (k *cutter) disarm() bool { return k.take() != cutNothing }

// A severed connection passes so many bytes of the next flush, or of its answer, and
// then breaks.
type severer struct {
	mu          sync.Mutex // guards the fields below
	armed       bool
	left        int  // bytes until the break
	ofAnswer    bool // and not of the flush
	flush, back int  // bytes of the last flush and its answer
	severed     bool
}

type severedConn struct {
	net.Conn
	s     *severer
	flush bool // the current write or read belongs to the armed flush; guarded by s.mu
}

func (c *severedConn) Write(b []byte) (int, error) {
	c.s.mu.Lock()
	if c.s.armed && ends(b) {
		c.s.armed, c.flush, c.s.flush, c.s.back = false, true, 0, 0
	}
	n, cutHere := len(b), false
	if c.flush {
		if !c.s.ofAnswer {
			if n >= c.s.left {
				n, cutHere, c.s.severed = c.s.left, true, true
			}
			c.s.left -= n
		}
		c.s.flush += n
	}
	c.s.mu.Unlock()
	n, err := c.Conn.Write(b[:n])
	if cutHere {
		c.Conn.Close()
		return n, errCut
	}
	return n, err
}

func (c *severedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if !c.flush || n == 0 {
		return n, err
	}
	c.s.back += n
	if c.s.ofAnswer {
		if n >= c.s.left {
			n, c.s.severed = c.s.left, true
			c.Conn.Close()
			return n, io.ErrUnexpectedEOF
		}
		c.s.left -= n
	}
	return n, err
}

// TestCutAtAnyByte breaks the connection after any part of a flush, and after any part of
// its answer, one flush with a repeated order each time: every innocent commit is there
// once, whether the flush was committed or not.
func TestCutAtAnyByte(t *testing.T) {
	for _, ofAnswer := range []bool{false, true} {
		t.Run(fmt.Sprintf("of the answer %v", ofAnswer), func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			s := &severer{}
			x := worldIn(t, db, func(c *Config) { c.Pool, c.Lanes = s.pool(t, db), 1 })
			again, want := repeats()["a billed use"](x)
			write := func(at int, with ...*draft) {
				before := x.count(`SELECT coalesce(published_version, 0) FROM agents WHERE id = $1`, x.agent)
				s.mu.Lock()
				s.armed, s.severed, s.left, s.ofAnswer = true, false, at, ofAnswer
				s.mu.Unlock()
				commits := append(x.innocent(0), with...)
				errs := x.flushOf(x.w.lanes[0], commits)
				x.written(commits[:len(commits)-len(with)], errs)
				if len(with) > 0 && !errors.Is(errs[len(errs)-1], want) {
					t.Errorf("cut at %d: the repeated order is answered %v, want %v", at, errs[len(errs)-1], want)
				}
				if n := x.count(`SELECT published_version FROM agents WHERE id = $1`, x.agent); n != before+1 {
					t.Errorf("cut at %d: counted %d times", at, n-before)
				}
			}
			const never = 1 << 30
			write(never)
			s.mu.Lock()
			size := s.flush
			if ofAnswer {
				size = s.back
			}
			s.mu.Unlock()
			if size == 0 {
				t.Fatal("no flush was seen")
			}
			const places = 8
			for i := range places + 1 {
				at := i * size / places
				if ofAnswer {
					at = max(at, 1)
				}
				write(at) // it may be committed
				s.mu.Lock()
				severed := s.severed
				s.mu.Unlock()
				if !severed && at < size {
					t.Errorf("the connection was not cut at %d of %d", at, size)
				}
				write(at, again) // the database refuses it, or never sees all of it
			}
		})
	}
}

// pool opens a writer's pool whose connections s can sever.
func (s *severer) pool(t testing.TB, db *pgtest.DB) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	dial := cfg.ConnConfig.DialFunc
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &severedConn{Conn: c, s: s}, nil
	}
	return writerPool(t, cfg)
}

// TestServerKilledDuringAFlush: the server dies while a flush is under way, in each way
// that a flush may be. Nothing that was rolled back is answered.
func TestServerKilledDuringAFlush(t *testing.T) {
	t.Parallel()
	cluster := pgtest.Private(t, pgtest.PrivateOptions{Fsync: true})
	x := worldIn(t, &cluster.DB, func(c *Config) { c.Lanes = 1 })
	again, want := repeats()["the deletion of a thread"](x)
	run := x.begun()
	tx, err := x.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `SELECT FROM runs WHERE id = $1 FOR UPDATE`, run.Accept.ID); err != nil {
		t.Fatal(err)
	}
	pid := x.w.lanes[0].conn.backend.pid
	commits := append(x.innocent(0), again, advance(run, 1))
	answered := make(chan []error)
	go func() { answered <- x.flushOf(x.w.lanes[0], commits) }()
	testkit.Eventually(x.t, "the flush waits for the row", func() bool {
		return x.count(`SELECT count(*) FROM pg_locks WHERE pid = $1 AND NOT granted`, pid) == 1
	})
	cluster.Crash(t)
	_ = tx.Rollback(context.Background()) // its session is gone
	x.pool.Reset()
	cluster.Start(t)
	errs := <-answered
	x.written(commits[:len(commits)-2], errs)
	if err := errs[len(errs)-2]; !errors.Is(err, want) {
		t.Errorf("the repeated order is answered %v, want %v", err, want)
	}
	if err := errs[len(errs)-1]; err != nil {
		t.Errorf("the commit that waited: %v", err)
	}
}

// TestAStatementTimeout: the database gives a flush up in the middle. It is done again, and
// nothing is answered that was not written.
func TestAStatementTimeout(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	admin := db.Admin(t)
	for _, sql := range []string{
		`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET statement_timeout = 1000', current_database()); END $$`,
		`CREATE SEQUENCE slow`, `GRANT USAGE, SELECT ON SEQUENCE slow TO svc_system`,
		`CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF nextval('slow') = 1 THEN PERFORM pg_sleep(600); END IF; RETURN NULL; END $$`,
		`CREATE TRIGGER dawdle AFTER INSERT ON timers FOR EACH ROW EXECUTE FUNCTION dawdle()`,
	} {
		if _, err := admin.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	x := worldIn(t, db, func(c *Config) { c.Lanes = 1 })
	again, want := repeats()["the deletion of a thread"](x)
	commits := append(x.innocent(0), again)
	errs := x.flushOf(x.w.lanes[0], commits)
	x.written(commits[:len(commits)-1], errs)
	if err := errs[len(errs)-1]; !errors.Is(err, want) {
		t.Errorf("the repeated order is answered %v, want %v", err, want)
	}
	if n := x.count(`SELECT last_value FROM slow`); n < 2 {
		t.Error("no statement timed out")
	}
}

// TestEvidenceIsDeleted: a lane keeps the evidence of a few flushes only, and a process
// that starts deletes that of processes which have ended, not that of living ones.
func TestEvidenceIsDeleted(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	x := worldIn(t, db, func(c *Config) { c.Lanes = 1 })
	for range 3*forgetEach + 10 {
		x.must(x.auditOnly(0))
	}
	if n := x.count(`SELECT count(*) FROM flushes`); n == 0 || n > forgetEach {
		t.Errorf("the evidence of %d flushes is there, want 1 to %d", n, forgetEach)
	}
	living := x.count(`SELECT count(*) FROM flushes`)
	dead := pgtest.Dead(t, x.pool)
	for _, member := range []id.MemberID{dead, {UUID: id.NewAnywhere()}} {
		x.exec(`INSERT INTO flushes (lane, n, member_id) SELECT $1, n, $2 FROM generate_series(1, 300) n`, id.NewAnywhere(), member)
	}
	next := New(Config{Pool: db.Writer(t), Member: x.member, Lanes: 1})
	if err := next.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := x.count(`SELECT count(*) FROM flushes`); n != living {
		t.Errorf("%d rows are there, want the %d of the living process", n, living)
	}
	if err := next.Stop(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestEvidenceUnderABackup: a long transaction holds old row versions back. The cost of the
// evidence does not grow with the flushes that are written meanwhile.
func TestEvidenceUnderABackup(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	admin := db.Admin(t)
	x := worldIn(t, db, func(c *Config) { c.Lanes = 1 })
	backup, err := x.pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	defer backup.Rollback(context.Background())
	if _, err := backup.Exec(t.Context(), `SELECT count(*) FROM flushes`); err != nil {
		t.Fatal(err)
	}
	blocks := func() int {
		return x.count(`SELECT heap_blks_hit + heap_blks_read + idx_blks_hit + idx_blks_read FROM pg_statio_user_tables WHERE relname = 'flushes'`)
	}
	write := func() int {
		before := blocks()
		for range 2 * forgetEach {
			x.must(x.auditOnly(0))
		}
		// A session's statistics are there once it ends.
		if _, err := admin.Exec(t.Context(), `SELECT pg_terminate_backend($1, 10000)`, x.w.lanes[0].conn.backend.pid); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(x.t, "the statistics are there", func() bool { return blocks() >= before+2*forgetEach })
		x.must(x.auditOnly(0))
		return blocks() - before
	}
	first, last := write(), 0
	for range 3 {
		last = write()
	}
	if last > 2*first {
		t.Errorf("%d flushes read %d blocks, and %d after three times as many", 2*forgetEach, first, last)
	}
}
