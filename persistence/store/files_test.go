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
	if named, err := NewFiles(pool).Named(t.Context()); err != nil || named {
		t.Errorf("before: files are named: %v, %v", named, err)
	}
	a := id.AttachmentID{UUID: id.NewAnywhere()}
	if _, err := pool.Exec(t.Context(), "INSERT INTO attachments (tenant_id, id, name, media_type, size_bytes, sha256, created_by) VALUES ($1, $2, 'x', 'x', 0, '', 'x')", tenant, a); err != nil {
		t.Fatal(err)
	}
	if named, err := NewFiles(pool).Named(t.Context()); err != nil || !named {
		t.Errorf("with an attachment: files are named: %v, %v", named, err)
	}
	skill, run := id.SkillID{UUID: id.NewAnywhere()}, id.SkillRunID{UUID: id.NewAnywhere()}
	for _, sql := range []string{
		"INSERT INTO browser_skills (tenant_id, id, slug, name, definition, policy) VALUES ($1, $2, 's', 's', '{}', '{}')",
		"INSERT INTO browser_skill_runs (tenant_id, skill_id, id, slug, revision, created_by, mode, status, key, args, state, created_at) VALUES ($1, $2, '" + run.String() + "', 's', 1, 'x', 'run', 'running', 'k', '', '', now())",
	} {
		if _, err := pool.Exec(t.Context(), sql, tenant, skill); err != nil {
			t.Fatal(err)
		}
	}
	// A file that a run made is of its artifact, not of the run.
	made, maker := id.ArtifactID{UUID: id.NewAnywhere()}, id.RunID{UUID: id.NewAnywhere()}
	for _, sql := range []string{
		"INSERT INTO runs (tenant_id, id, status, agent_id, origin_kind, origin_id, created_at, finished_at) VALUES ($1, $2, 'succeeded', $2, 'api_key', $2, now(), now())",
		"INSERT INTO artifacts (tenant_id, run_id, id, kind, name, media_type, size_bytes, sha256, created_at) VALUES ($1, $2, '" + made.String() + "', 'html', 'x.html', 'text/html', 0, sha256(''), now())",
	} {
		if _, err := pool.Exec(t.Context(), sql, tenant, maker); err != nil {
			t.Fatal(err)
		}
	}
	gone := id.SkillRunID{UUID: id.NewAnywhere()}
	lost := []string{SkillShot(tenant, gone, "a"), SkillShot(tenant, gone, "b")}
	f := NewFiles(pool)
	orphan, foreign := AttachmentFile(tenant, id.AttachmentID{UUID: id.NewAnywhere()}), AttachmentFile(other, a)
	lost = append(lost, ArtifactFile(tenant, id.ArtifactID{UUID: id.NewAnywhere()}), ArtifactFile(other, made), ArtifactFile(tenant, id.ArtifactID(maker)), AttachmentFile(tenant, id.AttachmentID(made)))
	got, err := f.Orphans(t.Context(), []string{AttachmentFile(tenant, a), orphan, foreign, AttachmentFile(strange, a),
		ArtifactFile(tenant, made), lost[2], lost[3], lost[4], lost[5], ArtifactFile(strange, made), "artifacts/" + tenant.String() + "/x",
		"attachments/x/y", "attachments/" + tenant.String(), "pictures/" + tenant.String() + "/" + a.String(),
		SkillShot(tenant, run, "a"), lost[0], lost[1], "browser-skills/" + tenant.String() + "/" + run.String()})
	slices.Sort(got)
	want := append(lost, orphan, foreign)
	slices.Sort(want)
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("orphans %v, %v; want %v", got, err, want)
	}
	// A change that a member sent before it was marked may take effect ten minutes later.
	members := []string{pgtest.Member(t, pool).String(), pgtest.Expired(t, pool).String(), pgtest.Dead(t, pool).String(), pgtest.Dead(t, pool).String(), id.NewAnywhere().String()}
	if _, err := pool.Exec(t.Context(), "UPDATE members SET dead_at = now() - interval '10 minutes' WHERE id::text = $1", members[3]); err != nil {
		t.Fatal(err)
	}
	if got, err := f.Dead(t.Context(), members); err != nil || !slices.Equal(got, members[3:]) {
		t.Errorf("dead %v, %v; want %v", got, err, members[3:])
	}
}
