package outbox

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"agentsvc/persistence/pg"
	"agentsvc/persistence/pgtest"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/testkit"
)

// cutter makes connections that are cut at the next flush: before it arrives, or
// before its answer does.
type cutter struct {
	cuts          atomic.Int64
	flush, answer atomic.Bool // armed
}

type cutConn struct {
	net.Conn
	k    *cutter
	deaf atomic.Bool
}

var errCut = errors.New("cut by the test")

func (c *cutConn) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte("\x00"+prefix+"fence\x00")) {
		if c.k.flush.CompareAndSwap(true, false) {
			c.k.cuts.Add(1)
			c.Conn.Close()
			return 0, errCut
		}
		if c.k.answer.CompareAndSwap(true, false) {
			c.k.cuts.Add(1)
			c.deaf.Store(true)
		}
	}
	return c.Conn.Write(b)
}

func (c *cutConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.deaf.Load() && n > 0 {
		c.Conn.Close()
		return 0, io.ErrUnexpectedEOF
	}
	return n, err
}

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

// A flush that did not arrive is sent again as a whole. If it arrived and its answer was
// lost, its results are written once, and its claims come due again automatically: no caller
// got them.
func TestAConnectionThatIsLost(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	k := &cutter{}
	x := worldIn(t, db, func(c *Config) { c.Pool = k.pool(t, db.URL) })
	for name, c := range map[string]struct {
		arm     *atomic.Bool
		claimed int
	}{"before the flush arrives": {&k.flush, 2}, "before its answer arrives": {&k.answer, 0}} {
		e := x.endpoint()
		first := x.pending(e, noon.Add(-time.Second))
		x.claim(e)
		x.backlog(e, 2, []byte("{}"))
		before := k.cuts.Load()
		c.arm.Store(true)
		got := x.must(Turn{Endpoint: e, Want: 5, Results: []Result{{Delivery: first, N: 1, Status: lifecycle.DeliverySucceeded}}})
		if k.cuts.Load() != before+1 {
			t.Fatalf("%s: the connection was not cut", name)
		}
		if len(got.Attempts) != c.claimed {
			t.Errorf("%s: %d attempts", name, len(got.Attempts))
		}
		if c.claimed == 0 && got.Next.Sub(noon) < timeout {
			t.Errorf("%s: next %v", name, got.Next)
		}
		if r := x.row(first); r.Status != "succeeded" || len(r.AttemptLog) != 1 {
			t.Errorf("%s: %s", name, show(r))
		}
		if n := x.count(`SELECT count(*) FROM webhook_deliveries WHERE webhook_id = $1 AND status = 'pending' AND attempts = 1 AND begun_at IS NOT NULL`, e.ID); n != 2 {
			t.Errorf("%s: %d are under way", name, n)
		}
	}
}

// While the database is down a Turn waits, and its results are written after the reconnect; a
// caller that does not want to wait gets an error.
func TestWhileTheDatabaseIsGone(t *testing.T) {
	t.Parallel()
	db := pgtest.Private(t, pgtest.PrivateOptions{Fsync: true})
	x := worldIn(t, &db.DB, nil)
	e := x.endpoint()
	d := x.pending(e, noon)
	x.claim(e)
	later := x.pending(e, noon)
	db.Crash(t)
	waits := make(chan error, 1)
	go func() {
		_, err := x.turn(Turn{Endpoint: e, Results: []Result{{Delivery: d, N: 1, Status: lifecycle.DeliverySucceeded}}})
		waits <- err
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := x.o.Turn(ctx, Turn{Endpoint: x2(e), Want: 1}); !errors.Is(err, ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the caller left, and was told %v", err)
	}
	select {
	case err := <-waits:
		t.Errorf("without a database: %v", err)
	default:
	}
	db.Start(t)
	if err := <-waits; err != nil {
		t.Error(err)
	}
	x.pool.Reset()
	if r := x.row(d); r.Status != "succeeded" || len(r.AttemptLog) != 1 {
		t.Errorf("%s", show(r))
	}
	if a := x.claim(e); a.Delivery != later || a.N != 1 {
		t.Errorf("%+v", a)
	}
}

// x2 is another endpoint of e's tenant.
func x2(e Endpoint) Endpoint { return Endpoint{e.Tenant, id.WebhookID{UUID: id.NewAnywhere()}} }

// A process that was declared dead claims and settles nothing, and says so once.
func TestADeadProcessIsFenced(t *testing.T) {
	t.Parallel()
	var fencings, told atomic.Int64
	x := newWorld(t, func(c *Config) {
		c.OnFenced = func() {
			if fencings.Add(1); told.Load() > 0 {
				t.Error("a caller was told before")
			}
		}
	})
	e := x.endpoint()
	d := x.pending(e, noon.Add(-time.Second))
	x.claim(e)
	due := x.pending(e, noon)
	x.exec(`UPDATE members SET dead_at = now() WHERE id = $1`, x.member)
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			if _, err := x.turn(Turn{Endpoint: e, Want: 1, Results: []Result{{Delivery: d, N: 1, Status: lifecycle.DeliverySucceeded}}}); !errors.Is(err, ErrFenced) {
				t.Error(err)
			}
			told.Add(1)
		})
	}
	wg.Wait()
	// Not even when the row is as before: it was another process's word.
	x.exec(`UPDATE members SET dead_at = NULL WHERE id = $1`, x.member)
	if _, err := x.turn(Turn{Endpoint: e, Want: 1}); !errors.Is(err, ErrFenced) {
		t.Errorf("afterwards: %v", err)
	}
	if fencings.Load() != 1 {
		t.Errorf("said %d times", fencings.Load())
	}
	if r := x.row(d); r.Status != "pending" || r.BegunAt == nil {
		t.Errorf("settled: %s", show(r))
	}
	if r := x.row(due); r.Attempts != 0 {
		t.Errorf("claimed: %s", show(r))
	}
}

// Deliveries claimed for a caller that has left are not lost: they were not sent, and are due
// again at once.
func TestClaimsOfACallerThatLeftAreGivenBack(t *testing.T) {
	t.Parallel()
	x := newWorld(t, nil)
	e := x.endpoint()
	d := x.pending(e, noon)
	ctx, cancel := context.WithCancel(t.Context())
	release := x.heldBy(func() {
		if c, err := x.o.Turn(ctx, Turn{Endpoint: e, Want: 1}); !errors.Is(err, ErrUnavailable) || !errors.Is(err, context.Canceled) || len(c.Attempts) != 0 {
			t.Errorf("%+v %v", c, err)
		}
	}, cancel)
	release()
	var r row
	testkit.Eventually(x.t, "it is given back", func() bool {
		r = x.row(d)
		return r.BegunAt == nil && r.NextAttemptAt.After(noon) // the claim was before
	})
	if r.Attempts != 0 || r.Status != "pending" || r.NextAttemptAt.Sub(noon) > time.Millisecond || len(r.AttemptLog) != 0 {
		t.Errorf("%s", show(r))
	}
	x.clock.set(noon.Add(time.Second))
	if a := x.claim(e); a.Delivery != d || a.N != 1 {
		t.Errorf("%+v", a)
	}
}

// A caller that leaves before its Turn was taken leaves nothing behind.
func TestATurnThatWasNotTakenIsWithdrawn(t *testing.T) {
	t.Parallel()
	x := newWorld(t, nil)
	e := x.endpoint()
	d := x.pending(e, noon)
	release := x.held()
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		_, err := x.o.Turn(ctx, Turn{Endpoint: e, Want: 1})
		left <- err
	}()
	testkit.Eventually(x.t, "it is queued", func() bool { return x.queued() == 1 })
	cancel()
	if err := <-left; !errors.Is(err, ErrUnavailable) {
		t.Error(err)
	}
	release()
	x.must(Turn{Endpoint: x2(e)})
	if r := x.row(d); r.Attempts != 0 {
		t.Errorf("%s", show(r))
	}
	if _, err := x.o.Turn(ctx, Turn{Endpoint: e, Want: 1}); !errors.Is(err, ErrUnavailable) {
		t.Errorf("who has left before: %v", err)
	}
}

// Another session holds a delivery of an endpoint, as a disabling does for a while: other
// endpoints do not wait, its due deliveries are not claimed, and its result is written when
// the row is free.
func TestALockedRowHoldsUpNobody(t *testing.T) {
	t.Parallel()
	x := newWorld(t, nil)
	e, beside := x.endpoint(), x.endpoint()
	underWay := x.pending(e, noon.Add(-time.Second))
	x.claim(e)
	due, free := x.pending(e, noon.Add(-time.Second)), x.pending(e, noon)
	tx, err := x.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), `SELECT FROM webhook_deliveries WHERE id = ANY ($1) FOR UPDATE`, []id.DeliveryID{underWay, due}); err != nil {
		t.Fatal(err)
	}
	settled := make(chan Claimed, 1)
	go func() {
		settled <- x.must(Turn{Endpoint: e, Want: 5, Results: []Result{{Delivery: underWay, N: 1, Status: lifecycle.DeliverySucceeded}}})
	}()
	testkit.Eventually(x.t, "what is free was claimed", func() bool { return x.row(free).Attempts == 1 })
	for range 20 {
		x.backlog(beside, 1, []byte("{}"))
		a := x.claim(beside)
		x.must(Turn{Endpoint: beside, Results: []Result{{Delivery: a.Delivery, N: 1, Status: lifecycle.DeliverySucceeded}}})
	}
	select {
	case c := <-settled:
		t.Errorf("answered before the result was durable: %+v", c)
	default:
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	c := <-settled
	got := map[id.DeliveryID]int{}
	for _, a := range c.Attempts {
		got[a.Delivery]++
	}
	if got[free] != 1 || got[underWay] != 0 || got[due] > 1 {
		t.Errorf("claimed %v", got)
	}
	if r := x.row(underWay); r.Status != "succeeded" || len(r.AttemptLog) != 1 {
		t.Errorf("%s", show(r))
	}
}

// Where all that is due is held by others, to ask again at once is no use.
func TestWhatOthersHoldIsDueALittleLater(t *testing.T) {
	t.Parallel()
	x := newWorld(t, nil)
	e := x.endpoint()
	d := x.pending(e, noon)
	tx, err := x.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), `SELECT FROM webhook_deliveries WHERE id = $1 FOR UPDATE`, d); err != nil {
		t.Fatal(err)
	}
	if c := x.must(Turn{Endpoint: e, Want: 5}); len(c.Attempts) != 0 || c.Next.Sub(noon) < lockedLater || c.Next.Sub(noon) > lockedLater+time.Millisecond {
		t.Errorf("%+v", c)
	}
}

// One Turn that the database will not have is refused, and those beside it are done.
func TestAPoisonedTurnIsIsolated(t *testing.T) {
	t.Parallel()
	x := newWorld(t, nil)
	if _, err := x.db.Admin(t).Exec(t.Context(), `ALTER TABLE webhook_deliveries ADD CHECK (last_error <> 'poison')`); err != nil {
		t.Fatal(err)
	}
	turns := make([]Turn, 9)
	for i := range turns {
		e := x.endpoint()
		d := x.pending(e, noon.Add(-time.Second))
		x.claim(e)
		x.pending(e, noon)
		turns[i] = Turn{Endpoint: e, Want: 1, Results: []Result{{Delivery: d, N: 1, Status: lifecycle.DeliveryFailed, Error: "healthy"}}}
	}
	turns[4].Results[0].Error = "poison"
	claimed, errs := x.all(turns)
	for i, turn := range turns {
		want := "failed"
		if i == 4 {
			want = "pending"
			if !errors.Is(errs[i], ErrRefused) {
				t.Errorf("the poisoned one: %v", errs[i])
			}
		} else if errs[i] != nil || len(claimed[i].Attempts) != 1 {
			t.Errorf("turn %d: %+v %v", i, claimed[i], errs[i])
		}
		if r := x.row(turn.Results[0].Delivery); r.Status != want {
			t.Errorf("turn %d: %s", i, show(r))
		}
	}
}

func TestStopWritesWhatIsQueued(t *testing.T) {
	t.Parallel()
	x := newWorld(t, nil)
	e := x.endpoint()
	d := x.pending(e, noon)
	x.claim(e)
	release := x.held()
	written := make(chan error, 1)
	go func() {
		_, err := x.turn(Turn{Endpoint: e, Results: []Result{{Delivery: d, N: 1, Status: lifecycle.DeliverySucceeded}}})
		written <- err
	}()
	testkit.Eventually(x.t, "it is queued", func() bool { return x.queued() == 1 })
	stopped := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), deadline)
		defer cancel()
		stopped <- x.o.Stop(ctx)
	}()
	testkit.Eventually(x.t, "it stops", func() bool {
		x.o.mu.Lock()
		defer x.o.mu.Unlock()
		return !x.o.running
	})
	if _, err := x.turn(Turn{Endpoint: e}); !errors.Is(err, ErrUnavailable) {
		t.Errorf("while it stops: %v", err)
	}
	release()
	if err := <-written; err != nil {
		t.Error(err)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	if r := x.row(d); r.Status != "succeeded" {
		t.Errorf("%s", show(r))
	}
	if _, err := x.turn(Turn{Endpoint: e}); !errors.Is(err, ErrUnavailable) {
		t.Errorf("after its end: %v", err)
	}
}

// Stop does not wait for a database that does not come back.
func TestStopLosesItsPatience(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	db := pgtest.Private(t, pgtest.PrivateOptions{})
	x := worldIn(t, &db.DB, func(c *Config) { c.Metrics = NewMetrics(reg) })
	e := x.endpoint()
	db.Crash(t)
	waits := make(chan error, 1)
	go func() {
		_, err := x.turn(Turn{Endpoint: e, Want: 1})
		waits <- err
	}()
	testkit.Eventually(x.t, "it was tried", func() bool { return counters(t, reg)["svc_webhook_flushes_redone_total gone"] > 0 })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := x.o.Stop(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("stop: %v", err)
	}
	if err := <-waits; !errors.Is(err, ErrUnavailable) {
		t.Errorf("the turn: %v", err)
	}
}
