package store

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"agentsvc/persistence/pgtest"
	"agentsvc/persistence/rollup"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
)

// What GET /v1/overview, /v1/stats and /v1/search read does not grow with the number of ended
// runs, threads and end users: ten times as many touch as many blocks.
func TestFiguresAndSearchesDoNotReadAllRuns(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	admin := db.Admin(t)
	tenant := pgtest.Tenant(t, admin)
	agent := pgtest.Agent(t, admin, tenant)
	runs := func(n int) {
		t.Helper()
		for _, sql := range []string{
			`INSERT INTO runs (tenant_id, id, status, error_code, agent_id, agent_version, input, origin_kind, origin_id, created_at, started_at, finished_at)
			SELECT $1, new_id(now() - make_interval(secs => n)), CASE WHEN n % 2 = 0 THEN 'failed' ELSE 'succeeded' END, CASE WHEN n % 2 = 0 THEN 'INTERNAL' END, $2, 1, '"x"', 'trigger', $2, now(), now(), now() FROM generate_series(1, $3::int) n`,
			`INSERT INTO threads (tenant_id, id, agent_id, title, created_by) SELECT $1, new_id(now()), $2, 'Thread ' || n, 'user:x' FROM generate_series(1, $3::int) n`,
			`INSERT INTO end_users (tenant_id, id, external_id, name, email) SELECT $1, new_id(now()), gen_random_uuid()::text || left($2::uuid::text, 0), 'Person ' || n, n || '@example.com' FROM generate_series(1, $3::int) n`,
			`INSERT INTO runs (tenant_id, id, status, agent_id, agent_version, input, origin_kind, origin_id, created_at) SELECT $1, new_id(now()), 'queued', $2, 1, '"x"', 'api_key', $2, now() FROM generate_series(1, $3::int - $3::int + 20)`,
		} {
			if _, err := admin.Exec(t.Context(), sql, tenant, agent, n); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := admin.Exec(t.Context(), "ANALYZE runs, threads, end_users"); err != nil {
			t.Fatal(err)
		}
	}
	now := time.Now()
	bounds := oneDay(now)
	minutes, since, until := spread(rollup.Ranges(bounds))
	from := id.At(bounds[0])
	found := id.NewAnywhere()
	nodes := []id.NodeID{}
	reads := []struct {
		name string
		args []any
	}{
		{"stats_sums", []any{tenant, id.AgentID{}, minutes, since, until}},
		{"stats_rest", []any{tenant, bounds[0], bounds[1], nil}},
		{"stats_of_agents", []any{tenant, bounds[0].Truncate(time.Hour), minutes, since, until}},
		{"overview_open", []any{tenant}},
		{"overview_approvals", []any{tenant, []string{"member", "admin"}, nodes, "apikey"}},
		{"overview_deliveries", []any{tenant}},
		{"attention_endpoints", []any{tenant, from}},
		{"attention_triggers", []any{tenant, from}},
		{"search_runs", []any{tenant, api.MaxFound, &found, nil}},
		{"search_runs", []any{tenant, api.MaxFound, nil, found[12:]}},
		{"search_approvals", []any{tenant, api.MaxFound, nil, found[12:], []string{"member", "admin"}, nodes}},
		{"search_threads", []any{tenant, api.MaxFound, nil, found[12:]}},
		{"search_end_users", []any{tenant, api.MaxFound, nil, found[12:], true}},
		{"search_titles", []any{tenant, api.MaxFound, tenant.String() + "order", tenant.String() + "order" + lastText}},
		{"search_people", []any{tenant, api.MaxFound, tenant.String() + "order", tenant.String() + "order" + lastText, true}},
	}
	pool := db.API(t)
	runs(3_000)
	before := make([]float64, len(reads))
	for i, r := range reads {
		before[i], _ = blocks(t, pool, tenant, r.name, queries.Get(r.name), r.args)
	}
	runs(27_000)
	for i, r := range reads {
		most := 1.5*before[i] + 60
		if r.name == "attention_triggers" {
			most = 1100 // the newest 1,000 runs that ended badly
		}
		if n, plan := blocks(t, pool, tenant, r.name, queries.Get(r.name), r.args); n > most {
			t.Errorf("%s read %v blocks with 3,000 runs, %v with 30,000:\n%s", r.name, before[i], n, plan)
		} else {
			t.Logf("%s: %v and %v blocks", r.name, before[i], n)
		}
	}
}

// blocks returns how many blocks a query reads, and its plan. It is carried out as the service does, under row-level
// security and planned with its arguments.
func blocks(t *testing.T, pool *pgxpool.Pool, tenant id.TenantID, name, sql string, args []any) (n float64, plan string) {
	t.Helper()
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), setTenant, tenant.String()); err != nil {
			return err
		}
		if _, err := tx.Exec(t.Context(), setPlanned); err != nil {
			return err
		}
		if strings.HasPrefix(name, "search_") {
			if _, err := tx.Exec(t.Context(), withIndexes); err != nil {
				return err
			}
		}
		return tx.QueryRow(t.Context(), "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "+sql, args...).Scan(&plan)
	})
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	var top []struct{ Plan map[string]any }
	if err := json.Unmarshal([]byte(plan), &top); err != nil {
		t.Fatal(err)
	}
	return top[0].Plan["Shared Hit Blocks"].(float64) + top[0].Plan["Shared Read Blocks"].(float64), plan
}
