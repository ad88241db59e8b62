package store

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"agentsvc/persistence/vault"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/webhook"
)

const (
	webhookWord  = "webhook endpoint"
	deliveryWord = "delivery"
	listenerWord = "listener"
)

// What a delivery ends with that was not attempted to its end.
const (
	wasDisabled = "the endpoint was disabled"
	notKnown    = "the outcome of this attempt is not known"
)

// ListenerLife is how long a listener lives on after it was made or pulled from.
const ListenerLife = time.Minute

// Webhooks lists webhook endpoints, newest first, from behind at; one more than
// limit may come. Listeners are not among them.
func (v View) Webhooks(ctx context.Context, at id.WebhookID, limit int) ([]api.Webhook, error) {
	from, n := before(at.UUID, limit)
	return all[api.Webhook](ctx, v, "webhooks", v.tenant, from, n)
}

// Webhook is one webhook endpoint; a listener is NOT_FOUND.
func (v View) Webhook(ctx context.Context, w id.WebhookID) (*api.Webhook, error) {
	return found[api.Webhook](webhookWord)(one[api.Webhook](ctx, v, "webhook", v.tenant, w))
}

// Hearing is an endpoint that something may be sent to, or a listener that is not
// gone, and what it hears of.
type Hearing struct {
	ID       id.WebhookID
	Events   []webhook.Type
	Listener bool // what it hears of is fetched: nobody sends it
}

// Hearing lists them, enabled ones only.
func (v View) Hearing(ctx context.Context) ([]Hearing, error) {
	return all[Hearing](ctx, v, "webhooks_hearing", v.tenant)
}

// Endpoint is what an attempt needs of a webhook endpoint, as it is now.
type Endpoint struct {
	URL     string // "": a listener, to which nothing is sent
	Secret  vault.Secret
	Enabled bool
}

// Endpoint finds an endpoint or a listener and opens its secret; nil when there is
// none.
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

// webhookAt is the place that an endpoint's secret is sealed to.
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

// newWebhookSecret makes a secret and seals it.
func (t *Tx) newWebhookSecret(w id.WebhookID) (secret string, sealed []byte, err error) {
	secret = webhook.NewSecret()
	sealed, err = t.vault.Seal(webhookAt(t.tenant, w), []byte(secret))
	if err != nil {
		return "", nil, fmt.Errorf("seal the secret of a webhook: %w", err)
	}
	return secret, sealed, nil
}

// CreateWebhook makes a webhook endpoint, with its secret.
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

func (t *Tx) lockWebhook(ctx context.Context, w id.WebhookID, listener bool) (*api.Webhook, error) {
	word := webhookWord
	if listener {
		word = listenerWord
	}
	return found[api.Webhook](word)(one[api.Webhook](ctx, t.View, "webhook_lock", t.tenant, w, listener))
}

// UpdateWebhook changes what the patch names. What is pending of an endpoint that
// gets disabled fails.
func (t *Tx) UpdateWebhook(ctx context.Context, w id.WebhookID, in *api.WebhookPatch) (*api.Webhook, error) {
	row, err := t.lockWebhook(ctx, w, false)
	if err != nil {
		return nil, err
	}
	var detail any
	if row.Enabled && in.Enabled != nil && !*in.Enabled {
		failed, err := t.closing(ctx, w, "deliveries_fail", wasDisabled)
		if err != nil {
			return nil, err
		}
		detail = map[string]int64{"failed_deliveries": failed}
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

// closing runs a query on the deliveries of an endpoint that is locked, and then on
// those that came meanwhile, while no more can come: only then do commits that have
// an event for the endpoint wait, and not for as long as many deliveries take.
func (t *Tx) closing(ctx context.Context, w id.WebhookID, query string, args ...any) (rows int64, err error) {
	args = append([]any{t.tenant, w}, args...)
	if rows, err = t.exec(ctx, query, args...); err != nil {
		return 0, err
	}
	if _, err = t.exec(ctx, "webhook_close", t.tenant, w); err != nil {
		return 0, err
	}
	more, err := t.exec(ctx, query, args...)
	return rows + more, err
}

// RotateWebhook gives an endpoint a new secret in place of the old one.
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

// DeleteWebhook removes an endpoint with its deliveries.
func (t *Tx) DeleteWebhook(ctx context.Context, w id.WebhookID) error {
	return t.deleteWebhook(ctx, w, "webhook", false)
}

// DeleteListener removes a listener with what it did not fetch.
func (t *Tx) DeleteListener(ctx context.Context, w id.WebhookID) error {
	return t.deleteWebhook(ctx, w, "webhook.listener", true)
}

func (t *Tx) deleteWebhook(ctx context.Context, w id.WebhookID, kind string, listener bool) error {
	if _, err := t.lockWebhook(ctx, w, listener); err != nil {
		return err
	}
	if _, err := t.closing(ctx, w, "deliveries_delete"); err != nil {
		return err
	}
	if _, err := t.exec(ctx, "webhook_delete", t.tenant, w); err != nil {
		return err
	}
	return t.Audit(ctx, kind+".delete", kind, w.UUID, nil)
}

// Batch is how many deliveries one transaction takes, where there may be a month of
// them.
const Batch = 5_000

// TrimDeliveries removes up to Batch deliveries that have ended of an endpoint,
// oldest first, from behind after; last is the last one. A removal of the endpoint
// begins with it: what has ended may be more than one transaction has time for.
func (t *Tx) TrimDeliveries(ctx context.Context, w id.WebhookID, after id.DeliveryID) (rows int, last id.DeliveryID, err error) {
	return t.batch(ctx, after, "deliveries_trim", w, after, Batch)
}

// batch runs a query that answers the ids of the deliveries it took.
func (t *Tx) batch(ctx context.Context, last id.DeliveryID, query string, args ...any) (int, id.DeliveryID, error) {
	taken, err := scalars[id.DeliveryID](ctx, t.View, query, append([]any{t.tenant}, args...)...)
	for _, d := range taken {
		if string(d.UUID[:]) > string(last.UUID[:]) {
			last = d
		}
	}
	return len(taken), last, err
}

// DeliveryFilter narrows a list of deliveries; nil fields say nothing.
type DeliveryFilter struct {
	Status *lifecycle.DeliveryStatus
	Type   *api.EventType
}

// Deliveries lists the deliveries of an endpoint, newest first, from behind at; one
// more than limit may come.
func (v View) Deliveries(ctx context.Context, w id.WebhookID, f DeliveryFilter, at id.DeliveryID, limit int) ([]api.Delivery, error) {
	from, n := before(at.UUID, limit)
	return all[api.Delivery](ctx, v, "deliveries", v.tenant, w, from, n, (*string)(f.Status), (*string)(f.Type))
}

// Delivery is one delivery of an endpoint, with its event.
func (v View) Delivery(ctx context.Context, w id.WebhookID, d id.DeliveryID) (*api.DeliveryWithEvent, error) {
	return found[api.DeliveryWithEvent](deliveryWord)(one[api.DeliveryWithEvent](ctx, v, "delivery", v.tenant, w, d))
}

// holdWebhook keeps an endpoint from being disabled or removed until the change is
// committed; one that is disabled is VALIDATION, because nothing is sent to it.
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

// TestWebhook has a webhook.test sent to an endpoint, whatever it hears of.
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
	return d, t.Audit(ctx, "webhook.test", "webhook", w.UUID, map[string]id.DeliveryID{"delivery_id": d})
}

// Redeliver has a delivery sent again: one that has ended from its first attempt
// on, one that is pending at once.
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
	return t.Audit(ctx, "webhook.redeliver", "webhook", w.UUID, map[string]id.DeliveryID{"delivery_id": d})
}

// Recover has up to Batch deliveries of an endpoint sent again that have failed and
// were made at since or later, oldest first, from behind after; last is the last
// one.
func (t *Tx) Recover(ctx context.Context, w id.WebhookID, since time.Time, after id.DeliveryID) (rows int, last id.DeliveryID, err error) {
	if err := t.holdWebhook(ctx, w); err != nil {
		return 0, after, err
	}
	if after.IsZero() {
		after.UUID = firstAt(since)
	}
	if rows, last, err = t.batch(ctx, after, "deliveries_recover", w, after, since, Batch, notKnown); err != nil {
		return 0, after, err
	}
	return rows, last, t.Audit(ctx, "webhook.recover", "webhook", w.UUID, map[string]any{"since": since, "deliveries": rows})
}

// firstAt is before every id that is made at that time or later, and spares a look
// at all that were made earlier.
func firstAt(at time.Time) (u id.UUID) {
	var ms [8]byte
	binary.BigEndian.PutUint64(ms[:], uint64(max(at.UnixMilli(), 0)))
	copy(u[:], ms[2:])
	return u
}

// CreateListener makes a listener, with its secret.
func (t *Tx) CreateListener(ctx context.Context, events []webhook.Type) (*api.Listener, error) {
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

// Listening is a listener that is not gone.
type Listening struct {
	Secret    vault.Secret
	ExpiresAt time.Time
}

// ExtendListener puts off a listener's end; one that is gone, and what is none, is
// NOT_FOUND. It is nobody's change: the audit log does not tell of it.
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
