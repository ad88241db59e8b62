package outbox

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"agentsvc/persistence/pg"
)

//go:embed queries/*.sql
var queryFiles embed.FS

var queries = pg.Queries(queryFiles)

// prefix separates the outbox's prepared statements from those of the driver.
const prefix = "outbox_"

// connect takes a connection out of the pool permanently and prepares the statements.
func connect(ctx context.Context, pool *pgxpool.Pool) (*pgx.Conn, error) {
	pooled, err := pool.Acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	conn := pooled.Hijack()
	if err := setUp(ctx, conn); err != nil {
		hangUp(conn)
		return nil, err
	}
	return conn, nil
}

func setUp(ctx context.Context, conn *pgx.Conn) error {
	if _, err := conn.Exec(ctx, queries.Get("setup")); err != nil {
		return fmt.Errorf("set up the connection: %w", err)
	}
	for _, name := range []string{"fence", "settle", "unsettled", "claim", "next"} {
		if _, err := conn.Prepare(ctx, prefix+name, queries.Get(name)); err != nil {
			return fmt.Errorf("prepare %s: %w", name, err)
		}
	}
	return nil
}

// closeTime limits closing a connection to a server that may not answer.
const closeTime = time.Second

func hangUp(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), closeTime)
	defer cancel()
	_ = conn.Close(ctx) // an error does not matter
	<-conn.PgConn().CleanupDone()
}

// sortFailure classifies the error of a flush's round trip over conn. A refused or unsent
// flush has changed nothing; after any other error the outcome is unknown.
func sortFailure(conn *pgx.Conn, err error) verdict {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) {
		if conn.IsClosed() {
			return gone
		}
		return refused
	}
	if pgErr.SeverityUnlocalized != "ERROR" || pg.IsUnavailable(err) {
		return gone
	}
	switch {
	case pgErr.Code == "SVC01":
		return fenced
	case pg.IsBusy(err):
		return busy
	}
	return refused
}
