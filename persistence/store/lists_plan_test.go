package store

import (
	"slices"
	"strings"
	"testing"
	"time"

	"agentsvc/persistence/pgtest"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
)

// Lists of knowledge bases, end users, skill runs, artifacts, the audit log and usage read the page that they return, whatever they are filtered by:
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
	// posts are what messages write: a row of the audit log and a model turn, each.
	posts := func(n int, age string, run *id.UUID, message *id.UUID) {
		t.Helper()
		exec(`INSERT INTO audit_log (tenant_id, id, at, actor, action, target_kind, target_id) SELECT $1, new_id(now() - $2::interval), now() - $2::interval, 'apikey:x', 'message.create', 'message',
			coalesce($4, new_id(now() - $2::interval)) FROM generate_series(1, $3::int)`, tenant, age, n, message)
		exec(`INSERT INTO usage_records (tenant_id, id, at, kind, run_id) SELECT $1, new_id(now() - $2::interval), now() - $2::interval, 'llm',
			coalesce($4, new_id(now() - $2::interval)) FROM generate_series(1, $3::int)`, tenant, age, n, run)
	}
	history := func(n int, age string) {
		t.Helper()
		exec(`INSERT INTO audit_log (tenant_id, id, at, actor, action, target_kind, target_id, ip) SELECT $1, new_id(now() - $2::interval), now() - $2::interval, 'x', $2, 'x', $1, '' FROM generate_series(1, $3::int)`, tenant, age, n)
		exec(`INSERT INTO usage_records (tenant_id, id, at, kind, model) SELECT $1, new_id(now() - $2::interval), now() - $2::interval, 'browser_skill_run', '' FROM generate_series(1, $3::int)`, tenant, age, n)
	}
	history(5, "5 days")
	history(5, "100 days")
	// What a person did, and what a run used, long before the rest.
	began, ended := time.Now().Add(-101*24*time.Hour), time.Now().Add(-99*24*time.Hour)
	post, past := id.At(time.Now().Add(-100*24*time.Hour)), id.At(began)
	posts(5, "100 days", &past, &post)
	exec(`INSERT INTO audit_log (tenant_id, id, at, actor, action, target_kind, target_id) SELECT $1, new_id(now() - interval '100 days'), now() - interval '100 days', 'user:few', 'api_key.revoke', 'agent', $2 FROM generate_series(1, 5)`, tenant, agent)
	exec(`INSERT INTO usage_records (tenant_id, id, at, kind, run_id) SELECT $1, new_id(now() - interval '5 days'), now() - interval '5 days', 'embedding', $2 FROM generate_series(1, 5)`, tenant, past)
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
		posts(n, "60 days", nil, nil)
		exec(`INSERT INTO audit_log (tenant_id, id, at, actor, action, target_kind, target_id) SELECT $1, new_id(now() - interval '60 days'), now() - interval '60 days', 'user:many', 'agent.update', 'agent', $2 FROM generate_series(1, $3::int)`,
			tenant, id.NewAnywhere(), n)
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
	long, longer := month.Add(-60*24*time.Hour), month.Add(-90*24*time.Hour)
	log := func(what string, f AuditFilter) { add(what)(f.args(tenant, id.AuditID{}, page)) }
	log("the audit log", AuditFilter{})
	log("the audit log of a month", AuditFilter{Actor: ptr("apikey:none"), Since: &month})
	log("the audit log of long ago", AuditFilter{Until: &long})
	log("the audit log of a target", AuditFilter{Target: &agent.UUID})
	log("the audit log of a target of a kind", AuditFilter{TargetKind: ptr("agent"), Target: &agent.UUID})
	log("the audit log of no target", AuditFilter{Target: ptr(id.NewAnywhere())})
	log("the audit log of a message", AuditFilter{Target: &post})
	log("the audit log of a rare action", AuditFilter{Action: ptr("api_key.revoke")})
	log("the audit log of no action", AuditFilter{Action: ptr("none")})
	log("the audit log of a person", AuditFilter{Actor: ptr("user:few")})
	log("the audit log of nobody", AuditFilter{Actor: ptr("user:none")})
	log("rare actions of a person", AuditFilter{Actor: ptr("user:few"), Action: ptr("api_key.revoke")})
	log("rare actions of a busy key", AuditFilter{Actor: ptr("apikey:x"), Action: ptr("api_key.revoke")})
	used := func(what string, f UsageFilter, between lasted) {
		add(what)(f.args(tenant, id.UsageID{}, page, between))
	}
	busy := &id.RunID{UUID: past}
	used("usage", UsageFilter{}, lasted{})
	used("usage of a run", UsageFilter{Run: busy}, lasted{CreatedAt: &began, FinishedAt: &ended})
	used("model turns of a run", UsageFilter{Run: busy, Kind: ptr(lifecycle.UsageLLM)}, lasted{CreatedAt: &began, FinishedAt: &ended})
	used("usage of a rare kind", UsageFilter{Kind: ptr(lifecycle.UsageEmbedding)}, lasted{})
	used("usage of a kind", UsageFilter{Kind: ptr(lifecycle.UsageBrowserSkillRun)}, lasted{})
	for _, name := range []string{"usage_by_day", "usage_by_agent", "usage_by_model", "usage_by_kind"} {
		add("usage of a month")(name, []any{tenant, month, time.Now(), since(&month), last})
		add("usage of long ago")(name, []any{tenant, longer, long, since(&longer), until(&long, last)})
	}
	pool := db.API(t)
	measure := func(r *read) (float64, string) {
		t.Helper()
		if strings.HasPrefix(r.name, "usage_by_") { // sums, no list
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

// Whatever index a filter of the audit log or of usage reads, the list has the rows that match.
func TestFiltersOfLogs(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	admin := db.Admin(t)
	tenant, other := pgtest.Tenant(t, admin), pgtest.Tenant(t, admin)
	agent := pgtest.Agent(t, admin, tenant)
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := admin.Exec(t.Context(), sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	day := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	thing, message := id.At(day.Add(-24*time.Hour)), id.At(day.Add(10*time.Minute))
	type row struct {
		at            time.Time
		actor, action string
		kind          string
		target        id.UUID
	}
	var rows []row
	for i, actor := range []string{"user:a", "user:b", "apikey:k", "system"} {
		for j, what := range []row{
			{action: "agent.update", kind: "agent", target: thing}, {action: "run.cancel", kind: "run", target: id.NewAnywhere()},
			{action: "message.create", kind: "message", target: message}, {action: "message.create", kind: "message", target: id.At(day)},
		} {
			what.at, what.actor = day.Add(time.Duration(4*i+j)*time.Minute), actor
			rows = append(rows, what)
			for _, t := range []id.TenantID{tenant, other} {
				exec(`INSERT INTO audit_log (tenant_id, id, at, actor, action, target_kind, target_id) VALUES ($1, $2, $3, $4, $5, $6, $7)`, t, id.At(what.at), what.at, what.actor, what.action, what.kind, what.target)
			}
		}
	}
	store := New(db.API(t), nil)
	view := store.View(tenant)
	none := (*string)(nil)
	from, to := day.Add(3*time.Minute), day.Add(9*time.Minute)
	for _, f := range []AuditFilter{{}, {Since: &from}, {Until: &to}, {Since: &from, Until: &to}} {
		for _, f.Actor = range []*string{none, ptr("user:a"), ptr("apikey:k"), ptr("user:"), ptr("no")} {
			for _, f.Action = range []*string{none, ptr("agent.update"), ptr("message.create"), ptr("no")} {
				for _, f.TargetKind = range []*string{none, ptr("agent"), ptr("message")} {
					for _, f.Target = range []*id.UUID{nil, &thing, &message, ptr(id.NewAnywhere())} {
						var want, got []time.Time
						for i := len(rows) - 1; i >= 0; i-- {
							r := rows[i]
							if (f.Actor == nil || *f.Actor == r.actor) && (f.Action == nil || *f.Action == r.action) && (f.TargetKind == nil || *f.TargetKind == r.kind) &&
								(f.Target == nil || *f.Target == r.target) && (f.Since == nil || !r.at.Before(*f.Since)) && (f.Until == nil || r.at.Before(*f.Until)) {
								want = append(want, r.at)
							}
						}
						at := id.AuditID{}
						for range rows {
							page, err := view.AuditLog(t.Context(), f, at, 2)
							if err != nil {
								t.Fatal(err)
							}
							for _, e := range page[:min(len(page), 2)] {
								at, got = e.ID, append(got, e.At.UTC())
							}
							if len(page) <= 2 {
								break
							}
						}
						if !slices.Equal(got, want) {
							name, _ := f.args(tenant, at, 2)
							t.Errorf("%s: %v, want %v", name, got, want)
						}
					}
				}
			}
		}
	}

	// A run has its model turns within its times, and others later. One that is erased has all.
	open, ended, erased := id.RunID{UUID: id.At(day)}, id.RunID{UUID: id.At(day.Add(time.Millisecond))}, id.RunID{UUID: id.At(day.Add(2 * time.Millisecond))}
	exec(`INSERT INTO runs (tenant_id, id, status, agent_id, agent_version, origin_kind, origin_id, created_at) VALUES ($1, $2, 'running', $3, 1, 'user', $1, $4)`, tenant, open, agent, day)
	exec(`INSERT INTO runs (tenant_id, id, status, agent_id, agent_version, origin_kind, origin_id, created_at, finished_at) VALUES ($1, $2, 'succeeded', $3, 1, 'user', $1, $4, $5)`, tenant, ended, agent, day, day.Add(time.Hour))
	for _, at := range []time.Time{day, day.Add(time.Hour), day.Add(90 * 24 * time.Hour)} {
		for i, run := range []id.RunID{open, ended, erased, {UUID: id.NewAnywhere()}} {
			for j, kind := range lifecycle.UsageKinds {
				if at := at.Add(time.Duration(4*i+j) * time.Second); run != ended || kind != lifecycle.UsageLLM || at.Before(day.Add(2*time.Hour)) {
					exec(`INSERT INTO usage_records (tenant_id, id, at, kind, run_id) VALUES ($1, $2, $3, $4, $5)`, tenant, id.At(at), at, kind, run)
				}
			}
		}
	}
	for _, run := range []*id.RunID{nil, &open, &ended, &erased, {UUID: id.NewAnywhere()}} {
		for _, kind := range append([]*lifecycle.UsageKind{nil}, ptr(lifecycle.UsageLLM), ptr(lifecycle.UsageEmbedding)) {
			var want int
			if err := admin.QueryRow(t.Context(), `SELECT count(*) FROM usage_records WHERE tenant_id = $1 AND ($2::uuid IS NULL OR run_id = $2) AND ($3::text IS NULL OR kind = $3)`, tenant, run, (*string)(kind)).Scan(&want); err != nil {
				t.Fatal(err)
			}
			got := 0
			at := id.UsageID{}
			for range 99 {
				page, err := view.UsageRecords(t.Context(), UsageFilter{Run: run, Kind: kind}, at, 2)
				if err != nil {
					t.Fatal(err)
				}
				for _, r := range page[:min(len(page), 2)] {
					if got++; kind != nil && r.Kind != *kind || run != nil && *r.RunID != *run {
						t.Errorf("%v %v: %+v", run, kind, r)
					}
					at = r.ID
				}
				if len(page) <= 2 {
					break
				}
			}
			if got != want {
				t.Errorf("usage of run %v of kind %v: %d, want %d", run, kind, got, want)
			}
		}
	}
}
