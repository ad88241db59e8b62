package main

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"agentsvc/persistence/pgtest"
	"agentsvc/schemas/id"
	"agentsvc/transport/edge"
)

// Who may still watch: one row, one owner of a stream.
func TestWhoMayStillWatch(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	admin, pool := db.Admin(t), db.System(t)
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := admin.Exec(t.Context(), sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	newTenant := func() id.TenantID {
		tenant := id.TenantID{UUID: id.NewAnywhere()}
		exec("INSERT INTO tenants (id, name) VALUES ($1, 'T')", tenant)
		return tenant
	}
	newKey := func(of id.TenantID, revoked bool) id.KeyID {
		key := id.KeyID{UUID: id.NewAnywhere()}
		exec(`INSERT INTO api_keys (tenant_id, id, name, prefix, secret_hash, revoked_at)
			VALUES ($1, $2, 'k', 'svc_k', sha256($3::text::bytea), CASE WHEN $4 THEN now() END)`, of, key, key.String(), revoked)
		return key
	}
	newUser := func(of id.TenantID) id.UserID {
		user := id.UserID{UUID: id.NewAnywhere()}
		exec("INSERT INTO users (tenant_id, id, email, name, role) VALUES ($1, $2, $3, 'U', 'member')", of, user, user.String()+"@example.com")
		return user
	}
	newSession := func(of id.TenantID, user id.UserID) id.SessionID {
		s := id.SessionID{UUID: id.NewAnywhere()}
		exec("INSERT INTO sessions (tenant_id, id, user_id, secret_hash, created_at, used_at) VALUES ($1, $2, $3, sha256($4::text::bytea), now(), now())", of, s, user, s.String())
		return s
	}
	a, b := newTenant(), newTenant()
	kim, lee := newUser(a), newUser(a)
	gone := newUser(a)
	ended, orphaned := newSession(a, kim), newSession(a, gone)
	exec("DELETE FROM sessions WHERE tenant_id = $1 AND id = $2", a, ended)
	exec("DELETE FROM users WHERE tenant_id = $1 AND id = $2", a, gone)
	kims, live, theirs := newSession(a, kim), newKey(a, false), newKey(b, false)
	rows := []struct {
		name string
		o    edge.Owner
		want bool
	}{
		{"a live key", edge.Owner{Tenant: a, Key: live}, true},
		{"a revoked key", edge.Owner{Tenant: a, Key: newKey(a, true)}, false},
		{"a key that never was", edge.Owner{Tenant: a, Key: id.KeyID{UUID: id.NewAnywhere()}}, false},
		{"another tenant's key", edge.Owner{Tenant: a, Key: theirs}, false},
		{"that key with its tenant", edge.Owner{Tenant: b, Key: theirs}, true},
		{"a session", edge.Owner{Tenant: a, User: kim, Session: kims}, true},
		{"a session that has ended", edge.Owner{Tenant: a, User: kim, Session: ended}, false},
		{"the session of a user who was removed", edge.Owner{Tenant: a, User: gone, Session: orphaned}, false},
		{"another user's session", edge.Owner{Tenant: a, User: lee, Session: kims}, false},
		{"another tenant's session", edge.Owner{Tenant: b, User: kim, Session: kims}, false},
		{"nobody", edge.Owner{Tenant: a, Principal: "user:x"}, false},
	}
	var owners []edge.Owner
	for _, r := range rows {
		owners = append(owners, r.o)
	}
	got, err := liveOwners(t.Context(), pool, owners)
	if err != nil || len(got) != len(rows) {
		t.Fatal(got, err)
	}
	for i, r := range rows {
		if got[i] != r.want {
			t.Errorf("%s: %v", r.name, got[i])
		}
	}
	if _, err := liveOwners(t.Context(), closed(t, db), owners); err == nil {
		t.Error("without a database everybody may watch")
	}
}

func closed(t *testing.T, db *pgtest.DB) *pgxpool.Pool {
	pool := db.System(t)
	pool.Close()
	return pool
}

// One question for all of them has to fit into a beat.
func BenchmarkWhoMayStillWatch(b *testing.B) {
	pool := pgtest.New(b).System(b)
	owners := make([]edge.Owner, 10_000)
	for i := range owners {
		owners[i] = edge.Owner{Tenant: id.TenantID{UUID: id.NewAnywhere()}, Key: id.KeyID{UUID: id.NewAnywhere()}}
	}
	for b.Loop() {
		if _, err := liveOwners(b.Context(), pool, owners); err != nil {
			b.Fatal(err)
		}
	}
}
