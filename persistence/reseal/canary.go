package reseal

import (
	"bytes"
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

// Begin records that the current key of v seals from now on, unless that is known: it seals the canary once more, over
// what is there. So the canary opens only for who has every key under which a value may be sealed, until a complete
// Run leaves the current one alone: after a rotation that was begun, the former key alone is refused like the new one
// alone. A server calls it when it has joined, before it seals. The error is ErrKey if v does not open the canary.
func Begin(ctx context.Context, pool *pgxpool.Pool, v *vault.Vault) error {
	for {
		value, err := canary(ctx, pool)
		if err != nil || value == nil {
			return err
		}
		current, _, err := layers(v, value)
		if err != nil || current {
			return err
		}
		over, err := v.Seal(canaryPlace, value)
		if err != nil {
			return err
		}
		if swapped, err := swapCanary(ctx, pool, value, over); err != nil || swapped {
			return err
		}
	}
}

// layers opens all layers of a canary. It reports whether the current key sealed one of them, and whether another key
// did.
func layers(v *vault.Vault, value vault.Sealed) (current, others bool, err error) {
	for {
		_, other, err := v.Rewrap(canaryPlace, value)
		if errors.Is(err, vault.ErrOpen) {
			return false, false, ErrKey
		}
		if err != nil {
			return false, false, err
		}
		plain, err := v.Open(canaryPlace, value)
		if err != nil {
			return false, false, ErrKey
		}
		current, others = current || !other, others || other
		if bytes.Equal(plain, canaryText) {
			return current, others, nil
		}
		value = plain
	}
}

// check reports whether there is a canary. The error is ErrKey if v does not open it or, if
// there is none, opens none of the columns' first values.
func check(ctx context.Context, pool *pgxpool.Pool, v *vault.Vault, columns []Column) (found bool, err error) {
	value, err := canary(ctx, pool)
	switch {
	case err != nil:
		return false, err
	case value != nil:
		_, _, err := layers(v, value)
		return true, err
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

// swapCanary reports whether the canary was still the former one.
func swapCanary(ctx context.Context, pool *pgxpool.Pool, former, next vault.Sealed) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, pageTime)
	defer cancel()
	tag, err := pool.Exec(ctx, queries.Get("canary_swap"), former, next)
	if err != nil {
		return false, fmt.Errorf("store the canary: %w", err)
	}
	return tag.RowsAffected() == 1, nil
}

// resealCanary leaves the canary under the current key alone, after a pass that found no value under another one, and
// reports whether it is so: it is not if the canary does not open, which counts as an unreadable value, or if a
// running server still seals under another key.
func (r *run) resealCanary(ctx context.Context) (done bool, err error) {
	value, err := canary(ctx, r.pool)
	if err != nil || value == nil {
		return err == nil, err
	}
	_, others, err := layers(r.vault, value)
	if errors.Is(err, ErrKey) {
		return false, nil
	}
	if err != nil || !others {
		return err == nil, err
	}
	reading, cancel := context.WithTimeout(ctx, pageTime)
	defer cancel()
	var behind bool
	if err := r.pool.QueryRow(reading, queries.Get("sealing_otherwise"), r.vault.Names()[0]).Scan(&behind); err != nil || behind {
		return false, err
	}
	alone, err := r.vault.Seal(canaryPlace, canaryText)
	if err != nil {
		return false, err
	}
	return swapCanary(ctx, r.pool, value, alone) // another key may have begun to seal
}
