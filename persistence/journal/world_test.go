package journal

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"math"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"agentsvc/persistence/pg"
	"agentsvc/persistence/pgtest"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const deadline = time.Minute

// noon is the time of every row of the tests: microseconds, as the database keeps.
var noon = time.Date(2026, 3, 1, 12, 0, 0, 123456000, time.UTC)

// world is a database with a tenant, an agent and a living member, and a writer.
type world struct {
	t      testing.TB
	pool   *pgxpool.Pool // for looking
	member id.MemberID
	tenant id.TenantID
	agent  id.AgentID
	w      *Writer
}

// newWorld makes a world; change may alter the writer's configuration.
func newWorld(t testing.TB, change func(*Config)) *world {
	t.Helper()
	return worldIn(t, pgtest.New(t), change)
}

func worldIn(t testing.TB, db *pgtest.DB, change func(*Config)) *world {
	t.Helper()
	return worldOf(t, db, nil, change)
}

// worldOf is a world with more tables in its database.
func worldOf(t testing.TB, db *pgtest.DB, tables []string, change func(*Config)) *world {
	t.Helper()
	for _, ddl := range tables {
		if _, err := db.Admin(t).Exec(context.Background(), ddl); err != nil {
			t.Fatal(err)
		}
	}
	x := &world{t: t, pool: db.System(t)}
	x.tenant, x.agent = x.newTenant()
	x.member = pgtest.Member(t, x.pool)
	cfg := Config{Pool: db.Writer(t), Member: x.member, Lanes: 2, Tables: kinds}
	if change != nil {
		change(&cfg)
	}
	x.w = New(cfg)
	x.w.routes.crowd = math.MaxInt // what meets in a flush is the tests' choice; route_test.go has the side lane
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	if err := x.w.Start(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		within := deadline
		if t.Failed() { // there may be a commit that never ends
			within = time.Second
		}
		ctx, cancel := context.WithTimeout(context.Background(), within)
		defer cancel()
		if err := x.w.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
	return x
}

func (x *world) newTenant() (id.TenantID, id.AgentID) {
	x.t.Helper()
	tenant := pgtest.Tenant(x.t, x.pool)
	return tenant, pgtest.Agent(x.t, x.pool, tenant)
}

func (x *world) exec(sql string, args ...any) {
	x.t.Helper()
	if _, err := x.pool.Exec(context.Background(), sql, args...); err != nil {
		x.t.Fatalf("%s: %v", sql, err)
	}
}

func (x *world) newThread(shard id.Shard) id.ThreadID {
	x.t.Helper()
	thread := id.ThreadID{UUID: id.New(shard)}
	x.exec(`INSERT INTO threads (tenant_id, id, agent_id, created_by) VALUES ($1, $2, $3, 'user')`, x.tenant, thread, x.agent)
	return thread
}

// count answers a query of one number.
func (x *world) count(sql string, args ...any) int {
	x.t.Helper()
	var n int
	if err := x.pool.QueryRow(context.Background(), sql, args...).Scan(&n); err != nil {
		x.t.Fatalf("%s: %v", sql, err)
	}
	return n
}

// do writes c with the tests' deadline.
func (x *world) do(c *draft) error {
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	return x.w.Do(ctx, c.commit())
}

// fenced fails the test unless c is answered ErrFenced. A writer that does not notice its
// fence takes the answer of the database for an outage and waits for ever.
func (x *world) fenced(c *draft) {
	x.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := x.w.Do(ctx, c.commit()); !errors.Is(err, ErrFenced) {
		x.t.Errorf("a commit of a process that was declared dead is answered %v, want %v; the writer is down because of: %v", err, ErrFenced, x.w.Down())
	}
}

func (x *world) must(c *draft) {
	x.t.Helper()
	if err := x.do(c); err != nil {
		x.t.Fatalf("commit: %v", err)
	}
}

// all does every commit at once and returns their errors in order. The flush
// takes them together: the lanes are blocked until all are queued.
func (x *world) all(commits []*draft) []error {
	x.t.Helper()
	release := x.block()
	errs := make([]error, len(commits))
	var wg sync.WaitGroup
	for i, c := range commits {
		queued := x.queued()
		wg.Go(func() { errs[i] = x.do(c) })
		testkit.Eventually(x.t, "the commit is queued", func() bool { return x.queued() > queued })
	}
	release()
	wg.Wait()
	return errs
}

// block keeps every lane busy with a first commit until release.
func (x *world) block() (release func()) {
	x.t.Helper()
	gate := make(chan struct{})
	arrived := make(chan struct{}, len(x.w.routes.lanes))
	before := x.w.hooks.beforeFlush
	x.w.setBeforeFlush(func(uint32) {
		arrived <- struct{}{}
		<-gate
	})
	var wg sync.WaitGroup
	for n := range x.w.routes.lanes {
		wg.Go(func() {
			if err := x.do(x.auditOnly(id.Shard(n))); err != nil {
				x.t.Error(err)
			}
		})
		<-arrived
	}
	var once sync.Once
	release = func() {
		once.Do(func() {
			x.w.setBeforeFlush(before)
			close(gate)
			wg.Wait()
		})
	}
	x.t.Cleanup(release) // a test that failed meanwhile
	return release
}

func (w *Writer) setBeforeFlush(f func(pid uint32)) { w.hooks.beforeFlush = f }

func (x *world) queued() int {
	n := 0
	for _, l := range x.w.lanes {
		l.mu.Lock()
		n += len(l.accepted) + len(l.fresh)
		l.mu.Unlock()
	}
	return n
}

// noticed waits until each lane has noticed by itself that the database is gone: one that
// has not takes a commit out of its queue to find out.
func (x *world) noticed() {
	x.t.Helper()
	testkit.Eventually(x.t, "every lane notices that the database is gone", func() bool {
		return !slices.ContainsFunc(x.w.lanes, func(l *lane) bool { return l.down.Load() == nil })
	})
}

// mustChange is an update that raises svc_missed unless it changes one row.
func mustChange(update string) string {
	return "WITH done AS (" + update + " RETURNING 1) SELECT FROM done HAVING CASE WHEN count(*) <> 1 THEN svc_missed() END"
}

// all is every text of the schema: those of the flush, and those that settle.
func (s *schema) all() map[string]string {
	all := maps.Clone(s.texts)
	for _, w := range s.writes {
		if w.settle != "" {
			all[w.name+"_settle"] = w.settle
		}
	}
	return all
}

func newOp() id.OpID { return id.OpID{UUID: id.NewAnywhere()} }

func ptr[T any](v T) *T { return &v }

func (x *world) auditOnly(shard id.Shard) *draft {
	return &draft{Op: newOp(), Tenant: x.tenant, Shard: shard, Audit: []Audit{x.audit()}}
}

func (x *world) audit() Audit {
	return Audit{ID: id.AuditID{UUID: id.NewAnywhere()}, At: noon, Actor: "user", Action: "run.accept", TargetKind: "run", TargetID: id.NewAnywhere(), IP: "::1"}
}

// accept is a run on its own, accepted.
func (x *world) accept(shard id.Shard) *draft {
	return &draft{Op: newOp(), Tenant: x.tenant, Shard: shard, New: true, Accept: &RunInsert{
		ID: id.RunID{UUID: id.New(shard)}, AgentID: &x.agent, AgentVersion: ptr(1), Input: json.RawMessage(`{"q":"\u0000"}`),
		OriginKind: lifecycle.OriginAPIKey, OriginID: id.NewAnywhere(), CreatedAt: noon, State: []byte{1}}}
}

// newborn is a thread that begins.
func (x *world) newborn(shard id.Shard) *ThreadInsert {
	return &ThreadInsert{ID: id.ThreadID{UUID: id.New(shard)}, AgentID: x.agent, CreatedBy: "embed:vid:1", NextSeq: 1, CreatedAt: noon}
}

func key(s string) *Idempotency {
	return &Idempotency{Digest: sha256.Sum256([]byte(s)), Fingerprint: sha256.Sum256([]byte("request")), Status: 202, Response: []byte("sealed"), At: noon}
}

// advance moves a run on from version, running.
func advance(c *draft, version int64) *draft {
	return &draft{Op: newOp(), Tenant: c.Tenant, Shard: c.Shard, Run: &RunUpdate{ID: c.Accept.ID,
		Guard: Guard{Version: version}, Status: lifecycle.RunRunning, StartedAt: ptr(noon), Seq: version}}
}

// cutter makes connections that are cut at the next end of a transaction.
type cutter struct {
	mu   sync.Mutex // guards the fields below
	mode cut
	cuts int
}

type cut int

const (
	cutNothing cut = iota
	cutCommit      // the flush does not arrive
	cutAnswer      // the flush arrives, its answer does not
)

func (k *cutter) arm(mode cut) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.mode = mode
}

func (k *cutter) done() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.cuts
}

func (k *cutter) take() cut {
	k.mu.Lock()
	defer k.mu.Unlock()
	mode := k.mode
	if k.mode = cutNothing; mode != cutNothing {
		k.cuts++
	}
	return mode
}

type cutConn struct {
	net.Conn
	k  *cutter
	mu sync.Mutex // guards the field below
	no bool
}

var errCut = errors.New("cut by the test")

// ends reports whether b is a flush of the writer, with which its transaction ends.
func ends(b []byte) bool { return bytes.Contains(b, []byte("\x00"+prefix+"fence\x00")) }

func (c *cutConn) Write(b []byte) (int, error) {
	if ends(b) {
		switch c.k.take() {
		case cutCommit:
			c.Conn.Close()
			return 0, errCut
		case cutAnswer:
			c.mu.Lock()
			c.no = true
			c.mu.Unlock()
		}
	}
	return c.Conn.Write(b)
}

func (c *cutConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.no && n > 0 {
		c.Conn.Close()
		return 0, io.ErrUnexpectedEOF
	}
	return n, err
}

// pool opens a writer's pool whose connections k can cut.
func (k *cutter) pool(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	dial := cfg.ConnConfig.DialFunc
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &cutConn{Conn: c, k: k}, nil
	}
	return writerPool(t, cfg)
}

// writerPool opens a pool as the writer's is.
func writerPool(t testing.TB, cfg *pgxpool.Config) *pgxpool.Pool {
	t.Helper()
	cfg.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		pg.RegisterIDs(conn.TypeMap())
		_, err := conn.Exec(ctx, "SET ROLE svc_system")
		return err
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}
