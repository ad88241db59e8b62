package reseal

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"agentsvc/persistence/vault"
)

// ErrKey reports that the given master keys do not open this database.
var ErrKey = errors.New("the master key does not open this database")

// canaryPlace is the place of the canary. It belongs to no tenant.
var canaryPlace = vault.AAD{Table: "canary", Row: "only", Column: "value"}

var canaryText = []byte("svc canary")

// Locked reports whether the database holds a canary or a sealed value in one of the columns,
// so that a new master key would not open it.
func Locked(ctx context.Context, pool *pgxpool.Pool, columns []Column) (bool, error) {
	value, err := canary(ctx, pool)
	if err != nil || value != nil {
		return value != nil, err
	}
	for _, c := range columns {
		rows, err := sample(ctx, pool, c)
		if err != nil || len(rows) > 0 {
			return len(rows) > 0, err
		}
	}
	return false, nil
}

// Unlock returns nil if v opens this database, and ErrKey if it does not. It adds a canary to
// a database without one, which is new or from an earlier release, unless v opens none of
// its values. If processes start with different keys at the same time, one key wins and the
// others get ErrKey.
func Unlock(ctx context.Context, pool *pgxpool.Pool, v *vault.Vault, columns []Column) error {
	found, err := check(ctx, pool, v, columns)
	if err != nil || found {
		return err
	}
	value, err := v.Seal(canaryPlace, canaryText)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, pageTime)
	defer cancel()
	if _, err := pool.Exec(ctx, queries.Get("canary_insert"), value); err != nil {
		return fmt.Errorf("store the canary: %w", err)
	}
	return Check(ctx, pool, v, columns)
}

// Check is Unlock without a change. A database without a canary passes if v opens one of its
// values, or if it holds none.
func Check(ctx context.Context, pool *pgxpool.Pool, v *vault.Vault, columns []Column) error {
	_, err := check(ctx, pool, v, columns)
	return err
}

// check reports whether there is a canary. The error is ErrKey if v does not open it or, if
// there is none, opens none of the columns' first values.
func check(ctx context.Context, pool *pgxpool.Pool, v *vault.Vault, columns []Column) (found bool, err error) {
	value, err := canary(ctx, pool)
	switch {
	case err != nil:
		return false, err
	case value != nil:
		if _, err := v.Open(canaryPlace, value); err != nil {
			return true, ErrKey
		}
		return true, nil
	}
	// One value may be damaged, so one that opens is enough.
	closed := 0
	for _, c := range columns {
		rows, err := sample(ctx, pool, c)
		if err != nil {
			return false, err
		}
		for _, row := range rows {
			if opens(v, c, row) {
				return false, nil
			}
			closed++
		}
	}
	if closed > 0 {
		return false, ErrKey
	}
	return false, nil
}

// Opened is the result of Sample for one column.
type Opened struct {
	Table  string
	Column string
	Found  bool  // the column holds a value
	Err    error // vault.ErrOpen if that value does not open
}

// Sample opens one value of each column.
func Sample(ctx context.Context, pool *pgxpool.Pool, v *vault.Vault, columns []Column) ([]Opened, error) {
	all := make([]Opened, len(columns))
	for i, c := range columns {
		rows, err := sample(ctx, pool, c)
		if err != nil {
			return nil, fmt.Errorf("read a value of %s.%s: %w", c.Table, c.Name, err)
		}
		all[i] = Opened{Table: c.Table, Column: c.Name, Found: len(rows) > 0}
		for _, row := range rows {
			if !opens(v, c, row) {
				all[i].Err = fmt.Errorf("%w: row %s of tenant %s", vault.ErrOpen, row.Row, row.Tenant)
			}
		}
	}
	return all, nil
}

func opens(v *vault.Vault, c Column, row sealedRow) bool {
	plain, err := v.Open(vault.AAD{Tenant: row.Tenant, Table: c.Table, Row: row.Row, Column: c.Name}, row.Value)
	clear(plain)
	return err == nil
}

// sample reads the first value of a column, if there is one.
func sample(ctx context.Context, pool *pgxpool.Pool, c Column) ([]sealedRow, error) {
	ctx, cancel := context.WithTimeout(ctx, pageTime)
	defer cancel()
	rows, err := pool.Query(ctx, c.sql("sample", 0))
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[sealedRow])
}

// canary returns the canary; nil if there is none.
func canary(ctx context.Context, pool *pgxpool.Pool) (vault.Sealed, error) {
	ctx, cancel := context.WithTimeout(ctx, pageTime)
	defer cancel()
	var value vault.Sealed
	err := pool.QueryRow(ctx, queries.Get("canary")).Scan(&value)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the canary: %w", err)
	}
	return value, nil
}

// rewrapCanary moves the canary to the current key and reports whether it opens. A canary
// that does not open counts as an unreadable value.
func (r *run) rewrapCanary(ctx context.Context) (opens bool, err error) {
	value, err := canary(ctx, r.pool)
	if err != nil || value == nil {
		return true, err
	}
	rewrapped, changed, err := r.vault.Rewrap(canaryPlace, value)
	if errors.Is(err, vault.ErrOpen) {
		return false, nil
	}
	if err != nil || !changed {
		return true, err
	}
	ctx, cancel := context.WithTimeout(ctx, pageTime)
	defer cancel()
	_, err = r.pool.Exec(ctx, queries.Get("canary_swap"), value, rewrapped)
	return true, err
}
