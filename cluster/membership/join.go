package membership

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"agentsvc/schemas/id"
	"agentsvc/schemas/pause"
)

// other is another member's lease by Postgres' clock.
type other struct {
	ID         id.MemberID
	Address    string
	Lease      time.Duration
	LeaseUntil time.Time
	Clock      time.Time
}

// left returns how long the lease still holds, at a read that was sent at this time, if the row has been in the same state since
// the first one: until its end by Postgres' clock, and no longer than it is long, because that clock may have been set
// back.
func (o other) left(first state, sent time.Time) time.Duration {
	return min(o.LeaseUntil.Sub(o.Clock), o.Lease-sent.Sub(first.since))
}

// join inserts the row, after the leases of incompatible members have expired. A lease whose
// end has changed between two reads belongs to a living process.
func (m *Membership) join(ctx context.Context) error {
	seen := map[id.MemberID]state{}
	for {
		wait, err := m.try(ctx, seen)
		if err != nil || wait == 0 {
			return err
		}
		if !pause.For(ctx, wait) {
			return ctx.Err()
		}
	}
}

// try makes one attempt; wait > 0 says when to make the next one.
func (m *Membership) try(ctx context.Context, seen map[id.MemberID]state) (wait time.Duration, err error) {
	err = pgx.BeginFunc(ctx, m.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, queries.Get("lock_joins")); err != nil {
			return err
		}
		var err error
		if wait, err = m.alone(ctx, tx, seen); err != nil || wait > 0 {
			return err
		}
		if err := m.shares(ctx, tx); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, queries.Get("forget_dead")); err != nil {
			return err
		}
		keys := m.cfg.Keys
		if keys == nil {
			keys = []string{}
		}
		var clock time.Time
		sent := time.Now()
		if err := tx.QueryRow(ctx, queries.Get("join"), m.cfg.Member, m.cfg.Address, m.cfg.Version, m.cfg.Lease, m.cfg.Secret, m.cfg.Uploads, keys).Scan(&clock, &m.beat.forgot); err != nil {
			return err
		}
		m.clock.measured(sent, time.Now(), clock, true)
		m.beat.renewed(sent, m.cfg.Lease, true)
		m.extend(sent)
		_, err = m.refreshFrom(ctx, tx)
		return err
	})
	return wait, err
}

// shares checks that this process and the other members can open each other's sealed values
// and find each other's files.
func (m *Membership) shares(ctx context.Context, tx pgx.Tx) error {
	if m.cfg.Address == "" {
		return nil
	}
	type shared struct {
		ID      id.MemberID
		Address string
		Secret  string
		Uploads string
		Keys    []string
	}
	rows, err := tx.Query(ctx, queries.Get("shares"), m.cfg.Member)
	if err != nil {
		return err
	}
	others, err := pgx.CollectRows(rows, pgx.RowToStructByPos[shared])
	if err != nil {
		return err
	}
	for _, o := range others {
		switch {
		case o.Secret != m.cfg.Secret:
			return fmt.Errorf("%w: the cluster's secret is another one than that of the node at %s", ErrStranger, o.Address)
		case !opens(o.Keys, m.cfg.Keys) || !opens(m.cfg.Keys, o.Keys):
			return fmt.Errorf("%w: the master key is another one than that of the node at %s", ErrStranger, o.Address)
		case o.Uploads != m.cfg.Uploads:
			return fmt.Errorf("%w: uploads are kept in another directory or bucket than on the node at %s: give all nodes the same SVC_FILES_URL, or one directory that all of them mount", ErrStranger, o.Address)
		}
	}
	return nil
}

// opens reports whether a process with keys can open values sealed under the first key of
// other.
func opens(keys, other []string) bool { return len(other) == 0 || slices.Contains(keys, other[0]) }

// alone checks the one-node rule: without an address no other process may serve the database,
// with one none that has no address.
func (m *Membership) alone(ctx context.Context, tx pgx.Tx, seen map[id.MemberID]state) (time.Duration, error) {
	sent := time.Now()
	others, err := m.read(ctx, tx, "others")
	if err != nil {
		return 0, err
	}
	if wait, err := m.lapsed(others, seen, sent); err != nil || wait > 0 {
		return wait, err
	}
	// A renewal may have been committed before the lock.
	sent = time.Now()
	if others, err = m.read(ctx, tx, "lock_others"); err != nil {
		return 0, err
	}
	if wait, err := m.lapsed(others, seen, sent); err != nil || wait > 0 {
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
	_, err = tx.Exec(ctx, queries.Get("mark_others"), ids)
	return 0, err
}

// lapsed returns how long the longest lease still holds, 0 if none does.
func (m *Membership) lapsed(others []other, seen map[id.MemberID]state, sent time.Time) (wait time.Duration, err error) {
	if m.cfg.Exclusive {
		return 0, nil
	}
	for _, o := range others {
		first, ok := seen[o.ID]
		if ok && o.LeaseUntil.After(first.until) {
			where := "no address"
			if o.Address != "" {
				where = "address " + o.Address
			}
			return 0, fmt.Errorf("%w (member %s, %s)", ErrOccupied, o.ID, where)
		}
		if !ok {
			first = state{o.LeaseUntil, time.Now()}
			seen[o.ID] = first
		}
		left := o.left(first, sent)
		if left > 0 && !ok {
			m.cfg.Log.Info().Stringer("member", o.ID).Str("address", o.Address).Dur("left", left).Msg("waiting for the end of the lease of a former process")
		}
		if left > 0 {
			// A living process renews within a third of its lease, whose length we may not
			// know: read twice before its end.
			wait = max(wait, min(left/2, m.cfg.Lease)+5*time.Millisecond)
		}
	}
	return wait, nil
}

func (m *Membership) read(ctx context.Context, tx pgx.Tx, name string) ([]other, error) {
	everybody := m.cfg.Address == "" || m.cfg.Exclusive
	rows, err := tx.Query(ctx, queries.Get(name), m.cfg.Member, everybody)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByName[other])
}
