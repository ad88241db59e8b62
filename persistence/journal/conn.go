package journal

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"agentsvc/schemas/pause"
)

// conn is a lane's connection with its prepared statements.
type conn struct {
	raw     *pgx.Conn
	backend backend
	texts   map[string]*pgconn.StatementDescription // of Statement, by SQL
}

// backend identifies the server's process behind a connection.
type backend struct {
	pid     uint32
	started time.Time
}

// prefix keeps the names of the writer's prepared statements apart from those
// that the driver makes.
const prefix = "journal_"

// maxTexts bounds the prepared statements of a connection. Statements come from
// the code, so that there are few; past the bound they are prepared each time.
const maxTexts = 512

// connect takes a connection out of the pool permanently, ends the backend of the
// lane's lost one, so that what was sent to it is decided, and prepares the
// statements.
func connect(ctx context.Context, pool *pgxpool.Pool, texts map[string]string, lost backend) (*conn, error) {
	pooled, err := pool.Acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	c := &conn{raw: pooled.Hijack(), texts: map[string]*pgconn.StatementDescription{}}
	if err := c.setUp(ctx, texts, lost); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

var errStandby = errors.New("the server is a standby; the writer needs the primary")

func (c *conn) setUp(ctx context.Context, texts map[string]string, lost backend) error {
	// Only the login, not the role, may see and end its own sessions.
	var role string
	var standby bool
	if err := c.raw.QueryRow(ctx, "SELECT current_setting('role'), pg_is_in_recovery()").Scan(&role, &standby); err != nil {
		return fmt.Errorf("read the role: %w", err)
	}
	if standby { // it knows neither the lost backend nor all that was committed
		return errStandby
	}
	if _, err := c.raw.Exec(ctx, "RESET ROLE"); err != nil {
		return fmt.Errorf("reset the role: %w", err)
	}
	if lost.pid != 0 {
		if err := c.end(ctx, lost); err != nil {
			return err
		}
	}
	if err := c.raw.QueryRow(ctx, queries.Get("lane_backend")).Scan(&c.backend.pid, &c.backend.started); err != nil {
		return fmt.Errorf("read the backend: %w", err)
	}
	if _, err := c.raw.Exec(ctx, "SELECT set_config('role', $1, false)", role); err != nil {
		return fmt.Errorf("take the role: %w", err)
	}
	if _, err := c.raw.Exec(ctx, queries.Get("lane_setup")); err != nil {
		return fmt.Errorf("set up the connection: %w", err)
	}
	for name, sql := range texts {
		if _, err := c.raw.PgConn().Prepare(ctx, prefix+name, sql, nil); err != nil {
			return fmt.Errorf("prepare %s: %w", name, err)
		}
	}
	return nil
}

// end makes sure that the lost backend is gone, and with it every doubt whether
// its transaction may still commit.
func (c *conn) end(ctx context.Context, lost backend) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	for {
		gone := true
		rows, err := c.raw.Query(ctx, queries.Get("old_backend"), lost.pid, lost.started)
		if err == nil {
			for rows.Next() {
				gone = false
			}
			err = rows.Err()
		}
		if err != nil {
			return fmt.Errorf("look for the lost backend: %w", err)
		}
		if gone {
			return nil
		}
		if _, err := c.raw.Exec(ctx, "SELECT pg_terminate_backend($1)", lost.pid); err != nil {
			return fmt.Errorf("end the lost backend: %w", err)
		}
		if !pause.For(ctx, 5*time.Millisecond) {
			return fmt.Errorf("end the lost backend: %w", ctx.Err())
		}
	}
}

// prepare readies a Statement's text.
func (c *conn) prepare(ctx context.Context, sql string) (*pgconn.StatementDescription, error) {
	if sd := c.texts[sql]; sd != nil {
		return sd, nil
	}
	name := ""
	if len(c.texts) < maxTexts {
		name = fmt.Sprintf("%stext_%d", prefix, len(c.texts))
	}
	sd, err := c.raw.PgConn().Prepare(ctx, name, sql, nil)
	if err != nil {
		return nil, err
	}
	if name != "" {
		c.texts[sql] = sd
	}
	return sd, nil
}

// closeTime limits closing a connection to a server that may not answer.
const closeTime = time.Second

func (c *conn) close() {
	ctx, cancel := context.WithTimeout(context.Background(), closeTime)
	defer cancel()
	_ = c.raw.Close(ctx) // nothing depends on it
	<-c.raw.PgConn().CleanupDone()
}

// lockTimeout reports whether err says that another session held a lock for too
// long: the same batch again would wait as long again.
func lockTimeout(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && pgErr.Code == "55P03"
}
