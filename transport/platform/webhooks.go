package platform

import (
	"context"
	"fmt"
	"time"

	"agentsvc/persistence/outbox"
	"agentsvc/persistence/store"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/webhook"
	"agentsvc/transport/edge"
)

// Deliveries sends to webhook endpoints.
type Deliveries interface {
	// Wake reports that an endpoint has something to send. It does not wait, and the signal
	// may be lost: the sweep finds due deliveries a little later.
	Wake(t id.TenantID, w id.WebhookID)
	// Forget drops a cached endpoint and the tenant's list of endpoints: later attempts use
	// the tables.
	Forget(t id.TenantID, w id.WebhookID)
	// ForgetAll drops every entry for which a change may have been missed.
	ForgetAll()
}

// Outbox settles attempts and claims due deliveries.
type Outbox interface {
	Turn(ctx context.Context, t outbox.Turn) (outbox.Claimed, error)
}

type createWebhook struct{ Body api.WebhookCreate }

type oneWebhook struct {
	ID id.WebhookID `path:"id"`
}

type patchWebhook struct {
	ID   id.WebhookID `path:"id"`
	Body api.WebhookPatch
}

type listDeliveries struct {
	ID id.WebhookID `path:"id"`
	api.Page
	Status *lifecycle.DeliveryStatus `query:"status"`
	Type   *api.EventType            `query:"type"`
}

type oneDelivery struct {
	ID         id.WebhookID  `path:"id"`
	DeliveryID id.DeliveryID `path:"delivery_id"`
}

type recoverWebhook struct {
	ID   id.WebhookID `path:"id"`
	Body api.WebhookRecover
}

type listEventTypes struct{}

type createListener struct {
	Body api.ListenerCreate `required:"false"`
}

type pullListener struct {
	ID   id.WebhookID     `path:"id"`
	Body api.ListenerPull `required:"false"`
}

const webhooks = "Webhooks"

func (p *Platform) webhookRoutes(t *edge.Table) {
	describeWebhooks(t)
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/webhooks", ID: "listWebhooks", Answer: api.All([]api.Webhook{sampleWebhook}),
		Summary:     "List webhook endpoints",
		Description: "Newest first. Without limit and cursor the whole list, without next_cursor.", Tag: webhooks, Role: lifecycle.RoleAdmin}, p.listWebhooks)
	edge.Handle(t, edge.Route{Method: "POST", Path: "/v1/webhooks", ID: "createWebhook", Answer: sampleWebhookCreated,
		Summary:     "Add a webhook endpoint",
		Description: "It receives events from now on. The secret, which signs its deliveries, is shown in this response only.", Tag: webhooks, Role: lifecycle.RoleAdmin,
		Status: 201, Idempotent: true, Codes: []problem.Code{problem.CodeInvalidURL},
		Again:   again(p, func(c *edge.Caller, _ *createWebhook) msg.Revoked { return changedWebhook(c, id.WebhookID{}) }),
		Example: map[string]any{"url": "https://shop.example.com/svc-events", "events": []string{"run.completed", "run.failed"}, "description": "Order desk"}}, p.createWebhook)
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/webhooks/event-types", ID: "listWebhookEventTypes", Answer: eventTypes(),
		Summary: "List the event types", Description: "The types that endpoints may subscribe to.", Tag: webhooks, Role: lifecycle.RoleAdmin}, p.listEventTypes)
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/webhooks/{id}", ID: "getWebhook", Answer: sampleWebhook,
		Summary: "Read a webhook endpoint", Tag: webhooks, Role: lifecycle.RoleAdmin}, p.getWebhook)
	edge.Handle(t, edge.Route{Method: "PATCH", Path: "/v1/webhooks/{id}", ID: "updateWebhook", Answer: sampleWebhook,
		Summary:     "Change a webhook endpoint",
		Description: "Attempts that begin after the response use the new settings. Pending deliveries of an endpoint that gets disabled fail; recover sends them once it is enabled again.",
		Tag:         webhooks, Role: lifecycle.RoleAdmin, Codes: []problem.Code{problem.CodeInvalidURL}, Example: map[string]any{"enabled": false}}, p.updateWebhook)
	edge.Handle(t, edge.Route{Method: "DELETE", Path: "/v1/webhooks/{id}", ID: "deleteWebhook", Summary: "Remove a webhook endpoint",
		Description: "Also removes its deliveries. Nothing more is sent to it.", Tag: webhooks, Role: lifecycle.RoleAdmin}, p.deleteWebhook)
	edge.Handle(t, edge.Route{Method: "POST", Path: "/v1/webhooks/{id}/rotate-secret", ID: "rotateWebhookSecret", Answer: sampleWebhookCreated,
		Summary:     "Rotate a webhook endpoint's secret",
		Description: "Attempts that begin after the response are signed with the new secret, those of older deliveries too. It is shown in this response only.", Tag: webhooks, Role: lifecycle.RoleAdmin,
		Idempotent: true, Again: again(p, func(c *edge.Caller, in *oneWebhook) msg.Revoked { return changedWebhook(c, in.ID) })}, p.rotateWebhook)
	edge.Handle(t, edge.Route{Method: "POST", Path: "/v1/webhooks/{id}/test", ID: "testWebhook", Answer: sampleAccepted,
		Summary:     "Send a webhook endpoint a test",
		Description: "Sends a webhook.test, whatever the endpoint subscribes to, signed and retried like every other event. A disabled endpoint is VALIDATION.",
		Tag:         webhooks, Role: lifecycle.RoleAdmin, Status: 202, Idempotent: true}, p.testWebhook)
	edge.Handle(t, edge.Route{Method: "POST", Path: "/v1/webhooks/{id}/recover", ID: "recoverWebhook", Answer: api.WebhookRecovered{Deliveries: 17},
		Summary:     "Send failed deliveries again",
		Description: "Every failed delivery created at that time or later gets up to five new attempts. Deliveries are kept for 30 days. A disabled endpoint is VALIDATION.",
		Tag:         webhooks, Role: lifecycle.RoleAdmin, Status: 202, Idempotent: true, Example: map[string]any{"since": sampleTime}}, p.recoverWebhook)
	p.deliveryRoutes(t)
	p.listenerRoutes(t)
}

func (p *Platform) deliveryRoutes(t *edge.Table) {
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/webhooks/{id}/deliveries", ID: "listWebhookDeliveries", Answer: listed(sampleDelivery),
		Summary: "List the deliveries of a webhook endpoint", Description: "Newest first. All filters given must match.", Tag: webhooks, Role: lifecycle.RoleAdmin}, p.listDeliveries)
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/webhooks/{id}/deliveries/{delivery_id}", ID: "getWebhookDelivery", Answer: sampleDeliveryWithEvent,
		Summary: "Read a delivery", Description: "Includes its event.", Tag: webhooks, Role: lifecycle.RoleAdmin}, p.getDelivery)
	edge.Handle(t, edge.Route{Method: "POST", Path: "/v1/webhooks/{id}/deliveries/{delivery_id}/redeliver", ID: "redeliverWebhookDelivery", Answer: sampleAccepted,
		Summary:     "Send a delivery again",
		Description: "Sends the same bytes with the same ids: a delivery that has ended gets up to five new attempts, a pending one is sent at once. A disabled endpoint is VALIDATION.",
		Tag:         webhooks, Role: lifecycle.RoleAdmin, Status: 202, Idempotent: true}, p.redeliver)
}

func (p *Platform) listenerRoutes(t *edge.Table) {
	edge.Handle(t, edge.Route{Method: "POST", Path: "/v1/webhooks/listeners", ID: "createWebhookListener", Answer: sampleListener,
		Summary:     "Listen to events",
		Description: "A listener has no URL: it pulls deliveries and reports the results of earlier ones. Made for svc listen. A listener that does not pull for a minute is removed. A tenant has at most 20: one more is VALIDATION.",
		Tag:         webhooks, Role: lifecycle.RoleAdmin, Status: 201, Idempotent: true,
		Again:   again(p, func(c *edge.Caller, _ *createListener) msg.Revoked { return changedWebhook(c, id.WebhookID{}) }),
		Example: map[string]any{"events": []string{"*"}}}, p.createListener)
	edge.Handle(t, edge.Route{Method: "POST", Path: "/v1/webhooks/listeners/{id}/pull", ID: "pullWebhookListener", Answer: samplePulled,
		Summary:     "Pull the deliveries of a listener",
		Description: "Reports the results of deliveries pulled before, and returns those that are due now, signed. Deliveries reported as failed, or not reported, are retried as for an endpoint.",
		Tag:         webhooks, Role: lifecycle.RoleAdmin, Idempotent: true,
		Example: map[string]any{"results": []any{map[string]any{"delivery_id": sampleDelivery.ID, "attempt": 1, "http_status": 200, "duration_ms": 12}}}}, p.pullListener)
	edge.Handle(t, edge.Route{Method: "DELETE", Path: "/v1/webhooks/listeners/{id}", ID: "deleteWebhookListener", Summary: "Stop listening",
		Description: "Deliveries that it did not pull are removed with it.", Tag: webhooks, Role: lifecycle.RoleAdmin}, p.deleteListener)
}

// changedWebhook is the revocation for a change of a webhook endpoint; a zero id means that
// one was added.
func changedWebhook(c *edge.Caller, w id.WebhookID) msg.Revoked {
	return msg.Revoked{What: msg.ChangedWebhook, Tenant: c.Tenant, Webhook: w}
}

// checkWebhookURL refuses URLs that the outbound guard refuses.
func (p *Platform) checkWebhookURL(ctx context.Context, url string) error {
	if err := p.WebhookURLs.CheckURL(ctx, url); err != nil {
		return problem.New(problem.CodeInvalidURL, err.Error())
	}
	return nil
}

func (p *Platform) listWebhooks(ctx context.Context, c *edge.Caller, in *api.PageOrAll) (*api.Whole[api.Webhook], error) {
	return whole(ctx, p.Store.View(c.Tenant), in.Page(), "webhooks", id.WebhookID{}, 0, store.View.Webhooks, func(w api.Webhook) id.WebhookID { return w.ID })
}

func (p *Platform) createWebhook(ctx context.Context, c *edge.Caller, in *createWebhook) (*api.WebhookWithSecret, error) {
	if err := p.checkWebhookURL(ctx, in.Body.URL); err != nil {
		return nil, err
	}
	out, err := change(ctx, p, c, with1((*store.Tx).CreateWebhook, &in.Body))
	return told(ctx, p, changedWebhook(c, id.WebhookID{}), out, err)
}

func (p *Platform) getWebhook(ctx context.Context, c *edge.Caller, in *oneWebhook) (*api.Webhook, error) {
	return p.Store.View(c.Tenant).Webhook(ctx, in.ID)
}

func (p *Platform) updateWebhook(ctx context.Context, c *edge.Caller, in *patchWebhook) (*api.Webhook, error) {
	if in.Body.URL != nil {
		if _, err := p.Store.View(c.Tenant).Webhook(ctx, in.ID); err != nil {
			return nil, err
		}
		if err := p.checkWebhookURL(ctx, *in.Body.URL); err != nil {
			return nil, err
		}
	}
	out, err := change(ctx, p, c, with2((*store.Tx).UpdateWebhook, in.ID, &in.Body))
	out, err = told(ctx, p, changedWebhook(c, in.ID), out, err)
	if err != nil || in.Body.Enabled == nil || out.Enabled {
		return out, err
	}
	if err := p.Store.EndPending(ctx, c.Tenant, in.ID); err != nil {
		return nil, err
	}
	return out, nil
}

func (p *Platform) deleteWebhook(ctx context.Context, c *edge.Caller, in *oneWebhook) (*edge.Empty, error) {
	return p.removeWebhook(ctx, c, in.ID, (*store.Tx).StopWebhook, (*store.Tx).DeleteWebhook)
}

// removeWebhook stops an endpoint or a listener, deletes its deliveries in batches, and then
// deletes it. If a removal is interrupted, a repeat continues it.
func (p *Platform) removeWebhook(ctx context.Context, c *edge.Caller, w id.WebhookID, stop, remove func(*store.Tx, context.Context, id.WebhookID) error) (*edge.Empty, error) {
	gone := changedWebhook(c, w)
	err := p.Store.Change(ctx, by(c), func(ctx context.Context, tx *store.Tx) ([]byte, error) {
		return nil, stop(tx, ctx, w)
	})
	if err == nil {
		err = p.Store.TrimDeliveries(ctx, c.Tenant, w)
	}
	if err != nil {
		return removed(ctx, p, gone, (*edge.Empty)(nil), err)
	}
	out, err := change(ctx, p, c, func(ctx context.Context, tx *store.Tx) (*edge.Empty, error) {
		return nil, remove(tx, ctx, w)
	})
	return removed(ctx, p, gone, out, err)
}

func (p *Platform) rotateWebhook(ctx context.Context, c *edge.Caller, in *oneWebhook) (*api.WebhookWithSecret, error) {
	out, err := change(ctx, p, c, with1((*store.Tx).RotateWebhook, in.ID))
	return told(ctx, p, changedWebhook(c, in.ID), out, err)
}

func (p *Platform) testWebhook(ctx context.Context, c *edge.Caller, in *oneWebhook) (*api.DeliveryAccepted, error) {
	out, err := change(ctx, p, c, func(ctx context.Context, tx *store.Tx) (*api.DeliveryAccepted, error) {
		d, err := tx.TestWebhook(ctx, in.ID)
		return &api.DeliveryAccepted{DeliveryID: d}, err
	})
	return woken(p, c, in.ID, out, err)
}

// woken starts sending at once what a change made due.
func woken[Out any](p *Platform, c *edge.Caller, w id.WebhookID, out *Out, err error) (*Out, error) {
	if err == nil && p.Deliveries != nil {
		p.Deliveries.Wake(c.Tenant, w)
	}
	return out, err
}

func (p *Platform) listEventTypes(context.Context, *edge.Caller, *listEventTypes) (*api.Items[api.WebhookEventType], error) {
	return eventTypes(), nil
}

// eventTypes returns the catalog (open-parts.md, Webhooks).
func eventTypes() *api.Items[api.WebhookEventType] {
	says := map[webhook.Type]string{
		webhook.RunCompleted:       "A run has succeeded; its data is the run. Runs that other runs start are not reported.",
		webhook.RunFailed:          "A run has failed or was cancelled; its data is the run.",
		webhook.ApprovalRequested:  "A tool call waits for a person; its data is the approval.",
		webhook.ApprovalDecided:    "An approval was decided, has expired or was cancelled; its data is the approval.",
		webhook.ApprovalEscalated:  "An approval has moved to a higher role; its data is the approval.",
		webhook.SourceSynced:       "A source of a knowledge base was synced; its data is the source.",
		webhook.SourceFailed:       "A source of a knowledge base could not be synced; its data is the source.",
		webhook.BrowserRunFinished: "A run of a browser skill has ended; its data is that run.",
		webhook.Test:               "A test was requested; its data is the endpoint.",
		webhook.All:                "All types. It must be the only entry.",
	}
	out := &api.Items[api.WebhookEventType]{}
	for _, t := range webhook.Catalog() {
		out.Items = append(out.Items, api.WebhookEventType{Type: t, Description: says[t]})
	}
	return out
}

func (p *Platform) listDeliveries(ctx context.Context, c *edge.Caller, in *listDeliveries) (*api.List[api.Delivery], error) {
	v := p.Store.View(c.Tenant)
	if _, err := v.Webhook(ctx, in.ID); err != nil {
		return nil, err
	}
	f := store.DeliveryFilter{Status: in.Status, Type: in.Type}
	return list(ctx, v, in.Page, "webhook-deliveries", func(v store.View, ctx context.Context, at id.DeliveryID, limit int) ([]api.Delivery, error) {
		return v.Deliveries(ctx, in.ID, f, at, limit)
	}, func(d api.Delivery) id.DeliveryID { return d.ID })
}

func (p *Platform) getDelivery(ctx context.Context, c *edge.Caller, in *oneDelivery) (*api.DeliveryWithEvent, error) {
	return p.Store.View(c.Tenant).Delivery(ctx, in.ID, in.DeliveryID)
}

func (p *Platform) redeliver(ctx context.Context, c *edge.Caller, in *oneDelivery) (*api.DeliveryAccepted, error) {
	out, err := change(ctx, p, c, func(ctx context.Context, tx *store.Tx) (*api.DeliveryAccepted, error) {
		return &api.DeliveryAccepted{DeliveryID: in.DeliveryID}, tx.Redeliver(ctx, in.ID, in.DeliveryID)
	})
	return woken(p, c, in.ID, out, err)
}

// recoverWebhook takes as many transactions as it needs. Each one stands by itself, and the
// repeat of an interrupted call finds the rest. Only the response is kept.
func (p *Platform) recoverWebhook(ctx context.Context, c *edge.Caller, in *recoverWebhook) (*api.WebhookRecovered, error) {
	out := &api.WebhookRecovered{}
	unkept := by(c)
	unkept.Idem = nil
	var last id.DeliveryID
	for n := store.Batch; n == store.Batch; out.Deliveries += n {
		err := p.Store.Change(ctx, unkept, func(ctx context.Context, tx *store.Tx) (_ []byte, err error) {
			n, last, err = tx.Recover(ctx, in.ID, in.Body.Since, last)
			return nil, err
		})
		if _, err = woken(p, c, in.ID, out, err); err != nil {
			return nil, err
		}
	}
	if c.Idem == nil {
		return out, nil
	}
	return change(ctx, p, c, func(context.Context, *store.Tx) (*api.WebhookRecovered, error) { return out, nil })
}

func (p *Platform) createListener(ctx context.Context, c *edge.Caller, in *createListener) (*api.Listener, error) {
	events := in.Body.Events
	if events == nil {
		events = api.Events{webhook.All}
	}
	out, err := change(ctx, p, c, with1((*store.Tx).CreateListener, []webhook.Type(events)))
	return told(ctx, p, changedWebhook(c, id.WebhookID{}), out, err)
}

func (p *Platform) deleteListener(ctx context.Context, c *edge.Caller, in *oneWebhook) (*edge.Empty, error) {
	return p.removeWebhook(ctx, c, in.ID, (*store.Tx).StopListener, (*store.Tx).DeleteListener)
}

// pullListener signs the claimed deliveries while answering: for a listener the response is
// the sending.
func (p *Platform) pullListener(ctx context.Context, c *edge.Caller, in *pullListener) (*api.ListenerPulled, error) {
	l, err := p.Store.ExtendListener(ctx, c.Tenant, in.ID)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	turn := outbox.Turn{Endpoint: outbox.Endpoint{Tenant: c.Tenant, ID: in.ID}, Want: api.MaxPulled}
	for _, r := range in.Body.Results {
		turn.Results = append(turn.Results, p.reported(r, now))
	}
	patience, cancel := context.WithTimeout(ctx, store.Timeout)
	defer cancel()
	claimed, err := p.Outbox.Turn(patience, turn)
	if err != nil {
		return nil, fmt.Errorf("take the turn of listener %s: %w", in.ID, err)
	}
	out := &api.ListenerPulled{Items: make([]api.ListenerItem, len(claimed.Attempts)), ExpiresAt: l.ExpiresAt}
	for i, a := range claimed.Attempts {
		out.Items[i] = api.ListenerItem{DeliveryID: a.Delivery, EventID: a.Event, Type: api.EventType(a.Type), Attempt: a.N,
			Signature: webhook.Sign(string(l.Secret.Reveal()), time.Now(), a.Body), Body: string(a.Body)}
	}
	if c.Idem == nil {
		return out, nil
	}
	return change(ctx, p, c, func(context.Context, *store.Tx) (*api.ListenerPulled, error) { return out, nil })
}

// reported converts a listener's report of an attempt for the outbox.
func (p *Platform) reported(r api.ListenerResult, now time.Time) outbox.Result {
	out := outbox.Result{Delivery: r.DeliveryID, N: r.Attempt, HTTPStatus: r.HTTPStatus, Error: r.Error, Duration: time.Duration(r.DurationMS) * time.Millisecond}
	if r.HTTPStatus >= 200 && r.HTTPStatus <= 299 && r.Error == "" {
		out.Status = lifecycle.DeliverySucceeded
		return out
	}
	if out.Error == "" {
		out.Error = "the listener reported a failure"
	}
	pause, again := webhook.Pause(p.WebhookBackoff, r.Attempt)
	if out.Status = lifecycle.DeliveryFailed; again {
		out.Status, out.NextAt = lifecycle.DeliveryPending, now.Add(pause)
	}
	return out
}
