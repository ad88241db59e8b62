package store

import (
	"testing"
	"time"

	"agentsvc/persistence/pgtest"
	"agentsvc/persistence/rollup"
	"agentsvc/persistence/vault"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
)

// BenchmarkFigures reads the figures of a tenant with 100 agents and 400 days of hours: about a
// million rows of sums, which stand for ten million runs, beside 100,000 ended runs, 10,000 open ones
// and 2,500 tallies that no fold has added yet.
func BenchmarkFigures(b *testing.B) {
	db := pgtest.New(b)
	admin := db.Admin(b)
	tenant := pgtest.Tenant(b, admin)
	agent := pgtest.Agent(b, admin, tenant)
	h := rollup.Histogram{}
	for ms := int64(200); ms < 5000; ms += 97 {
		h.Add(ms)
	}
	now := time.Now().UTC().Truncate(time.Hour)
	exec := func(sql string, args ...any) {
		b.Helper()
		if _, err := admin.Exec(b.Context(), sql, args...); err != nil {
			b.Fatal(err)
		}
	}
	sums := `INSERT INTO stats (tenant_id, agent_id, minutes, at, succeeded, failed, cancelled, requested, decided, expired, delivered, undelivered, tokens_in, tokens_out, cost_usd, duration, first_token, decision)
		SELECT $1, CASE WHEN a = 0 THEN '00000000-0000-0000-0000-000000000000' WHEN a = 1 THEN $2 ELSE gen_random_uuid() END, $3, t, 10, 1, 0, 1, 1, 0, 10, 0, 1000, 100, 0.5, $4, $4, $4
		FROM generate_series(0, $5) a, generate_series($6::timestamptz, $7::timestamptz, make_interval(mins => $3)) t`
	exec(sums, tenant, agent, 60, h.Encode(), 100, now.AddDate(0, 0, -400), now)
	exec(sums, tenant, agent, 15, h.Encode(), 1, now.AddDate(0, 0, -400), now)
	exec(sums, tenant, agent, 1, h.Encode(), 1, now.AddDate(0, 0, -7), now)
	exec(`INSERT INTO runs (tenant_id, id, status, error_code, agent_id, agent_version, input, origin_kind, origin_id, created_at, started_at, finished_at)
		SELECT $1, new_id(now() - make_interval(secs => n)), CASE WHEN n % 10 = 0 THEN 'failed' WHEN n <= 10000 THEN 'waiting_approval' ELSE 'succeeded' END,
		CASE WHEN n % 10 = 0 THEN 'INTERNAL' END, $2, 1, '"x"', 'api_key', $2, now(), now(), CASE WHEN n % 10 = 0 OR n > 10000 THEN now() END FROM generate_series(1, 100000) n`, tenant, agent)
	exec(`INSERT INTO tallies (tenant_id, what, at, agent_id, ms, first_ms, tokens_in) SELECT $1, 'succeeded', now(), $2, n, n, 1 FROM generate_series(1, 2500) n`, tenant, agent)
	exec("ANALYZE")
	v := New(db.API(b), vault.New(vault.NewSecret32([32]byte{1}))).View(tenant)
	stats := func(name string, step rollup.Step, from time.Time, zone string, of *id.AgentID) {
		b.Run(name, func(b *testing.B) {
			loc, err := time.LoadLocation(zone)
			if err != nil {
				b.Fatal(err)
			}
			bounds, ok := rollup.Periods(step, from, now.Add(time.Minute), loc, 401)
			if !ok {
				b.Fatal("too many")
			}
			for b.Loop() {
				if _, err := v.Stats(b.Context(), bounds, of); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	stats("400days", rollup.Day, now.AddDate(0, 0, -398), "UTC", nil)
	stats("400days/Kolkata", rollup.Day, now.AddDate(0, 0, -398), "Asia/Kolkata", nil)
	stats("400days/agent", rollup.Day, now.AddDate(0, 0, -398), "Europe/Berlin", &agent)
	stats("30days", rollup.Day, now.AddDate(0, 0, -30), "Europe/Berlin", nil)
	stats("24hours", rollup.Hour, now.Add(-24*time.Hour), "UTC", nil)
	stats("400minutes", rollup.Minute, now.Add(-399*time.Minute), "UTC", nil)
	b.Run("overview", func(b *testing.B) {
		for b.Loop() {
			if _, err := v.Overview(b.Context(), Viewer{Approver: Approver{Role: lifecycle.RoleAdmin}, Voter: "apikey", Admin: true}, now); err != nil {
				b.Fatal(err)
			}
		}
	})
}
