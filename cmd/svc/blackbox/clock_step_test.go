package blackbox

import (
	"testing"
	"time"

	"agentsvc/persistence/pgtest"
)

// A bucket works as before when the clock of Postgres steps, back or forward.
func TestABucketWhenTheDatabasesClockSteps(t *testing.T) {
	t.Parallel()
	ctx := within(t, 2*time.Minute)
	db := pgtest.New(t)
	admin := db.Admin(t)
	// Nodes on this database read a clock that the test sets.
	for _, q := range []string{
		`CREATE SCHEMA stepped`,
		`CREATE TABLE stepped.step (by interval NOT NULL)`,
		`INSERT INTO stepped.step VALUES ('0')`,
		`CREATE FUNCTION stepped.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT pg_catalog.clock_timestamp() + by FROM stepped.step'`,
		`GRANT USAGE ON SCHEMA stepped TO PUBLIC`,
		`GRANT SELECT ON stepped.step TO PUBLIC`,
		`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = stepped, pg_catalog, public', current_database()); END $$`,
	} {
		if _, err := admin.Exec(ctx, q); err != nil {
			t.Fatalf("%s: %v", q, err)
		}
	}
	const capacity, every = 20, 2 * time.Second
	n := newNode(t, brief, "SVC_DATABASE_URL="+db.URL, "SVC_RATE_CAPACITY=20", "SVC_RATE_REFILL=0.5")
	n.start()
	c, probe := n.tenant("drained"), n.tenant("probe")
	agent := probe.publish(t, "Helper", simulatedModel)
	// step moves the clock, and waits until the node uses it.
	step := func(by string, ahead func(time.Duration) bool) {
		t.Helper()
		if _, err := admin.Exec(ctx, `UPDATE stepped.step SET by = $1::text::interval`, by); err != nil {
			t.Fatal(err)
		}
		at := time.Now()
		eventually(t, ctx, "the node has the new clock", func() bool {
			if time.Since(at) < time.Second { // the probe's bucket is small
				return false
			}
			at = time.Now()
			run := probe.runOnce(t, ctx, agent, "/say ok")
			var began *time.Time
			eventually(t, ctx, "the run has begun", func() bool {
				return admin.QueryRow(ctx, `SELECT started_at FROM runs WHERE id = $1`, run).Scan(&began) == nil && began != nil
			})
			return ahead(time.Until(*began))
		})
	}
	// drain takes tokens until none is left, and returns their number.
	drain := func() (n int) {
		t.Helper()
		for {
			a, err := c.do(ctx, "GET", "/v1/agents", nil)
			switch {
			case err != nil || a.status != 200 && a.status != 429:
				t.Fatalf("%v %s", err, a.whole())
			case a.status == 429:
				return n
			}
			n++
		}
	}
	drain()
	empty := time.Now()
	step("-60 seconds", func(ahead time.Duration) bool { return ahead < -30*time.Second })
	eventually(t, ctx, "a call passes after a step back", func() bool {
		a, err := c.do(ctx, "GET", "/v1/agents", nil)
		return err == nil && a.status == 200
	})
	if took := time.Since(empty); took > 15*every {
		t.Errorf("after a step back every call was refused for %s", took)
	}
	drain()
	empty = time.Now()
	step("1 hour", func(ahead time.Duration) bool { return ahead > 30*time.Minute })
	got := drain()
	if most := min(int(time.Since(empty)/every)+1, capacity); got > most {
		t.Errorf("after a step forward %d pass in %s, want at most %d", got, time.Since(empty), most)
	}
}
