package store

import (
	"slices"
	"testing"

	"agentsvc/persistence/pgtest"
	"agentsvc/schemas/id"
)

func TestFilesWithoutARow(t *testing.T) {
	pool := pgtest.New(t).System(t)
	tenant, other, strange := pgtest.Tenant(t, pool), pgtest.Tenant(t, pool), id.TenantID{UUID: id.NewAnywhere()}
	a := id.AttachmentID{UUID: id.NewAnywhere()}
	if _, err := pool.Exec(t.Context(), "INSERT INTO attachments (tenant_id, id, name, media_type, size_bytes, sha256, created_by) VALUES ($1, $2, 'x', 'x', 0, '', 'x')", tenant, a); err != nil {
		t.Fatal(err)
	}
	f := NewFiles(pool)
	orphan, foreign := AttachmentFile(tenant, id.AttachmentID{UUID: id.NewAnywhere()}), AttachmentFile(other, a)
	got, err := f.Orphans(t.Context(), []string{AttachmentFile(tenant, a), orphan, foreign, AttachmentFile(strange, a),
		"attachments/x/y", "attachments/" + tenant.String(), "pictures/" + tenant.String() + "/" + a.String()})
	slices.Sort(got)
	want := []string{orphan, foreign}
	slices.Sort(want)
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("orphans %v, %v; want %v", got, err, want)
	}
	members := []string{pgtest.Member(t, pool).String(), pgtest.Expired(t, pool).String(), pgtest.Dead(t, pool).String(), id.NewAnywhere().String()}
	if got, err := f.Dead(t.Context(), members); err != nil || !slices.Equal(got, members[2:]) {
		t.Errorf("dead %v, %v; want %v", got, err, members[2:])
	}
}
