package revocation

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"agentsvc/persistence/pg"
	"agentsvc/persistence/pgtest"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
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
	a, b := pgtest.Tenant(t, admin), pgtest.Tenant(t, admin)
	kim, lee := newUser(a), newUser(a)
	gone := newUser(a)
	ended, orphaned := newSession(a, kim), newSession(a, gone)
	exec("DELETE FROM sessions WHERE tenant_id = $1 AND id = $2", a, ended)
	exec("DELETE FROM users WHERE tenant_id = $1 AND id = $2", a, gone)
	kims, live, theirs := newSession(a, kim), newKey(a, false), newKey(b, false)
	agent := pgtest.Agent(t, admin, a)
	const page = "https://shop.example.com"
	newEmbedKey := func(enabled, revoked bool, origins ...string) id.EmbedKeyID {
		key := id.EmbedKeyID{UUID: id.NewAnywhere()}
		exec(`INSERT INTO embed_keys (tenant_id, id, agent_id, name, key_hash, key_prefix, enabled, generation, revoked_at, allowed_origins)
			VALUES ($1, $2, $3, $4, sha256($4::text::bytea), 'svc_pk_k', $5, 7, CASE WHEN $6 THEN now() END, $7)`,
			a, key, agent, key.String(), enabled, revoked, append([]string{page}, origins...))
		return key
	}
	newEndUser := func(deleted bool) id.EndUserID {
		u := id.EndUserID{UUID: id.NewAnywhere()}
		exec("INSERT INTO end_users (tenant_id, id, external_id, deleted_at) VALUES ($1, $2, $3, CASE WHEN $4 THEN now() END)", a, u, u.String(), deleted)
		return u
	}
	embed, known := newEmbedKey(true, false), newEmbedKey(true, false)
	exec("UPDATE embed_keys SET identity_required = true, identity_secret = 'x' WHERE id = $1", known)
	rows := []struct {
		name string
		o    Watcher
		want bool
	}{
		{"a live key", Watcher{Tenant: a, Key: live}, true},
		{"a revoked key", Watcher{Tenant: a, Key: newKey(a, true)}, false},
		{"a key that never was", Watcher{Tenant: a, Key: id.KeyID{UUID: id.NewAnywhere()}}, false},
		{"another tenant's key", Watcher{Tenant: a, Key: theirs}, false},
		{"that key with its tenant", Watcher{Tenant: b, Key: theirs}, true},
		{"a session", Watcher{Tenant: a, User: kim, Session: kims, Role: lifecycle.RoleMember}, true},
		{"a session whose user had another role when the stream was opened", Watcher{Tenant: a, User: kim, Session: kims, Role: lifecycle.RoleAdmin}, false},
		{"a session that has ended", Watcher{Tenant: a, User: kim, Session: ended, Role: lifecycle.RoleMember}, false},
		{"the session of a user who was removed", Watcher{Tenant: a, User: gone, Session: orphaned, Role: lifecycle.RoleMember}, false},
		{"another user's session", Watcher{Tenant: a, User: lee, Session: kims, Role: lifecycle.RoleMember}, false},
		{"another tenant's session", Watcher{Tenant: b, User: kim, Session: kims, Role: lifecycle.RoleMember}, false},
		{"a visitor", Watcher{Tenant: a, EmbedKey: embed, KeyEpoch: 7, Origin: page}, true},
		{"a visitor of before the key was rotated or paused", Watcher{Tenant: a, EmbedKey: embed, KeyEpoch: 6, Origin: page}, false},
		{"a visitor of a paused key", Watcher{Tenant: a, EmbedKey: newEmbedKey(false, false), KeyEpoch: 7, Origin: page}, false},
		{"a visitor of a revoked key", Watcher{Tenant: a, EmbedKey: newEmbedKey(true, true), KeyEpoch: 7, Origin: page}, false},
		{"a visitor of another tenant's key", Watcher{Tenant: b, EmbedKey: embed, KeyEpoch: 7, Origin: page}, false},
		{"a visitor who is known", Watcher{Tenant: a, EmbedKey: embed, KeyEpoch: 7, Origin: page, EndUser: newEndUser(false)}, true},
		{"a visitor who was deleted", Watcher{Tenant: a, EmbedKey: embed, KeyEpoch: 7, Origin: page, EndUser: newEndUser(true)}, false},
		{"a visitor whose row is gone", Watcher{Tenant: a, EmbedKey: embed, KeyEpoch: 7, Origin: page, EndUser: id.EndUserID{UUID: id.NewAnywhere()}}, false},
		{"a visitor of a page whose origin is not allowed any more", Watcher{Tenant: a, EmbedKey: embed, KeyEpoch: 7, Origin: "https://old.example.com"}, false},
		{"a visitor of a key for every page", Watcher{Tenant: a, EmbedKey: newEmbedKey(true, false, "*"), KeyEpoch: 7, Origin: "https://old.example.com"}, true},
		{"a visitor without a page", Watcher{Tenant: a, EmbedKey: newEmbedKey(true, false, "*"), KeyEpoch: 7}, true},
		{"a visitor whom nobody knows, of a key for those who are known", Watcher{Tenant: a, EmbedKey: known, KeyEpoch: 7, Origin: page}, false},
		{"one who is known", Watcher{Tenant: a, EmbedKey: known, KeyEpoch: 7, Origin: page, EndUser: newEndUser(false)}, true},
		{"nobody", Watcher{Tenant: a}, false},
	}
	var owners []Watcher
	for _, r := range rows {
		owners = append(owners, r.o)
	}
	got, err := MayWatch(t.Context(), pool, owners)
	if err != nil || len(got) != len(rows) {
		t.Fatal(got, err)
	}
	for i, r := range rows {
		if got[i] != r.want {
			t.Errorf("%s: %v", r.name, got[i])
		}
	}
	if _, err := MayWatch(t.Context(), closed(t, db), owners); err == nil {
		t.Error("without a database everybody may watch")
	}
}

func closed(t *testing.T, db *pgtest.DB) *pgxpool.Pool {
	pool := db.Pool(t, pg.Options{Role: pg.System})
	pool.Close()
	return pool
}

// One question for all of them has to fit into a beat.
func BenchmarkWhoMayStillWatch(b *testing.B) {
	pool := pgtest.New(b).System(b)
	owners := make([]Watcher, 10_000)
	for i := range owners {
		owners[i] = Watcher{Tenant: id.TenantID{UUID: id.NewAnywhere()}, Key: id.KeyID{UUID: id.NewAnywhere()}}
	}
	for b.Loop() {
		if _, err := MayWatch(b.Context(), pool, owners); err != nil {
			b.Fatal(err)
		}
	}
}
