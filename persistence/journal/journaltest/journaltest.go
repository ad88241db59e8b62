// Package journaltest starts writers for tests. It also reads and changes the rows of
// commits, for tests that stand between an actor and its writer.
package journaltest

import (
	"slices"
	"testing"

	"agentsvc/persistence/journal"
	"agentsvc/persistence/pgtest"
	"agentsvc/schemas/testkit"
)

// Writer starts a writer, which stops at the test's end. Writer makes the pool and the member
// that cfg does not have.
func Writer(t testing.TB, db *pgtest.DB, cfg journal.Config) *journal.Writer {
	t.Helper()
	if cfg.Pool == nil {
		cfg.Pool = db.Writer(t)
	}
	if cfg.Member.IsZero() {
		cfg.Member = pgtest.Member(t, cfg.Pool)
	}
	return testkit.Start(t, journal.New(cfg))
}

// Rows returns the rows of c that have the type T, in their order.
func Rows[T journal.Row](c *journal.Commit) (out []T) {
	for _, r := range c.Rows {
		if row, ok := r.(T); ok {
			out = append(out, row)
		}
	}
	return out
}

// Row returns the first row of c that has the type T, the zero value where there is none.
func Row[T journal.Row](c *journal.Commit) (row T) {
	if rows := Rows[T](c); len(rows) > 0 {
		return rows[0]
	}
	return row
}

// Drop takes the rows that have the type T out of c.
func Drop[T journal.Row](c *journal.Commit) {
	c.Rows = slices.DeleteFunc(c.Rows, func(r journal.Row) bool { _, ok := r.(T); return ok })
}
