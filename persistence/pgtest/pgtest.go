package pgtest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net/url"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"agentsvc/persistence/migrate"
	"agentsvc/persistence/pg"
)

// DB is a migrated database that only one test uses.
type DB struct {
	// URL is the connection string of the service's login, which owns the database.
	URL string
	// AdminURL is the connection string of the server's superuser.
	AdminURL string

	t     testing.TB // nil: a pool for each call
	mu    sync.Mutex // guards pools
	pools map[string]*pgxpool.Pool
}

// maxConns is the size of the pools that are shared.
const maxConns = 8

// New creates a migrated database for t and drops it at t's end.
func New(t testing.TB) *DB {
	t.Helper()
	db, err := newDatabase(t, "TEMPLATE "+template())
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	return db
}

// Empty creates a database without the service's schema.
func Empty(t testing.TB) *DB {
	t.Helper()
	db, err := newDatabase(t, "")
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	return db
}

// System returns the test's pool that sees all tenants. Like those of API and Admin it is the same
// for all callers and lasts as long as the database: a connection costs more than most tests do
// with it. One that a test closes or resets is opened with Pool.
func (db *DB) System(t testing.TB) *pgxpool.Pool {
	t.Helper()
	return db.shared(t, "system", func(t testing.TB) *pgxpool.Pool {
		return db.Pool(t, pg.Options{Role: pg.System, MaxConns: maxConns})
	})
}

// API returns the test's pool that sees the tenant of the setting svc.tenant.
func (db *DB) API(t testing.TB) *pgxpool.Pool {
	t.Helper()
	return db.shared(t, "api", func(t testing.TB) *pgxpool.Pool {
		return db.Pool(t, pg.Options{Role: pg.API, MaxConns: maxConns})
	})
}

// shared returns the pool with a name, which open opens at the first call.
func (db *DB) shared(t testing.TB, name string, open func(testing.TB) *pgxpool.Pool) *pgxpool.Pool {
	if db.t == nil { // its server may be restarted, which breaks the connections of a pool
		return open(t)
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.pools[name] == nil {
		db.pools[name] = open(db.t)
	}
	return db.pools[name]
}

// Pool opens a pool as the service does; it is closed at t's end.
func (db *DB) Pool(t testing.TB, o pg.Options) *pgxpool.Pool {
	t.Helper()
	if o.AppName == "" {
		o.AppName = "test"
	}
	pool, err := pg.Open(context.Background(), db.URL, o)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// Admin returns the test's pool of the superuser, which sees everything and may do anything.
func (db *DB) Admin(t testing.TB) *pgxpool.Pool {
	t.Helper()
	return db.shared(t, "admin", db.openAdmin)
}

func (db *DB) openAdmin(t testing.TB) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(db.AdminURL)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	cfg.AfterConnect = func(_ context.Context, conn *pgx.Conn) error {
		pg.RegisterIDs(conn.TypeMap())
		return nil
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// Prepare makes the server parse every query against the migrated schema.
func Prepare(t *testing.T, queries map[string]string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), New(t).URL)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	defer conn.Close(context.Background())
	for name, sql := range queries {
		if _, err := conn.Prepare(t.Context(), "", sql); err != nil {
			t.Errorf("query %s: %v", name, err)
		}
	}
}

// process is this test process's use of the shared server. It lasts as long as the process,
// so that the server does not go when a single test ends.
var process struct {
	sync.Mutex // guards the fields, and the one administrator's connection
	at         shared
	url        string
	adminURL   string
	admin      *pgx.Conn
	using      *os.File
}

// enter joins the shared server and makes sure that the template exists; the caller holds
// process.
func enter(ctx context.Context) error {
	if process.admin != nil && !process.admin.IsClosed() {
		return nil
	}
	s, err := place()
	if err != nil {
		return err
	}
	server, using, err := join(ctx, s)
	if err != nil {
		return err
	}
	if process.using != nil {
		process.using.Close()
	}
	process.at, process.url, process.adminURL, process.using = s, server.URL(), server.AdminURL(), using
	admin, err := pgx.Connect(ctx, process.adminURL)
	if err != nil {
		return err
	}
	if err := makeTemplate(ctx, admin, server.URL()); err != nil {
		admin.Close(ctx)
		return fmt.Errorf("make the template: %w", err)
	}
	process.admin = admin
	return nil
}

// use returns the directory of the shared server, which stays until this process ends.
func use(ctx context.Context) (shared, error) {
	process.Lock()
	defer process.Unlock()
	err := enter(ctx)
	return process.at, err
}

// template returns the name of the database with this binary's schema.
func template() string {
	h := migrate.Hash()
	return "template_" + hex.EncodeToString(h[:8])
}

// makeTemplate lets one process create the template. The template gets its name when it is
// complete.
func makeTemplate(ctx context.Context, admin *pgx.Conn, loginURL string) error {
	const lock = 0x7067_7465_7374 // "pgtest"
	if _, err := admin.Exec(ctx, "SELECT pg_advisory_lock($1)", int64(lock)); err != nil {
		return err
	}
	defer admin.Exec(ctx, "SELECT pg_advisory_unlock($1)", int64(lock))
	name := template()
	var exists bool
	if err := admin.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", name).Scan(&exists); err != nil || exists {
		return err
	}
	unfinished := name + "_new"
	owner, err := pgx.ParseConfig(loginURL)
	if err != nil {
		return err
	}
	if err := run(ctx, admin,
		"DROP DATABASE IF EXISTS "+unfinished+" WITH (FORCE)",
		"CREATE DATABASE "+unfinished+" OWNER "+owner.User,
	); err != nil {
		return err
	}
	if _, err := migrate.Up(ctx, withDatabase(loginURL, unfinished)); err != nil {
		return err
	}
	return run(ctx, admin,
		// Forbid connections to the template: CREATE DATABASE cannot copy one in use.
		"ALTER DATABASE "+unfinished+" ALLOW_CONNECTIONS false",
		"ALTER DATABASE "+unfinished+" RENAME TO "+name,
	)
}

func newDatabase(t testing.TB, source string) (*DB, error) {
	var random [8]byte
	rand.Read(random[:])
	name := "test_" + hex.EncodeToString(random[:])
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	process.Lock()
	defer process.Unlock()
	if err := enter(ctx); err != nil {
		return nil, err
	}
	owner, err := pgx.ParseConfig(process.url)
	if err != nil {
		return nil, err
	}
	if source != "" {
		source += " STRATEGY file_copy" // a copy through the log takes four times as long
	}
	if err := run(ctx, process.admin, "CREATE DATABASE "+name+" OWNER "+owner.User+" "+source); err != nil {
		return nil, err
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		process.Lock()
		defer process.Unlock()
		if err := enter(ctx); err != nil {
			t.Errorf("pgtest: %v", err)
			return
		}
		if err := run(ctx, process.admin, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)"); err != nil {
			t.Errorf("pgtest: %v", err)
		}
	})
	return &DB{
		URL: withDatabase(process.url, name), AdminURL: withDatabase(process.adminURL, name),
		t: t, pools: map[string]*pgxpool.Pool{},
	}, nil
}

func run(ctx context.Context, conn *pgx.Conn, statements ...string) error {
	for _, sql := range statements {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

// withDatabase returns dsn for another database of the same server.
func withDatabase(dsn, name string) string {
	u, err := url.Parse(dsn)
	if err != nil {
		panic(err) // dsn was made here
	}
	u.Path = "/" + name
	return u.String()
}

// deadline limits what a test waits for.
const deadline = 30 * time.Second
