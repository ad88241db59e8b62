package store

import (
	"slices"
	"testing"

	"agentsvc/persistence/pgtest"
	"agentsvc/schemas/id"
)

func TestFilesOfNoRow(t *testing.T) {
	pool := pgtest.New(t).System(t)
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := pool.Exec(t.Context(), sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	tenant, other, strange := id.TenantID{UUID: id.NewAnywhere()}, id.TenantID{UUID: id.NewAnywhere()}, id.TenantID{UUID: id.NewAnywhere()}
	a := id.AttachmentID{UUID: id.NewAnywhere()}
	for _, u := range []id.TenantID{tenant, other} {
		exec("INSERT INTO tenants (id, name) VALUES ($1, 't')", u)
	}
	exec("INSERT INTO attachments (tenant_id, id, name, media_type, size_bytes, sha256, created_by) VALUES ($1, $2, 'x', 'x', 0, '', 'x')", tenant, a)
	f := NewFiles(pool)
	orphan, foreign := AttachmentFile(tenant, id.AttachmentID{UUID: id.NewAnywhere()}), AttachmentFile(other, a)
	got, err := f.Orphans(t.Context(), []string{AttachmentFile(tenant, a), orphan, foreign, AttachmentFile(strange, a),
		"attachments/x/y", "attachments/" + tenant.String(), "artifacts/" + tenant.String() + "/" + a.String()})
	slices.Sort(got)
	want := []string{orphan, foreign}
	slices.Sort(want)
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("orphans %v, %v; want %v", got, err, want)
	}
	var members []string
	for _, m := range []struct{ lease, dead string }{{"1 hour", "NULL"}, {"-1 hour", "NULL"}, {"1 hour", "now()"}} {
		u := id.NewAnywhere()
		members = append(members, u.String())
		exec("INSERT INTO members (id, address, lease_until, dead_at) VALUES ($1, '', now() + $2::text::interval, "+m.dead+")", u, m.lease)
	}
	members = append(members, id.NewAnywhere().String())
	if got, err := f.Dead(t.Context(), members); err != nil || !slices.Equal(got, members[2:]) {
		t.Errorf("dead %v, %v; want %v", got, err, members[2:])
	}
}
