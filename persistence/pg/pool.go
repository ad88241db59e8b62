package pg

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Role is the database role of a pool's connections.
type Role string

// The two roles (docs/architecture.md, Storage). Neither can log in, bypasses row-level security or is a
// superuser.
const (
	API    Role = "svc_api"
	System Role = "svc_system"
)

// connectTimeout limits one attempt to connect if the URL sets no limit.
const connectTimeout = 5 * time.Second

// Pool is the type that Open returns, for callers that only pass pools on.
type Pool = pgxpool.Pool

// Conn is a connection acquired from a Pool.
type Conn = pgxpool.Conn

// Options configure a pool.
type Options struct {
	Role     Role
	MaxConns int    // 0: the driver's default
	Writer   bool   // connections of the group-commit writer
	AppName  string // shown in pg_stat_activity
	Gate     *Gate  // shared with the other pools of the server; nil: the pool's own
}

// Open returns a pool, after checking that it can connect and take its role. The URL must
// lead to a direct connection or a session pool (see migrate.Check).
func Open(ctx context.Context, url string, o Options) (*pgxpool.Pool, error) {
	if o.Role != API && o.Role != System {
		panic("pg: a pool needs a role")
	}
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("read the database URL: %w", err)
	}
	if o.MaxConns > 0 {
		cfg.MaxConns = int32(o.MaxConns)
	}
	if o.AppName != "" {
		cfg.ConnConfig.RuntimeParams["application_name"] = o.AppName
	}
	if cfg.ConnConfig.ConnectTimeout == 0 {
		cfg.ConnConfig.ConnectTimeout = connectTimeout
	}
	// SET, not start-up parameters: a session pool refuses or, worse, ignores parameters that
	// it does not know.
	setup := "SET ROLE " + string(o.Role)
	if o.Writer {
		// On a fresh table the planner would otherwise scan the whole table on every flush,
		// and keep doing so in the plans of foreign key checks, which a connection makes
		// once.
		setup += "; SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_seqscan = off; SET jit = off"
	}
	cfg.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		RegisterIDs(conn.TypeMap())
		if _, err := conn.PgConn().Exec(ctx, setup).ReadAll(); err != nil {
			return fmt.Errorf("take the role %s: %w", o.Role, err)
		}
		return nil
	}
	g := o.Gate
	if g == nil {
		g = new(Gate)
	}
	cfg.BeforeConnect, cfg.ConnConfig.Tracer = g.enter, g
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("open a pool: %w", err)
	}
	if err := pool.Ping(ctx); err != nil {
		pool.Close()
		return nil, fmt.Errorf("connect to the database: %w", err)
	}
	return pool, nil
}
