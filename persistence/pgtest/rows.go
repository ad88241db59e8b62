package pgtest

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"agentsvc/persistence/pg"
	"agentsvc/schemas/id"
	"agentsvc/schemas/testkit"
)

// Writer opens a pool as a writer of the service has it; it is closed at t's end.
func (db *DB) Writer(t testing.TB) *pgxpool.Pool {
	t.Helper()
	return db.Pool(t, pg.Options{Role: pg.System, Writer: true})
}

// Execer is a pool or connection that may write the rows of every tenant, such as those of
// System and Admin.
type Execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

func write(t testing.TB, to Execer, sql string, args ...any) {
	t.Helper()
	if _, err := to.Exec(context.Background(), sql, args...); err != nil {
		t.Fatalf("pgtest: %s: %v", sql, err)
	}
}

// Tenant writes a tenant.
func Tenant(t testing.TB, to Execer) id.TenantID {
	t.Helper()
	tenant := id.TenantID{UUID: id.NewAnywhere()}
	write(t, to, `INSERT INTO tenants (id, name) VALUES ($1, 'T')`, tenant)
	return tenant
}

// Agent writes an agent without a version. Its slug is its id.
func Agent(t testing.TB, to Execer, tenant id.TenantID) id.AgentID {
	t.Helper()
	a := id.AgentID{UUID: id.NewAnywhere()}
	write(t, to, `INSERT INTO agents (tenant_id, id, slug, name) VALUES ($1, $2, $2::uuid::text, 'A')`, tenant, a)
	return a
}

// Published writes an agent whose version 1 is published and has this manifest. Its slug is
// its id.
func Published(t testing.TB, to Execer, tenant id.TenantID, manifest string) id.AgentID {
	t.Helper()
	a := Agent(t, to, tenant)
	write(t, to, `INSERT INTO agent_versions (tenant_id, agent_id, version, status, manifest) VALUES ($1, $2, 1, 'published', $3)`, tenant, a, manifest)
	write(t, to, `UPDATE agents SET published_version = 1, latest_version = 1 WHERE tenant_id = $1 AND id = $2`, tenant, a)
	return a
}

// Member writes a member that is alive for an hour.
func Member(t testing.TB, to Execer) id.MemberID {
	t.Helper()
	return member(t, to, "1 hour", false)
}

// Expired writes a member whose lease expired an hour ago, and that no peer has marked dead.
func Expired(t testing.TB, to Execer) id.MemberID {
	t.Helper()
	return member(t, to, "-1 hour", false)
}

// Dead writes a member that a peer has marked dead before its lease expired.
func Dead(t testing.TB, to Execer) id.MemberID {
	t.Helper()
	return member(t, to, "1 hour", true)
}

func member(t testing.TB, to Execer, lease string, dead bool) id.MemberID {
	t.Helper()
	m := id.MemberID{UUID: id.NewAnywhere()}
	write(t, to, `INSERT INTO members (id, address, lease_until, dead_at) VALUES ($1, $1::uuid::text, now() + $2::text::interval, CASE WHEN $3 THEN now() END)`, m, lease, dead)
	return m
}

// Blocked waits until a session of the database waits for a lock.
func Blocked(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	testkit.Eventually(t, "a session waits for a lock", func() (waits bool) {
		if err := pool.QueryRow(context.Background(), `SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted
			AND pid IN (SELECT pid FROM pg_stat_activity WHERE datname = current_database()))`).Scan(&waits); err != nil {
			t.Fatalf("pgtest: %v", err)
		}
		return waits
	})
}
