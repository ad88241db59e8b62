package store

import (
	"strings"
	"testing"
	"time"

	"agentsvc/persistence/pgtest"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
)

// Lists of knowledge bases, end users, skill runs and artifacts read the page that they return, whatever they are filtered by:
// what does not match may grow tenfold. What matches is older than the rest, where a walk would meet it last.
func TestListsReadWhatTheyReturn(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	admin := db.Admin(t)
	tenant := pgtest.Tenant(t, admin)
	agent := pgtest.Agent(t, admin, tenant)
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := admin.Exec(t.Context(), sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	base, other, source, large := id.NewAnywhere(), id.NewAnywhere(), id.NewAnywhere(), id.NewAnywhere()
	exec(`INSERT INTO knowledge_bases (tenant_id, id, name) SELECT $1, u, u::text FROM unnest($2::uuid[]) u`, tenant, []id.UUID{base, other})
	exec(`INSERT INTO knowledge_sources (tenant_id, id, base_id, kind, name) SELECT $1, u, $2, 'upload', 'few' FROM unnest($3::uuid[]) u`, tenant, base, []id.UUID{source, large})
	skill, otherSkill, run, otherRun := id.NewAnywhere(), id.NewAnywhere(), id.NewAnywhere(), id.NewAnywhere()
	exec(`INSERT INTO browser_skills (tenant_id, id, slug, name, definition, policy) SELECT $1, u, 's' || left(md5(u::text), 9), 'x', '{}', '{}' FROM unnest($2::uuid[]) u`, tenant, []id.UUID{skill, otherSkill})
	exec(`INSERT INTO runs (tenant_id, id, status, agent_id, agent_version, input, origin_kind, origin_id, created_at) SELECT $1, u, 'queued', $2, 1, '"x"', 'api_key', $2, now() FROM unnest($3::uuid[]) u`,
		tenant, agent, []id.UUID{run, otherRun})
	documents := func(n int, base id.UUID, source *id.UUID, status string) {
		t.Helper()
		exec(`INSERT INTO kb_documents (tenant_id, id, base_id, source_id, item, name, media_type, size_bytes, file, sha256, status)
			SELECT $1, new_id(now()), $2, $3, CASE WHEN $3::uuid IS NOT NULL THEN gen_random_uuid()::text END, gen_random_uuid()::text, 'text/plain', 1, gen_random_uuid(), '', $4 FROM generate_series(1, $5::int)`,
			tenant, base, source, status, n)
	}
	people := func(n int, tag string) {
		t.Helper()
		exec(`INSERT INTO end_users (tenant_id, id, external_id, tags) SELECT $1, new_id(now()), $2::text || gen_random_uuid(), ARRAY[$2::text, 'of all'] FROM generate_series(1, $3::int)`, tenant, tag, n)
	}
	skillRuns := func(n int, skill, run id.UUID) {
		t.Helper()
		exec(`INSERT INTO browser_skill_runs (tenant_id, id, skill_id, slug, revision, agent_run_id, created_by, mode, status, key, held, args, state, created_at, finished_at)
			SELECT $1, new_id(now()), $2, 's', 1, $3, 'x', 'run', 'succeeded', '', false, '', '', now(), now() FROM generate_series(1, $4::int)`, tenant, skill, run, n)
	}
	artifacts := func(n int, run id.UUID) {
		t.Helper()
		exec(`INSERT INTO artifacts (tenant_id, id, run_id, kind, name, media_type, size_bytes, sha256, created_at)
			SELECT $1, new_id(now()), $2, 'html', 'x', 'text/html', 1, '', now() FROM generate_series(1, $3::int)`, tenant, run, n)
	}
	history := func(n int, age string) {
		t.Helper()
		exec(`INSERT INTO audit_log (tenant_id, id, at, actor, action, target_kind, target_id, ip) SELECT $1, new_id(now() - $2::interval), now() - $2::interval, 'x', $2, 'x', $1, '' FROM generate_series(1, $3::int)`, tenant, age, n)
		exec(`INSERT INTO usage_records (tenant_id, id, at, kind, model) SELECT $1, new_id(now() - $2::interval), now() - $2::interval, 'browser_skill_run', '' FROM generate_series(1, $3::int)`, tenant, age, n)
	}
	history(5, "5 days")
	history(5, "100 days")
	documents(5, base, nil, "failed")
	documents(5, base, &source, "ready")
	documents(5, base, &large, "failed")
	people(5, "few")
	skillRuns(5, skill, run)
	artifacts(5, run)
	grow := func(n int) {
		t.Helper()
		documents(n, base, nil, "ready")
		documents(n, base, &large, "ready")
		documents(n, other, nil, "failed")
		people(n, "many")
		skillRuns(n, otherSkill, otherRun)
		artifacts(n, otherRun)
		history(n, "60 days")
		exec(`INSERT INTO knowledge_sources (tenant_id, id, base_id, kind, name) SELECT $1, new_id(now()), $2, 'upload', 'many' FROM generate_series(1, $3::int)`, tenant, other, n)
		exec(`ANALYZE kb_documents, knowledge_sources, end_users, end_user_tags, browser_skill_runs, artifacts, audit_log, usage_records`)
	}
	type read struct {
		what, name string
		args       []any
	}
	var reads []read
	add := func(what string) func(string, []any) {
		return func(name string, args []any) { reads = append(reads, read{what, name, args}) }
	}
	const page = 25
	of, elsewhere := id.KnowledgeBaseID{UUID: base}, id.KnowledgeBaseID{UUID: other}
	few, many := &id.SourceID{UUID: source}, &id.SourceID{UUID: large}
	list := func(what string, of id.KnowledgeBaseID, f DocumentFilter) {
		add(what)(f.args(tenant, of, id.DocumentID{}, page))
	}
	list("documents", of, DocumentFilter{})
	list("failed documents", of, DocumentFilter{Status: ptr(lifecycle.DocumentFailed)})
	list("ready documents", of, DocumentFilter{Status: ptr(lifecycle.DocumentReady)})
	list("queued documents", of, DocumentFilter{Status: ptr(lifecycle.DocumentQueued)})
	list("documents of a small source", of, DocumentFilter{Source: few})
	list("documents of a large source", of, DocumentFilter{Source: many})
	list("failed documents of a large source", of, DocumentFilter{Source: many, Status: ptr(lifecycle.DocumentFailed)})
	list("documents of another base's source", elsewhere, DocumentFilter{Source: many})
	person := func(what string, f EndUserFilter) { add(what)(f.args(tenant, id.EndUserID{}, page)) }
	person("end users", EndUserFilter{})
	person("end users by external id", EndUserFilter{ExternalID: ptr("few")})
	person("end users of a rare tag", EndUserFilter{Tag: ptr("few")})
	person("end users of a frequent tag", EndUserFilter{Tag: ptr("of all")})
	person("end users of no tag", EndUserFilter{Tag: ptr("none")})
	person("end users by external id and tag", EndUserFilter{Tag: ptr("of all"), ExternalID: ptr("few")})
	from, n := before(id.UUID{}, page)
	add("runs of a skill")("skillruns", []any{tenant, from, &skill, nil, n})
	add("skill runs of a run")("skillruns", []any{tenant, from, nil, &run, n})
	add("skill runs")("skillruns", []any{tenant, from, nil, nil, n})
	add("artifacts")("artifacts", []any{tenant, run, from, n})
	add("sources")("sources", []any{tenant, base, from, n})
	add("sources of another base")("sources", []any{tenant, other, from, n})
	month := time.Now().Add(-30 * 24 * time.Hour)
	add("the audit log of a month")("audit", []any{tenant, from, nil, "none", nil, nil, month, nil, n, since(&month)})
	long, longer := month.Add(-60*24*time.Hour), month.Add(-90*24*time.Hour)
	add("the audit log of long ago")("audit", []any{tenant, until(&long, from), nil, nil, nil, nil, nil, long, n, since(nil)})
	for _, name := range []string{"usage_by_day", "usage_by_agent", "usage_by_model", "usage_by_kind"} {
		add("usage of a month")(name, []any{tenant, month, time.Now(), since(&month), last})
		add("usage of long ago")(name, []any{tenant, longer, long, since(&longer), until(&long, last)})
	}
	pool := db.API(t)
	measure := func(r *read) (float64, string) {
		t.Helper()
		if strings.HasPrefix(r.name, "usage_") { // sums, no list
			return blocks(t, pool, tenant, r.name, queries.Get(r.name), r.args)
		}
		args := append(append([]any{}, r.args...), api.MaxListBytes)
		return blocks(t, pool, tenant, r.name, bounded(r.name, len(args)), args)
	}
	grow(2_000)
	first := make([]float64, len(reads))
	for i := range reads {
		first[i], _ = measure(&reads[i])
	}
	grow(18_000)
	for i := range reads {
		// An index may have become a level deeper, and the planner may join in another order: two blocks for each row of a page.
		if n, plan := measure(&reads[i]); n > 1.3*first[i]+2*26 || n > 300 {
			t.Errorf("%s: %v blocks with 2,000 rows, %v with 20,000:\n%s", reads[i].what, first[i], n, plan)
		} else {
			t.Logf("%s: %v and %v blocks", reads[i].what, first[i], n)
		}
	}
}
