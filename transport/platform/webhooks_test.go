package platform

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"agentsvc/persistence/outbox"
	"agentsvc/persistence/pgtest"
	"agentsvc/persistence/store"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/testkit"
	"agentsvc/schemas/webhook"
)

// deliveries is a fake of the sender of webhooks.
type deliveries struct {
	mu        sync.Mutex // guards the fields below
	woken     []id.WebhookID
	forgotten []id.WebhookID
	anew      int // how often it was told to drop everything
}

func (d *deliveries) Wake(_ id.TenantID, w id.WebhookID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.woken = append(d.woken, w)
}

func (d *deliveries) Forget(_ id.TenantID, w id.WebhookID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.forgotten = append(d.forgotten, w)
}

func (d *deliveries) ForgetAll() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.anew++
}

// take empties the lists.
func (d *deliveries) take() (woken, forgotten []id.WebhookID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	woken, forgotten = d.woken, d.forgotten
	d.woken, d.forgotten = nil, nil
	return woken, forgotten
}

// giveWebhook creates an endpoint with a failed delivery, and a listener.
func (w *world) giveWebhook(p *party) error {
	ctx := w.t.Context()
	err := w.Store.Change(ctx, store.By{Tenant: p.tenant, Actor: "system"}, func(ctx context.Context, tx *store.Tx) ([]byte, error) {
		e, err := tx.CreateWebhook(ctx, &api.WebhookCreate{URL: "https://r.example/in", Events: api.Events{webhook.RunFailed}, Description: "Desk"})
		if err != nil {
			return nil, err
		}
		l, err := tx.CreateListener(ctx, []webhook.Type{webhook.RunFailed})
		if err != nil {
			return nil, err
		}
		p.webhook, p.listener = e.ID, l.ID
		return nil, nil
	})
	if err != nil {
		return err
	}
	p.delivery = w.happens(*p, p.webhook, "failed", time.Minute)
	return nil
}

// happens creates a delivery of an event that is some time old.
func (w *world) happens(p party, e id.WebhookID, status string, ago time.Duration) (d id.DeliveryID) {
	w.t.Helper()
	w.must(w.admin.QueryRow(w.t.Context(), `INSERT INTO webhook_deliveries (tenant_id, id, webhook_id, event_id, type, body, status, attempts, next_attempt_at, last_http_status, last_error, created_at)
		SELECT $1, new_id(at), $2, $5, 'run.failed', convert_to('{"id":"' || $5::uuid || '","type":"run.failed","data":{"text":"ü<&>"},"created_at":"2026-01-02T03:04:05Z"}', 'UTF8'),
		$3::text, CASE $3::text WHEN 'pending' THEN 0 ELSE 5 END, CASE $3::text WHEN 'pending' THEN at END, CASE $3::text WHEN 'failed' THEN 503 END, CASE $3::text WHEN 'failed' THEN 'the answer was 503' END, at
		FROM (SELECT now() - $4::interval AS at) s RETURNING id`, p.tenant, e, status, ago, id.EventID{UUID: id.NewAnywhere()}).Scan(&d))
	return d
}

// withOutbox gives the listeners a real outbox.
func (w *world) withOutbox() {
	w.t.Helper()
	w.Outbox = testkit.Start(w.t, outbox.New(outbox.Config{Pool: w.db.System(w.t), Member: pgtest.Member(w.t, w.admin), Timeout: 10 * time.Second,
		Backoff: webhook.FirstPause, Log: zerolog.New(zerolog.NewTestWriter(w.t))}))
	w.WebhookBackoff = webhook.FirstPause
}

// service.md, Webhooks (admin); open-parts.md, Webhooks, Questions settled: each row is one case,
// and the cases run in order on one tenant.
func TestWebhookRoutes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.withOutbox()
	x := func(n int) string { return strings.Repeat("x", n) }
	hook := func(fields string) string {
		doc := map[string]any{"url": "https://n.example/in", "events": []string{"run.completed"}}
		w.must(json.Unmarshal([]byte("{"+fields+"}"), &doc))
		for k, v := range doc {
			if v == "(none)" {
				delete(doc, k)
			}
		}
		b, err := json.Marshal(doc)
		w.must(err)
		return string(b)
	}
	types := func(n int, of string) string {
		return `"events": [` + strings.TrimSuffix(strings.Repeat(of+",", n), ",") + `]`
	}
	other := w.call(w.a, "POST", "/v1/webhooks", hook(""))
	otherID, _ := other.get("id").(string)
	fill := strings.NewReplacer("{other}", otherID)
	catalog := `"run.completed","run.failed","approval.requested","approval.decided","approval.escalated","kb.source.synced","kb.source.failed","browser_skill.run.finished","webhook.test"`
	rows := []route{
		{"list the endpoints, newest first, without listeners", "GET", "/v1/webhooks", "", 200, "", `{"items":[{"id":"{other}"`, ""},
		{"without next_cursor", "GET", "/v1/webhooks", "", 200, "", `"updated_at":"`, ""},
		{"read an endpoint", "GET", "/v1/webhooks/{webhook}", "", 200, "", `{"id":"{webhook}","url":"https://r.example/in","events":["run.failed"],"description":"Desk","enabled":true,"created_at":"`, ""},
		{"read an unknown endpoint", "GET", "/v1/webhooks/{unknown}", "", 404, "NOT_FOUND", "webhook endpoint", ""},
		{"a listener is no endpoint", "GET", "/v1/webhooks/{listener}", "", 404, "NOT_FOUND", "webhook endpoint", ""},
		{"an id that is no UUID", "GET", "/v1/webhooks/nonsense", "", 404, "NOT_FOUND", "", ""},
		{"the event types", "GET", "/v1/webhooks/event-types", "", 200, "", `{"items":[{"type":"run.completed","description":"`, ""},
		{"* is among them", "GET", "/v1/webhooks/event-types", "", 200, "", `{"type":"*","description":"`, ""},

		{"add an endpoint", "POST", "/v1/webhooks", hook(`"description": "d"`), 201, "", `"url":"https://n.example/in","events":["run.completed"],"description":"d","enabled":true,"created_at":"`, "webhook.create"},
		{"its secret is shown", "POST", "/v1/webhooks", hook(``), 201, "", `"secret":"whsec_`, "webhook.create"},
		{"everything as a list", "POST", "/v1/webhooks", hook(`"events": ["*"]`), 201, "", `"events":["*"]`, "webhook.create"},
		{"everything as a text", "POST", "/v1/webhooks", hook(`"events": "*"`), 201, "", `"events":["*"]`, "webhook.create"},
		{"the whole catalog", "POST", "/v1/webhooks", hook(`"events": [` + catalog + `]`), 201, "", `"events":[` + catalog + `]`, "webhook.create"},
		{"duplicates are merged", "POST", "/v1/webhooks", hook(`"events": ["run.failed", "run.completed", "run.failed"]`), 201, "", `"events":["run.failed","run.completed"]`, "webhook.create"},
		{"also of *", "POST", "/v1/webhooks", hook(types(2, `"*"`)), 201, "", `"events":["*"]`, "webhook.create"},
		{"16 entries", "POST", "/v1/webhooks", hook(types(16, `"run.failed"`)), 201, "", `"events":["run.failed"]`, "webhook.create"},
		{"17 entries", "POST", "/v1/webhooks", hook(types(17, `"run.failed"`)), 400, "VALIDATION", "events: must name at most 16 event types", ""},
		{"no entries", "POST", "/v1/webhooks", hook(`"events": []`), 400, "VALIDATION", "events: must name at least one event type, or *", ""},
		{"events are required", "POST", "/v1/webhooks", hook(`"events": "(none)"`), 400, "VALIDATION", "events: is required", ""},
		{"an unknown type", "POST", "/v1/webhooks", hook(`"events": ["run.failed", "run.started"]`), 400, "VALIDATION", `events: has an unknown event type: \"run.started\"`, ""},
		{"a type of 101 characters", "POST", "/v1/webhooks", hook(`"events": ["` + x(101) + `"]`), 400, "VALIDATION", `events: has an event type that is too long`, ""},
		{"* beside others", "POST", "/v1/webhooks", hook(`"events": ["run.failed", "*"]`), 400, "VALIDATION", "events: must hold nothing beside *", ""},
		{"a type alone as a text", "POST", "/v1/webhooks", hook(`"events": "run.failed"`), 400, "VALIDATION", `events: must be a list of event types, or \"*\"`, ""},
		{"types that are no texts", "POST", "/v1/webhooks", hook(`"events": [1]`), 400, "VALIDATION", `events: must be a list of event types, or \"*\"`, ""},
		{"null as types", "POST", "/v1/webhooks", hook(`"events": null`), 400, "VALIDATION", `events: must not be null`, ""},
		{"a list of null", "POST", "/v1/webhooks", hook(`"events": [null]`), 400, "VALIDATION", `events: `, ""},
		{"a URL that the guard refuses", "POST", "/v1/webhooks", hook(`"url": "https://localhost/in"`), 422, "INVALID_URL", "refused by the outbound guard: not public", ""},
		{"a URL is required", "POST", "/v1/webhooks", hook(`"url": "(none)"`), 400, "VALIDATION", "url: is required", ""},
		{"an empty URL", "POST", "/v1/webhooks", hook(`"url": ""`), 400, "VALIDATION", "url", ""},
		{"a URL of 2000", "POST", "/v1/webhooks", hook(`"url": "https://` + x(1992) + `"`), 201, "", "", "webhook.create"},
		{"a URL of 2001", "POST", "/v1/webhooks", hook(`"url": "https://` + x(1993) + `"`), 400, "VALIDATION", "url", ""},
		{"a description of 2000", "POST", "/v1/webhooks", hook(`"description": "` + x(2000) + `"`), 201, "", "", "webhook.create"},
		{"a description of 2001", "POST", "/v1/webhooks", hook(`"description": "` + x(2001) + `"`), 400, "VALIDATION", "description", ""},
		{"a secret of one's own", "POST", "/v1/webhooks", hook(`"secret": "whsec_x"`), 400, "VALIDATION", "secret", ""},

		{"change everything", "PATCH", "/v1/webhooks/{other}", `{"url": "https://o.example", "events": "*", "description": "o", "enabled": false}`, 200, "", `"url":"https://o.example","events":["*"],"description":"o","enabled":false`, "webhook.update"},
		{"a patch leaves what it does not name", "PATCH", "/v1/webhooks/{other}", `{}`, 200, "", `"url":"https://o.example","events":["*"],"description":"o","enabled":false`, "webhook.update"},
		{"a patch merges too", "PATCH", "/v1/webhooks/{other}", `{"events": ["run.failed", "run.failed"]}`, 200, "", `"events":["run.failed"]`, "webhook.update"},
		{"a patch to no events", "PATCH", "/v1/webhooks/{other}", `{"events": []}`, 400, "VALIDATION", "events: must name at least one", ""},
		{"a patch to 17 events", "PATCH", "/v1/webhooks/{other}", `{` + types(17, `"run.failed"`) + `}`, 400, "VALIDATION", "events: must name at most 16", ""},
		{"a patch to a refused URL", "PATCH", "/v1/webhooks/{other}", `{"url": "http://localhost"}`, 422, "INVALID_URL", "", ""},
		{"a patch of an unknown endpoint to one", "PATCH", "/v1/webhooks/{unknown}", `{"url": "http://localhost"}`, 404, "NOT_FOUND", "webhook endpoint", ""},
		{"a patch of a secret", "PATCH", "/v1/webhooks/{other}", `{"secret": "x"}`, 400, "VALIDATION", "secret", ""},
		{"change an unknown endpoint", "PATCH", "/v1/webhooks/{unknown}", `{"enabled": true}`, 404, "NOT_FOUND", "webhook endpoint", ""},
		{"change a listener", "PATCH", "/v1/webhooks/{listener}", `{"enabled": false}`, 404, "NOT_FOUND", "webhook endpoint", ""},

		{"test a disabled endpoint", "POST", "/v1/webhooks/{other}/test", "", 400, "VALIDATION", "enable it first", ""},
		{"recover what a disabled endpoint has", "POST", "/v1/webhooks/{other}/recover", `{"since": "2026-01-02T03:04:05Z"}`, 400, "VALIDATION", "enable it first", ""},
		{"enable it", "PATCH", "/v1/webhooks/{other}", `{"enabled": true}`, 200, "", `"enabled":true`, "webhook.update"},
		{"test an endpoint", "POST", "/v1/webhooks/{other}/test", "", 202, "", `{"delivery_id":"`, "webhook.test"},
		{"a test takes no body", "POST", "/v1/webhooks/{other}/test", `{"type": "run.failed"}`, 400, "VALIDATION", "type", ""},
		{"it is sent whatever the endpoint hears of", "GET", "/v1/webhooks/{other}/deliveries", "", 200, "", `"type":"webhook.test","status":"pending","attempts":0,"last_http_status":null,"last_error":null,"next_attempt_at":"`, ""},
		{"test an unknown endpoint", "POST", "/v1/webhooks/{unknown}/test", "", 404, "NOT_FOUND", "webhook endpoint", ""},
		{"rotate a secret", "POST", "/v1/webhooks/{other}/rotate-secret", "", 200, "", `"secret":"whsec_`, "webhook.rotate"},
		{"rotate an unknown one", "POST", "/v1/webhooks/{unknown}/rotate-secret", "", 404, "NOT_FOUND", "webhook endpoint", ""},

		{"list deliveries", "GET", "/v1/webhooks/{webhook}/deliveries", "", 200, "", `{"items":[{"id":"{delivery}","event_id":"`, ""},
		{"what a delivery is", "GET", "/v1/webhooks/{webhook}/deliveries", "", 200, "", `"type":"run.failed","status":"failed","attempts":5,"last_http_status":503,"last_error":"the answer was 503","next_attempt_at":null,"created_at":"`, ""},
		{"the last page", "GET", "/v1/webhooks/{webhook}/deliveries", "", 200, "", `"attempt_log":[]}],"next_cursor":null}`, ""},
		{"by status", "GET", "/v1/webhooks/{webhook}/deliveries?status=failed", "", 200, "", `"id":"{delivery}"`, ""},
		{"by another status", "GET", "/v1/webhooks/{webhook}/deliveries?status=succeeded", "", 200, "", `"items":[]`, ""},
		{"by an unknown status", "GET", "/v1/webhooks/{webhook}/deliveries?status=done", "", 400, "VALIDATION", "status", ""},
		{"by type", "GET", "/v1/webhooks/{webhook}/deliveries?type=run.failed&status=failed", "", 200, "", `"id":"{delivery}"`, ""},
		{"by another type", "GET", "/v1/webhooks/{webhook}/deliveries?type=webhook.test", "", 200, "", `"items":[]`, ""},
		{"* is the type of nothing", "GET", "/v1/webhooks/{webhook}/deliveries?type=*", "", 400, "VALIDATION", "type", ""},
		{"a page of 101", "GET", "/v1/webhooks/{webhook}/deliveries?limit=101", "", 400, "VALIDATION", "limit", ""},
		{"another list's cursor", "GET", "/v1/webhooks/{webhook}/deliveries?cursor=" + api.Cursor("webhooks", w.a.webhook), "", 400, "VALIDATION", "cursor", ""},
		{"list an unknown endpoint's", "GET", "/v1/webhooks/{unknown}/deliveries", "", 404, "NOT_FOUND", "webhook endpoint", ""},
		{"list a listener's", "GET", "/v1/webhooks/{listener}/deliveries", "", 404, "NOT_FOUND", "webhook endpoint", ""},
		{"read a delivery, with its event", "GET", "/v1/webhooks/{webhook}/deliveries/{delivery}", "", 200, "", `"event":{"id":"`, ""},
		{"read another endpoint's", "GET", "/v1/webhooks/{other}/deliveries/{delivery}", "", 404, "NOT_FOUND", "delivery", ""},
		{"read an unknown delivery", "GET", "/v1/webhooks/{webhook}/deliveries/{unknown}", "", 404, "NOT_FOUND", "delivery", ""},
		{"redeliver another endpoint's", "POST", "/v1/webhooks/{other}/deliveries/{delivery}/redeliver", "", 404, "NOT_FOUND", "delivery", ""},
		{"redeliver an unknown delivery", "POST", "/v1/webhooks/{webhook}/deliveries/{unknown}/redeliver", "", 404, "NOT_FOUND", "delivery", ""},
		{"recover what failed later", "POST", "/v1/webhooks/{webhook}/recover", `{"since": "2100-01-01T00:00:00Z"}`, 202, "", `{"deliveries":0}`, "webhook.recover"},
		{"redeliver a delivery", "POST", "/v1/webhooks/{webhook}/deliveries/{delivery}/redeliver", "", 202, "", `{"delivery_id":"{delivery}"}`, "webhook.redeliver"},
		{"it is pending", "GET", "/v1/webhooks/{webhook}/deliveries/{delivery}", "", 200, "", `"status":"pending","attempts":0,"last_http_status":503`, ""},
		{"redeliver a pending one", "POST", "/v1/webhooks/{webhook}/deliveries/{delivery}/redeliver", "", 202, "", `{"delivery_id":"{delivery}"}`, "webhook.redeliver"},
		{"disable its endpoint", "PATCH", "/v1/webhooks/{webhook}", `{"enabled": false}`, 200, "", `"enabled":false`, "webhook.update"},
		{"it has failed", "GET", "/v1/webhooks/{webhook}/deliveries/{delivery}", "", 200, "", `"status":"failed","attempts":0,"last_http_status":503,"last_error":"the endpoint was disabled","next_attempt_at":null`, ""},
		{"redeliver it", "POST", "/v1/webhooks/{webhook}/deliveries/{delivery}/redeliver", "", 400, "VALIDATION", "enable it first", ""},
		{"enable its endpoint", "PATCH", "/v1/webhooks/{webhook}", `{"enabled": true}`, 200, "", `"enabled":true`, "webhook.update"},
		{"recover it", "POST", "/v1/webhooks/{webhook}/recover", `{"since": "2026-01-02T03:04:05+02:00"}`, 202, "", `{"deliveries":1}`, "webhook.recover"},
		{"recover without a time", "POST", "/v1/webhooks/{webhook}/recover", `{}`, 400, "VALIDATION", "since: is required", ""},
		{"recover since no time", "POST", "/v1/webhooks/{webhook}/recover", `{"since": "yesterday"}`, 400, "VALIDATION", "since", ""},
		{"recover since a day that is none", "POST", "/v1/webhooks/{webhook}/recover", `{"since": "2026-02-30T00:00:00Z"}`, 400, "VALIDATION", "", ""},
		{"recover since the first year", "POST", "/v1/webhooks/{webhook}/recover", `{"since": "0001-01-01T00:00:00Z"}`, 202, "", `{"deliveries":0}`, "webhook.recover"},
		{"recover since year nought", "POST", "/v1/webhooks/{webhook}/recover", `{"since": "0000-01-01T00:00:00Z"}`, 202, "", `{"deliveries":0}`, "webhook.recover"},
		{"recover an unknown endpoint's", "POST", "/v1/webhooks/{unknown}/recover", `{"since": "2026-01-02T03:04:05Z"}`, 404, "NOT_FOUND", "webhook endpoint", ""},

		{"listen to everything", "POST", "/v1/webhooks/listeners", "", 201, "", `"events":["*"],"secret":"whsec_`, "webhook.listener.create"},
		{"listen to some", "POST", "/v1/webhooks/listeners", `{"events": ["run.failed", "run.failed"]}`, 201, "", `"events":["run.failed"]`, "webhook.listener.create"},
		{"listen to an unknown type", "POST", "/v1/webhooks/listeners", `{"events": ["x"]}`, 400, "VALIDATION", "events: has an unknown event type", ""},
		{"a listener has no URL", "POST", "/v1/webhooks/listeners", `{"url": "https://n.example"}`, 400, "VALIDATION", "url", ""},
		{"pull nothing", "POST", "/v1/webhooks/listeners/{listener}/pull", "", 200, "", `{"items":[],"expires_at":"`, ""},
		{"pull with no results", "POST", "/v1/webhooks/listeners/{listener}/pull", `{"results": []}`, 200, "", `{"items":[],"expires_at":"`, ""},
		{"report of what is nobody's", "POST", "/v1/webhooks/listeners/{listener}/pull", `{"results": [{"delivery_id": "{unknown}", "attempt": 1, "http_status": 200}]}`, 200, "", `{"items":[],`, ""},
		{"report attempt 5", "POST", "/v1/webhooks/listeners/{listener}/pull", `{"results": [{"delivery_id": "{unknown}", "attempt": 5, "error": "x"}]}`, 200, "", `{"items":[],`, ""},
		{"report attempt 6", "POST", "/v1/webhooks/listeners/{listener}/pull", `{"results": [{"delivery_id": "{unknown}", "attempt": 6}]}`, 400, "VALIDATION", "results[0].attempt", ""},
		{"report attempt 0", "POST", "/v1/webhooks/listeners/{listener}/pull", `{"results": [{"delivery_id": "{unknown}", "attempt": 0}]}`, 400, "VALIDATION", "results[0].attempt", ""},
		{"report status 999", "POST", "/v1/webhooks/listeners/{listener}/pull", `{"results": [{"delivery_id": "{unknown}", "attempt": 1, "http_status": 999}]}`, 200, "", "", ""},
		{"report status 1000", "POST", "/v1/webhooks/listeners/{listener}/pull", `{"results": [{"delivery_id": "{unknown}", "attempt": 1, "http_status": 1000}]}`, 400, "VALIDATION", "results[0].http_status", ""},
		{"report an error of 1001", "POST", "/v1/webhooks/listeners/{listener}/pull", `{"results": [{"delivery_id": "{unknown}", "attempt": 1, "error": "` + x(1001) + `"}]}`, 400, "VALIDATION", "results[0].error", ""},
		{"report 100", "POST", "/v1/webhooks/listeners/{listener}/pull", `{"results": [` + strings.TrimSuffix(strings.Repeat(`{"delivery_id": "{unknown}", "attempt": 1},`, 100), ",") + `]}`, 200, "", "", ""},
		{"report 101", "POST", "/v1/webhooks/listeners/{listener}/pull", `{"results": [` + strings.TrimSuffix(strings.Repeat(`{"delivery_id": "{unknown}", "attempt": 1},`, 101), ",") + `]}`, 400, "VALIDATION", "results", ""},
		{"report of no delivery", "POST", "/v1/webhooks/listeners/{listener}/pull", `{"results": [{"attempt": 1}]}`, 400, "VALIDATION", "results[0].delivery_id: is required", ""},
		{"pull from an endpoint", "POST", "/v1/webhooks/listeners/{webhook}/pull", "", 404, "NOT_FOUND", "listener", ""},
		{"pull from nobody", "POST", "/v1/webhooks/listeners/{unknown}/pull", "", 404, "NOT_FOUND", "listener", ""},
		{"remove an endpoint as a listener", "DELETE", "/v1/webhooks/listeners/{webhook}", "", 404, "NOT_FOUND", "listener", ""},
		{"remove a listener as an endpoint", "DELETE", "/v1/webhooks/{listener}", "", 404, "NOT_FOUND", "webhook endpoint", ""},
		{"stop listening", "DELETE", "/v1/webhooks/listeners/{listener}", "", 204, "", "", "webhook.listener.delete"},
		{"pull from a listener that is gone", "POST", "/v1/webhooks/listeners/{listener}/pull", "", 404, "NOT_FOUND", "listener", ""},
		{"stop again", "DELETE", "/v1/webhooks/listeners/{listener}", "", 404, "NOT_FOUND", "listener", ""},

		{"remove an endpoint, which disables it first", "DELETE", "/v1/webhooks/{webhook}", "", 204, "", "", "webhook.update webhook.delete"},
		{"its deliveries are gone", "GET", "/v1/webhooks/{webhook}/deliveries/{delivery}", "", 404, "NOT_FOUND", "", ""},
		{"it is gone", "GET", "/v1/webhooks/{webhook}", "", 404, "NOT_FOUND", "webhook endpoint", ""},
		{"remove it again", "DELETE", "/v1/webhooks/{webhook}", "", 404, "NOT_FOUND", "webhook endpoint", ""},
	}
	for i := range rows {
		rows[i].path, rows[i].body, rows[i].has = fill.Replace(rows[i].path), fill.Replace(rows[i].body), fill.Replace(rows[i].has)
	}
	w.routes(w.a.fill(), rows, other.get("secret").(string))
	if got := w.call(w.a, "GET", "/v1/webhooks", ""); strings.Contains(got.body, "next_cursor") || strings.Contains(got.body, "secret") {
		t.Errorf("the list: %s", got.body)
	}
}

// security.md, invariant 16: another tenant's delivery is answered like an unknown one, also on an
// endpoint of one's own.
func TestForeignDeliveriesAnswerLikeRandomOnes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	own := "/v1/webhooks/" + w.b.webhook.String() + "/deliveries/"
	for _, c := range [][2]string{{"GET", ""}, {"POST", "/redeliver"}} {
		theirs := w.call(w.b, c[0], own+w.a.delivery.String()+c[1], "")
		unknowns := w.call(w.b, c[0], own+id.NewAnywhere().String()+c[1], "")
		if theirs.status != 404 || theirs.status != unknowns.status || theirs.body != unknowns.body {
			t.Errorf("%s %s: foreign %d %s\nrandom %d %s", c[0], c[1], theirs.status, theirs.body, unknowns.status, unknowns.body)
		}
	}
	for _, list := range []string{"/v1/webhooks", own[:len(own)-1]} {
		got := w.call(w.b, "GET", list, "")
		if items, ok := got.get("items").([]any); !ok || len(items) != 1 {
			t.Errorf("%s: %s", list, got.body)
		}
		for _, theirs := range []string{w.a.webhook.String(), w.a.delivery.String(), w.a.listener.String()} {
			if strings.Contains(got.body, theirs) {
				t.Errorf("%s shows another tenant's %s", list, theirs)
			}
		}
	}
}

// open-parts.md: a repeat gets the whole first response, with the secret, and has no second
// effect.
func TestRepeatsOfWebhookRoutes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.withOutbox()
	fill := w.a.fill()
	w.happens(w.a, w.a.listener, "pending", time.Second)
	for _, c := range []struct {
		path, body, other string
		status            int
		wakes             bool
	}{
		{"/v1/webhooks", `{"url": "https://o.example", "events": "*"}`, `{"url": "https://o.example", "events": ["run.failed"]}`, 201, false},
		{"/v1/webhooks/{webhook}/rotate-secret", "", `{}`, 200, false},
		{"/v1/webhooks/{webhook}/test", "", `{}`, 202, true},
		{"/v1/webhooks/{webhook}/recover", `{"since": "2026-01-02T03:04:05Z"}`, `{"since": "2026-01-02T03:04:06Z"}`, 202, true},
		{"/v1/webhooks/{webhook}/deliveries/{delivery}/redeliver", "", `{}`, 202, true},
		{"/v1/webhooks/listeners", `{}`, `{"events": ["run.failed"]}`, 201, false},
		{"/v1/webhooks/listeners/{listener}/pull", `{}`, `{"results": []}`, 200, false},
	} {
		path, body := fill.Replace(c.path), c.body
		w.sent.take()
		first := w.call(w.a, "POST", path, body, "Idempotency-Key", "one")
		before := w.audited(w.a.tenant)
		woken, _ := w.sent.take()
		again := w.call(w.a, "POST", path, body, "Idempotency-Key", "one")
		if first.status != c.status || again.status != c.status || first.body != again.body || again.header.Get("Idempotency-Replayed") != "true" {
			t.Errorf("%s: %d %s\nagain: %d %s", path, first.status, first.body, again.status, again.body)
		}
		if after := w.audited(w.a.tenant); !reflect.DeepEqual(after, before) {
			t.Errorf("%s: the repeat changed something: %v, then %v", path, before, after)
		}
		if slices.Contains(woken, w.a.webhook) != c.wakes {
			t.Errorf("%s: woke %v", path, woken)
		}
		if got := w.call(w.a, "POST", path, c.other, "Idempotency-Key", "one"); got.status != 409 || got.code() != "IDEMPOTENCY_CONFLICT" {
			t.Errorf("%s with another body: %d %s", path, got.status, got.body)
		}
	}
	var n int
	w.must(w.admin.QueryRow(t.Context(), "SELECT count(*)::int FROM webhooks WHERE tenant_id = $1", w.a.tenant).Scan(&n))
	if n != 4 {
		t.Errorf("%d endpoints and listeners", n)
	}
}

// open-parts.md, Questions settled: webhooks are for admins.
func TestWebhooksAreForAdmins(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	seen := 0
	for _, r := range w.table.Routes() {
		if !strings.HasPrefix(r.Path, "/v1/webhooks") {
			continue
		}
		seen++
		path := strings.NewReplacer("{id}", id.NewAnywhere().String(), "{delivery_id}", id.NewAnywhere().String()).Replace(r.Path)
		if got := w.person("member", r.Method, path, "{}"); got.status != 403 || got.code() != "FORBIDDEN" {
			t.Errorf("%s %s as a member: %d %s", r.Method, r.Path, got.status, got.body)
		}
	}
	if seen != 15 {
		t.Errorf("%d routes were tried", seen)
	}
}

// service.md, Webhook endpoint: only the responses that create a secret contain it.
func TestAWebhookSecretIsNowhere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.withOutbox()
	secretOf := func(path, body string) string {
		got := w.call(w.a, "POST", path, body, "Idempotency-Key", "k")
		secret, _ := got.get("secret").(string)
		if !strings.HasPrefix(secret, "whsec_") {
			t.Fatal(got)
		}
		return secret
	}
	hook := w.a.fill().Replace("/v1/webhooks/{webhook}")
	secrets := []string{secretOf("/v1/webhooks", `{"url": "https://o.example", "events": "*"}`), secretOf(hook+"/rotate-secret", ""), secretOf("/v1/webhooks/listeners", "")}
	for _, c := range [][3]string{
		{"GET", "/v1/webhooks", ""}, {"GET", hook, ""}, {"PATCH", hook, `{"description": "x"}`}, {"POST", hook + "/test", ""}, {"GET", hook + "/deliveries", ""},
		{"GET", w.a.fill().Replace("/v1/webhooks/{webhook}/deliveries/{delivery}"), ""}, {"POST", w.a.fill().Replace("/v1/webhooks/listeners/{listener}/pull"), ""}, {"GET", "/v1/audit", ""},
	} {
		got := w.call(w.a, c[0], c[1], c[2])
		if got.status >= 300 {
			t.Errorf("%s %s: %d %s", c[0], c[1], got.status, got.body)
		}
		for _, secret := range secrets {
			if strings.Contains(got.body, secret) {
				t.Errorf("%s %s shows a secret", c[0], c[1])
			}
		}
	}
	for _, secret := range secrets {
		w.nowhere(secret)
	}
}

func TestPagesOfWebhooks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for range 4 {
		if got := w.call(w.a, "POST", "/v1/webhooks", `{"url": "https://o.example", "events": "*"}`); got.status != 201 {
			t.Fatal(got)
		}
		w.happens(w.a, w.a.webhook, "succeeded", time.Hour)
	}
	for _, list := range []string{"/v1/webhooks", "/v1/webhooks/" + w.a.webhook.String() + "/deliveries"} {
		var all []string
		cursor := ""
		for pages := 0; ; pages++ {
			got := w.call(w.a, "GET", list+"?limit=2"+cursor, "")
			items, _ := got.get("items").([]any)
			for _, item := range items {
				all = append(all, item.(map[string]any)["id"].(string))
			}
			next, more := got.get("next_cursor").(string)
			if more != (pages < 2) || len(items) != 2 && more {
				t.Fatalf("%s: page %d: %s", list, pages, got.body)
			}
			if !more {
				break
			}
			cursor = "&cursor=" + next
		}
		sorted := slices.Clone(all)
		slices.Sort(sorted)
		slices.Reverse(sorted)
		if len(all) != 5 || !slices.Equal(all, slices.Compact(sorted)) {
			t.Errorf("%s: %v", list, all)
		}
	}
	if got := w.call(w.a, "GET", "/v1/webhooks", ""); len(got.get("items").([]any)) != 5 || strings.Contains(got.body, "next_cursor") {
		t.Errorf("the whole list: %s", got.body)
	}
}

// Every change that makes a delivery due wakes the endpoint's sender, and no other change does.
func TestWhatWakesDeliveries(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	fill := w.a.fill()
	for _, c := range []struct {
		method, path, body string
		status             int
		wakes, forgets     bool
	}{
		{"POST", "/v1/webhooks", `{"url": "https://o.example", "events": "*"}`, 201, false, true},
		{"POST", "/v1/webhooks/listeners", "", 201, false, true},
		{"PATCH", "/v1/webhooks/{webhook}", `{"url": "https://p.example"}`, 200, false, true},
		{"POST", "/v1/webhooks/{webhook}/rotate-secret", "", 200, false, true},
		{"POST", "/v1/webhooks/{webhook}/test", "", 202, true, false},
		{"POST", "/v1/webhooks/{unknown}/test", "", 404, false, false},
		{"POST", "/v1/webhooks/{webhook}/deliveries/{delivery}/redeliver", "", 202, true, false},
		{"POST", "/v1/webhooks/{webhook}/deliveries/{unknown}/redeliver", "", 404, false, false},
		{"POST", "/v1/webhooks/{webhook}/recover", `{"since": "2026-01-02T03:04:05Z"}`, 202, true, false},
		{"PATCH", "/v1/webhooks/{webhook}", `{"enabled": false}`, 200, false, true},
		{"POST", "/v1/webhooks/{webhook}/test", "", 400, false, false},
		{"POST", "/v1/webhooks/{webhook}/recover", `{"since": "2026-01-02T03:04:05Z"}`, 400, false, false},
		{"GET", "/v1/webhooks/{webhook}", "", 200, false, false},
		{"DELETE", "/v1/webhooks/listeners/{listener}", "", 204, false, true},
		{"DELETE", "/v1/webhooks/{webhook}", "", 204, false, true},
	} {
		w.sent.take()
		got := w.call(w.a, c.method, fill.Replace(c.path), c.body)
		woken, forgotten := w.sent.take()
		if got.status != c.status || (len(woken) > 0) != c.wakes || (len(forgotten) > 0) != c.forgets || c.wakes && woken[0] != w.a.webhook {
			t.Errorf("%s %s: %d %s, woke %v, forgot %v", c.method, c.path, got.status, got.body, woken, forgotten)
		}
	}
}

// A recovery of more than one transaction reports the total.
func TestARecoveryOfMany(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	hook := "/v1/webhooks/" + w.a.webhook.String()
	_, err := w.admin.Exec(t.Context(), `INSERT INTO webhook_deliveries (tenant_id, id, webhook_id, event_id, type, body, status, created_at)
		SELECT $1, new_id(at), $2, gen_random_uuid(), 'run.failed', '{}', 'failed', at FROM (SELECT now() - interval '1 hour' + n * interval '1 ms' AS at FROM generate_series(1, $3) n) s`,
		w.a.tenant, w.a.webhook, store.Batch)
	w.must(err)
	got := w.call(w.a, "POST", hook+"/recover", `{"since": "2026-01-02T03:04:05Z"}`, "Idempotency-Key", "k")
	if got.status != 202 || fmt.Sprint(got.get("deliveries")) != fmt.Sprint(store.Batch+1) {
		t.Errorf("%d %s", got.status, got.body)
	}
	if again := w.call(w.a, "POST", hook+"/recover", `{"since": "2026-01-02T03:04:05Z"}`, "Idempotency-Key", "k"); again.body != got.body {
		t.Errorf("again: %s", again.body)
	}
	if got := w.call(w.a, "POST", hook+"/recover", `{"since": "2026-01-02T03:04:05Z"}`); got.body != `{"deliveries":0}` {
		t.Errorf("another time: %s", got.body)
	}
	_, err = w.admin.Exec(t.Context(), "UPDATE webhook_deliveries SET status = 'failed', next_attempt_at = NULL WHERE webhook_id = $1", w.a.webhook)
	w.must(err)
	if got := w.call(w.a, "DELETE", hook, ""); got.status != 204 {
		t.Errorf("%d %s", got.status, got.body)
	}
	var n int
	w.must(w.admin.QueryRow(t.Context(), "SELECT count(*)::int FROM webhook_deliveries WHERE tenant_id = $1", w.a.tenant).Scan(&n))
	if n != 0 {
		t.Errorf("%d deliveries are left", n)
	}
	if audit := w.audited(w.a.tenant); audit["webhook.delete"] != 1 {
		t.Errorf("the audit log holds %v", audit)
	}
}

// Endpoints with more pending deliveries than one transaction ends: disabling and removing them works.
func TestClosingWithMuchPending(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	fill := func(e id.WebhookID) {
		_, err := w.admin.Exec(t.Context(), `INSERT INTO webhook_deliveries (tenant_id, id, webhook_id, event_id, type, body, next_attempt_at, created_at)
			SELECT $1, new_id(at), $2, gen_random_uuid(), 'run.failed', '{}', at, at FROM (SELECT now() - interval '1 hour' + n * interval '1 ms' AS at FROM generate_series(1, $3) n) s`,
			w.a.tenant, e, 2*store.Batch+1)
		w.must(err)
	}
	left := func(where string) (n int) {
		w.must(w.admin.QueryRow(t.Context(), "SELECT count(*)::int FROM webhook_deliveries WHERE tenant_id = $1 AND "+where, w.a.tenant).Scan(&n))
		return n
	}
	fill(w.a.webhook)
	hook := "/v1/webhooks/" + w.a.webhook.String()
	if got := w.call(w.a, "PATCH", hook, `{"enabled": false}`); got.status != 200 || left("status = 'pending'") != 0 || left("last_error = 'the endpoint was disabled'") != 2*store.Batch+1 {
		t.Errorf("%d %s: %d are pending", got.status, got.body, left("status = 'pending'"))
	}
	// A disabling that was interrupted is repeated: the repeat ends the rest.
	_, err := w.admin.Exec(t.Context(), "UPDATE webhook_deliveries SET status = 'pending', next_attempt_at = now() WHERE webhook_id = $1", w.a.webhook)
	w.must(err)
	if got := w.call(w.a, "PATCH", hook, `{"description": "x"}`); got.status != 200 || left("status = 'pending'") == 0 {
		t.Errorf("a change of another field ended them: %d %s", got.status, got.body)
	}
	if got := w.call(w.a, "PATCH", hook, `{"enabled": false}`); got.status != 200 || left("status = 'pending'") != 0 {
		t.Errorf("%d %s: %d are pending", got.status, got.body, left("status = 'pending'"))
	}
	_, err = w.admin.Exec(t.Context(), "UPDATE webhook_deliveries SET status = 'pending', next_attempt_at = now() WHERE webhook_id = $1", w.a.webhook)
	w.must(err)
	fill(w.a.listener)
	for _, path := range []string{hook, "/v1/webhooks/listeners/" + w.a.listener.String()} {
		if got := w.call(w.a, "DELETE", path, ""); got.status != 204 {
			t.Errorf("%s: %d %s", path, got.status, got.body)
		}
	}
	if n := left("true"); n != 0 {
		t.Errorf("%d are left", n)
	}
}

// A listener gets what an endpoint would: signed bytes, up to five attempts, each once.
func TestAListenerPulls(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.withOutbox()
	made := w.call(w.a, "POST", "/v1/webhooks/listeners", "")
	secret, _ := made.get("secret").(string)
	text, _ := made.get("id").(string)
	l, err := id.Parse(text)
	w.must(err)
	listener := id.WebhookID{UUID: l}
	pull := func(results ...api.ListenerResult) (out api.ListenerPulled) {
		t.Helper()
		body, err := json.Marshal(api.ListenerPull{Results: results})
		w.must(err)
		got := w.call(w.a, "POST", "/v1/webhooks/listeners/"+text+"/pull", string(body))
		if got.status != 200 {
			t.Fatal(got)
		}
		w.must(json.Unmarshal([]byte(got.body), &out))
		return out
	}
	status := func(d id.DeliveryID) (s string, attempts int, wait time.Duration) {
		t.Helper()
		var next *time.Time
		w.must(w.admin.QueryRow(t.Context(), "SELECT status, attempts, next_attempt_at FROM webhook_deliveries WHERE id = $1", d).Scan(&s, &attempts, &next))
		if next != nil {
			wait = time.Until(*next)
		}
		return s, attempts, wait
	}
	// due makes the next attempt due now.
	due := func(d id.DeliveryID) {
		t.Helper()
		_, err := w.admin.Exec(t.Context(), "UPDATE webhook_deliveries SET next_attempt_at = now() - interval '1 s' WHERE id = $1", d)
		w.must(err)
	}
	for range api.MaxPulled + 1 {
		w.happens(w.a, listener, "pending", time.Minute)
	}
	w.happens(w.a, w.a.listener, "pending", time.Minute) // another listener's
	first := pull()
	if left := time.Until(first.ExpiresAt); len(first.Items) != api.MaxPulled || left < 40*time.Second || left > time.Minute+time.Second {
		t.Fatalf("%d items, %v left", len(first.Items), left)
	}
	for _, item := range first.Items {
		var e webhook.Envelope
		w.must(json.Unmarshal([]byte(item.Body), &e))
		if err := webhook.Verify(secret, item.Signature, []byte(item.Body), time.Now()); err != nil || item.Attempt != 1 || e.ID != item.EventID.String() || item.Type != "run.failed" ||
			!strings.Contains(item.Body, `"text":"ü<&>"`) {
			t.Errorf("%+v: %v", item, err)
		}
	}
	// No attempt is handed out twice; a reported one is settled.
	ok, empty, refused, silent := first.Items[0], first.Items[1], first.Items[2], first.Items[3]
	second := pull(api.ListenerResult{DeliveryID: ok.DeliveryID, Attempt: 1, HTTPStatus: 204, DurationMS: 7},
		api.ListenerResult{DeliveryID: empty.DeliveryID, Attempt: 1, HTTPStatus: 299},
		api.ListenerResult{DeliveryID: refused.DeliveryID, Attempt: 1, HTTPStatus: 300},
		api.ListenerResult{DeliveryID: silent.DeliveryID, Attempt: 1, Error: "connection refused"},
		api.ListenerResult{DeliveryID: w.a.delivery, Attempt: 5, HTTPStatus: 200}) // another endpoint's
	if len(second.Items) != 1 {
		t.Errorf("%d items", len(second.Items))
	}
	for _, item := range []api.ListenerItem{ok, empty} {
		if s, n, _ := status(item.DeliveryID); s != "succeeded" || n != 1 {
			t.Errorf("%s after %d", s, n)
		}
	}
	for _, item := range []api.ListenerItem{refused, silent} {
		if s, n, wait := status(item.DeliveryID); s != "pending" || n != 1 || wait <= 0 || wait > webhook.FirstPause {
			t.Errorf("%s after %d, again in %v", s, n, wait)
		}
	}
	if s, _, _ := status(w.a.delivery); s != "failed" {
		t.Errorf("another endpoint's delivery is %s", s)
	}
	// Every attempt has the same bytes; there is none after the fifth.
	for n := 2; n <= webhook.Attempts; n++ {
		due(refused.DeliveryID)
		got := pull()
		if len(got.Items) != 1 || got.Items[0].DeliveryID != refused.DeliveryID || got.Items[0].Attempt != n || got.Items[0].Body != refused.Body {
			t.Fatalf("attempt %d: %+v", n, got.Items)
		}
		pull(api.ListenerResult{DeliveryID: refused.DeliveryID, Attempt: n, HTTPStatus: 500})
		pause, again := webhook.Pause(webhook.FirstPause, n)
		s, attempts, wait := status(refused.DeliveryID)
		if attempts != n || (s == "pending") != again || (s == "failed") == again || wait > pause || again && wait < pause-10*time.Second {
			t.Errorf("%s after %d, again in %v", s, attempts, wait)
		}
	}
	if got := pull(); len(got.Items) != 0 {
		t.Errorf("a sixth: %+v", got.Items)
	}
	// A report with an error is a failure, and so is a report without a status of 2xx.
	for name, r := range map[string]struct {
		in   api.ListenerResult
		want outbox.Result
	}{
		"a success with an error": {api.ListenerResult{Attempt: 5, HTTPStatus: 200, Error: "cut"}, outbox.Result{N: 5, HTTPStatus: 200, Error: "cut", Status: lifecycle.DeliveryFailed}},
		"nothing at all":          {api.ListenerResult{Attempt: 5}, outbox.Result{N: 5, Error: "the listener reported a failure", Status: lifecycle.DeliveryFailed}},
		"199":                     {api.ListenerResult{Attempt: 5, HTTPStatus: 199}, outbox.Result{N: 5, HTTPStatus: 199, Error: "the listener reported a failure", Status: lifecycle.DeliveryFailed}},
		"200":                     {api.ListenerResult{Attempt: 5, HTTPStatus: 200}, outbox.Result{N: 5, HTTPStatus: 200, Status: lifecycle.DeliverySucceeded}},
	} {
		if got := w.reported(r.in, time.Now()); got != r.want {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// brokenOutbox refuses every turn.
type brokenOutbox struct{ err error }

func (b brokenOutbox) Turn(context.Context, outbox.Turn) (outbox.Claimed, error) {
	return outbox.Claimed{}, b.err
}

func TestAPullWithoutAnOutbox(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	path := "/v1/webhooks/listeners/" + w.a.listener.String() + "/pull"
	for err, want := range map[error]int{outbox.ErrUnavailable: 503, outbox.ErrFenced: 503, errors.New("anything"): 500} {
		w.Outbox = brokenOutbox{err}
		if got := w.call(w.a, "POST", path, ""); got.status != want || (got.header.Get("Retry-After") != "") != (want == 503) {
			t.Errorf("%v: %d %s", err, got.status, got.body)
		}
	}
}
