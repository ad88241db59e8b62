package feed

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"agentsvc/persistence/pgtest"
	"agentsvc/schemas/id"
)

// webhook is an enabled endpoint in a shard, with deliveries due after a while from
// now.
func (r *rows) webhook(shard id.Shard, after ...time.Duration) id.WebhookID {
	w := id.WebhookID{UUID: id.New(shard)}
	r.webhookOf(w, after...)
	return w
}

func (r *rows) webhookOf(w id.WebhookID, after ...time.Duration) {
	r.t.Helper()
	r.exec(`INSERT INTO webhooks (tenant_id, id, url, events, secret) VALUES ($1, $2, 'https://example.org', '{*}', '\x00')`, r.tenant, w)
	for _, d := range after {
		r.delivery(w, "pending", d, 0)
	}
}

// delivery is one that is due after a while, if it is pending, and that was created
// some time ago.
func (r *rows) delivery(w id.WebhookID, status string, after, age time.Duration) id.DeliveryID {
	r.t.Helper()
	d := id.DeliveryID{UUID: id.NewAnywhere()}
	r.exec(`INSERT INTO webhook_deliveries (tenant_id, id, webhook_id, event_id, type, body, status, next_attempt_at, created_at)
		VALUES ($1, $2, $3, $2, 'run.failed', '{}', $4::text, CASE WHEN $4::text = 'pending' THEN now() + $5::interval END, now() - $6::interval)`, r.tenant, d, w, status, after, age)
	return d
}

func (r *rows) listener(after time.Duration) id.WebhookID {
	r.t.Helper()
	w := id.WebhookID{UUID: id.NewAnywhere()}
	r.exec(`INSERT INTO webhooks (tenant_id, id, url, events, secret, expires_at) VALUES ($1, $2, '', '{*}', '\x00', now() + $3::interval)`, r.tenant, w, after)
	return w
}

func (r *rows) left(table string) int {
	r.t.Helper()
	var n int
	if err := r.pool.QueryRow(r.t.Context(), "SELECT count(*) FROM "+table).Scan(&n); err != nil {
		r.t.Fatal(err)
	}
	return n
}

// duePass reads the due endpoints of shards in pages.
func (r *rows) duePass(shards []id.Shard, page int) (due []Found, pages int) {
	r.t.Helper()
	s := NewSweep(r.pool)
	for at := (id.UUID{}); ; pages++ {
		if pages > 1000 {
			r.t.Fatal("the pass has no end")
		}
		p, err := s.Find(r.t.Context(), &Work{Find: DueEndpoints}, shards, at, page)
		if err != nil {
			r.t.Fatal(err)
		}
		due = append(due, p.Found...)
		if !p.More {
			return due, pages + 1
		}
		at = p.Next
	}
}

func TestDueEndpoints(t *testing.T) {
	db := pgtest.New(t)
	r := setUp(t, db.System(t))
	const soon = time.Hour
	late := r.webhook(3, -time.Minute, soon)
	many := r.webhook(4, -time.Second, -2*time.Second, -3*time.Second)
	tries := r.webhook(5, -time.Second)
	r.exec(`UPDATE webhook_deliveries SET attempts = 2, begun_at = now() WHERE webhook_id = $1`, tries)
	strange := id.WebhookID{UUID: foreign()}
	for strange.Shard() <= 10 { // those of the others
		strange.UUID = foreign()
	}
	r.webhookOf(strange, -time.Second)
	want := []id.WebhookID{late, many, tries, strange}

	r.webhook(6)       // nothing
	r.webhook(7, soon) // nothing now
	disabled := r.webhook(8, -time.Second)
	r.exec(`UPDATE webhooks SET enabled = false WHERE id = $1`, disabled)
	r.delivery(r.listener(time.Minute), "pending", -time.Second, 0)
	r.delivery(r.webhook(9), "succeeded", 0, 0)
	r.delivery(r.webhook(10), "failed", 0, 0)
	other := setUp(t, r.pool)
	theirs := other.webhook(3, -time.Second)
	want = append(want, theirs)
	slices.SortFunc(want, func(a, b id.WebhookID) int { return slices.Compare(a.UUID[:], b.UUID[:]) })

	// Eight have something pending.
	for page, pages := range map[int]int{1: 9, 3: 3, 8: 2, 9: 1, 1000: 1} {
		due, n := r.duePass(everywhere, page)
		if n != pages {
			t.Errorf("pages of %d: %d of them, want %d", page, n, pages)
		}
		var got []id.WebhookID
		for _, e := range due {
			w := id.WebhookID{UUID: e.ID}
			got = append(got, w)
			if (e.Tenant == other.tenant) != (w == theirs) {
				t.Errorf("%+v has another's tenant", e)
			}
			if overdue := e.Overdue.Round(time.Second); w == late && (overdue < time.Minute || overdue > 2*time.Minute) || w == many && e.Overdue < 3*time.Second {
				t.Errorf("%+v", e)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("pages of %d: %v, want %v", page, got, want)
		}
	}
	for name, c := range map[string]struct {
		shards []id.Shard
		want   int
	}{
		"of no shard": {nil, 0}, "of one": {[]id.Shard{4}, 1}, "of one that two tenants have": {[]id.Shard{3}, 2},
		"of others": {[]id.Shard{0, 1, 2, 6, 7, 8, 9, 10}, 0}, "of a foreign id": {[]id.Shard{strange.Shard()}, 1},
	} {
		if due, _ := r.duePass(c.shards, 2); len(due) != c.want {
			t.Errorf("%s: %v", name, due)
		}
	}
}

// Whatever the planner knows of the table, and however much is pending: a page goes
// from one endpoint to the next.
func TestAPageOfEndpointsDoesNotReadTheBacklog(t *testing.T) {
	db := pgtest.New(t)
	r := setUp(t, db.System(t))
	conn, err := r.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Rollback(context.Background()) }()
	for _, sql := range []string{inOrderSQL, byIndexSQL, "SET LOCAL plan_cache_mode = force_generic_plan"} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	look := func(when string) {
		explain := func(how string) []string {
			rows, err := conn.Query(t.Context(), "EXPLAIN ("+how+") "+dueEndpointsSQL, lines(everywhere), id.WebhookID{}, 1000)
			if err != nil {
				t.Fatal(err)
			}
			plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if err != nil {
				t.Fatal(err)
			}
			return plan
		}
		if plan := explain("ANALYZE"); slices.Contains(plan, "JIT:") {
			t.Errorf("%s it is compiled:\n%s", when, strings.Join(plan, "\n"))
		}
		plan := explain("ANALYZE, COSTS OFF, TIMING OFF")
		text := strings.Join(plan, "\n")
		page, _, _ := strings.Cut(text, "InitPlan")
		if strings.Count(page, "using webhook_deliveries_due") != 2 || strings.Contains(text, "Seq Scan") || strings.Contains(page, "Rows Removed by Filter") {
			t.Errorf("%s the page is read by\n%s", when, text)
		}
		for _, l := range plan {
			if strings.Contains(l, "using webhook_deliveries_due") && !strings.Contains(l, "rows=1 ") && !strings.Contains(l, "rows=0 ") && !strings.Contains(l, "never executed") {
				t.Errorf("%s it reads more than the first of each: %s", when, l)
			}
		}
	}
	look("of an empty table")
	for range 20 {
		w := r.webhook(1)
		r.exec(`INSERT INTO webhook_deliveries (tenant_id, id, webhook_id, event_id, type, body, next_attempt_at, created_at)
			SELECT $1, new_id(now()), $2, $2, 'run.failed', '{}', now(), now() FROM generate_series(1, 1000)`, r.tenant, w)
	}
	look("of a full table without statistics")
	if _, err := db.Admin(t).Exec(t.Context(), "ANALYZE webhook_deliveries, webhooks"); err != nil {
		t.Fatal(err)
	}
	look("of a full table")
}
