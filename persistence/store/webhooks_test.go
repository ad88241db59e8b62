package store

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"agentsvc/persistence/journal"
	"agentsvc/persistence/journal/journaltest"
	"agentsvc/persistence/pgtest"
	"agentsvc/persistence/vault"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/testkit"
	"agentsvc/schemas/webhook"
)

// endpoint creates a webhook endpoint that subscribes to types, or to all events without types.
func (w *world) endpoint(t testing.TB, tenant id.TenantID, types ...webhook.Type) *api.WebhookWithSecret {
	t.Helper()
	if len(types) == 0 {
		types = []webhook.Type{webhook.All}
	}
	var made *api.WebhookWithSecret
	w.change(t, tenant, func(ctx context.Context, tx *Tx) (err error) {
		made, err = tx.CreateWebhook(ctx, &api.WebhookCreate{URL: "https://r.example/in", Events: types, Description: "d"})
		return err
	})
	return made
}

func (w *world) listener(t testing.TB, tenant id.TenantID, types ...webhook.Type) *api.Listener {
	t.Helper()
	var made *api.Listener
	w.change(t, tenant, func(ctx context.Context, tx *Tx) (err error) {
		made, err = tx.CreateListener(ctx, types)
		return err
	})
	return made
}

// patch changes an endpoint; it must succeed.
func (w *world) patch(t testing.TB, tenant id.TenantID, e id.WebhookID, in api.WebhookPatch) (out *api.Webhook) {
	t.Helper()
	w.change(t, tenant, func(ctx context.Context, tx *Tx) (err error) {
		out, err = tx.UpdateWebhook(ctx, e, &in)
		return err
	})
	if !out.Enabled {
		if err := w.EndPending(t.Context(), tenant, e); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// moment returns a time with the precision of the database.
func moment(ago time.Duration) time.Time {
	return time.Now().Add(-ago).UTC().Truncate(time.Microsecond)
}

// row is a delivery's row.
type row struct {
	Status   string
	Attempts int
	BegunAt  *time.Time
	NextAt   *time.Time
	Error    *string
	Log      string
}

// put creates a delivery that is some time old.
func (w *world) put(t testing.TB, tenant id.TenantID, e id.WebhookID, made time.Time, r row) id.DeliveryID {
	t.Helper()
	var d id.DeliveryID
	if r.Log == "" {
		r.Log = "[]"
	}
	err := w.db.Admin(t).QueryRow(t.Context(), `INSERT INTO webhook_deliveries (tenant_id, id, webhook_id, event_id, type, body, status, attempts, begun_at, next_attempt_at, last_error, attempt_log, created_at)
		VALUES ($1, new_id($3), $2, $4, 'run.completed', '{"id":"e","n":[1, 2]}', $5, $6, $7, $8, $9, $10, $3) RETURNING id`,
		tenant, e, made, id.NewAnywhere(), r.Status, r.Attempts, r.BegunAt, r.NextAt, r.Error, r.Log).Scan(&d)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// many creates n deliveries with a status, created in the last hour.
func (w *world) many(t testing.TB, tenant id.TenantID, e id.WebhookID, status string, n int) {
	t.Helper()
	_, err := w.db.Admin(t).Exec(t.Context(), `INSERT INTO webhook_deliveries (tenant_id, id, webhook_id, event_id, type, body, status, next_attempt_at, created_at)
		SELECT $1, new_id(at), $2, gen_random_uuid(), 'run.failed', '{}', $3::text, CASE WHEN $3::text = 'pending' THEN at END, at
		FROM (SELECT now() - interval '1 hour' + n * interval '10 ms' AS at FROM generate_series(1, $4) n) s`, tenant, e, status, n)
	if err != nil {
		t.Fatal(err)
	}
}

func (w *world) row(t testing.TB, d id.DeliveryID) (r row) {
	t.Helper()
	err := w.db.Admin(t).QueryRow(t.Context(), "SELECT status, attempts, begun_at, next_attempt_at, last_error, attempt_log::text FROM webhook_deliveries WHERE id = $1", d).
		Scan(&r.Status, &r.Attempts, &r.BegunAt, &r.NextAt, &r.Error, &r.Log)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// service.md, Webhook endpoint: the secret is returned once; in the table it is sealed to its
// row.
func TestWebhookSecretsAreSealedToTheirPlace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one, other := w.endpoint(t, w.a), w.endpoint(t, w.a)
	l := w.listener(t, w.a, webhook.All)
	if one.Secret == other.Secret || !strings.HasPrefix(one.Secret, "whsec_") || len(one.Secret) < 40 {
		t.Errorf("secrets %q, %q", one.Secret, other.Secret)
	}
	for _, x := range []struct {
		id     id.WebhookID
		secret string
		url    string
	}{{one.ID, one.Secret, "https://r.example/in"}, {l.ID, l.Secret, ""}} {
		got, err := w.Endpoint(t.Context(), w.a, x.id)
		if err != nil || got == nil || string(got.Secret.Reveal()) != x.secret || got.URL != x.url || !got.Enabled {
			t.Errorf("%+v, %v", got, err)
		}
		if shown := fmt.Sprintf("%+v", got); strings.Contains(shown, x.secret) {
			t.Errorf("it prints as %s", shown)
		}
		if n := w.count(t, "SELECT count(*)::int FROM webhooks WHERE position(convert_to($1, 'UTF8') in secret) > 0", x.secret); n != 0 {
			t.Error("a secret is stored in plain")
		}
	}
	for what, at := range map[string]struct {
		tenant id.TenantID
		id     id.WebhookID
	}{"another tenant's": {w.b, one.ID}, "nobody's": {w.a, id.WebhookID{UUID: id.NewAnywhere()}}} {
		if got, err := w.Endpoint(t.Context(), at.tenant, at.id); got != nil || err != nil {
			t.Errorf("%s: %+v, %v", what, got, err)
		}
	}

	var rotated *api.WebhookWithSecret
	w.change(t, w.a, func(ctx context.Context, tx *Tx) (err error) {
		rotated, err = tx.RotateWebhook(ctx, one.ID)
		return err
	})
	if rotated.Secret == one.Secret || rotated.ID != one.ID || !rotated.UpdatedAt.After(one.UpdatedAt) {
		t.Errorf("rotated: %+v", rotated)
	}
	if got, err := w.Endpoint(t.Context(), w.a, one.ID); err != nil || string(got.Secret.Reveal()) != rotated.Secret {
		t.Errorf("after a rotation: %v, %v", got, err)
	}
	// A secret copied to another row does not open.
	if _, err := w.db.Admin(t).Exec(t.Context(), "UPDATE webhooks SET secret = (SELECT secret FROM webhooks WHERE id = $1) WHERE id = $2", one.ID, other.ID); err != nil {
		t.Fatal(err)
	}
	if got, err := w.Endpoint(t.Context(), w.a, other.ID); got != nil || !errors.Is(err, vault.ErrOpen) {
		t.Errorf("with another's secret: %+v, %v", got, err)
	}
}

func TestSubscribers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	all := w.endpoint(t, w.a)
	some := w.endpoint(t, w.a, webhook.RunFailed, webhook.ApprovalDecided)
	off := w.endpoint(t, w.a)
	w.patch(t, w.a, off.ID, api.WebhookPatch{Enabled: ptr(false)})
	listening := w.listener(t, w.a, webhook.RunCompleted)
	gone := w.listener(t, w.a, webhook.All)
	if _, err := w.db.Admin(t).Exec(t.Context(), "UPDATE webhooks SET expires_at = now() - interval '1 ms' WHERE id = $1", gone.ID); err != nil {
		t.Fatal(err)
	}
	w.endpoint(t, w.b)
	got, err := w.View(w.a).Hearing(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(got, func(a, b Hearing) int { return strings.Compare(a.ID.String(), b.ID.String()) })
	want := []Hearing{{all.ID, []webhook.Type{webhook.All}, false}, {some.ID, []webhook.Type{webhook.RunFailed, webhook.ApprovalDecided}, false},
		{listening.ID, []webhook.Type{webhook.RunCompleted}, true}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if e, err := w.Endpoint(t.Context(), w.a, off.ID); err != nil || e.Enabled {
		t.Errorf("%+v, %v", e, err)
	}
}

// Lists and changes of endpoints never include listeners.
func TestListenersAreNotEndpoints(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e, l := w.endpoint(t, w.a), w.listener(t, w.a, webhook.All)
	d := w.put(t, w.a, l.ID, moment(0), row{Status: "failed"})
	if got, err := w.View(w.a).Webhooks(t.Context(), id.WebhookID{}, All); err != nil || len(got) != 1 || got[0].ID != e.ID {
		t.Errorf("%+v, %v", got, err)
	}
	do := func(fn func(ctx context.Context, tx *Tx) error) error { return w.try(t, w.a, fn) }
	for what, err := range map[string]error{
		"read":    second(w.View(w.a).Webhook(t.Context(), l.ID)),
		"deliver": second(w.View(w.a).Delivery(t.Context(), l.ID, d)),
		"update": do(func(ctx context.Context, tx *Tx) error {
			return second(tx.UpdateWebhook(ctx, l.ID, &api.WebhookPatch{}))
		}),
		"rotate":    do(func(ctx context.Context, tx *Tx) error { return second(tx.RotateWebhook(ctx, l.ID)) }),
		"delete":    do(func(ctx context.Context, tx *Tx) error { return tx.DeleteWebhook(ctx, l.ID) }),
		"test":      do(func(ctx context.Context, tx *Tx) error { return second(tx.TestWebhook(ctx, l.ID)) }),
		"redeliver": do(func(ctx context.Context, tx *Tx) error { return tx.Redeliver(ctx, l.ID, d) }),
		"recover": do(func(ctx context.Context, tx *Tx) error {
			_, _, err := tx.Recover(ctx, l.ID, moment(time.Hour), id.DeliveryID{})
			return err
		}),
		"extend an endpoint":      second(w.ExtendListener(t.Context(), w.a, e.ID)),
		"delete an endpoint":      do(func(ctx context.Context, tx *Tx) error { return tx.DeleteListener(ctx, e.ID) }),
		"another tenant extends":  second(w.ExtendListener(t.Context(), w.b, l.ID)),
		"another tenant deletes":  w.try(t, w.b, func(ctx context.Context, tx *Tx) error { return tx.DeleteListener(ctx, l.ID) }),
		"somebody extends nobody": second(w.ExtendListener(t.Context(), w.a, id.WebhookID{UUID: id.NewAnywhere()})),
	} {
		if !isCode(err, problem.CodeNotFound) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if r := w.row(t, d); r.Status != "failed" {
		t.Errorf("%+v", r)
	}
	w.change(t, w.a, func(ctx context.Context, tx *Tx) error { return tx.DeleteListener(ctx, l.ID) })
	if n := w.count(t, "SELECT (SELECT count(*) FROM webhooks)::int + (SELECT count(*) FROM webhook_deliveries)::int"); n != 1 {
		t.Errorf("%d rows are left", n)
	}
}

// A listener expires a minute after it was created or last pulled.
func TestAListenerExpires(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := w.listener(t, w.a, webhook.RunFailed, webhook.RunCompleted)
	near := func(got time.Time) bool {
		left := time.Until(got)
		return left > ListenerLife-20*time.Second && left <= ListenerLife+time.Second
	}
	if !near(l.ExpiresAt) || !slices.Equal(l.Events, []webhook.Type{webhook.RunFailed, webhook.RunCompleted}) {
		t.Errorf("%+v", l)
	}
	set := func(expires string) {
		if _, err := w.db.Admin(t).Exec(t.Context(), "UPDATE webhooks SET expires_at = now() + $2::interval WHERE id = $1", l.ID, expires); err != nil {
			t.Fatal(err)
		}
	}
	set("2 s")
	got, err := w.ExtendListener(t.Context(), w.a, l.ID)
	if err != nil || !near(got.ExpiresAt) || string(got.Secret.Reveal()) != l.Secret {
		t.Errorf("%+v, %v", got, err)
	}
	if shown := fmt.Sprintf("%+v", got); strings.Contains(shown, l.Secret) {
		t.Errorf("it prints as %s", shown)
	}
	set("-1 ms")
	if got, err := w.ExtendListener(t.Context(), w.a, l.ID); got != nil || !isCode(err, problem.CodeNotFound) {
		t.Errorf("an expired listener: %+v, %v", got, err)
	}
	if n := w.count(t, "SELECT count(*)::int FROM audit_log WHERE action = 'webhook.listener.create'"); n != 1 {
		t.Errorf("%d audit rows", n)
	}
}

// service.md, Webhook endpoint, enabled: nothing is queued for later. An attempt in flight is
// settled by its sender.
func TestADisabledEndpointHasNothingPending(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e, other := w.endpoint(t, w.a), w.endpoint(t, w.a)
	begun, next := moment(time.Second), moment(-time.Hour)
	waits := w.put(t, w.a, e.ID, moment(time.Minute), row{Status: "pending", NextAt: &next})
	again := w.put(t, w.a, e.ID, moment(time.Minute), row{Status: "pending", Attempts: 2, NextAt: &next, Error: ptr("502"), Log: `[{"at":"x"}]`})
	under := w.put(t, w.a, e.ID, moment(time.Minute), row{Status: "pending", Attempts: 3, NextAt: &next, BegunAt: &begun})
	done := w.put(t, w.a, e.ID, moment(time.Minute), row{Status: "succeeded", Attempts: 1})
	lost := w.put(t, w.a, e.ID, moment(time.Minute), row{Status: "failed", Attempts: 5, Error: ptr("503")})
	others := w.put(t, w.a, other.ID, moment(time.Minute), row{Status: "pending", NextAt: &next})
	before := map[id.DeliveryID]row{done: w.row(t, done), lost: w.row(t, lost), others: w.row(t, others)}

	if got := w.patch(t, w.a, e.ID, api.WebhookPatch{Description: ptr("x"), Enabled: ptr(true)}); !got.Enabled || w.row(t, waits).Status != "pending" {
		t.Error("a patch that leaves it enabled ended a delivery")
	}
	if got := w.patch(t, w.a, e.ID, api.WebhookPatch{Enabled: ptr(false)}); got.Enabled || got.Description != "x" {
		t.Errorf("%+v", got)
	}
	disabled := ptr("the endpoint was disabled")
	for d, want := range map[id.DeliveryID]row{
		waits: {Status: "failed", Error: disabled, Log: "[]"},
		again: {Status: "failed", Attempts: 2, Error: disabled, Log: `[{"at":"x"}]`},
		under: {Status: "failed", Attempts: 3, Error: disabled, Log: "[]", BegunAt: &begun},
		done:  before[done], lost: before[lost], others: before[others],
	} {
		if got := w.row(t, d); !same(got, want) {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	if n := w.count(t, "SELECT count(*)::int FROM audit_log WHERE action = 'webhook.update' AND detail->>'enabled' = 'false'"); n != 1 {
		t.Errorf("the audit log has %d rows of it", n)
	}
	if n := w.count(t, "SELECT count(*)::int FROM tallies WHERE what = 'undelivered'"); n != 3 {
		t.Errorf("%d were counted", n)
	}
	// Nothing can be queued for a disabled endpoint.
	for what, change := range map[string]func(ctx context.Context, tx *Tx) error{
		"test":      func(ctx context.Context, tx *Tx) error { return second(tx.TestWebhook(ctx, e.ID)) },
		"redeliver": func(ctx context.Context, tx *Tx) error { return tx.Redeliver(ctx, e.ID, lost) },
		"recover": func(ctx context.Context, tx *Tx) error {
			_, _, err := tx.Recover(ctx, e.ID, moment(time.Hour), id.DeliveryID{})
			return err
		},
	} {
		if err := w.try(t, w.a, change); !isCode(err, problem.CodeValidation) || !strings.Contains(err.Error(), "enable it first") {
			t.Errorf("%s: %v", what, err)
		}
	}
	// After it is enabled again all failed deliveries can be recovered.
	w.patch(t, w.a, e.ID, api.WebhookPatch{Enabled: ptr(true)})
	if n := w.count(t, "SELECT count(*)::int FROM webhook_deliveries WHERE webhook_id = $1 AND status = 'pending'", e.ID); n != 0 {
		t.Errorf("%d are pending before a recovery", n)
	}
	if n := w.recover(t, e.ID, moment(time.Hour)); n != 4 {
		t.Errorf("%d were recovered", n)
	}
	if got := w.row(t, under); got.Status != "pending" || got.BegunAt != nil || got.Attempts != 0 || !strings.Contains(got.Log, "the outcome of this attempt is not known") ||
		!strings.Contains(got.Log, begun.Format("2006-01-02T15:04:05.000000Z")) {
		t.Errorf("the one that was in flight: %+v", got)
	}
}

// same compares rows, and times as instants.
func same(a, b row) bool {
	at := func(t *time.Time) string {
		if t == nil {
			return "-"
		}
		return t.UTC().Format(time.RFC3339Nano)
	}
	text := func(s *string) string {
		if s == nil {
			return "-"
		}
		return *s
	}
	return a.Status == b.Status && a.Attempts == b.Attempts && at(a.BegunAt) == at(b.BegunAt) && at(a.NextAt) == at(b.NextAt) && text(a.Error) == text(b.Error) && a.Log == b.Log
}

// recover recovers all deliveries that failed since then.
func (w *world) recover(t testing.TB, e id.WebhookID, since time.Time) (all int) {
	t.Helper()
	var last id.DeliveryID
	for n := Batch; n == Batch; all += n {
		w.change(t, w.a, func(ctx context.Context, tx *Tx) (err error) {
			n, last, err = tx.Recover(ctx, e, since, last)
			return err
		})
	}
	return all
}

// disable and remove do what their routes do, in the same order.
func (w *world) disable(ctx context.Context, e id.WebhookID) error {
	err := w.Change(ctx, By{Tenant: w.a, Actor: "system"}, func(ctx context.Context, tx *Tx) ([]byte, error) {
		return nil, second(tx.UpdateWebhook(ctx, e, &api.WebhookPatch{Enabled: ptr(false)}))
	})
	return errors.Join(err, w.EndPending(ctx, w.a, e))
}

func (w *world) remove(ctx context.Context, e id.WebhookID) error {
	for _, step := range []func() error{
		func() error {
			return w.Change(ctx, By{Tenant: w.a, Actor: "system"}, func(ctx context.Context, tx *Tx) ([]byte, error) { return nil, tx.StopWebhook(ctx, e) })
		},
		func() error { return w.TrimDeliveries(ctx, w.a, e) },
		func() error {
			return w.Change(ctx, By{Tenant: w.a, Actor: "system"}, func(ctx context.Context, tx *Tx) ([]byte, error) { return nil, tx.DeleteWebhook(ctx, e) })
		},
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// Events are committed while an endpoint is disabled or removed: afterwards no delivery is
// pending.
func TestEventsMeetAClosingEndpoint(t *testing.T) {
	t.Parallel()
	for name, closing := range map[string]func(w *world, ctx context.Context, e id.WebhookID) error{"disabled": (*world).disable, "removed": (*world).remove} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			admin := w.db.Admin(t)
			e := w.endpoint(t, w.a)
			next := moment(0)
			held := w.put(t, w.a, e.ID, moment(time.Minute), row{Status: "pending", NextAt: &next})
			// A delivery that is inserted waits for the gate: not for a lock, of which a writer soon tires.
			for _, ddl := range []string{`CREATE FUNCTION waits() RETURNS trigger LANGUAGE plpgsql AS $$
				BEGIN WHILE NOT pg_try_advisory_xact_lock(1) LOOP PERFORM pg_sleep(0.01); END LOOP; RETURN NEW; END $$`,
				`CREATE TRIGGER waits BEFORE INSERT ON webhook_deliveries FOR EACH ROW EXECUTE FUNCTION waits()`} {
				if _, err := admin.Exec(t.Context(), ddl); err != nil {
					t.Fatal(err)
				}
			}
			writer := journaltest.Writer(t, w.db, journal.Config{Lanes: 2})
			happens := func(lane id.Shard, ev id.EventID) error {
				ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
				defer cancel()
				return writer.Do(ctx, &journal.Commit{Op: id.OpID{UUID: id.NewAnywhere()}, Tenant: w.a, Shard: lane, Events: []journal.Event{{ID: ev, Type: webhook.RunFailed, Body: []byte("{}"), At: time.Now()}}})
			}
			begin := func() pgx.Tx {
				t.Helper()
				tx, err := admin.Begin(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
				return tx
			}
			end := func(tx pgx.Tx) {
				t.Helper()
				if err := tx.Commit(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			gate, slow := begin(), begin()
			if _, err := gate.Exec(t.Context(), "SELECT pg_advisory_xact_lock(1)"); err != nil {
				t.Fatal(err)
			}
			early, written := id.EventID{UUID: id.NewAnywhere()}, make(chan error, 1)
			go func() { written <- happens(0, early) }()
			testkit.Eventually(t, "the event is being written", func() (waits bool) {
				if err := admin.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep')").Scan(&waits); err != nil {
					t.Fatal(err)
				}
				return waits
			})
			if _, err := slow.Exec(t.Context(), "SELECT FROM webhook_deliveries WHERE id = $1 FOR UPDATE", held); err != nil {
				t.Fatal(err)
			}
			closed := make(chan error, 1)
			go func() { closed <- closing(w, t.Context(), e.ID) }()
			none := func(lane id.Shard) {
				t.Helper()
				ev := id.EventID{UUID: id.NewAnywhere()}
				if err := happens(lane, ev); err != nil {
					t.Errorf("an event: %v", err)
				}
				if n := w.count(t, "SELECT count(*)::int FROM webhook_deliveries WHERE event_id = $1", ev); n != 0 {
					t.Errorf("%d deliveries of an event, want none", n)
				}
			}
			// Whichever lock the closing waits for: the endpoint is disabled already, and a commit
			// with an event neither adds a delivery nor waits.
			meanwhile := func() {
				t.Helper()
				pgtest.Blocked(t, admin)
				select {
				case err := <-closed:
					t.Fatalf("closed before the transactions in progress have ended: %v", err)
				default:
				}
				if n := w.count(t, "SELECT count(*)::int FROM webhooks WHERE NOT enabled"); n != 1 {
					t.Error("it is not disabled yet")
				}
				none(1)
			}
			commits := func() {
				t.Helper()
				end(gate)
				if err := <-written; err != nil {
					t.Errorf("the event: %v", err)
				}
			}
			meanwhile()
			if name == "disabled" { // disabling waits for commits first, a removal for deliveries
				commits()
				meanwhile()
				end(slow)
			} else {
				end(slow)
				meanwhile()
				commits()
			}
			if err := <-closed; err != nil {
				t.Fatal(err)
			}
			none(0)
			want := 0
			if name == "disabled" { // its delivery was written, and ended
				want = 1
			}
			if n := w.count(t, "SELECT count(*)::int FROM webhook_deliveries WHERE event_id = $1", early); n != want {
				t.Errorf("%d deliveries of the first event, want %d", n, want)
			}
			if n := w.count(t, "SELECT count(*)::int FROM webhook_deliveries WHERE status = 'pending'"); n != 0 {
				t.Errorf("%d are pending", n)
			}
		})
	}
}

// An endpoint stays disabled if ending its deliveries fails, and a repeat ends them. If it was
// enabled again in between, nothing is ended.
func TestAnInterruptedDisabling(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e := w.endpoint(t, w.a)
	w.many(t, w.a, e.ID, "pending", 2*Batch+1)
	cut, cancel := context.WithCancel(t.Context())
	cancel()
	w.change(t, w.a, func(ctx context.Context, tx *Tx) error {
		return second(tx.UpdateWebhook(ctx, e.ID, &api.WebhookPatch{Enabled: ptr(false)}))
	})
	if err := w.EndPending(cut, w.a, e.ID); err == nil {
		t.Error("the interrupted EndPending returns no error")
	}
	pending := func() int {
		return w.count(t, "SELECT count(*)::int FROM webhook_deliveries WHERE status = 'pending'")
	}
	if n := pending(); n != 2*Batch+1 {
		t.Errorf("%d are pending", n)
	}
	if err := w.EndPending(t.Context(), w.b, e.ID); err != nil || pending() != 2*Batch+1 {
		t.Errorf("another tenant ends them: %v", err)
	}
	enabled := func(yes bool) {
		if _, err := w.db.Admin(t).Exec(t.Context(), "UPDATE webhooks SET enabled = $1", yes); err != nil {
			t.Fatal(err)
		}
	}
	enabled(true)
	if err := w.EndPending(t.Context(), w.a, e.ID); err != nil || pending() != 2*Batch+1 {
		t.Errorf("the deliveries of an enabled endpoint are ended: %v", err)
	}
	enabled(false)
	if err := w.EndPending(t.Context(), w.a, e.ID); err != nil || pending() != 0 {
		t.Errorf("%d are pending, %v", pending(), err)
	}
}

// Redeliveries run while an endpoint is closed: they wait for each other, and the database
// aborts none of them.
func TestRedeliveriesMeetAClosingEndpoint(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e := w.endpoint(t, w.a)
	w.many(t, w.a, e.ID, "failed", 200)
	ids, err := w.View(w.a).Deliveries(t.Context(), e.ID, DeliveryFilter{}, id.DeliveryID{}, All)
	if err != nil {
		t.Fatal(err)
	}
	off := func(err error) bool { return isCode(err, problem.CodeValidation) || isCode(err, problem.CodeNotFound) }
	var all sync.WaitGroup
	for k := range 4 {
		all.Go(func() {
			for i := range ids {
				d := ids[(i*(2*(k%2)+199)+k)%len(ids)].ID
				if err := w.try(t, w.a, func(ctx context.Context, tx *Tx) error { return tx.Redeliver(ctx, e.ID, d) }); err != nil && !off(err) {
					t.Errorf("redeliver: %v", err)
				}
			}
		})
		all.Go(func() {
			for range 20 {
				err := w.try(t, w.a, func(ctx context.Context, tx *Tx) error {
					_, _, err := tx.Recover(ctx, e.ID, moment(24*time.Hour), id.DeliveryID{})
					return err
				})
				if err != nil && !off(err) {
					t.Errorf("recover: %v", err)
				}
			}
		})
	}
	for i := range 20 {
		if err := w.disable(t.Context(), e.ID); err != nil {
			t.Errorf("disable: %v", err)
		}
		if n := w.count(t, "SELECT count(*)::int FROM webhook_deliveries WHERE status = 'pending'"); n != 0 {
			t.Errorf("%d are pending of a disabled endpoint", n)
		}
		if i < 19 {
			w.patch(t, w.a, e.ID, api.WebhookPatch{Enabled: ptr(true)})
		}
	}
	if err := w.remove(t.Context(), e.ID); err != nil {
		t.Errorf("remove: %v", err)
	}
	all.Wait()
}

// A recovery locks the endpoint: a concurrent disabling waits for it, and ends the deliveries
// that it queued.
func TestADisablingWaitsForARecovery(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e := w.endpoint(t, w.a)
	d := w.put(t, w.a, e.ID, moment(time.Minute), row{Status: "failed"})
	closed := make(chan error, 1)
	w.change(t, w.a, func(ctx context.Context, tx *Tx) error {
		if err := tx.holdWebhook(ctx, e.ID); err != nil {
			return err
		}
		go func() { closed <- w.disable(t.Context(), e.ID) }()
		pgtest.Blocked(t, w.db.Admin(t))
		return tx.Redeliver(ctx, e.ID, d)
	})
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if r := w.row(t, d); r.Status != "failed" {
		t.Errorf("%+v", r)
	}
}

// The database aborts one of two changes that wait for each other: its caller may retry.
func TestADeadlockIsUnavailable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one, other := w.endpoint(t, w.a), w.endpoint(t, w.a)
	var both sync.WaitGroup
	both.Add(2)
	errs := make(chan error, 2)
	for _, order := range [][2]id.WebhookID{{one.ID, other.ID}, {other.ID, one.ID}} {
		go func() {
			errs <- w.try(t, w.a, func(ctx context.Context, tx *Tx) error {
				for i, e := range order {
					if i == 1 {
						both.Done()
						both.Wait()
					}
					if _, err := tx.lockWebhook(ctx, "webhook_lock", e, false); err != nil {
						return err
					}
				}
				return nil
			})
		}()
	}
	if a, b := <-errs, <-errs; (a == nil) == (b == nil) || !errors.Is(errors.Join(a, b), ErrUnavailable) {
		t.Errorf("%v, %v", a, b)
	}
}

// Lists and recoveries find failed deliveries by an index and do not read the others, in every plan.
func TestFailedDeliveriesAreFoundByAnIndex(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e := w.endpoint(t, w.a)
	w.many(t, w.a, e.ID, "succeeded", 5000)
	w.many(t, w.a, e.ID, "failed", 3)
	admin := w.db.Admin(t)
	if _, err := admin.Exec(t.Context(), "ANALYZE webhook_deliveries"); err != nil {
		t.Fatal(err)
	}
	tx, err := admin.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), "SET LOCAL plan_cache_mode = force_generic_plan"); err != nil {
		t.Fatal(err)
	}
	for name, args := range map[string][]any{
		"deliveries_failed":  {w.a, e.ID, last, 26, nil},
		"deliveries_recover": {w.a, e.ID, id.DeliveryID{}, moment(24 * time.Hour), Batch, notKnown},
	} {
		rows, err := tx.Query(t.Context(), "EXPLAIN "+queries.Get(name), args...)
		if err != nil {
			t.Fatal(err)
		}
		plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		if text := strings.Join(plan, "\n"); !strings.Contains(text, "webhook_deliveries_failed") {
			t.Errorf("%s reads all deliveries:\n%s", name, text)
		}
	}
}

// Every commit pays for each listener: the live listeners of a tenant are bounded.
func TestLiveListenersAreBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	more := func() error {
		return w.try(t, w.a, func(ctx context.Context, tx *Tx) error {
			return second(tx.CreateListener(ctx, []webhook.Type{webhook.All}))
		})
	}
	for range MaxListeners - 1 {
		w.listener(t, w.a, webhook.All)
	}
	rival := make(chan error, 1)
	w.change(t, w.a, func(ctx context.Context, tx *Tx) error {
		_, err := tx.CreateListener(ctx, []webhook.Type{webhook.All})
		go func() { rival <- more() }()
		pgtest.Blocked(t, w.db.Admin(t))
		return err
	})
	for _, err := range []error{<-rival, more()} {
		if !isCode(err, problem.CodeValidation) || !strings.Contains(err.Error(), "20 listeners: close one") {
			t.Errorf("%v", err)
		}
	}
	w.listener(t, w.b, webhook.All)
	w.endpoint(t, w.a)
	if _, err := w.db.Admin(t).Exec(t.Context(), "UPDATE webhooks SET expires_at = now() WHERE id = (SELECT id FROM webhooks WHERE tenant_id = $1 AND url = '' LIMIT 1)", w.a); err != nil {
		t.Fatal(err)
	}
	if err := more(); err != nil {
		t.Errorf("after one has expired: %v", err)
	}
	if err := more(); err == nil {
		t.Error("one too many")
	}
}

// A listener whose removal was interrupted gets no events, cannot pull, and expires.
func TestAStoppedListener(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := w.listener(t, w.a, webhook.All)
	stop := func(ctx context.Context, tx *Tx) error { return tx.StopListener(ctx, l.ID) }
	if err := w.try(t, w.b, stop); !isCode(err, problem.CodeNotFound) {
		t.Errorf("another tenant's: %v", err)
	}
	w.change(t, w.a, stop)
	if _, err := w.ExtendListener(t.Context(), w.a, l.ID); !isCode(err, problem.CodeNotFound) {
		t.Errorf("it is extended: %v", err)
	}
	if n := w.count(t, "SELECT count(*)::int FROM webhooks WHERE NOT enabled AND expires_at <= now()"); n != 1 {
		t.Error("the sweep does not find it")
	}
	w.change(t, w.a, stop) // a repeat
	w.change(t, w.a, func(ctx context.Context, tx *Tx) error { return tx.DeleteListener(ctx, l.ID) })
}

// open-parts.md, Webhooks, redeliver: sends the same bytes again, whatever the status.
// Each change of deliveries through the API is told to feeds: a test, a redelivery, a recovery, and
// what the disabling and the removal of an endpoint do to them.
func TestChangesOfDeliveriesAreTold(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e := w.endpoint(t, w.a)
	later := moment(-time.Hour)
	lost := w.put(t, w.a, e.ID, moment(time.Minute), row{Status: "failed", Attempts: 5, Error: ptr("503")})
	other := w.put(t, w.a, e.ID, moment(time.Minute), row{Status: "failed", Attempts: 5, Error: ptr("503")})
	waits := w.put(t, w.a, e.ID, moment(time.Minute), row{Status: "pending", NextAt: &later})
	var tried id.DeliveryID
	for _, step := range []struct {
		what string
		do   func()
		want func() []id.DeliveryID
	}{
		{"a test", func() {
			w.change(t, w.a, func(ctx context.Context, tx *Tx) (err error) { tried, err = tx.TestWebhook(ctx, e.ID); return err })
		}, func() []id.DeliveryID { return []id.DeliveryID{tried} }},
		{"a redelivery", func() {
			w.change(t, w.a, func(ctx context.Context, tx *Tx) error { return tx.Redeliver(ctx, e.ID, lost) })
		}, func() []id.DeliveryID { return []id.DeliveryID{lost} }},
		{"a recovery", func() { w.recover(t, e.ID, moment(time.Hour)) }, func() []id.DeliveryID { return []id.DeliveryID{other} }},
		{"a disabling", func() { w.patch(t, w.a, e.ID, api.WebhookPatch{Enabled: ptr(false)}) }, func() []id.DeliveryID { return []id.DeliveryID{lost, other, waits, tried} }},
		{"a removal", func() {
			if err := w.remove(t.Context(), e.ID); err != nil {
				t.Fatal(err)
			}
		}, func() []id.DeliveryID { return []id.DeliveryID{lost, other, waits, tried} }},
	} {
		if got, want := only(noted(w.Store, step.do), msg.ChangedDelivery, step.want()...); !slices.Equal(got, want) {
			t.Errorf("%s tells %v, want %v", step.what, got, want)
		}
	}
}

func TestRedeliver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e, other := w.endpoint(t, w.a), w.endpoint(t, w.a)
	begun, later := moment(time.Second), moment(-time.Hour)
	for name, c := range map[string]struct {
		is   row
		want row // NextAt nil: now
	}{
		"one that waits for its first attempt": {row{Status: "pending", NextAt: &later}, row{Status: "pending"}},
		"one that waits for another": {row{Status: "pending", NextAt: &later, Attempts: 4, Error: ptr("503"), Log: `[1]`},
			row{Status: "pending", Attempts: 4, Error: ptr("503"), Log: `[1]`}},
		"one that is on its way":         {row{Status: "pending", NextAt: &later, Attempts: 2, BegunAt: &begun}, row{Status: "pending", Attempts: 2, BegunAt: &begun, NextAt: &later}},
		"one that has succeeded":         {row{Status: "succeeded", Attempts: 3, Log: `[1,2,3]`}, row{Status: "pending", Log: `[1,2,3]`}},
		"one that has failed":            {row{Status: "failed", Attempts: 5, Error: ptr("503")}, row{Status: "pending", Error: ptr("503")}},
		"one that never was sent":        {row{Status: "failed", Error: ptr("the endpoint was disabled")}, row{Status: "pending", Error: ptr("the endpoint was disabled")}},
		"one whose outcome is not known": {row{Status: "failed", Attempts: 1, BegunAt: &begun}, row{Status: "pending", Log: "?"}},
	} {
		d := w.put(t, w.a, e.ID, moment(time.Hour), c.is)
		before := moment(0)
		w.change(t, w.a, func(ctx context.Context, tx *Tx) error { return tx.Redeliver(ctx, e.ID, d) })
		got := w.row(t, d)
		if c.want.Log == "" {
			c.want.Log = "[]"
		}
		if c.want.NextAt == nil && got.NextAt != nil && !got.NextAt.Before(before) && time.Until(*got.NextAt) < time.Minute {
			got.NextAt = nil
		}
		if c.want.Log == "?" && strings.Count(got.Log, notKnown) == 1 && strings.Contains(got.Log, `"http_status": null`) && strings.Contains(got.Log, `"duration_ms": null`) {
			got.Log = "?"
		}
		if !same(got, c.want) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
	d := w.put(t, w.a, e.ID, moment(time.Hour), row{Status: "failed"})
	foreign := w.endpoint(t, w.b)
	for what, err := range map[string]error{
		"of another endpoint": w.try(t, w.a, func(ctx context.Context, tx *Tx) error { return tx.Redeliver(ctx, other.ID, d) }),
		"of another tenant":   w.try(t, w.b, func(ctx context.Context, tx *Tx) error { return tx.Redeliver(ctx, e.ID, d) }),
		"of the own endpoint": w.try(t, w.b, func(ctx context.Context, tx *Tx) error { return tx.Redeliver(ctx, foreign.ID, d) }),
		"nobody's": w.try(t, w.a, func(ctx context.Context, tx *Tx) error {
			return tx.Redeliver(ctx, e.ID, id.DeliveryID{UUID: id.NewAnywhere()})
		}),
	} {
		if !isCode(err, problem.CodeNotFound) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if got := w.row(t, d); got.Status != "failed" {
		t.Errorf("%+v", got)
	}
}

// open-parts.md, Webhooks, recover: queues every delivery that failed since then.
func TestRecover(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e, other := w.endpoint(t, w.a), w.endpoint(t, w.a)
	since, later := moment(time.Hour), moment(-time.Hour)
	at := func(d time.Duration) time.Time { return since.Add(d) }
	failed := row{Status: "failed", Attempts: 5, Error: ptr("503")}
	edge := w.put(t, w.a, e.ID, since, failed)
	after := w.put(t, w.a, e.ID, at(time.Microsecond), failed)
	late := w.put(t, w.a, e.ID, at(30*time.Minute), failed)
	keep := map[string]id.DeliveryID{
		"one before":         w.put(t, w.a, e.ID, at(-time.Microsecond), failed),
		"one of long before": w.put(t, w.a, e.ID, at(-24*time.Hour), failed),
		"a pending one":      w.put(t, w.a, e.ID, at(time.Minute), row{Status: "pending", NextAt: &later, Attempts: 2}),
		"one that succeeded": w.put(t, w.a, e.ID, at(time.Minute), row{Status: "succeeded", Attempts: 1}),
		"another endpoint's": w.put(t, w.a, other.ID, at(time.Minute), failed),
	}
	before := map[string]row{}
	for name, d := range keep {
		before[name] = w.row(t, d)
	}
	if n := w.recover(t, e.ID, since); n != 3 {
		t.Errorf("%d were recovered", n)
	}
	for _, d := range []id.DeliveryID{edge, after, late} {
		if got := w.row(t, d); got.Status != "pending" || got.Attempts != 0 || got.NextAt == nil || time.Until(*got.NextAt) > time.Minute {
			t.Errorf("%+v", got)
		}
	}
	for name, d := range keep {
		if got := w.row(t, d); !same(got, before[name]) {
			t.Errorf("%s: %+v, was %+v", name, got, before[name])
		}
	}
	if n := w.recover(t, e.ID, since); n != 0 {
		t.Errorf("%d were recovered twice", n)
	}
	for name, since := range map[string]time.Time{"before all times": time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC), "after all": time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)} {
		want := 0
		if since.Year() == 1 {
			want = 2
		}
		if n := w.recover(t, e.ID, since); n != want {
			t.Errorf("%s: %d were recovered", name, n)
		}
	}
	err := w.try(t, w.b, func(ctx context.Context, tx *Tx) error {
		_, _, err := tx.Recover(ctx, other.ID, since, id.DeliveryID{})
		return err
	})
	if !isCode(err, problem.CodeNotFound) {
		t.Errorf("another tenant's: %v", err)
	}
}

// A month of deliveries needs more than one transaction.
func TestManyDeliveriesTakeSeveralTransactions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e, other := w.endpoint(t, w.a), w.endpoint(t, w.a)
	w.many(t, w.a, e.ID, "failed", 2*Batch+1)
	w.many(t, w.a, other.ID, "failed", 3)
	var sizes []int
	var last id.DeliveryID
	for n := Batch; n == Batch; {
		w.change(t, w.a, func(ctx context.Context, tx *Tx) (err error) {
			n, last, err = tx.Recover(ctx, e.ID, moment(24*time.Hour), last)
			return err
		})
		sizes = append(sizes, n)
	}
	if want := []int{Batch, Batch, 1}; !slices.Equal(sizes, want) {
		t.Errorf("recovered %v, want %v", sizes, want)
	}
	if n := w.count(t, "SELECT sum((detail->>'deliveries')::int)::int FROM audit_log WHERE action = 'webhook.recover'"); n != 2*Batch+1 {
		t.Errorf("the audit log counts %d", n)
	}
	w.many(t, w.a, e.ID, "succeeded", Batch)
	if err := w.remove(t.Context(), e.ID); err != nil {
		t.Error(err)
	}
	if n := w.count(t, "SELECT (SELECT count(*) FROM webhooks)::int * 100 + (SELECT count(*) FROM webhook_deliveries)::int"); n != 103 {
		t.Errorf("%d; want 103: one endpoint with three deliveries", n)
	}
}

func TestShownDeliveries(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e, other := w.endpoint(t, w.a), w.endpoint(t, w.a)
	made, next, begun := moment(time.Hour), moment(-time.Minute), moment(time.Second)
	log := `[{"at": "2026-01-02T03:04:05.000006Z", "error": "no answer", "http_status": null, "duration_ms": null}, {"at": "2026-01-02T03:04:11Z", "error": null, "http_status": 204, "duration_ms": 12}]`
	oldest := w.put(t, w.a, e.ID, made, row{Status: "failed", Attempts: 5, Error: ptr("503"), Log: log})
	fifth := w.put(t, w.a, e.ID, made.Add(time.Minute), row{Status: "pending", Attempts: 5, BegunAt: &begun, NextAt: &next})
	fourth := w.put(t, w.a, e.ID, made.Add(2*time.Minute), row{Status: "pending", Attempts: 4, BegunAt: &begun, NextAt: &next})
	w.put(t, w.a, other.ID, made.Add(3*time.Minute), row{Status: "failed"})
	var test id.DeliveryID
	w.change(t, w.a, func(ctx context.Context, tx *Tx) (err error) {
		test, err = tx.TestWebhook(ctx, e.ID)
		return err
	})
	v := w.View(w.a)
	ids := func(f DeliveryFilter, at id.DeliveryID, limit int) (out []id.DeliveryID) {
		t.Helper()
		rows, err := v.Deliveries(t.Context(), e.ID, f, at, limit)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range rows {
			out = append(out, r.ID)
		}
		return out
	}
	for name, c := range map[string]struct{ got, want []id.DeliveryID }{
		"newest first":           {ids(DeliveryFilter{}, id.DeliveryID{}, 25), []id.DeliveryID{test, fourth, fifth, oldest}},
		"one more than a page":   {ids(DeliveryFilter{}, id.DeliveryID{}, 1), []id.DeliveryID{test, fourth}},
		"the next page":          {ids(DeliveryFilter{}, fourth, 25), []id.DeliveryID{fifth, oldest}},
		"by status":              {ids(DeliveryFilter{Status: ptr(lifecycle.DeliveryFailed)}, id.DeliveryID{}, 25), []id.DeliveryID{oldest}},
		"by type":                {ids(DeliveryFilter{Type: ptr(api.EventType("webhook.test"))}, id.DeliveryID{}, 25), []id.DeliveryID{test}},
		"by both":                {ids(DeliveryFilter{Status: ptr(lifecycle.DeliveryFailed), Type: ptr(api.EventType("webhook.test"))}, id.DeliveryID{}, 25), nil},
		"by a status of nothing": {ids(DeliveryFilter{Status: ptr(lifecycle.DeliverySucceeded)}, id.DeliveryID{}, 25), nil},
	} {
		if !slices.Equal(c.got, c.want) {
			t.Errorf("%s: %v, want %v", name, c.got, c.want)
		}
	}
	got, err := v.Delivery(t.Context(), e.ID, oldest)
	if err != nil {
		t.Fatal(err)
	}
	want := []api.DeliveryAttempt{{At: time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC), Error: ptr("no answer")},
		{At: time.Date(2026, 1, 2, 3, 4, 11, 0, time.UTC), HTTPStatus: ptr(204), DurationMS: ptr[int64](12)}}
	if got.Status != lifecycle.DeliveryFailed || got.Attempts != 5 || got.NextAttemptAt != nil || got.LastError == nil || *got.LastError != "503" || got.LastHTTPStatus != nil ||
		!got.CreatedAt.Equal(made) || got.Type != "run.completed" || string(got.Event) != `{"id":"e","n":[1, 2]}` || !reflect.DeepEqual(got.AttemptLog, want) {
		t.Errorf("%+v", got)
	}
	// There is no attempt after the fifth.
	if got, err := v.Delivery(t.Context(), e.ID, fifth); err != nil || got.NextAttemptAt != nil {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := v.Delivery(t.Context(), e.ID, fourth); err != nil || got.NextAttemptAt == nil || !got.NextAttemptAt.Equal(next) {
		t.Errorf("%+v, %v", got, err)
	}
	for what, err := range map[string]error{
		"another endpoint's": second(v.Delivery(t.Context(), other.ID, oldest)),
		"another tenant's":   second(w.View(w.b).Delivery(t.Context(), e.ID, oldest)),
		"nobody's":           second(v.Delivery(t.Context(), e.ID, id.DeliveryID{UUID: id.NewAnywhere()})),
	} {
		if !isCode(err, problem.CodeNotFound) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if rows, err := w.View(w.b).Deliveries(t.Context(), e.ID, DeliveryFilter{}, id.DeliveryID{}, 25); err != nil || len(rows) != 0 {
		t.Errorf("another tenant sees %v, %v", rows, err)
	}
}

// service.md, Events, Webhooks: the envelope of webhook.test; its bytes do not change.
func TestTheTestEvent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e := w.endpoint(t, w.a, webhook.RunFailed)
	var d id.DeliveryID
	w.change(t, w.a, func(ctx context.Context, tx *Tx) (err error) {
		d, err = tx.TestWebhook(ctx, e.ID)
		return err
	})
	got, err := w.View(w.a).Delivery(t.Context(), e.ID, d)
	if err != nil {
		t.Fatal(err)
	}
	at := got.CreatedAt.Format(time.RFC3339Nano)
	want := fmt.Sprintf(`{"id":"%s","type":"webhook.test","data":{"webhook_id":"%s"},"created_at":"%s"}`, got.EventID, e.ID, at)
	if string(got.Event) != want || got.Status != lifecycle.DeliveryPending || got.Attempts != 0 || got.NextAttemptAt == nil || got.Type != "webhook.test" {
		t.Errorf("%+v\n%s\nwant %s", got, got.Event, want)
	}
	if n := w.count(t, "SELECT count(*)::int FROM audit_log WHERE action = 'webhook.test' AND target_id = $1 AND detail->>'delivery_id' = $2::text", e.ID, d.String()); n != 1 {
		t.Errorf("%d audit rows", n)
	}
}

func TestForeignWebhooksAreNoRows(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e := w.endpoint(t, w.a)
	do := func(fn func(ctx context.Context, tx *Tx) error) error { return w.try(t, w.b, fn) }
	for what, err := range map[string]error{
		"read": second(w.View(w.b).Webhook(t.Context(), e.ID)),
		"update": do(func(ctx context.Context, tx *Tx) error {
			return second(tx.UpdateWebhook(ctx, e.ID, &api.WebhookPatch{Enabled: ptr(false)}))
		}),
		"rotate": do(func(ctx context.Context, tx *Tx) error { return second(tx.RotateWebhook(ctx, e.ID)) }),
		"delete": do(func(ctx context.Context, tx *Tx) error { return tx.DeleteWebhook(ctx, e.ID) }),
		"test":   do(func(ctx context.Context, tx *Tx) error { return second(tx.TestWebhook(ctx, e.ID)) }),
	} {
		if !isCode(err, problem.CodeNotFound) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := none(w.View(w.b).Webhooks(t.Context(), id.WebhookID{}, All)); err != nil {
		t.Error(err)
	}
	if err := none(w.View(w.b).Hearing(t.Context())); err != nil {
		t.Error(err)
	}
	if got, err := w.View(w.a).Webhook(t.Context(), e.ID); err != nil || !got.Enabled || !got.UpdatedAt.Equal(e.UpdatedAt) {
		t.Errorf("%+v, %v", got, err)
	}
}
