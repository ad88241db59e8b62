package store

import (
	"context"
	"maps"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"agentsvc/persistence/pg"
	"agentsvc/schemas/lifecycle"
)

// Bound limits the bytes that the lists of a View read.
type Bound struct {
	Bytes int  // bytes left, as JSON; a list reads at least one row
	Cut   bool // the last list omitted rows because of their size
}

// Bounded returns the view with lists bounded by b: Postgres sends no row after the one that
// uses up b, so that memory does not grow with the size of rows.
func (v View) Bounded(b *Bound) View {
	v.bound = b
	return v
}

// listColumns is how many columns bounded adds to a row.
const listColumns = 3

// arms adds the queries with n arms, as armed(name, n): the arm is repeated with the next elements
// of its array.
func arms(of pg.QueryMap) pg.QueryMap {
	for name, sql := range maps.Clone(of) {
		before, rest, ok := strings.Cut(sql, "/*arm*/")
		if !ok {
			continue
		}
		arm, after, _ := strings.Cut(rest, "/*end*/")
		var all []string
		for n := range len(lifecycle.ApprovalStatuses) {
			all = append(all, strings.ReplaceAll(arm, "[])[1]", "[])["+strconv.Itoa(n+1)+"]"))
			of[armed(name, n+1)] = before + strings.Join(all, "\n    UNION ALL\n    ") + after
		}
	}
	return of
}

// approvalColumns gives the lists of approvals the columns of approval, where they say /*approval*/.
func approvalColumns(of pg.QueryMap) pg.QueryMap {
	columns, _, _ := strings.Cut(strings.TrimPrefix(of["approval"], "SELECT "), "\nFROM approvals a ")
	for name, sql := range of {
		of[name] = strings.ReplaceAll(sql, "/*approval*/", columns)
	}
	return of
}

func armed(name string, n int) string { return name + "/" + strconv.Itoa(n) }

// size returns an SQL expression for the size of a list's row: of the whole row, or, because it
// is cheaper, of some columns only if rows are large or read often.
func size(query string) string {
	query, _, _ = strings.Cut(query, "/")
	columns := wide[query]
	if columns == nil {
		return "octet_length(to_json(q)::text)"
	}
	text := "512"
	for _, c := range columns {
		text += " + coalesce(octet_length(q." + c + "::text), 0)"
	}
	return text
}

var wide = map[string][]string{
	"skills":              {"definition"},
	"approvals":           {"args", "schema", "reasoning_summary", "decisions"},
	"approvals_by_expiry": {"args", "schema", "reasoning_summary", "decisions"},
	"approvals_by_risk":   {"args", "schema", "reasoning_summary", "decisions"},
	"deliveries":          {"last_error", "attempt_log"},
	"deliveries_failed":   {"last_error", "attempt_log"},
	"messages_after":      {"content", "attachments", "citations"},
	"runs":                {"input", "output", "error_message"},
	"server_catalog":      {"tools"},
	"steps":               {"input", "output"},
	"versions":            {"manifest"},
	"workflow_versions":   {"definition"},
}

// bounded wraps a query that ends in ORDER BY and LIMIT. A window without an order of its own
// keeps the order of its subquery.
func bounded(name string, budget int) string {
	return `SELECT * FROM (
  SELECT s.*, sum(s.list_bytes) OVER (ROWS UNBOUNDED PRECEDING) - s.list_bytes AS list_before, count(*) OVER () AS list_rows
  FROM (SELECT q.*, ` + size(name) + ` AS list_bytes FROM (` + queries.Get(name) + `
  ) q OFFSET 0) s
) l WHERE list_before < $` + strconv.Itoa(budget) + `::bigint`
}

// listed runs a query for a list, within the view's bound.
func listed[T any](ctx context.Context, v View, name string, args ...any) ([]T, error) {
	if v.bound == nil {
		return all[T](ctx, v, name, args...)
	}
	var out []T
	args = append(args, max(v.bound.Bytes, 1))
	err := v.q.run(ctx, bounded(name, len(args)), args, func(r pgx.Rows) (err error) {
		out, err = within[T](v.bound, r)
		return err
	})
	return out, err
}

// within reads the rows of a bounded query.
func within[T any](b *Bound, r pgx.Rows) ([]T, error) {
	var bytes, rows int
	out, err := pgx.CollectRows(r, func(row pgx.CollectableRow) (item T, err error) {
		own := &ownColumns{CollectableRow: row}
		if item, err = pgx.RowToStructByName[T](own); err == nil {
			bytes += own.bytes
			rows = own.rows
		}
		return item, err
	})
	if err != nil {
		return nil, err
	}
	b.Bytes -= bytes
	b.Cut = rows > len(out)
	return out, nil
}

// ownColumns is a row without the columns that bounded added.
type ownColumns struct {
	pgx.CollectableRow
	bytes, rows int
}

func (o *ownColumns) FieldDescriptions() []pgconn.FieldDescription {
	f := o.CollectableRow.FieldDescriptions()
	return f[:len(f)-listColumns]
}

func (o *ownColumns) Scan(dest ...any) error {
	return o.CollectableRow.Scan(append(dest, &o.bytes, nil, &o.rows)...)
}
