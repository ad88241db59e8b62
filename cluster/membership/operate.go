package membership

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"agentsvc/schemas/id"
)

// querier and execer are the methods of a connection or pool that a process without
// membership needs.
type (
	querier interface {
		Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	}
	execer interface {
		Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	}
)

// Listed is a member in an operator's list.
type Listed struct {
	ID        id.MemberID
	Address   string
	Version   string
	StartedAt time.Time
	LeaseLeft time.Duration // by Postgres' clock; negative when it has expired
	Draining  bool
	DeadAt    time.Time // zero: not marked dead
	Forgot    int64     // the last revocation that it has handled
}

// List returns all members, including those marked dead in the last day or so, in the order
// in which they started.
func List(ctx context.Context, db querier) ([]Listed, error) {
	rows, err := db.Query(ctx, queries.Get("list"))
	if err != nil {
		return nil, fmt.Errorf("list the members: %w", err)
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (l Listed, err error) {
		var until, clock time.Time
		var dead *time.Time
		err = row.Scan(&l.ID, &l.Address, &l.Version, &l.StartedAt, &until, &l.Draining, &dead, &l.Forgot, &clock)
		l.LeaseLeft = until.Sub(clock)
		if dead != nil {
			l.DeadAt = *dead
		}
		return l, err
	})
	if err != nil {
		return nil, fmt.Errorf("list the members: %w", err)
	}
	return all, nil
}

// Drain sets a living member's draining flag, from any process: while it drains it owns
// nothing, and stays a member. ErrUnknown if there is no such living member.
func Drain(ctx context.Context, db execer, who id.MemberID, on bool) error {
	tag, err := db.Exec(ctx, queries.Get("drain"), who, on)
	if err != nil {
		return fmt.Errorf("set draining of member %s: %w", who, err)
	}
	if tag.RowsAffected() == 0 {
		return fmt.Errorf("%w: %s", ErrUnknown, who)
	}
	return nil
}
