package membership

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"agentsvc/schemas/id"
	"agentsvc/schemas/pause"
)

// Announce assigns a number to a committed revocation; every node's beat sees the number.
// When it returns, Members includes every node that may have read the revoked state before
// the commit; a node that joins later has read nothing older. A member that was marked dead
// before its lease expired, because its port refuses connections, may live on unreached until
// then: Announce waits for that, at most about half a lease after the last one was marked, or
// a lease if Postgres' clock was set back.
func (m *Membership) Announce(ctx context.Context) (int64, error) {
	n, wait, err := m.announce(ctx)
	for err == nil && wait > 0 {
		if !pause.For(ctx, wait) {
			err = fmt.Errorf("wait for the lease of a dead member: %w", ctx.Err())
			break
		}
		wait, err = m.askLongest(ctx) // another member may have been marked meanwhile
	}
	if err != nil {
		return 0, fmt.Errorf("announce a revocation: %w", err)
	}
	return n, nil
}

func (m *Membership) announce(ctx context.Context) (n int64, wait time.Duration, err error) {
	if err := enter(ctx, m.asking); err != nil {
		return 0, 0, err
	}
	defer leave(m.asking)
	if err := m.pool.QueryRow(ctx, queries.Get("announce")).Scan(&n); err != nil {
		return 0, 0, err
	}
	wait, err = m.longest(ctx)
	return n, wait, err
}

func (m *Membership) askLongest(ctx context.Context) (time.Duration, error) {
	if err := enter(ctx, m.asking); err != nil {
		return 0, err
	}
	defer leave(m.asking)
	return m.longest(ctx)
}

// longest reads the list, and returns how long the leases of members marked dead still hold:
// until their end by Postgres' clock, and no longer than they are long, because that clock may
// have been set back, before or after the mark.
func (m *Membership) longest(ctx context.Context) (wait time.Duration, err error) {
	all, err := m.refresh(ctx)
	for _, s := range all {
		if s.Dead && s.ID != m.cfg.Member {
			wait = max(wait, min(s.LeaseUntil.Sub(s.Clock), s.Lease-s.still))
		}
	}
	return wait, err
}

// Forgotten returns the members that may still use what revocation n changed: their row does
// not say that they have handled it, and their lease, whether they are marked dead or not,
// has not expired by Postgres' clock. Called repeatedly, it returns a member for at most
// about one lease. Members that left, and unknown ids, are not returned.
func (m *Membership) Forgotten(ctx context.Context, n int64, members []id.MemberID) ([]id.MemberID, error) {
	if len(members) == 0 {
		return nil, nil
	}
	if err := enter(ctx, m.asking); err != nil {
		return nil, fmt.Errorf("ask who has forgotten revocation %d: %w", n, err)
	}
	defer leave(m.asking)
	// The second query locks rows: it runs only when it may be the last one, so that it
	// delays no beat of a member that renews.
	for _, name := range []string{"mindful", "lapsed_mindful"} {
		rows, err := m.pool.Query(ctx, queries.Get(name), n, members)
		if err != nil {
			return nil, fmt.Errorf("ask who has forgotten revocation %d: %w", n, err)
		}
		missing, err := pgx.CollectRows(rows, pgx.RowTo[id.MemberID])
		if err != nil {
			return nil, fmt.Errorf("ask who has forgotten revocation %d: %w", n, err)
		}
		if len(missing) > 0 {
			return missing, nil
		}
	}
	return nil, nil
}
