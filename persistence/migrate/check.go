package migrate

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// ErrPooled is returned for a database URL that leads to a transaction pool, which gives each
// transaction another connection.
var ErrPooled = errors.New("SVC_DATABASE_URL must be a direct connection or a session pool, and it is a transaction pool: " +
	"the service relies on session settings, prepared statements and LISTEN")

// Check proves that the connections of url are sessions: a setting made by one statement is
// visible to the next, while another client is active. Two clients are needed because a pool
// with a single server connection would hand it to either in turn.
func Check(ctx context.Context, url string) error {
	first, err := connect(ctx, url)
	if err != nil {
		return err
	}
	defer first.Close(context.WithoutCancel(ctx))
	second, err := connect(ctx, url)
	if err != nil {
		return fmt.Errorf("the second connection: %w", err)
	}
	defer second.Close(context.WithoutCancel(ctx))

	const read = "SELECT pg_backend_pid()::text, coalesce(current_setting('svc.session_check', true), '')"
	if _, err := simple(ctx, first, "SET svc.session_check = 'set'"); err != nil {
		return fmt.Errorf("check the session: %w", err)
	}
	before, err := simple(ctx, first, read)
	if err != nil {
		return fmt.Errorf("check the session: %w", err)
	}
	// The open transaction occupies whatever server connection is free.
	if _, err := simple(ctx, second, "BEGIN"); err != nil {
		return fmt.Errorf("check the session: %w", err)
	}
	other, err := simple(ctx, second, read)
	if err != nil {
		return fmt.Errorf("check the session: %w", err)
	}
	after, err := simple(ctx, first, read)
	if err != nil {
		return fmt.Errorf("check the session: %w", err)
	}
	if _, err := simple(ctx, second, "ROLLBACK"); err != nil {
		return fmt.Errorf("check the session: %w", err)
	}
	pid, setting := 0, 1
	if before[setting] != "set" || after[setting] != "set" || other[setting] == "set" ||
		before[pid] != after[pid] || other[pid] == before[pid] {
		return ErrPooled
	}
	return nil
}

// simple runs one statement in the simple protocol and returns its first row: a prepared
// statement would itself fail in a transaction pool, with a less clear error.
func simple(ctx context.Context, conn *pgx.Conn, sql string) ([]string, error) {
	results, err := conn.PgConn().Exec(ctx, sql).ReadAll()
	if err != nil {
		return nil, err
	}
	return firstRow(results), nil
}

func firstRow(results []*pgconn.Result) []string {
	for _, r := range results {
		if len(r.Rows) == 0 {
			continue
		}
		out := make([]string, len(r.Rows[0]))
		for i, col := range r.Rows[0] {
			out[i] = string(col)
		}
		return out
	}
	return nil
}
