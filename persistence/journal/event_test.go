package journal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"agentsvc/persistence/pgtest"
	"agentsvc/schemas/id"
	"agentsvc/schemas/testkit"
	"agentsvc/schemas/webhook"
)

// endpoint is an enabled webhook endpoint that hears of types.
func (x *world) endpoint(tenant id.TenantID, types ...webhook.Type) id.WebhookID {
	x.t.Helper()
	w := id.WebhookID{UUID: id.NewAnywhere()}
	x.exec(`INSERT INTO webhooks (tenant_id, id, url, events, secret) VALUES ($1, $2, 'https://example.org', $3, '\x00')`, tenant, w, types)
	return w
}

// listener expires after a while from noon.
func (x *world) listener(after time.Duration) id.WebhookID {
	x.t.Helper()
	w := id.WebhookID{UUID: id.NewAnywhere()}
	x.exec(`INSERT INTO webhooks (tenant_id, id, url, events, secret, expires_at) VALUES ($1, $2, '', '{*}', '\x00', $3)`, x.tenant, w, noon.Add(after))
	return w
}

// event is one of a type, with a body that JSON in the database would change.
func event(t webhook.Type) Event {
	e := id.EventID{UUID: id.NewAnywhere()}
	return Event{ID: e, Type: t, Body: fmt.Appendf(nil, `{"type": %q,"b":1,"a":"\u0000 é","id":"%s"}`, t, e), At: noon}
}

// reporting is a commit that reports events beside its audit row.
func (x *world) reporting(shard id.Shard, events ...Event) *draft {
	c := x.auditOnly(shard)
	c.Events = events
	return c
}

// delivery is what a commit leaves in the outbox.
type delivery struct {
	Webhook   id.WebhookID
	Event     id.EventID
	Type      webhook.Type
	Body      []byte
	Status    string
	Attempts  int
	BegunAt   *time.Time
	Next      time.Time
	Log       string
	CreatedAt time.Time
	ID        id.DeliveryID
	Tenant    id.TenantID
}

func (x *world) deliveries(e Event) []delivery {
	x.t.Helper()
	rows, err := x.pool.Query(context.Background(), `SELECT webhook_id, event_id, type, body, status, attempts, begun_at, next_attempt_at, attempt_log::text, created_at, id, tenant_id
		FROM webhook_deliveries WHERE event_id = $1`, e.ID)
	if err != nil {
		x.t.Fatal(err)
	}
	out, err := pgx.CollectRows(rows, pgx.RowToStructByPos[delivery])
	if err != nil {
		x.t.Fatal(err)
	}
	return out
}

// heard are the endpoints that have a delivery of e, in the order of their ids.
func (x *world) heard(e Event) []id.WebhookID {
	var out []id.WebhookID
	for _, d := range x.deliveries(e) {
		out = append(out, d.Webhook)
	}
	slices.SortFunc(out, func(a, b id.WebhookID) int { return slices.Compare(a.UUID[:], b.UUID[:]) })
	return out
}

func TestAnEventIsPendingForWhoHearsOfIt(t *testing.T) {
	t.Parallel()
	x := newWorld(t, nil)
	foreign, _ := x.newTenant()
	all := x.endpoint(x.tenant, webhook.All)
	completed := x.endpoint(x.tenant, webhook.RunCompleted)
	both := x.endpoint(x.tenant, webhook.RunFailed, webhook.RunCompleted)
	decided := x.endpoint(x.tenant, webhook.ApprovalDecided)
	disabled := x.endpoint(x.tenant, webhook.All)
	x.exec(`UPDATE webhooks SET enabled = false WHERE id = $1`, disabled)
	listener := x.listener(time.Microsecond)
	x.listener(0) // expires as the event happens
	x.endpoint(foreign, webhook.All)
	for _, c := range []struct {
		of   webhook.Type
		want []id.WebhookID
	}{
		{webhook.RunCompleted, []id.WebhookID{all, completed, both, listener}},
		{webhook.RunFailed, []id.WebhookID{all, both, listener}},
		{webhook.ApprovalDecided, []id.WebhookID{all, decided, listener}},
		{webhook.SourceSynced, []id.WebhookID{all, listener}},
	} {
		slices.SortFunc(c.want, func(a, b id.WebhookID) int { return slices.Compare(a.UUID[:], b.UUID[:]) })
		// Alone in its flush, which has a statement of its own, and with others.
		alone, first, second := event(c.of), event(c.of), event(c.of)
		x.must(x.reporting(1, alone))
		x.must(x.reporting(1, first, second))
		ids := map[id.DeliveryID]bool{}
		for _, e := range []Event{alone, first, second} {
			if got := x.heard(e); !slices.Equal(got, c.want) {
				t.Errorf("of %s hear %v, want %v", c.of, got, c.want)
			}
			for _, d := range x.deliveries(e) {
				if d.Tenant != x.tenant || d.Type != c.of || !bytes.Equal(d.Body, e.Body) || d.Status != "pending" || d.Attempts != 0 || d.BegunAt != nil ||
					!d.Next.Equal(noon) || !d.CreatedAt.Equal(noon) || d.Log != "[]" {
					t.Errorf("%+v", d)
				}
				if ids[d.ID] = true; d.ID.Time() != noon.Truncate(time.Millisecond) || d.ID.UUID[6]>>4 != 7 || d.ID.UUID[8]>>6 != 2 {
					t.Errorf("the id %s is of %v", d.ID, d.ID.Time())
				}
			}
		}
		if len(ids) != 3*len(c.want) {
			t.Errorf("%d ids for %d deliveries", len(ids), 3*len(c.want))
		}
	}
	lonely, _ := x.newTenant()
	c := x.reporting(1, event(webhook.RunCompleted))
	c.Tenant = lonely
	x.must(c)
	if got := x.heard(c.Events[0]); got != nil {
		t.Errorf("of a tenant without endpoints: %v", got)
	}
}

// The rows are those of the commit: who loses a swap, or a key, reports nothing, and
// the others of the flush do.
func TestWhoLosesReportsNothing(t *testing.T) {
	t.Parallel()
	x := newWorld(t, nil)
	w := x.endpoint(x.tenant, webhook.All)
	run := x.accept(0)
	x.must(run)
	winner, loser, beside := advance(run, 1), advance(run, 1), x.reporting(0, event(webhook.RunCompleted))
	winner.Events, loser.Events = []Event{event(webhook.RunCompleted)}, []Event{event(webhook.RunFailed)}
	keyed, again := x.accept(0), x.accept(0)
	keyed.Idempotency, again.Idempotency = key("k"), key("k")
	keyed.Events, again.Events = []Event{event(webhook.RunCompleted)}, []Event{event(webhook.RunFailed)}
	x.must(keyed)
	errs := x.all([]*draft{winner, loser, beside, again})
	if errs[0] != nil || !errors.Is(errs[1], ErrConflict) || errs[2] != nil || !errors.Is(errs[3], ErrReplay) {
		t.Errorf("%v", errs)
	}
	for name, c := range map[string]struct {
		e    Event
		want []id.WebhookID
	}{
		"who won": {winner.Events[0], []id.WebhookID{w}}, "who lost": {loser.Events[0], nil}, "who was beside them": {beside.Events[0], []id.WebhookID{w}},
		"who used a key": {keyed.Events[0], []id.WebhookID{w}}, "who used it again": {again.Events[0], nil},
	} {
		if got := x.heard(c.e); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// A flush in doubt is written once, its events too.
func TestAnEventInDoubtIsWrittenOnce(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]cut{"the flush did not arrive": cutCommit, "the answer did not arrive": cutAnswer} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := &cutter{}
			told := make(chan webhook.Type, 10)
			db := pgtest.New(t)
			x := worldIn(t, db, func(c *Config) {
				c.Pool, c.Lanes = k.pool(t, db.URL), 1
				c.OnEvent = func(_ id.TenantID, of webhook.Type) { told <- of }
			})
			w := x.endpoint(x.tenant, webhook.All)
			c := x.reporting(0, event(webhook.RunCompleted))
			k.arm(mode)
			x.must(c)
			if k.done() != 1 {
				t.Fatal("the connection was not cut")
			}
			if got := x.heard(c.Events[0]); !slices.Equal(got, []id.WebhookID{w}) {
				t.Errorf("%v", got)
			}
			if len(told) != 1 {
				t.Errorf("told %d times", len(told))
			}
		})
	}
}

// An endpoint is removed while events for it are written: the commit waits for the
// end of that and no longer, and has no delivery for who is gone.
func TestAnEndpointThatIsBeingRemoved(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		end  func(pgx.Tx) error
		gone bool
	}{
		"and is":     {func(tx pgx.Tx) error { return tx.Commit(context.Background()) }, true},
		"and is not": {func(tx pgx.Tx) error { return tx.Rollback(context.Background()) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			x, admin := worldIn(t, db, nil), db.Admin(t)
			removed, stays := x.endpoint(x.tenant, webhook.All), x.endpoint(x.tenant, webhook.All)
			tx, err := x.pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tx.Rollback(context.Background()) }()
			for _, sql := range []string{`DELETE FROM webhook_deliveries WHERE webhook_id = $1`, `DELETE FROM webhooks WHERE id = $1`} {
				if _, err := tx.Exec(t.Context(), sql, removed); err != nil {
					t.Fatal(err)
				}
			}
			commit := x.reporting(0, event(webhook.RunCompleted))
			written := make(chan error, 1)
			go func() { written <- x.do(commit) }()
			testkit.Eventually(x.t, "the commit waits", func() bool {
				var n int
				if err := admin.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()`).Scan(&n); err != nil {
					t.Fatal(err)
				}
				return n == 1
			})
			x.must(x.auditOnly(1)) // the other lane goes on meanwhile
			if err := c.end(tx); err != nil {
				t.Fatal(err)
			}
			if err := <-written; err != nil {
				t.Errorf("the commit: %v", err)
			}
			want := []id.WebhookID{removed, stays}
			if c.gone {
				want = want[1:]
			}
			if got := x.heard(commit.Events[0]); !slices.Equal(got, want) {
				t.Errorf("heard by %v, want %v", got, want)
			}
		})
	}
}

// OnEvent is called once for each event, when everybody can see its deliveries, and
// before the commit is answered.
func TestWhoeverSendsIsToldOfDurableEvents(t *testing.T) {
	t.Parallel()
	type said struct {
		tenant id.TenantID
		of     webhook.Type
		seen   int // of its deliveries
	}
	told := make(chan said, 10)
	var x *world
	ready := make(chan struct{})
	x = newWorld(t, func(c *Config) {
		c.OnEvent = func(tenant id.TenantID, of webhook.Type) {
			<-ready
			told <- said{tenant, of, x.count(`SELECT count(*) FROM webhook_deliveries WHERE tenant_id = $1 AND type = $2`, tenant, of)}
		}
	})
	close(ready)
	x.endpoint(x.tenant, webhook.All)
	x.endpoint(x.tenant, webhook.RunFailed)
	lonely, _ := x.newTenant()
	x.must(x.reporting(0, event(webhook.RunCompleted), event(webhook.RunFailed)))
	c := x.reporting(0, event(webhook.RunCompleted))
	c.Tenant = lonely
	x.must(c)
	for _, want := range []said{{x.tenant, webhook.RunCompleted, 1}, {x.tenant, webhook.RunFailed, 2}, {lonely, webhook.RunCompleted, 0}} {
		if got := <-told; got != want {
			t.Errorf("told %+v, want %+v", got, want)
		}
	}
	run := x.accept(0)
	x.must(run)
	x.must(advance(run, 1))
	late := advance(run, 1)
	late.Events = []Event{event(webhook.RunFailed)}
	if err := x.do(late); !errors.Is(err, ErrConflict) {
		t.Error(err)
	}
	if len(told) != 0 {
		t.Errorf("told of what was not written: %+v", <-told)
	}
}

// The bodies of events count in the bound of a flush.
func TestBodiesOfEventsBoundAFlush(t *testing.T) {
	t.Parallel()
	x := newWorld(t, nil)
	x.endpoint(x.tenant, webhook.All)
	var commits []*draft
	for range 5 {
		e := event(webhook.RunCompleted)
		e.Body = bytes.Repeat([]byte("x"), maxFlushBytes/2)
		commits = append(commits, x.reporting(0, e))
	}
	for _, err := range x.all(commits) {
		if err != nil {
			t.Error(err)
		}
	}
	if n := x.count(`SELECT count(DISTINCT xmin::text) FROM webhook_deliveries`); n != 3 {
		t.Errorf("%d flushes", n)
	}
}
