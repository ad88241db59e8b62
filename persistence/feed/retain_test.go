package feed

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"agentsvc/persistence/pgtest"
	"agentsvc/schemas/id"
)

// owned are as package store has those of its tables.
var owned = []Retention{
	Aged("idempotency", "created_at", "", 24*time.Hour), Aged("sessions", "created_at", "", 8*24*time.Hour), Aged("login_links", "expires_at", "", time.Hour),
}

// passes calls one kind of retention from the oldest row on and goes on from its marks.
func (r *rows) passes(name string) func(limit int) int {
	pass, _ := r.marks(name)
	return pass
}

// marks are passes, and where the next one begins.
func (r *rows) marks(name string) (pass func(limit int) int, mark *Mark) {
	r.t.Helper()
	all := slices.Concat(owned, OldDeliveries)
	i := slices.IndexFunc(all, func(k Retention) bool { return k.Name == name })
	if i < 0 {
		r.t.Fatalf("there is no retention of %s", name)
	}
	mark = &Mark{}
	return func(limit int) int {
		r.t.Helper()
		n, next, err := NewSweep(r.pool).Retain(r.t.Context(), &all[i], *mark, limit)
		if err != nil {
			r.t.Fatal(err)
		}
		*mark = next
		return n
	}, mark
}

// aged writes n rows of a table whose age is by column, the oldest first, a minute apart
// and the last one as old as it is said.
func (r *rows) aged(table string, n int, age time.Duration) {
	r.t.Helper()
	at := "now() - $3::interval - ($2::int - n) * interval '1 minute'"
	switch table {
	case "idempotency":
		r.exec(`INSERT INTO idempotency (tenant_id, digest, fingerprint, status, response, created_at)
			SELECT $1, sha256(gen_random_uuid()::text::bytea), sha256('x'), 202, '', `+at+` FROM generate_series(1, $2::int) n`, r.tenant, n, age)
	case "webhook_deliveries":
		r.exec(`INSERT INTO webhook_deliveries (tenant_id, id, webhook_id, event_id, type, body, status, created_at)
			SELECT $1, new_id(now()), $4, $4, 'run.failed', '{}', 'succeeded', `+at+` FROM generate_series(1, $2::int) n`, r.tenant, n, age, r.webhook(1))
	case "sessions", "login_links":
		user := id.NewAnywhere()
		r.exec("INSERT INTO users (tenant_id, id, email, role) VALUES ($1, $2::uuid, $2::uuid::text, 'member')", r.tenant, user)
		column := "created_at"
		if table == "login_links" {
			column = "expires_at"
		}
		r.exec(`INSERT INTO `+table+` (tenant_id, id, user_id, secret_hash, `+column+`)
			SELECT $1, gen_random_uuid(), $4, sha256('x'), `+at+` FROM generate_series(1, $2::int) n`, r.tenant, n, age, user)
	case "listeners":
		r.exec(`INSERT INTO webhooks (tenant_id, id, url, events, secret, expires_at)
			SELECT $1, gen_random_uuid(), '', '{*}', '', `+at+` FROM generate_series(1, $2::int) n`, r.tenant, n, age)
	case "deliveries of disabled endpoints":
		r.exec(`WITH w AS (INSERT INTO webhooks (tenant_id, id, url, events, secret, enabled, updated_at)
				SELECT $1, gen_random_uuid(), 'https://example.org', '{*}', '', false, `+at+` FROM generate_series(1, $2::int) n RETURNING id)
			INSERT INTO webhook_deliveries (tenant_id, id, webhook_id, event_id, type, body, next_attempt_at, created_at)
			SELECT $1, new_id(now()), id, id, 'run.failed', '{}', now(), now() FROM w`, r.tenant, n, age)
	default:
		r.t.Fatalf("no rows of %s", table)
	}
}

// ages are how old rows may be.
var ages = map[string]time.Duration{
	"idempotency": 24 * time.Hour, "webhook_deliveries": 30 * 24 * time.Hour, "sessions": 8 * 24 * time.Hour, "login_links": time.Hour,
	"listeners": 0, "deliveries of disabled endpoints": 0,
}

// blocks runs a statement as a pass of retention does and returns the blocks that it
// touched, in tables, indexes and what they refer to, and what it answered.
func blocks(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) (n int, plan string) {
	t.Helper()
	var text []byte
	if err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), retainBoundsSQL); err != nil {
			return err
		}
		return tx.QueryRow(t.Context(), "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "+sql, args...).Scan(&text)
	}); err != nil {
		t.Fatal(err)
	}
	var top []struct {
		Plan map[string]any
	}
	if err := json.Unmarshal(text, &top); err != nil {
		t.Fatal(err)
	}
	return int(top[0].Plan["Shared Hit Blocks"].(float64) + top[0].Plan["Shared Read Blocks"].(float64)), string(text)
}

// A pass costs what it takes, also after everything in the table was replaced twice, while
// no vacuum runs, while a long transaction keeps deleted rows visible to it, and whatever
// the planner knows.
func TestRetentionCostsWhatItTakes(t *testing.T) {
	for _, c := range []struct {
		kind, sql string
		more      []any
		tables    string
	}{
		{"idempotency", agedSQL("idempotency", "created_at", "true"), []any{ages["idempotency"]}, "idempotency"},
		{"webhook_deliveries", agedSQL("webhook_deliveries", "created_at", "status <> 'pending'"), []any{ages["webhook_deliveries"]}, "webhook_deliveries"},
		{"sessions", agedSQL("sessions", "created_at", "true"), []any{ages["sessions"]}, "sessions"},
		{"login_links", agedSQL("login_links", "expires_at", "true"), []any{ages["login_links"]}, "login_links"},
		{"listeners", dropListenersSQL, nil, "webhooks"},
		{"deliveries of disabled endpoints", endDisabledSQL, []any{time.Duration(0)}, "webhook_deliveries, webhooks"},
	} {
		t.Run(c.kind, func(t *testing.T) {
			t.Parallel()
			const generation, batch = 4000, 100
			age := ages[c.kind]
			db := pgtest.New(t)
			r := setUp(t, db.System(t))
			admin := db.Admin(t)
			for table := range strings.SplitSeq(c.tables, ", ") {
				if _, err := admin.Exec(t.Context(), "ALTER TABLE "+table+" SET (autovacuum_enabled = false)"); err != nil {
					t.Fatal(err)
				}
			}
			long, err := admin.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = long.Rollback(context.Background()) }()
			if _, err := long.Exec(t.Context(), "SELECT FROM tenants"); err != nil {
				t.Fatal(err)
			}
			pass, mark := r.marks(c.kind)
			for turnover := range 2 {
				r.aged(c.kind, generation, age+time.Duration(2-turnover)*generation*time.Minute)
				for gone := 0; gone < generation; {
					n := pass(1000)
					if n == 0 {
						t.Fatalf("%d of %d went", gone, generation)
					}
					gone += n
				}
			}
			// The next generation, too young; in place of disabled endpoints such as are enabled.
			if c.kind == "deliveries of disabled endpoints" {
				r.webhook(1, slices.Repeat([]time.Duration{0}, 1000)...)
			} else {
				r.aged(c.kind, generation, age-generation*time.Minute-time.Hour)
			}
			for _, known := range []bool{false, true} {
				if known {
					if _, err := admin.Exec(t.Context(), "ANALYZE "+c.tables); err != nil {
						t.Fatal(err)
					}
				}
				if n, plan := blocks(t, r.pool, c.sql, append([]any{1000, mark.at}, c.more...)...); n > 20 {
					t.Errorf("statistics %v: a pass that finds nothing touches %d blocks:\n%s", known, n, plan)
				}
			}
			r.aged(c.kind, batch, age+time.Second)
			// Each row: its place in two or three indexes, the heap, and the checks of what refers to it.
			if n, plan := blocks(t, r.pool, c.sql, append([]any{1000, mark.at}, c.more...)...); n < batch || n > 25*batch {
				t.Errorf("a pass that takes %d rows touches %d blocks:\n%s", batch, n, plan)
			}
		})
	}
}

// What was passed over because it was locked, or because it ended later, goes with the
// next pass that begins with the oldest row.
func TestRetentionFindsWhatItPassedOver(t *testing.T) {
	r := setUp(t, pgtest.New(t).System(t))
	const day = 24 * time.Hour
	w := r.webhook(1)
	locked, pending := r.delivery(w, "succeeded", 0, 31*day), r.delivery(w, "pending", 0, 32*day)
	tx, err := r.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "SELECT FROM webhook_deliveries WHERE id = $1 FOR UPDATE", locked); err != nil {
		t.Fatal(err)
	}
	if n := r.passes("webhook_deliveries")(10); n != 0 {
		t.Errorf("%d went", n)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.exec("UPDATE webhook_deliveries SET status = 'failed', next_attempt_at = NULL WHERE id = $1", pending)
	if n := r.passes("webhook_deliveries")(10); n != 2 || r.left("webhook_deliveries") != 0 {
		t.Errorf("%d went", n)
	}
}

func TestOldRowsGoInBatches(t *testing.T) {
	for kind, age := range ages {
		if kind == "listeners" || kind == "deliveries of disabled endpoints" {
			continue
		}
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			r := setUp(t, pgtest.New(t).System(t))
			r.aged(kind, 5, age+time.Second)
			r.aged(kind, 3, age-3*time.Minute) // too young
			pass := r.passes(kind)
			for i, want := range []int{2, 2, 1, 0} {
				if n := pass(2); n != want {
					t.Errorf("batch %d: %d went, want %d", i, n, want)
				}
			}
			if n := r.left(kind); n != 3 {
				t.Errorf("%d are left", n)
			}
		})
	}
}

// A pending delivery stays, however old it is: somebody sends it.
func TestAPendingDeliveryIsKept(t *testing.T) {
	r := setUp(t, pgtest.New(t).System(t))
	const day = 24 * time.Hour
	w := r.webhook(1)
	r.delivery(w, "failed", 0, 32*day)
	pending := r.delivery(w, "pending", 0, 31*day)
	young := r.delivery(w, "succeeded", 0, 30*day-time.Minute)
	if n := r.passes("webhook_deliveries")(10); n != 1 {
		t.Errorf("%d went", n)
	}
	var left []id.DeliveryID
	rows, err := r.pool.Query(t.Context(), "SELECT id FROM webhook_deliveries ORDER BY status")
	if err == nil {
		left, err = pgx.CollectRows(rows, pgx.RowTo[id.DeliveryID])
	}
	if err != nil || !slices.Equal(left, []id.DeliveryID{pending, young}) {
		t.Errorf("left %v, %v", left, err)
	}
}

// However many deliveries an expired listener has, a batch takes no more of them than it
// may, and the listener when none is left.
func TestExpiredListenersGoBehindTheirDeliveries(t *testing.T) {
	r := setUp(t, pgtest.New(t).System(t))
	r.webhook(1, 0)
	big := r.listener(-time.Minute)
	for _, status := range []string{"pending", "succeeded", "failed", "pending", "pending"} {
		r.delivery(big, status, 0, 0)
	}
	r.listener(-time.Second)
	r.delivery(r.listener(-time.Second), "failed", 0, 0)
	r.delivery(r.listener(time.Hour), "pending", 0, 0)
	pass := r.passes("listeners")
	for i, want := range []struct{ n, webhooks, deliveries int }{
		{2, 5, 6}, {2, 5, 4}, // of the five
		{2, 5, 2}, // the last one, and another listener's
		{2, 3, 2}, {1, 2, 2}, {0, 2, 2},
	} {
		n := pass(2)
		if w, d := r.left("webhooks"), r.left("webhook_deliveries"); n != want.n || w != want.webhooks || d != want.deliveries {
			t.Errorf("batch %d: %d went, %d endpoints and %d deliveries are left; want %+v", i, n, w, d, want)
		}
	}
}

// The deliveries of one listener are not read again and again while they go.
func TestTheDeliveriesOfAListenerAreReadOnce(t *testing.T) {
	r := setUp(t, pgtest.New(t).System(t))
	w := r.listener(-time.Minute)
	r.exec(`INSERT INTO webhook_deliveries (tenant_id, id, webhook_id, event_id, type, body, status, created_at)
		SELECT $1, new_id(now()), $2, $2, 'run.failed', '{}', 'succeeded', now() FROM generate_series(1, 4100)`, r.tenant, w)
	long, err := r.pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = long.Rollback(context.Background()) }()
	if _, err := long.Exec(t.Context(), "SELECT FROM tenants"); err != nil {
		t.Fatal(err)
	}
	mark := Mark{}
	for range 40 {
		n, next, err := dropListeners(t.Context(), r.pool, mark, 100)
		if err != nil || n != 100 {
			t.Fatal(n, err)
		}
		mark = next
	}
	if n, plan := blocks(t, r.pool, dropUnheardSQL, 1000, mark.at, mark.within, mark.detail); n > 25*100 {
		t.Errorf("the last 100 of 4100 touch %d blocks:\n%s", n, plan)
	}
}

// A delivery that is pending although its endpoint is disabled is ended: nobody sends it.
func TestWhatIsPendingOfADisabledEndpointIsEnded(t *testing.T) {
	r := setUp(t, pgtest.New(t).System(t))
	disabled, enabled := r.webhook(1, -time.Hour, 0, time.Hour), r.webhook(1, 0)
	r.exec(`UPDATE webhooks SET enabled = false, updated_at = now() WHERE id = $1`, disabled)
	sent := r.delivery(disabled, "succeeded", 0, 0)
	pass := r.passes("deliveries of disabled endpoints")
	for _, want := range []int{2, 1, 0} {
		if n := pass(2); n != want {
			t.Errorf("%d were ended, want %d", n, want)
		}
	}
	r.delivery(disabled, "pending", 0, 0) // of a commit that was under way
	if n := pass(2); n != 1 {
		t.Errorf("%d were ended of a late commit", n)
	}
	if n := r.left("tallies WHERE what = 'undelivered' AND tenant_id = '" + r.tenant.String() + "'"); n != 4 {
		t.Errorf("%d were counted", n)
	}
	for what, want := range map[string]int{
		"status = 'failed' AND last_error = 'the endpoint was disabled' AND webhook_id = '" + disabled.String() + "'": 4,
		"status = 'pending' AND webhook_id = '" + enabled.String() + "'":                                              1,
		"status = 'succeeded' AND id = '" + sent.String() + "'":                                                       1,
	} {
		if n := r.left("webhook_deliveries WHERE " + what); n != want {
			t.Errorf("%s: %d, want %d", what, n, want)
		}
	}
}

// A lock on its table ends a pass soon, whatever its caller allows.
func TestAPassOfRetentionDoesNotWaitLong(t *testing.T) {
	db := pgtest.New(t)
	r := setUp(t, db.System(t))
	tx, err := db.Admin(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), "LOCK TABLE idempotency"); err != nil {
		t.Fatal(err)
	}
	_, _, err = owned[0].Pass(t.Context(), r.pool, Mark{}, 1)
	if err == nil || !strings.Contains(fmt.Sprint(err), "55P03") {
		t.Errorf("got %v", err)
	}
}
