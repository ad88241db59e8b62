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

// Mark is where a pass of retention begins: behind the rows that earlier passes
// deleted. The zero Mark begins with the oldest row. A pass that begins at a mark misses
// rows behind it that were locked when they were passed, or became old later; a pass
// from the zero Mark finds them.
type Mark struct {
	at     time.Time
	within id.UUID // a row of that age of which the rows up to detail were deleted
	detail id.UUID
}

// Retention is one set of rows that go when they are old enough.
type Retention struct {
	Name string
	// Pass takes up to limit rows behind the mark and returns how many it took, and the
	// mark of the next pass.
	Pass func(ctx context.Context, pool *pgxpool.Pool, from Mark, limit int) (n int, next Mark, err error)
}

// Retain makes one pass of r.
func (s *Sweep) Retain(ctx context.Context, r *Retention, from Mark, limit int) (n int, next Mark, err error) {
	return r.Pass(ctx, s.pool, from, limit)
}

// Aged deletes the rows of a table whose column at, a time, is longer ago than age. of is
// a condition in SQL that they have to meet as well; empty: none. The migration of the
// table makes the index for it, on (at) WHERE of.
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

// retain runs a statement that answers a count and the time of the next mark.
func retain(ctx context.Context, pool *pgxpool.Pool, name, sql string, from Mark, limit int, more ...any) (n int, next Mark, err error) {
	err = within(ctx, pool, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, sql, append([]any{limit, from.at}, more...)...).Scan(&n, &next.at)
	})
	if err != nil {
		return 0, from, fmt.Errorf("retention of %s: %w", name, err)
	}
	return n, next, nil
}

// within runs a transaction within the bounds of retention. They are set in a round trip
// of their own: already the parsing of a statement waits for locks on its tables.
func within(ctx context.Context, pool *pgxpool.Pool, do func(pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, retainBoundsSQL); err != nil {
			return err
		}
		return do(tx)
	})
}
