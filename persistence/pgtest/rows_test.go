package pgtest

import (
	"testing"

	"agentsvc/schemas/id"
)

// The rows of a test are as other packages take them: a member of each kind, an agent with
// and without a published version, under either administrator.
func TestRows(t *testing.T) {
	db := New(t)
	pool, admin := db.System(t), db.Admin(t)
	yes := func(want bool, sql string, args ...any) {
		t.Helper()
		var got bool
		if err := admin.QueryRow(t.Context(), sql, args...).Scan(&got); err != nil || got != want {
			t.Errorf("%s: %v, %v", sql, got, err)
		}
	}
	for _, to := range []Execer{pool, admin, db.Writer(t)} {
		for _, m := range []struct {
			id           id.MemberID
			leased, dead bool
		}{{Member(t, to), true, false}, {Expired(t, to), false, false}, {Dead(t, to), true, true}} {
			yes(m.leased, `SELECT lease_until > now() FROM members WHERE id = $1`, m.id)
			yes(m.dead, `SELECT dead_at IS NOT NULL FROM members WHERE id = $1`, m.id)
		}
		tenant := Tenant(t, to)
		bare, published := Agent(t, to, tenant), Published(t, to, tenant, `{"model":{}}`)
		yes(true, `SELECT published_version IS NULL FROM agents WHERE tenant_id = $1 AND id = $2`, tenant, bare)
		yes(true, `SELECT v.manifest::text = '{"model":{}}' FROM agents a JOIN agent_versions v ON v.tenant_id = a.tenant_id AND v.agent_id = a.id AND v.version = a.published_version
			WHERE a.tenant_id = $1 AND a.id = $2 AND a.latest_version = 1 AND v.status = 'published'`, tenant, published)
	}
}

// Blocked sees a session of another role too.
func TestBlocked(t *testing.T) {
	db := New(t)
	admin := db.Admin(t)
	tx, err := admin.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	if _, err := tx.Exec(t.Context(), "LOCK TABLE members"); err != nil {
		t.Fatal(err)
	}
	pool, done := db.System(t), make(chan error, 1)
	go func() {
		_, err := pool.Exec(t.Context(), "DELETE FROM members")
		done <- err
	}()
	Blocked(t, pool)
	Blocked(t, admin)
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}
