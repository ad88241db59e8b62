package migrate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// lockKey is the advisory lock that lets one process of a cluster migrate at a time.
const lockKey = 0x7376635f6d696772 // "svc_migr"

// Errors that an operator must resolve.
var (
	ErrNewer   = errors.New("the database is newer than this program")
	ErrChanged = errors.New("the database was migrated by a different version of the same migration")
	ErrOld     = errors.New("the server is older than PostgreSQL 15")
)

// Up creates the two roles if they are missing and applies every migration that the database
// lacks. It returns the names of those it applied. The login of url must own the database.
func Up(ctx context.Context, url string) (applied []string, err error) {
	return UpBehind(ctx, url, func() {})
}

// UpBehind is Up that calls waits before it waits for another process that migrates the database.
func UpBehind(ctx context.Context, url string, waits func()) (applied []string, err error) {
	return upTo(ctx, url, known, len(known), waits)
}

// Down reverts the migrations above version, newest first, and returns their names.
func Down(ctx context.Context, url string, version int) (undone []string, err error) {
	err = locked(ctx, url, func() {}, func(conn *pgx.Conn) error {
		have, err := inspect(ctx, conn, known)
		if err != nil {
			return err
		}
		for v := have; v > version; v-- {
			m := known[v-1]
			if err := step(ctx, conn, m.down, "DELETE FROM schema_migrations WHERE version = $1", m.version); err != nil {
				return fmt.Errorf("undo migration %s: %w", m, err)
			}
			undone = append(undone, m.String())
		}
		return nil
	})
	return undone, err
}

// Version returns the schema version of the database, 0 for an empty one.
func Version(ctx context.Context, url string) (int, error) {
	conn, err := connect(ctx, url)
	if err != nil {
		return 0, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return inspect(ctx, conn, known)
}

func upTo(ctx context.Context, url string, all []migration, version int, waits func()) (applied []string, err error) {
	err = locked(ctx, url, waits, func(conn *pgx.Conn) error {
		have, err := inspect(ctx, conn, all)
		if err != nil {
			return err
		}
		if err := ensureRoles(ctx, conn); err != nil {
			return err
		}
		for _, m := range all[have:version] {
			if err := apply(ctx, conn, m); err != nil {
				return fmt.Errorf("apply migration %s: %w", m, err)
			}
			applied = append(applied, m.String())
		}
		return nil
	})
	return applied, err
}

// tries is how often a migration is begun that meets a deadlock.
const tries = 10

// apply applies one migration. In a rolling upgrade nodes of the former release are at work, and
// lock tables in another order than the migration: where the database ends the migration because of
// that, nothing of it is done, and it begins again.
func apply(ctx context.Context, conn *pgx.Conn, m migration) (err error) {
	for range tries {
		err = step(ctx, conn, m.up, "INSERT INTO schema_migrations (version, name, checksum) VALUES ($1, $2, $3)", m.version, m.name, m.checksum[:])
		var pgErr *pgconn.PgError
		if !errors.As(err, &pgErr) || pgErr.Code != deadlockDetected {
			return err
		}
	}
	return err
}

const deadlockDetected = "40P01"

// connectTimeout limits one attempt to connect if the URL sets no limit: an address that swallows packets must not
// hold a start for as long as the kernel tries.
const connectTimeout = 5 * time.Second

func connect(ctx context.Context, url string) (*pgx.Conn, error) {
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("connect to the database: %w", err)
	}
	if cfg.ConnectTimeout == 0 {
		cfg.ConnectTimeout = connectTimeout
	}
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to the database: %w", err)
	}
	// Before anything is changed: an older server refuses some of the migrations, each of which is a transaction of its own.
	// A pool may not tell its server's version.
	if v := conn.PgConn().ParameterStatus("server_version"); v != "" && major(v) < oldest {
		conn.Close(context.WithoutCancel(ctx))
		return nil, fmt.Errorf("%w, it is %s: nothing was changed; upgrade the server first", ErrOld, v)
	}
	return conn, nil
}

// oldest is the oldest major version of the server that the migrations fit.
const oldest = 15

// major returns the major version of a server_version such as "15.18 (Debian 15.18-0+deb12u1)" or "18beta1".
func major(version string) (n int) {
	for _, c := range []byte(version) {
		if c < '0' || c > '9' {
			break
		}
		n = 10*n + int(c-'0')
	}
	return n
}

// locked runs f on a connection that holds the migration lock, and calls waits if it must wait for it. The lock ends
// with the connection.
func locked(ctx context.Context, url string, waits func(), f func(*pgx.Conn) error) error {
	conn, err := connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var got bool
	if err := conn.QueryRow(ctx, "SELECT pg_try_advisory_lock($1)", int64(lockKey)).Scan(&got); err != nil {
		return fmt.Errorf("take the lock of migrations: %w", err)
	}
	if got {
		return f(conn)
	}
	waits()
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock($1)", int64(lockKey)); err != nil {
		return fmt.Errorf("wait for another migration: %w", err)
	}
	return f(conn)
}

// step runs one migration and records it, in one transaction.
func step(ctx context.Context, conn *pgx.Conn, sql, note string, args ...any) error {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) // does nothing after a commit
	if _, err := tx.Exec(ctx, createTable); err != nil {
		return err
	}
	// The simple protocol accepts many statements at once.
	if _, err := conn.PgConn().Exec(ctx, sql).ReadAll(); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, note, args...); err != nil {
		return err
	}
	// A migration may grant rights on all tables; the service must not change this one.
	if _, err := tx.Exec(ctx, "REVOKE ALL ON schema_migrations FROM "+roleAPI+", "+roleSystem); err != nil {
		return err
	}
	return tx.Commit(ctx)
}

const createTable = `CREATE TABLE IF NOT EXISTS schema_migrations (
  version    int PRIMARY KEY,
  name       text NOT NULL,
  applied_at timestamptz NOT NULL DEFAULT now(),
  checksum   bytea NOT NULL
)`

// inspect returns how many of the migrations the database has, after checking that they are
// the same.
func inspect(ctx context.Context, conn *pgx.Conn, all []migration) (int, error) {
	var exists bool
	if err := conn.QueryRow(ctx, "SELECT to_regclass('schema_migrations') IS NOT NULL").Scan(&exists); err != nil {
		return 0, fmt.Errorf("look for schema_migrations: %w", err)
	}
	if !exists {
		return 0, nil
	}
	rows, err := conn.Query(ctx, "SELECT version, name, checksum FROM schema_migrations ORDER BY version")
	if err != nil {
		return 0, fmt.Errorf("read schema_migrations: %w", err)
	}
	type row struct {
		Version  int
		Name     string
		Checksum []byte
	}
	have, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row])
	if err != nil {
		return 0, fmt.Errorf("read schema_migrations: %w", err)
	}
	for i, r := range have {
		switch {
		case r.Version != i+1:
			return 0, fmt.Errorf("schema_migrations lacks version %d: it was changed by hand", i+1)
		case i >= len(all):
			return 0, fmt.Errorf("%w: it has migration %04d_%s, this program knows %d migrations; start a newer svc",
				ErrNewer, r.Version, r.Name, len(all))
		case !bytes.Equal(r.Checksum, all[i].checksum[:]):
			return 0, fmt.Errorf("%w: %s here, %04d_%s there; start the svc that made it",
				ErrChanged, all[i], r.Version, r.Name)
		}
	}
	return len(have), nil
}
