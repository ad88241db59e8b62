package consolecheck

import (
	"flag"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// database connects to the service's private Postgres as its superuser, to seed in bulk.
func (s *service) database(t *testing.T) *pgx.Conn {
	t.Helper()
	home := filepath.Join(s.dir, "data", "postgres")
	if moved, err := os.ReadFile(filepath.Join(s.dir, "data", "postgres.location")); err == nil {
		home = strings.TrimSpace(string(moved))
	}
	password, err := os.ReadFile(filepath.Join(home, "password"))
	must(t, err)
	dsn := url.URL{Scheme: "postgres", User: url.UserPassword("postgres", string(password)), Path: "/svc", RawQuery: url.Values{"host": {filepath.Join(home, "run")}}.Encode()}
	c, err := pgx.Connect(t.Context(), dsn.String())
	must(t, err)
	t.Cleanup(func() { _ = c.Close(t.Context()) })
	return c
}

func sql(t *testing.T, c *pgx.Conn, text string, args ...any) {
	t.Helper()
	if _, err := c.Exec(t.Context(), text, args...); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
}

// copyRows copies the rows of a table, o, once for each row of the table clone that on joins,
// with some columns replaced by expressions over both.
func copyRows(t *testing.T, c *pgx.Conn, table, on string, replace ...string) {
	t.Helper()
	rows, err := c.Query(t.Context(), "SELECT attname FROM pg_attribute WHERE attrelid = $1::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = '' ORDER BY attnum", table)
	must(t, err)
	columns, err := pgx.CollectRows(rows, pgx.RowTo[string])
	must(t, err)
	values := make([]string, len(columns))
	for i, column := range columns {
		values[i] = "o." + column
		for j := 0; j < len(replace); j += 2 {
			if replace[j] == column {
				values[i] = replace[j+1]
			}
		}
	}
	sql(t, c, fmt.Sprintf("INSERT INTO %s (%s) SELECT %s FROM clone JOIN %s o ON %s", table, strings.Join(columns, ", "), strings.Join(values, ", "), table, on))
}

// crowd is a tenant with 100,000 runs, of which 10,000 wait for an approval each, and a run of
// 2,000 steps.
type crowd struct {
	*service
	db    *pgx.Conn
	agent string // of the ended runs
	long  string // the run of 2,000 steps
}

var crowdRuns = flag.Int("crowd", 100_000, "runs of TestLoads, a tenth of which wait for an approval; fewer to try the test out")

const crowdSteps = 2_000

// seeded copies real runs until there are so many. Ids carry their time, so the copies lie in the
// past, ten seconds apart.
func seeded(t *testing.T, s *service) *crowd {
	t.Helper()
	c := &crowd{service: s, db: s.database(t)}
	c.agent, _ = s.policed(t)
	input := `/call demo.orders.get {"order_id":"1001"}` + "\n/say Your order is on its way."
	good, bad := s.run(t, c.agent, input), s.run(t, c.agent, `/call demo.orders.get {"order_id":"1001"}`+"\n/fail The provider is overloaded.")
	s.reaches(t, good, "succeeded")
	s.reaches(t, bad, "failed")
	var waiting []string
	for _, risk := range []string{"low", "medium", "high", "critical"} {
		agent, _ := s.policed(t, policy(risk))
		waiting = append(waiting, s.refund(t, agent, 12.5, "arrived broken").RunID)
	}
	sql(t, c.db, "SET session_replication_role = replica") // the copies are right by construction: foreign keys are not checked
	sql(t, c.db, "SET client_min_messages = warning")
	clones := func(text string, args ...any) {
		t.Helper()
		sql(t, c.db, "DROP TABLE IF EXISTS clone")
		sql(t, c.db, "CREATE TEMP TABLE clone AS "+text, args...)
		sql(t, c.db, "ANALYZE clone")
	}
	past := func(column string) string { return fmt.Sprintf("o.%s - clone.ago", column) }

	// Nine of ten ended well.
	clones(`SELECT new_id(now() - make_interval(secs => n * 10)) AS run, CASE WHEN n % 10 = 0 THEN $2::uuid ELSE $1::uuid END AS model, make_interval(secs => n * 10) AS ago FROM generate_series(1, $3::int) n`,
		good, bad, *crowdRuns-*crowdRuns/10)
	copyRows(t, c.db, "runs", "o.id = clone.model", "id", "clone.run", "created_at", past("created_at"), "started_at", past("started_at"), "finished_at", past("finished_at"))
	copyRows(t, c.db, "run_steps", "o.run_id = clone.model", "run_id", "clone.run", "started_at", past("started_at"), "finished_at", past("finished_at"))
	sql(t, c.db, `INSERT INTO tallies (tenant_id, what, at, agent_id, ms, first_ms, tokens_in, tokens_out, cost_usd)
		SELECT tenant_id, status, finished_at, agent_id, 800, 100, tokens_in, tokens_out, cost_usd FROM runs WHERE tenant_id = $1 AND finished_at > now() - interval '20 hours'`, s.tenant)

	// The rest waits, of all risks, and for up to a week.
	clones(`SELECT new_id(now() - make_interval(secs => n * 10)) AS run, new_id(now() - make_interval(secs => n * 10)) AS approval, ($1::uuid[])[1 + n % 4] AS model,
		make_interval(secs => n * 10) AS ago, make_interval(secs => n * 60) AS left FROM generate_series(1, $2::int) n`, waiting, *crowdRuns/10)
	copyRows(t, c.db, "runs", "o.id = clone.model", "id", "clone.run", "created_at", past("created_at"), "started_at", past("started_at"))
	copyRows(t, c.db, "run_steps", "o.run_id = clone.model", "run_id", "clone.run", "started_at", past("started_at"))
	copyRows(t, c.db, "timers", "o.kind = 'approval' AND o.entity_id = (SELECT id FROM approvals WHERE run_id = clone.model AND tenant_id = o.tenant_id LIMIT 1)", "entity_id", "clone.approval", "due_at", "o.due_at + clone.left")
	copyRows(t, c.db, "approvals", "o.run_id = clone.model", "id", "clone.approval", "run_id", "clone.run", "created_at", past("created_at"), "updated_at", past("updated_at"), "expires_at", "o.expires_at + clone.left")

	// One failed at the end of 2,000 steps, half of which are calls of tools.
	must(t, c.db.QueryRow(t.Context(), "SELECT new_id(now())::text").Scan(&c.long))
	clones(`SELECT $1::uuid AS run, $2::uuid AS model, n AS idx FROM generate_series(0, $3::int - 1) n`, c.long, bad, crowdSteps)
	copyRows(t, c.db, "runs", "o.id = clone.model AND clone.idx = 0", "id", "clone.run", "steps", fmt.Sprint(crowdSteps), "started_at", fmt.Sprintf("o.started_at - make_interval(secs => %d)", crowdSteps), "created_at", fmt.Sprintf("o.created_at - make_interval(secs => %d)", crowdSteps))
	copyRows(t, c.db, "run_steps", fmt.Sprintf("o.run_id = clone.model AND o.idx = CASE WHEN clone.idx = %d THEN 2 ELSE clone.idx %% 2 END", crowdSteps-1), "run_id", "clone.run", "idx", "clone.idx",
		"began_seq", "clone.idx * 2", "ended_seq", "clone.idx * 2 + 1",
		"started_at", fmt.Sprintf("o.started_at - make_interval(secs => %d - clone.idx)", crowdSteps), "finished_at", fmt.Sprintf("o.finished_at - make_interval(secs => %d - clone.idx)", crowdSteps))
	sql(t, c.db, "VACUUM ANALYZE runs, run_steps, approvals, timers, tallies")
	until(t, "the figures are folded", func() bool {
		var left int
		must(t, c.db.QueryRow(t.Context(), "SELECT count(*) FROM tallies").Scan(&left))
		return left == 0
	})
	return c
}
