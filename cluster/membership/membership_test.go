package membership

import (
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"agentsvc/persistence/pg"
	"agentsvc/persistence/pgtest"
	"agentsvc/schemas/id"
	"agentsvc/schemas/testkit"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) { os.Exit(code) }))
}

// long is the lease of tests that are not about its end.
const long = 30 * time.Second

func member() id.MemberID { return id.MemberID{UUID: id.NewAnywhere()} }

func join(t *testing.T, pool *pgxpool.Pool, cfg Config) *Membership {
	t.Helper()
	if cfg.Member.IsZero() {
		cfg.Member = member()
	}
	m, err := Join(t.Context(), pool, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.halt)
	return m
}

// row is a member as stored.
type row struct {
	lease time.Time
	dead  bool
	found bool
}

func stored(t *testing.T, pool *pgxpool.Pool, who id.MemberID) row {
	t.Helper()
	var r row
	rows, err := pool.Query(t.Context(), `SELECT lease_until, dead_at IS NOT NULL FROM members WHERE id = $1`, who)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		r.found = true
		if err := rows.Scan(&r.lease, &r.dead); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

func exec(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

func TestQueriesPrepare(t *testing.T) { pgtest.Prepare(t, queries) }

func TestTheBeatRenewsTheLeaseAndLeaveRemovesIt(t *testing.T) {
	pool := pgtest.New(t).System(t)
	m := join(t, pool, Config{Lease: 300 * time.Millisecond})
	first, deadline := stored(t, pool, m.Member()), m.Deadline()
	if !first.found || first.dead {
		t.Fatalf("%+v", first)
	}
	testkit.Eventually(t, "it is not suspended", func() bool { return !m.Suspended() })
	testkit.Eventually(t, "three renewals", func() bool {
		return stored(t, pool, m.Member()).lease.Sub(first.lease) >= 300*time.Millisecond && m.Deadline().After(deadline)
	})
	if err := m.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := m.Leave(t.Context()); err != nil {
		t.Fatal("a second Leave:", err)
	}
	if stored(t, pool, m.Member()).found {
		t.Fatal("the row stayed")
	}
}

func TestTheOwnDeadlineIsBeforeTheRows(t *testing.T) {
	pool := pgtest.New(t).System(t)
	m := join(t, pool, Config{Lease: long})
	// Postgres runs on this machine: its clock is ours, to the microsecond.
	theirs := time.Until(stored(t, pool, m.Member()).lease) + time.Microsecond
	if ours := time.Until(m.Deadline()); ours > theirs || m.Suspended() {
		t.Fatalf("we count on %v, the row says %v", ours, theirs)
	}
}

func TestOneNodeRule(t *testing.T) {
	t.Run("another living process: Join fails", func(t *testing.T) {
		pool := pgtest.New(t).System(t)
		first := join(t, pool, Config{Lease: DefaultLease})
		_, err := Join(t.Context(), pool, Config{Member: member(), Lease: DefaultLease})
		if !errors.Is(err, ErrOccupied) {
			t.Fatalf("err = %v", err)
		}
		if r := stored(t, pool, first.Member()); r.dead || first.Fenced() {
			t.Fatal("the living one was declared dead")
		}
	})
	t.Run("a crashed process: Join waits for its lease and marks it dead", func(t *testing.T) {
		pool := pgtest.New(t).System(t)
		first := join(t, pool, Config{Lease: 400 * time.Millisecond})
		first.halt()
		until := stored(t, pool, first.Member()).lease
		second := join(t, pool, Config{Lease: long})
		if r := stored(t, pool, first.Member()); !r.dead {
			t.Fatalf("%+v", r)
		}
		if second.Now().Before(until) {
			t.Fatal("Join did not wait for the lease")
		}
	})
	t.Run("Exclusive: former members are dead at once", func(t *testing.T) {
		pool := pgtest.New(t).System(t)
		first := join(t, pool, Config{Lease: time.Hour})
		first.halt()
		join(t, pool, Config{Lease: long, Exclusive: true})
		if !stored(t, pool, first.Member()).dead {
			t.Fatal("it still counts as alive")
		}
	})
	t.Run("with a cluster address both live", func(t *testing.T) {
		pool := pgtest.New(t).System(t)
		first := join(t, pool, Config{Lease: long, Address: "127.0.0.1:1"})
		second := join(t, pool, Config{Lease: long, Address: "127.0.0.1:2"})
		if stored(t, pool, first.Member()).dead || stored(t, pool, second.Member()).dead {
			t.Fatal("one is dead")
		}
	})
	t.Run("a member that left is not waited for", func(t *testing.T) {
		pool := pgtest.New(t).System(t)
		first := join(t, pool, Config{Lease: time.Hour})
		if err := first.Leave(t.Context()); err != nil {
			t.Fatal(err)
		}
		join(t, pool, Config{Lease: long})
	})
	t.Run("waiting ends with the context", func(t *testing.T) {
		pool := pgtest.New(t).System(t)
		first := join(t, pool, Config{Lease: time.Hour})
		first.halt()
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if _, err := Join(ctx, pool, Config{Member: member(), Lease: long}); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("err = %v", err)
		}
	})
	t.Run("of two that start at once one serves", func(t *testing.T) {
		pool := pgtest.New(t).System(t)
		type outcome struct {
			m   *Membership
			err error
		}
		out := make(chan outcome, 2)
		for range 2 {
			go func() {
				m, err := Join(t.Context(), pool, Config{Member: member(), Lease: DefaultLease})
				out <- outcome{m, err}
			}()
		}
		served := 0
		for range 2 {
			o := <-out
			if o.err == nil {
				served++
				t.Cleanup(o.m.halt)
			} else if !errors.Is(o.err, ErrOccupied) {
				t.Error(o.err)
			}
		}
		if served != 1 {
			t.Fatalf("%d serve", served)
		}
	})
}

func TestMarkedDeadIsFencedOnce(t *testing.T) {
	for _, row := range []struct{ name, sql string }{
		{"somebody marked the row", `UPDATE members SET dead_at = now() WHERE id = $1`},
		{"somebody removed the row", `DELETE FROM members WHERE id = $1`},
	} {
		t.Run(row.name, func(t *testing.T) {
			pool := pgtest.New(t).System(t)
			var calls atomic.Int32
			m := join(t, pool, Config{Lease: 150 * time.Millisecond, OnFenced: func() { calls.Add(1) }})
			exec(t, pool, row.sql, m.Member())
			m.wg.Wait()
			if calls.Load() != 1 || !m.Fenced() || !m.Suspended() {
				t.Fatalf("%d calls, fenced %v, suspended %v", calls.Load(), m.Fenced(), m.Suspended())
			}
		})
	}
}

func TestAnOutageSuspendsAndTheNextRenewalGoesOn(t *testing.T) {
	db := pgtest.New(t)
	pool, ours := db.System(t), db.Pool(t, pg.Options{Role: pg.System})
	var stops atomic.Int32
	m := join(t, ours, Config{Lease: DefaultLease, OnFenced: func() { t.Error("fenced") }, OnSuspended: func() { stops.Add(1) }})
	joined := m.Deadline()
	testkit.Eventually(t, "it was renewed", func() bool { return m.Deadline().After(joined) })
	if stops.Load() != 0 {
		t.Error("suspended while the lease was held")
	}
	// A lock on the table is an outage to the beat: it waits and runs out of time.
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// If a check below fails, release the lock before the member is stopped and the database
	// dropped: both would wait for it.
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), `LOCK TABLE members IN ACCESS EXCLUSIVE MODE`); err != nil {
		t.Fatal(err)
	}
	testkit.Within(t, 3*DefaultLease, "the lease runs out", m.Suspended)
	testkit.Within(t, DefaultLease, "OnSuspended is called", func() bool { return stops.Load() == 1 })
	testkit.Within(t, DefaultLease, "a renewal has failed", func() bool { return !m.Renews() })
	if m.Fenced() {
		t.Fatal("fenced by an outage")
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	testkit.Within(t, 3*DefaultLease, "it goes on", func() bool { return !m.Suspended() && m.Renews() })
	if n := stops.Load(); n != 1 {
		t.Errorf("told %d times of one outage", n)
	}
}

func TestTheBeatDoesNotWaitForTheFenceOfCommits(t *testing.T) {
	pool := pgtest.New(t).System(t)
	m := join(t, pool, Config{Lease: 300 * time.Millisecond})
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), `SELECT FROM members WHERE id = $1 FOR KEY SHARE`, m.Member()); err != nil {
		t.Fatal(err)
	}
	before := m.Deadline()
	testkit.Eventually(t, "the lease is renewed twice", func() bool { return m.Deadline().Sub(before) > 150*time.Millisecond })
}

func TestClock(t *testing.T) {
	c := newClock()
	at := func(d time.Duration) time.Time { return c.start.Add(d) }
	theirs := func(d time.Duration) time.Time { return c.start.Round(0).Add(d) }
	offset := func() time.Duration { return time.Duration(c.offset.Load()) }
	c.measured(at(0), at(10*time.Millisecond), theirs(time.Hour+5*time.Millisecond), true)
	if offset() != time.Hour {
		t.Fatalf("first reading: %v", offset())
	}
	for _, row := range []struct {
		name           string
		sent, received time.Duration
		theirs         time.Duration
		want           time.Duration
	}{
		{"a reading that allows the offset leaves it", 0, 40 * time.Millisecond, time.Hour + 30*time.Millisecond, time.Hour},
		{"a clock that runs ahead moves it to the nearest possible", 0, 2 * time.Millisecond, time.Hour + 10*time.Millisecond, time.Hour + 8*time.Millisecond},
		{"a clock that falls behind moves it to the nearest possible", 0, 2 * time.Millisecond, time.Hour - 10*time.Millisecond, time.Hour - 10*time.Millisecond},
	} {
		t.Run(row.name, func(t *testing.T) {
			c.measured(at(row.sent), at(row.received), theirs(row.theirs), false)
			if offset() != row.want {
				t.Fatalf("offset %v, want %v", offset(), row.want)
			}
		})
	}
	if d := time.Until(c.now()); d < time.Hour-time.Minute || d > time.Hour+time.Minute || c.now().Location() != time.UTC {
		t.Fatalf("now is %v ahead", d)
	}
}

func TestNowFollowsPostgres(t *testing.T) {
	pool := pgtest.New(t).System(t)
	begun := time.Now()
	m := join(t, pool, Config{Lease: long})
	within := time.Since(begun) + time.Millisecond // of an exchange that took so long no clock is known better
	var theirs time.Time
	before := m.Now()
	if err := pool.QueryRow(t.Context(), `SELECT clock_timestamp()`).Scan(&theirs); err != nil {
		t.Fatal(err)
	}
	if after := m.Now(); theirs.Before(before.Add(-within)) || theirs.After(after.Add(within)) {
		t.Fatalf("Postgres said %v between %v and %v, give or take %v", theirs, before, after, within)
	}
}

// slowAnswers is a tracer that holds up the answers to the queries that write leases.
type slowAnswers struct {
	by time.Duration

	mu   sync.Mutex // guards sent
	sent []time.Time
}

type isLease struct{}

func (s *slowAnswers) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if q.SQL != queries.Get("beat") && q.SQL != queries.Get("join") {
		return ctx
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent = append(s.sent, time.Now())
	return context.WithValue(ctx, isLease{}, true)
}

// TraceQueryEnd is called when the answer has arrived and before the caller gets it.
func (s *slowAnswers) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) {
	if ctx.Value(isLease{}) != nil {
		<-time.After(s.by)
	}
}

// TestASlowAnswerExtendsTheLeaseFromItsSending: the row lapses a lease after the renewal
// was carried out, however late the answer is. A member that counted from the receipt
// would count itself live after that.
func TestASlowAnswerExtendsTheLeaseFromItsSending(t *testing.T) {
	const lease = 6 * time.Second
	slow := &slowAnswers{by: lease / 4}
	cfg := pgtest.New(t).System(t).Config()
	cfg.ConnConfig.Tracer = slow
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	m := join(t, pool, Config{Lease: lease})
	for n, what := range []string{"joined", "renewed", "renewed again"} {
		if n > 0 {
			before := m.Deadline()
			testkit.Within(t, 2*lease, what, func() bool { return m.Deadline().After(before) })
		}
		deadline := m.Deadline()
		slow.mu.Lock()
		sent := slow.sent[n]
		slow.mu.Unlock()
		if late := deadline.Sub(sent.Add(lease)); late > 0 {
			t.Errorf("%s, it counts itself live for %s longer than its row says", what, late)
		}
	}
}
