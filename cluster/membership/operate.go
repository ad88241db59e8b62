package membership

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"agentsvc/schemas/id"
)

// querier and execer are what this package needs of a connection or pool of a
// process that is no member.
type (
	querier interface {
		Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	}
	execer interface {
		Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	}
)

// Listed is a member as an operator sees it.
type Listed struct {
	ID        id.MemberID
	Address   string
	Version   string
	StartedAt time.Time
	LeaseLeft time.Duration // by Postgres' clock; negative when it ran out
	Draining  bool
	DeadAt    time.Time // zero: nobody has marked it dead
	Forgot    int64     // the last revocation that it has acted on
}

// List reads all members, those marked dead in the last day or so among them, in
// the order in which they started.
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

// Drain sets a living member's draining flag, in whichever process: it owns
// nothing while it drains, and stays a member. ErrUnknown where no such member
// lives.
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
