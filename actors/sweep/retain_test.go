package sweep

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"

	"agentsvc/actors/durable"
	"agentsvc/cluster"
	"agentsvc/persistence/feed"
	"agentsvc/persistence/pgtest"
	"agentsvc/persistence/store"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/testkit"
)

// heap is a kind of rows of which so many are old.
type heap struct {
	old    int
	most   int // taken in time; 0: all
	limits []int
	froms  []feed.Mark
	mark   feed.Mark // the next one
}

func (h *heap) retention() feed.Retention {
	return feed.Retention{Name: "heap", Pass: func(ctx context.Context, _ *pgxpool.Pool, from feed.Mark, limit int) (int, feed.Mark, error) {
		h.limits, h.froms = append(h.limits, limit), append(h.froms, from)
		if at, limited := ctx.Deadline(); !limited || time.Until(at) > pageTimeout {
			return 0, from, errors.New("it may last for ever")
		}
		if h.most > 0 && limit > h.most {
			return 0, from, context.DeadlineExceeded
		}
		n := min(limit, h.old)
		h.old -= n
		return n, h.mark, nil
	}}
}

func TestRetentionInBatches(t *testing.T) {
	h := &heap{old: retainBatch + 3}
	f := &fake{retentions: []feed.Retention{h.retention()}}
	s := New(Config{Rows: f, Kinds: f.kinds(), Retentions: f.retentions, Node: f, Log: zerolog.Nop(), Now: func() time.Time { return noon }})
	for _, want := range []struct {
		n    int
		rest time.Duration
	}{{retainBatch, 250 * time.Millisecond}, {3, time.Minute}, {0, time.Minute}} {
		if n, rest, err := s.retain(t.Context(), s.retentions[0]); err != nil || n != want.n || rest != want.rest {
			t.Errorf("took %d, rests %v, %v; want %+v", n, rest, err, want)
		}
	}
}

// A batch that does not end in time is tried again with less, and a pass goes on where
// the last good one ended. Once an hour a pass begins with the oldest row.
func TestRetentionThatTakesTooLong(t *testing.T) {
	_, mark, err := store.Retentions[0].Pass(t.Context(), pgtest.New(t).System(t), feed.Mark{}, 1)
	if err != nil || mark == (feed.Mark{}) {
		t.Fatal(mark, err)
	}
	h := &heap{old: retainBatch, most: retainBatch / 4, mark: mark}
	f := &fake{retentions: []feed.Retention{h.retention()}}
	now := noon
	s := New(Config{Rows: f, Kinds: f.kinds(), Retentions: f.retentions, Node: f, Log: zerolog.Nop(), Now: func() time.Time { return now }})
	for _, c := range []struct {
		n    int
		from feed.Mark
		err  error
	}{
		{0, feed.Mark{}, context.DeadlineExceeded}, {0, feed.Mark{}, context.DeadlineExceeded}, {retainBatch / 4, feed.Mark{}, nil},
		{0, mark, context.DeadlineExceeded}, {retainBatch / 4, mark, nil},
	} {
		n, rest, err := s.retain(t.Context(), s.retentions[0])
		if n != c.n || !errors.Is(err, c.err) || h.froms[len(h.froms)-1] != c.from || err != nil && rest != time.Minute {
			t.Errorf("took %d from %v, rests %v, %v; want %+v", n, h.froms, rest, err, c)
		}
	}
	now = now.Add(time.Hour)
	if _, _, err := s.retain(t.Context(), s.retentions[0]); err == nil || h.froms[len(h.froms)-1] != (feed.Mark{}) {
		t.Errorf("an hour later: from %v, %v", h.froms, err)
	}
	if _, _, err := s.retain(t.Context(), s.retentions[0]); err != nil || h.froms[len(h.froms)-1] != mark {
		t.Errorf("after it failed: from %v, %v", h.froms, err)
	}
}

// Kinds that hang keep neither timers nor other kinds.
func TestNobodyWaitsForRetention(t *testing.T) {
	hung := make(chan struct{})
	first := sync.OnceFunc(func() { close(hung) })
	var others atomic.Int32
	f := &fake{retentions: []feed.Retention{
		{Name: "hangs", Pass: func(ctx context.Context, _ *pgxpool.Pool, from feed.Mark, _ int) (int, feed.Mark, error) {
			first()
			<-ctx.Done()
			return 0, from, ctx.Err()
		}},
		{Name: "works", Pass: func(_ context.Context, _ *pgxpool.Pool, from feed.Mark, limit int) (int, feed.Mark, error) {
			others.Add(1)
			return limit, from, nil
		}},
	}}
	s := New(Config{Rows: f, Kinds: f.kinds(), Retentions: f.retentions, Node: f, Log: zerolog.Nop(), Every: time.Millisecond})
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	<-hung
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	from, before := time.Now(), others.Load()
	for n := range 20 { // each after the one before was told
		f.mu.Lock()
		f.timers = append(f.timers, feed.Timer{Kind: "run", Name: "due"})
		f.mu.Unlock()
		for told := 0; told <= n; <-tick.C {
			f.mu.Lock()
			told = len(f.told)
			f.mu.Unlock()
		}
	}
	for others.Load() < before+20 {
		<-tick.C
	}
	if took := time.Since(from); took >= pageTimeout {
		t.Errorf("20 timers took %v", took)
	}
}

// Somebody holds the tables of retention, and those of other loops: a due timer is told
// all the same, and so are rows of other kinds.
func TestATableThatIsLockedHoldsUpNoTimer(t *testing.T) {
	for _, table := range []string{"webhook_deliveries", "idempotency", "webhooks", "end_users", "runs"} {
		t.Run(table, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			pool := db.System(t)
			tenant := id.TenantID{UUID: id.NewAnywhere()}
			exec := func(sql string, args ...any) {
				t.Helper()
				if _, err := pool.Exec(t.Context(), sql, args...); err != nil {
					t.Fatal(err)
				}
			}
			exec("INSERT INTO tenants (id, name) VALUES ($1, 't')", tenant)
			const old = 3*retainBatch + 1
			insert := func() {
				exec(`INSERT INTO idempotency (tenant_id, digest, fingerprint, status, response, created_at)
					SELECT $1, sha256(n::text::bytea), sha256('x'), 202, '', now() - interval '2 days' FROM generate_series(1, $2::int) n ON CONFLICT DO NOTHING`, tenant, old)
			}
			insert()
			lock, err := db.Admin(t).Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = lock.Rollback(context.Background()) }()
			if _, err := lock.Exec(t.Context(), "LOCK TABLE "+table+" IN ACCESS EXCLUSIVE MODE"); err != nil {
				t.Fatal(err)
			}
			n := cluster.New(cluster.Config{Member: id.MemberID{UUID: id.NewAnywhere()}, Log: zerolog.Nop()})
			out := make(chan time.Time, 100)
			n.Register(msg.KindApproval, func(cluster.Address) cluster.Behavior { return timed{out} })
			if err := n.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			s := New(Config{Rows: feed.NewSweep(pool), Kinds: rarely, Retentions: store.Retentions, Node: n, Log: zerolog.Nop(), RetainEvery: 100 * time.Millisecond, EraseEvery: 100 * time.Millisecond})
			if err := s.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			defer func() {
				s.Stop()
				ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
				defer cancel()
				if err := n.Stop(ctx); err != nil {
					t.Error(err)
				}
			}()
			// latest returns how late a timer was told, at most, in a time longer than the tick of a loop that waits for the lock.
			latest := func() (most time.Duration) {
				for until := time.Now().Add(pageTimeout + time.Second); time.Now().Before(until); {
					exec("INSERT INTO timers (tenant_id, kind, entity_id, name, due_at) VALUES ($1, 'approval', $2, 'expire', now())", tenant, id.NewAnywhere())
					due := time.Now()
					select {
					case at := <-out:
						most = max(most, at.Sub(due))
					case <-time.After(time.Minute):
						t.Fatal("the timer is not told")
					}
					exec("DELETE FROM timers")
				}
				return most
			}
			for try := 1; ; try++ { // a busy machine may delay one
				late := latest()
				if late <= 3*time.Second { // one that waits for the lock is told after pageTimeout
					break
				}
				if try == 3 {
					t.Errorf("told after %v", late)
					break
				}
			}
			if table == "idempotency" {
				return
			}
			testkit.Eventually(t, "the rows of the other kind are deleted", func() bool {
				var left int
				if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM idempotency").Scan(&left); err != nil {
					t.Fatal(err)
				}
				return left == 0
			})
		})
	}
}

// timed is an actor that says when a timer reaches it.
type timed struct{ out chan time.Time }

func (a timed) Receive(_ cluster.Context, m any) {
	if _, ok := m.(durable.TimerDue); ok {
		a.out <- time.Now()
	}
}
func (timed) Stopped() {}
