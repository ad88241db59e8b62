package store

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"agentsvc/persistence/vault"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/webhook"
)

const (
	webhookWord  = "webhook endpoint"
	deliveryWord = "delivery"
	listenerWord = "listener"
)

// Errors of deliveries whose last attempt has no result.
const (
	wasDisabled = "the endpoint was disabled"
	notKnown    = "the outcome of this attempt is not known"
)

// ListenerLife is how long a listener lives after it was created or last pulled.
const ListenerLife = time.Minute

// Webhooks returns webhook endpoints, newest first, without listeners; there may be one more
// than limit.
func (v View) Webhooks(ctx context.Context, at id.WebhookID, limit int) ([]api.Webhook, error) {
	from, n := before(at.UUID, limit)
	return listed[api.Webhook](ctx, v, "webhooks", v.tenant, from, n)
}

// Webhook returns one webhook endpoint; a listener is NOT_FOUND.
func (v View) Webhook(ctx context.Context, w id.WebhookID) (*api.Webhook, error) {
	return found[api.Webhook](webhookWord)(one[api.Webhook](ctx, v, "webhook", v.tenant, w))
}

// Hearing is an enabled endpoint or a live listener, with the event types it subscribes to.
type Hearing struct {
	ID       id.WebhookID
	Events   []webhook.Type
	Listener bool // a listener pulls: nothing is sent to it
}

// Hearing returns the tenant's subscribers, enabled ones only.
func (v View) Hearing(ctx context.Context) ([]Hearing, error) {
	return all[Hearing](ctx, v, "webhooks_hearing", v.tenant)
}

// Endpoint holds the current data of a webhook endpoint that an attempt needs.
type Endpoint struct {
	URL     string // "" for a listener, to which nothing is sent
	Secret  vault.Secret
	Enabled bool
}

// Endpoint returns an endpoint or a listener with its opened secret; nil if there is none.
func (s *Store) Endpoint(ctx context.Context, t id.TenantID, w id.WebhookID) (*Endpoint, error) {
	row, err := one[struct {
		URL     string
		Secret  vault.Sealed
		Enabled bool
	}](ctx, s.View(t), "webhook_sealed", t, w)
	if err != nil || row == nil {
		return nil, err
	}
	secret, err := s.openWebhook(t, w, row.Secret)
	if err != nil {
		return nil, err
	}
	return &Endpoint{URL: row.URL, Secret: secret, Enabled: row.Enabled}, nil
}

// webhookAt returns the AAD of an endpoint's secret.
func webhookAt(t id.TenantID, w id.WebhookID) vault.AAD {
	return vault.AAD{Tenant: t, Table: "webhooks", Row: w.String(), Column: "secret"}
}

func (s *Store) openWebhook(t id.TenantID, w id.WebhookID, sealed vault.Sealed) (vault.Secret, error) {
	plain, err := s.vault.Open(webhookAt(t, w), sealed)
	if err != nil {
		return vault.Secret{}, fmt.Errorf("open the secret of webhook %s: %w", w, err)
	}
	return vault.NewSecret(plain), nil
}

// newWebhookSecret returns a new secret and its sealed form.
func (t *Tx) newWebhookSecret(w id.WebhookID) (secret string, sealed []byte, err error) {
	secret = webhook.NewSecret()
	sealed, err = t.vault.Seal(webhookAt(t.tenant, w), []byte(secret))
	if err != nil {
		return "", nil, fmt.Errorf("seal the secret of a webhook: %w", err)
	}
	return secret, sealed, nil
}

// CreateWebhook creates a webhook endpoint, with its secret.
func (t *Tx) CreateWebhook(ctx context.Context, in *api.WebhookCreate) (*api.WebhookWithSecret, error) {
	w := id.WebhookID{UUID: id.NewAnywhere()}
	secret, sealed, err := t.newWebhookSecret(w)
	if err != nil {
		return nil, err
	}
	row, err := one[api.Webhook](ctx, t.View, "webhook_insert", t.tenant, w, in.URL, in.Events, in.Description, sealed)
	if err != nil {
		return nil, err
	}
	return &api.WebhookWithSecret{Webhook: *row, Secret: secret}, t.Audit(ctx, "webhook.create", "webhook", w.UUID, nil)
}

// lockWebhook returns an endpoint, or a listener, locked until the end of the change.
func (t *Tx) lockWebhook(ctx context.Context, query string, w id.WebhookID, listener bool) (*api.Webhook, error) {
	word := webhookWord
	if listener {
		word = listenerWord
	}
	return found[api.Webhook](word)(one[api.Webhook](ctx, t.View, query, t.tenant, w, listener))
}

// UpdateWebhook changes the fields set in the patch. EndPending then fails the pending
// deliveries of an endpoint that was disabled: after the commit, only commits already in
// progress can add more.
func (t *Tx) UpdateWebhook(ctx context.Context, w id.WebhookID, in *api.WebhookPatch) (*api.Webhook, error) {
	row, err := t.lockWebhook(ctx, "webhook_lock", w, false)
	if err != nil {
		return nil, err
	}
	var detail any
	if in.Enabled != nil && *in.Enabled != row.Enabled {
		detail = map[string]bool{"enabled": *in.Enabled}
	}
	set(&row.URL, in.URL)
	set(&row.Description, in.Description)
	set(&row.Enabled, in.Enabled)
	if in.Events != nil {
		row.Events = in.Events
	}
	row, err = one[api.Webhook](ctx, t.View, "webhook_update", t.tenant, w, row.URL, row.Events, row.Description, row.Enabled)
	if err != nil {
		return nil, err
	}
	return row, t.Audit(ctx, "webhook.update", "webhook", w.UUID, detail)
}

// EndPending fails the pending deliveries of a disabled endpoint, including those of commits
// that were in progress when it was disabled: it waits for these commits. It takes as many
// transactions as it needs. If it ends with an error, a repeat or the sweep fails the rest.
// For an enabled or deleted endpoint it does nothing.
func (s *Store) EndPending(ctx context.Context, tenant id.TenantID, w id.WebhookID) error {
	// In a transaction of its own: commits wait for this lock, and should not wait for the
	// deliveries too.
	err := s.Change(ctx, By{Tenant: tenant}, func(ctx context.Context, tx *Tx) ([]byte, error) {
		_, err := tx.exec(ctx, "webhook_close", tenant, w)
		return nil, err
	})
	if err != nil {
		return fmt.Errorf("close webhook %s: %w", w, err)
	}
	return s.inBatches(ctx, tenant, func(ctx context.Context, tx *Tx, after id.DeliveryID) (int, id.DeliveryID, error) {
		if off, err := scalars[id.WebhookID](ctx, tx.View, "webhook_hold_off", tenant, w); err != nil || len(off) == 0 {
			return 0, after, err
		}
		return tx.batch(ctx, after, "deliveries_fail", w, after, Batch, wasDisabled)
	})
}

// inBatches repeats a change, each time in a transaction of its own and after the last
// delivery of the previous one, until one takes fewer than Batch.
func (s *Store) inBatches(ctx context.Context, tenant id.TenantID, fn func(ctx context.Context, tx *Tx, after id.DeliveryID) (int, id.DeliveryID, error)) error {
	var last id.DeliveryID
	for n := Batch; n == Batch; {
		err := s.Change(ctx, By{Tenant: tenant}, func(ctx context.Context, tx *Tx) (_ []byte, err error) {
			n, last, err = fn(ctx, tx, last)
			return nil, err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// RotateWebhook replaces the secret of an endpoint.
func (t *Tx) RotateWebhook(ctx context.Context, w id.WebhookID) (*api.WebhookWithSecret, error) {
	secret, sealed, err := t.newWebhookSecret(w)
	if err != nil {
		return nil, err
	}
	row, err := found[api.Webhook](webhookWord)(one[api.Webhook](ctx, t.View, "webhook_rotate", t.tenant, w, sealed))
	if err != nil {
		return nil, err
	}
	return &api.WebhookWithSecret{Webhook: *row, Secret: secret}, t.Audit(ctx, "webhook.rotate", "webhook", w.UUID, nil)
}

// StopWebhook begins the removal of an endpoint by disabling it.
func (t *Tx) StopWebhook(ctx context.Context, w id.WebhookID) error {
	row, err := t.lockWebhook(ctx, "webhook_lock", w, false)
	if err != nil || !row.Enabled {
		return err
	}
	_, err = t.UpdateWebhook(ctx, w, &api.WebhookPatch{Enabled: new(bool)})
	return err
}

// StopListener begins the removal of a listener: it gets no more events. If the removal does
// not complete, it goes like an expired listener.
func (t *Tx) StopListener(ctx context.Context, w id.WebhookID) error {
	if _, err := t.lockWebhook(ctx, "webhook_lock", w, true); err != nil {
		return err
	}
	_, err := t.exec(ctx, "listener_stop", t.tenant, w)
	return err
}

// DeleteWebhook deletes an endpoint that was stopped and trimmed, with its remaining
// deliveries.
func (t *Tx) DeleteWebhook(ctx context.Context, w id.WebhookID) error {
	return t.deleteWebhook(ctx, w, "webhook", false)
}

// DeleteListener deletes a listener that was stopped and trimmed, with its remaining deliveries.
func (t *Tx) DeleteListener(ctx context.Context, w id.WebhookID) error {
	return t.deleteWebhook(ctx, w, "webhook.listener", true)
}

func (t *Tx) deleteWebhook(ctx context.Context, w id.WebhookID, kind string, listener bool) error {
	if _, err := t.lockWebhook(ctx, "webhook_end", w, listener); err != nil {
		return err
	}
	if _, err := t.exec(ctx, "deliveries_delete", t.tenant, w); err != nil {
		return err
	}
	if _, err := t.exec(ctx, "webhook_delete", t.tenant, w); err != nil {
		return err
	}
	return t.Audit(ctx, kind+".delete", kind, w.UUID, nil)
}

// Batch is how many deliveries one transaction takes; there may be a month of them.
const Batch = 5_000

// TrimDeliveries deletes the deliveries of a stopped endpoint or listener, whatever their
// status, in as many transactions as it needs: there may be more than one transaction has
// time for. If it ends with an error, a repeat deletes the rest.
func (s *Store) TrimDeliveries(ctx context.Context, tenant id.TenantID, w id.WebhookID) error {
	return s.inBatches(ctx, tenant, func(ctx context.Context, tx *Tx, after id.DeliveryID) (int, id.DeliveryID, error) {
		return tx.batch(ctx, after, "deliveries_trim", w, after, Batch)
	})
}

// batch runs a query that returns the ids of the deliveries it changed.
func (t *Tx) batch(ctx context.Context, last id.DeliveryID, query string, args ...any) (int, id.DeliveryID, error) {
	taken, err := scalars[id.DeliveryID](ctx, t.View, query, append([]any{t.tenant}, args...)...)
	for _, d := range taken {
		t.note(msg.ChangedDelivery, d.UUID)
		if string(d.UUID[:]) > string(last.UUID[:]) {
			last = d
		}
	}
	return len(taken), last, err
}

// DeliveryFilter narrows a list of deliveries; nil fields match all.
type DeliveryFilter struct {
	Status *lifecycle.DeliveryStatus
	Type   *api.EventType
}

// Deliveries returns the deliveries of an endpoint, newest first, after at; there may be one
// more than limit.
func (v View) Deliveries(ctx context.Context, w id.WebhookID, f DeliveryFilter, at id.DeliveryID, limit int) ([]api.Delivery, error) {
	from, n := before(at.UUID, limit)
	if f.Status != nil && *f.Status == lifecycle.DeliveryFailed {
		return listed[api.Delivery](ctx, v, "deliveries_failed", v.tenant, w, from, n, (*string)(f.Type))
	}
	return listed[api.Delivery](ctx, v, "deliveries", v.tenant, w, from, n, (*string)(f.Status), (*string)(f.Type))
}

// Delivery returns one delivery of an endpoint, with its event.
func (v View) Delivery(ctx context.Context, w id.WebhookID, d id.DeliveryID) (*api.DeliveryWithEvent, error) {
	return found[api.DeliveryWithEvent](deliveryWord)(one[api.DeliveryWithEvent](ctx, v, "delivery", v.tenant, w, d))
}

// holdWebhook locks an endpoint against being disabled or removed until the change is
// committed. A disabled one is VALIDATION, because nothing is sent to it.
func (t *Tx) holdWebhook(ctx context.Context, w id.WebhookID) error {
	rows, err := scalars[bool](ctx, t.View, "webhook_hold", t.tenant, w)
	switch {
	case err != nil:
		return err
	case len(rows) == 0:
		return problem.NotFound(webhookWord)
	case !rows[0]:
		return problem.Invalid("enabled", "the endpoint is disabled: enable it first")
	}
	return nil
}

// TestWebhook queues a webhook.test for an endpoint, whatever it subscribes to.
func (t *Tx) TestWebhook(ctx context.Context, w id.WebhookID) (id.DeliveryID, error) {
	if err := t.holdWebhook(ctx, w); err != nil {
		return id.DeliveryID{}, err
	}
	e := id.EventID{UUID: id.NewAnywhere()}
	d := id.DeliveryID{UUID: id.NewAnywhere()}
	at := e.Time()
	body := webhook.Encode(e.String(), webhook.Test, map[string]id.WebhookID{"webhook_id": w}, at)
	if _, err := t.exec(ctx, "delivery_insert", t.tenant, d, w, e, string(webhook.Test), body, at); err != nil {
		return id.DeliveryID{}, err
	}
	t.note(msg.ChangedDelivery, d.UUID)
	return d, t.Audit(ctx, "webhook.test", "webhook", w.UUID, map[string]id.DeliveryID{"delivery_id": d})
}

// Redeliver queues a delivery again: one that has ended restarts at its first attempt, a
// pending one is due at once.
func (t *Tx) Redeliver(ctx context.Context, w id.WebhookID, d id.DeliveryID) error {
	if err := t.holdWebhook(ctx, w); err != nil {
		return err
	}
	rows, err := scalars[id.DeliveryID](ctx, t.View, "delivery_redeliver", t.tenant, w, d, notKnown)
	if err != nil {
		return err
	}
	if len(rows) == 0 {
		return problem.NotFound(deliveryWord)
	}
	t.note(msg.ChangedDelivery, d.UUID)
	return t.Audit(ctx, "webhook.redeliver", "webhook", w.UUID, map[string]id.DeliveryID{"delivery_id": d})
}

// Recover queues up to Batch failed deliveries of an endpoint that were created at since or
// later, oldest first, after after; last is the last of them.
func (t *Tx) Recover(ctx context.Context, w id.WebhookID, since time.Time, after id.DeliveryID) (rows int, last id.DeliveryID, err error) {
	if err := t.holdWebhook(ctx, w); err != nil {
		return 0, after, err
	}
	if after.IsZero() {
		after.UUID = id.At(since)
	}
	if rows, last, err = t.batch(ctx, after, "deliveries_recover", w, after, since, Batch, notKnown); err != nil {
		return 0, after, err
	}
	return rows, last, t.Audit(ctx, "webhook.recover", "webhook", w.UUID, map[string]any{"since": since, "deliveries": rows})
}

// MaxListeners is how many live listeners a tenant may have: each adds a cost to every commit
// with an event.
const MaxListeners = 20

// CreateListener creates a listener, with its secret; one beyond MaxListeners is VALIDATION.
func (t *Tx) CreateListener(ctx context.Context, events []webhook.Type) (*api.Listener, error) {
	if _, err := t.exec(ctx, "listeners_lock", t.tenant); err != nil {
		return nil, err
	}
	live, err := scalars[int](ctx, t.View, "listeners_live", t.tenant)
	if err != nil {
		return nil, err
	}
	if live[0] >= MaxListeners {
		return nil, problem.Invalid("listeners", "the tenant has "+strconv.Itoa(MaxListeners)+" listeners: close one, or wait a minute after its last pull")
	}
	l := &api.Listener{ID: id.WebhookID{UUID: id.NewAnywhere()}, Events: events}
	secret, sealed, err := t.newWebhookSecret(l.ID)
	if err != nil {
		return nil, err
	}
	expires, err := scalars[time.Time](ctx, t.View, "listener_insert", t.tenant, l.ID, events, sealed, ListenerLife)
	if err != nil {
		return nil, err
	}
	l.Secret, l.ExpiresAt = secret, expires[0]
	return l, t.Audit(ctx, "webhook.listener.create", "webhook.listener", l.ID.UUID, nil)
}

// Listening is a live listener.
type Listening struct {
	Secret    vault.Secret
	ExpiresAt time.Time
}

// ExtendListener postpones a listener's expiry. An expired listener and an endpoint are
// NOT_FOUND. It writes no audit row.
func (s *Store) ExtendListener(ctx context.Context, t id.TenantID, w id.WebhookID) (*Listening, error) {
	row, err := found[sealedListener](listenerWord)(one[sealedListener](ctx, s.View(t), "listener_extend", t, w, ListenerLife))
	if err != nil {
		return nil, err
	}
	secret, err := s.openWebhook(t, w, row.Secret)
	if err != nil {
		return nil, err
	}
	return &Listening{Secret: secret, ExpiresAt: row.ExpiresAt}, nil
}

type sealedListener struct {
	Secret    vault.Sealed
	ExpiresAt time.Time
}
