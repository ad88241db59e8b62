package reseal

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"agentsvc/persistence/vault"
	"agentsvc/schemas/id"
	"agentsvc/schemas/pause"
)

const (
	pageRows  = 200
	pageBytes = 4 << 20
	// pageTime bounds reading or swapping one page.
	pageTime = 30 * time.Second

	// A pass that leaves values is followed by another one after a pause, up to maxPasses.
	maxPasses = 5
	passPause = 500 * time.Millisecond

	// maxNamed is the number of unreadable values of each column that a Report names.
	maxNamed = 20
)

// Count is the result for one column.
type Count struct {
	Table      string `json:"table"`
	Column     string `json:"column"`
	Values     int    `json:"values"`     // in the last pass
	Rewrapped  int    `json:"rewrapped"`  // in all passes
	Left       int    `json:"left"`       // under a previous key after the last pass, because the row was busy
	Unreadable int    `json:"unreadable"` // in the last pass: they open under no key
}

// Place names a value.
type Place struct {
	Table  string      `json:"table"`
	Column string      `json:"column"`
	Tenant id.TenantID `json:"tenant_id"`
	Row    string      `json:"row"`
}

// Report is the result of Run. It holds no value.
type Report struct {
	Columns []Count `json:"columns"`
	// Unreadable names the first values of each column that open under no key.
	Unreadable []Place `json:"unreadable"`
	// PreviousNeeded reports whether a value may need a previous master key: the last pass
	// still found one under it, or one that does not open.
	PreviousNeeded bool `json:"previous_needed"`
}

// Sum adds up one number of all columns.
func (r *Report) Sum(of func(Count) int) (n int) {
	for _, c := range r.Columns {
		n += of(c)
	}
	return n
}

// ErrUnknown reports that running servers do not know the key under which values would be sealed.
var ErrUnknown = errors.New("running servers do not know the current master key")

// Run rewraps the values of all columns under the current key of v, through pool, which
// must be of the role System. After an error the report has the results so far, and the next
// Run continues. While a running server does not know that key, the error is ErrUnknown and no value
// is read: the server could not open what Run rewraps, and work that it has accepted would fail.
func Run(ctx context.Context, pool *pgxpool.Pool, v *vault.Vault, columns []Column) (*Report, error) {
	if err := known(ctx, pool, v); err != nil {
		return nil, err
	}
	r := &run{pool: pool, vault: v, columns: columns, limit: pageRows}
	return r.passes(ctx)
}

func known(ctx context.Context, pool *pgxpool.Pool, v *vault.Vault) error {
	ctx, cancel := context.WithTimeout(ctx, pageTime)
	defer cancel()
	rows, err := pool.Query(ctx, queries.Get("unknowing"), v.Names()[0])
	if err != nil {
		return fmt.Errorf("look at the keys of the running servers: %w", err)
	}
	servers, err := pgx.CollectRows(rows, pgx.RowToStructByPos[struct{ ID, Address string }])
	if err != nil {
		return fmt.Errorf("look at the keys of the running servers: %w", err)
	}
	var names []string
	for _, s := range servers {
		if s.Address == "" { // it serves the database alone
			s.Address = s.ID
		}
		names = append(names, s.Address)
	}
	if len(names) > 0 {
		return fmt.Errorf("%w: restart with that key first: %s", ErrUnknown, strings.Join(names, ", "))
	}
	return nil
}

type run struct {
	pool    *pgxpool.Pool
	vault   *vault.Vault
	columns []Column
	limit   int // rows of a page
	// swapping, if set, is called between reading and swapping a page.
	swapping func(c Column, rows int)
}

func (r *run) passes(ctx context.Context) (*Report, error) {
	report := &Report{PreviousNeeded: true}
	for _, c := range r.columns {
		report.Columns = append(report.Columns, Count{Table: c.Table, Column: c.Name})
	}
	for pass := 1; ; pass++ {
		report.Unreadable = []Place{}
		worked := false
		for i, c := range r.columns {
			n := &report.Columns[i]
			n.Values, n.Left, n.Unreadable = 0, 0, 0
			before := n.Rewrapped
			if err := r.column(ctx, c, n, &report.Unreadable); err != nil {
				return report, fmt.Errorf("reseal %s.%s: %w", c.Table, c.Name, err)
			}
			worked = worked || n.Rewrapped > before || n.Left > 0
		}
		if !worked {
			done, err := r.resealCanary(ctx)
			if err != nil {
				return report, fmt.Errorf("reseal the canary: %w", err)
			}
			report.PreviousNeeded = !done || report.Sum(func(c Count) int { return c.Unreadable }) > 0
			return report, nil
		}
		if pass == maxPasses {
			return report, nil
		}
		if report.Sum(func(c Count) int { return c.Left }) == 0 {
			continue // the pass that proves it; there is no lock to wait for
		}
		if !pause.For(ctx, passPause) {
			return report, ctx.Err()
		}
	}
}

// column goes once through a column.
func (r *run) column(ctx context.Context, c Column, n *Count, unreadable *[]Place) error {
	tenant, after := id.TenantID{}, c.By.first()
	for {
		rows, err := r.page(ctx, c, tenant, after)
		if err != nil || len(rows) == 0 {
			return err
		}
		var swaps []swap
		for _, row := range rows {
			n.Values++
			rewrapped, changed, err := r.rewrap(c, row)
			switch {
			case errors.Is(err, vault.ErrOpen):
				n.Unreadable++
				if n.Unreadable <= maxNamed {
					*unreadable = append(*unreadable, Place{c.Table, c.Name, row.Tenant, row.Row})
				}
			case err != nil:
				return err
			case changed:
				swaps = append(swaps, swap{row, rewrapped})
			}
		}
		if r.swapping != nil {
			r.swapping(c, len(rows))
		}
		swapped, err := r.swap(ctx, c, swaps)
		n.Rewrapped += swapped
		if err != nil {
			return err
		}
		n.Left += len(swaps) - swapped
		last := rows[len(rows)-1]
		tenant, after = last.Tenant, last.Row
	}
}

// sealedRow is one value as read.
type sealedRow struct {
	Tenant id.TenantID
	Row    string
	Value  vault.Sealed
}

type swap struct {
	sealedRow
	rewrapped vault.Sealed
}

// rewrap opens the whole value as a check, and then wraps its data key again. changed is
// false if the value is under the current key.
func (r *run) rewrap(c Column, row sealedRow) (rewrapped vault.Sealed, changed bool, err error) {
	place := vault.AAD{Tenant: row.Tenant, Table: c.Table, Row: row.Row, Column: c.Name}
	plain, err := r.vault.Open(place, row.Value)
	clear(plain)
	if err != nil {
		return nil, false, err
	}
	return r.vault.Rewrap(place, row.Value)
}

func (r *run) page(ctx context.Context, c Column, tenant id.TenantID, after string) ([]sealedRow, error) {
	ctx, cancel := context.WithTimeout(ctx, pageTime)
	defer cancel()
	rows, err := r.pool.Query(ctx, c.pageSQL(), append([]any{r.limit, pageBytes, tenant}, c.By.args(after)...)...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[sealedRow])
}

// swap writes the rewrapped values in one transaction and one round trip. It returns the
// number of rows that changed.
func (r *run) swap(ctx context.Context, c Column, swaps []swap) (swapped int, err error) {
	if len(swaps) == 0 {
		return 0, nil
	}
	ctx, cancel := context.WithTimeout(ctx, pageTime)
	defer cancel()
	b, sql := &pgx.Batch{}, c.swapSQL()
	for _, s := range swaps {
		b.Queue(sql, append([]any{s.Value, s.rewrapped, s.Tenant}, c.By.args(s.Row)...)...)
	}
	answers := r.pool.SendBatch(ctx, b)
	for range swaps {
		tag, err := answers.Exec()
		if err != nil {
			return 0, errors.Join(err, answers.Close())
		}
		swapped += int(tag.RowsAffected())
	}
	if err := answers.Close(); err != nil {
		return 0, err
	}
	return swapped, nil
}
