// Package membership is this process's lease in the database: a row of members
// that it renews, and whose loss ends it.
//
// The lease says how long others must wait before they may declare this process
// dead; dead is only who somebody marked so in the row. A process whose lease
// ran out is suspended: it begins nothing that relies on being alone, and goes
// on when a renewal succeeds. A process that was marked dead, or whose row is
// gone, is fenced: OnFenced is called once and the process ends, since the
// fence of its commits fails from then on.
//
// One-node rule: without a cluster address one process serves a database. Join
// waits for another member's lease to lapse and then marks that member dead; a
// lease that is renewed meanwhile belongs to a living process, and Join fails.
//
// It owns the beat, one statement at a time, and who watches its deadline. Nothing here
// makes writes safe: that is the fence on the row inside every commit.
package membership

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"

	"agentsvc/schemas/id"
)

// DefaultLease is the lease where Config has none.
const DefaultLease = 3 * time.Second

// ErrOccupied: another process serves the database.
var ErrOccupied = errors.New("another process serves this database, and one without a cluster address serves it alone: stop one of them")

// Config is what a member says of itself.
type Config struct {
	Member  id.MemberID
	Address string // what peers reach; empty: the one-node rule holds
	Lease   time.Duration
	Log     zerolog.Logger
	// OnFenced is called once, from the beat, when this process was declared
	// dead. It must not wait for Leave.
	OnFenced func()
	// OnSuspended, where set, is called each time the lease has run out: what this
	// process is doing is to be stopped. It must not block.
	OnSuspended func()
	// Exclusive says that nobody else can be alive, because this process holds
	// the lock of the private Postgres: former members are marked dead at once.
	Exclusive bool
}

// Membership is a held lease.
type Membership struct {
	cfg   Config
	pool  *pgxpool.Pool
	clock *clock

	deadline atomic.Pointer[time.Time]
	fenced   atomic.Bool
	renewals chan struct{} // capacity 1: the deadline has moved
	quit     context.CancelFunc
	wg       sync.WaitGroup
	once     sync.Once
}

// Join takes the lease and keeps renewing it. The pool sees all tenants and
// carries typed ids, as package pg's pools of the system role do. Join fails with ErrOccupied by the
// one-node rule, and with ctx.
func Join(ctx context.Context, pool *pgxpool.Pool, cfg Config) (*Membership, error) {
	if cfg.Member.IsZero() {
		panic("membership: a member needs an id")
	}
	if cfg.Lease <= 0 {
		cfg.Lease = DefaultLease
	}
	m := &Membership{cfg: cfg, pool: pool, clock: newClock(), renewals: make(chan struct{}, 1)}
	if err := m.join(ctx); err != nil {
		return nil, fmt.Errorf("join the members of the database: %w", err)
	}
	beat, quit := context.WithCancel(context.Background())
	m.quit = quit
	m.wg.Go(func() { m.loop(beat) })
	if cfg.OnSuspended != nil {
		m.wg.Go(func() { m.watch(beat) })
	}
	return m, nil
}

// Member is the id that holds the lease.
func (m *Membership) Member() id.MemberID { return m.cfg.Member }

// Deadline is until when the own lease certainly holds. It is monotonic, and
// counted from before the renewal was sent.
func (m *Membership) Deadline() time.Time { return *m.deadline.Load() }

// Suspended reports whether the own lease may have run out, or is lost.
func (m *Membership) Suspended() bool {
	return m.fenced.Load() || !time.Now().Before(m.Deadline())
}

// Fenced reports whether this process was declared dead.
func (m *Membership) Fenced() bool { return m.fenced.Load() }

// Now is Postgres' clock, by this process's monotonic one.
func (m *Membership) Now() time.Time { return m.clock.now() }

// Leave stops the beat and gives the lease back. Later calls do nothing.
func (m *Membership) Leave(ctx context.Context) error {
	var err error
	m.once.Do(func() {
		m.halt()
		if _, e := m.pool.Exec(ctx, query("leave"), m.cfg.Member); e != nil {
			err = fmt.Errorf("give the lease back: %w", e)
		}
	})
	return err
}

// halt ends the beat and leaves the row, as a crash does.
func (m *Membership) halt() {
	m.quit()
	m.wg.Wait()
}

// other is another member's lease, as Postgres' clock sees it.
type other struct {
	ID         id.MemberID
	LeaseUntil time.Time
	Clock      time.Time
}

func (o other) left() time.Duration { return o.LeaseUntil.Sub(o.Clock) }

// join enters the row, after the others' leases lapsed where the one-node rule
// holds. A lease seen twice with another end is alive.
func (m *Membership) join(ctx context.Context) error {
	seen := map[id.MemberID]time.Time{}
	for {
		wait, err := m.try(ctx, seen)
		if err != nil || wait == 0 {
			return err
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		}
	}
}

// try makes one attempt; wait > 0 says when the next one makes sense.
func (m *Membership) try(ctx context.Context, seen map[id.MemberID]time.Time) (wait time.Duration, err error) {
	err = pgx.BeginFunc(ctx, m.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, query("lock_joins")); err != nil {
			return err
		}
		if m.cfg.Address == "" {
			var err error
			if wait, err = m.alone(ctx, tx, seen); err != nil || wait > 0 {
				return err
			}
		}
		if _, err := tx.Exec(ctx, query("forget_dead")); err != nil {
			return err
		}
		var clock time.Time
		sent := time.Now()
		if err := tx.QueryRow(ctx, query("join"), m.cfg.Member, m.cfg.Address, m.cfg.Lease).Scan(&clock); err != nil {
			return err
		}
		m.renewed(sent, clock, true)
		return nil
	})
	return wait, err
}

// alone makes sure that no other process serves the database.
func (m *Membership) alone(ctx context.Context, tx pgx.Tx, seen map[id.MemberID]time.Time) (time.Duration, error) {
	others, err := read(ctx, tx, "others", m.cfg.Member)
	if err != nil {
		return 0, err
	}
	if wait, err := m.lapsed(others, seen); err != nil || wait > 0 {
		return wait, err
	}
	// A renewal may have slipped in before the lock.
	if others, err = read(ctx, tx, "lock_others", m.cfg.Member); err != nil {
		return 0, err
	}
	if wait, err := m.lapsed(others, seen); err != nil || wait > 0 {
		return wait, err
	}
	ids := make([]id.MemberID, len(others))
	for i, o := range others {
		ids[i] = o.ID
		m.cfg.Log.Warn().Stringer("member", o.ID).Time("lease_until", o.LeaseUntil).Msg("former process declared dead")
	}
	if len(ids) == 0 {
		return 0, nil
	}
	_, err = tx.Exec(ctx, query("mark_dead"), ids)
	return 0, err
}

// lapsed says how long the longest lease still holds, 0 for none.
func (m *Membership) lapsed(others []other, seen map[id.MemberID]time.Time) (wait time.Duration, err error) {
	if m.cfg.Exclusive {
		return 0, nil
	}
	for _, o := range others {
		if before, ok := seen[o.ID]; ok && o.LeaseUntil.After(before) {
			return 0, fmt.Errorf("%w (member %s)", ErrOccupied, o.ID)
		}
		seen[o.ID] = o.LeaseUntil
		if left := o.left(); left > 0 {
			// A living process renews within a third of its lease, which we may
			// not know: look twice before the end.
			wait = max(wait, min(left/2, m.cfg.Lease)+5*time.Millisecond)
		}
	}
	return wait, nil
}

func read(ctx context.Context, tx pgx.Tx, name string, self id.MemberID) ([]other, error) {
	rows, err := tx.Query(ctx, query(name), self)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByName[other])
}

// renewed notes a renewal that was sent at sent.
func (m *Membership) renewed(sent, clock time.Time, first bool) {
	m.clock.measured(sent, time.Now(), clock, first)
	until := sent.Add(m.cfg.Lease)
	m.deadline.Store(&until)
	select {
	case m.renewals <- struct{}{}:
	default:
	}
}

// watch looks at the deadline when it has come.
func (m *Membership) watch(ctx context.Context) {
	timer := time.NewTimer(time.Until(m.Deadline()))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.renewals:
			timer.Reset(time.Until(m.Deadline()))
		case <-timer.C:
			if m.Suspended() {
				m.cfg.Log.Warn().Stringer("member", m.cfg.Member).Msg("lease has run out, what was begun is stopped")
				m.cfg.OnSuspended()
			}
		}
	}
}

func (m *Membership) loop(ctx context.Context) {
	tick := time.NewTicker(m.cfg.Lease / 3)
	defer tick.Stop()
	var failing error
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		err := m.beat(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, pgx.ErrNoRows):
			m.fenced.Store(true)
			m.cfg.Log.Error().Stringer("member", m.cfg.Member).Msg("this process was declared dead")
			if m.cfg.OnFenced != nil {
				m.cfg.OnFenced()
			}
			return
		case err != nil && failing == nil:
			m.cfg.Log.Warn().Err(err).Msg("lease not renewed")
		case err == nil && failing != nil:
			m.cfg.Log.Info().Msg("lease renewed again")
		}
		failing = err
	}
}

// beat renews the lease once. pgx.ErrNoRows: there is nothing to renew.
func (m *Membership) beat(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Lease)
	defer cancel()
	var clock time.Time
	sent := time.Now()
	if err := m.pool.QueryRow(ctx, query("beat"), m.cfg.Member, m.cfg.Lease).Scan(&clock); err != nil {
		return err
	}
	m.renewed(sent, clock, false)
	return nil
}
