package feed

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"agentsvc/schemas/id"
)

var (
	retainBoundsSQL = queries.Get("retain_bounds")
	dropAgedSQL     = queries.Get("drop_aged")
)

// Mark is the position where a pass of retention begins, after the rows that earlier passes
// deleted. The zero Mark begins with the oldest row. A pass that begins later misses older
// rows that were locked when an earlier pass met them, or that became old since; a pass from
// the zero Mark finds them.
type Mark struct {
	at     time.Time
	within id.UUID // the parent row in progress, whose details up to detail were deleted
	detail id.UUID
}

// Retention describes one set of rows that are deleted at a certain age.
type Retention struct {
	Name string
	// Pass deletes up to limit rows after the mark. It returns their number and the mark of
	// the next pass.
	Pass func(ctx context.Context, pool *pgxpool.Pool, from Mark, limit int) (n int, next Mark, err error)
}

// Retain runs one pass of r.
func (s *Sweep) Retain(ctx context.Context, r *Retention, from Mark, limit int) (n int, next Mark, err error) {
	return r.Pass(ctx, s.pool, from, limit)
}

// Aged returns the retention of the rows of a table for which the time in the column at is
// longer ago than age and the SQL condition of holds (empty: always). The migration of the
// table makes the index on (at) WHERE of.
func Aged(table, at, of string, age time.Duration) Retention {
	if of == "" {
		of = "true"
	}
	sql := agedSQL(table, at, of)
	return Retention{table, func(ctx context.Context, pool *pgxpool.Pool, from Mark, limit int) (int, Mark, error) {
		return retain(ctx, pool, table, sql, from, limit, age)
	}}
}

func agedSQL(table, at, of string) string {
	return strings.NewReplacer("{table}", table, "{at}", at, "{of}", of).Replace(dropAgedSQL)
}

// retain runs a statement that returns the number of rows and the time of the next mark.
func retain(ctx context.Context, pool *pgxpool.Pool, name, sql string, from Mark, limit int, more ...any) (n int, next Mark, err error) {
	err = within(ctx, pool, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, sql, append([]any{limit, from.at}, more...)...).Scan(&n, &next.at)
	})
	if err != nil {
		return 0, from, fmt.Errorf("retention of %s: %w", name, err)
	}
	return n, next, nil
}

// within runs a transaction with the timeouts of retention. They are set in a round trip of
// their own, because parsing a statement already waits for locks on its tables.
func within(ctx context.Context, pool *pgxpool.Pool, do func(pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, retainBoundsSQL); err != nil {
			return err
		}
		return do(tx)
	})
}
