package store

import (
	"context"
	"encoding/binary"
	"fmt"
	"strconv"
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
	return listed[api.Webhook](ctx, v, "webhooks", v.tenant, from, n)
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

// lockWebhook is an endpoint, or a listener, that nobody else changes before the end
// of the change.
func (t *Tx) lockWebhook(ctx context.Context, query string, w id.WebhookID, listener bool) (*api.Webhook, error) {
	word := webhookWord
	if listener {
		word = listenerWord
	}
	return found[api.Webhook](word)(one[api.Webhook](ctx, t.View, query, t.tenant, w, listener))
}

// UpdateWebhook changes what the patch names. What is pending of an endpoint that
// gets disabled is ended afterwards (EndPending): from the commit on no more comes
// but from commits that are under way.
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

// EndPending fails what is pending of a disabled endpoint, also what commits put there
// that were under way while it was disabled: it waits for them. It takes as many
// transactions as it needs, and what an error leaves over is ended by a repeat, or by
// the sweep. Of an endpoint that is enabled, or gone, it ends nothing.
func (s *Store) EndPending(ctx context.Context, tenant id.TenantID, w id.WebhookID) error {
	// In a transaction of its own: commits wait for this lock, and not for deliveries.
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

// inBatches repeats a change, each time in a transaction of its own and from behind
// the last delivery it took, until one takes fewer than Batch.
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

// StopWebhook begins the removal of an endpoint: it is disabled.
func (t *Tx) StopWebhook(ctx context.Context, w id.WebhookID) error {
	row, err := t.lockWebhook(ctx, "webhook_lock", w, false)
	if err != nil || !row.Enabled {
		return err
	}
	_, err = t.UpdateWebhook(ctx, w, &api.WebhookPatch{Enabled: new(bool)})
	return err
}

// StopListener begins the removal of a listener: it hears nothing more, and goes as
// one that has expired if nobody removes it.
func (t *Tx) StopListener(ctx context.Context, w id.WebhookID) error {
	if _, err := t.lockWebhook(ctx, "webhook_lock", w, true); err != nil {
		return err
	}
	_, err := t.exec(ctx, "listener_stop", t.tenant, w)
	return err
}

// DeleteWebhook removes an endpoint that was stopped and trimmed, with the
// deliveries that are left.
func (t *Tx) DeleteWebhook(ctx context.Context, w id.WebhookID) error {
	return t.deleteWebhook(ctx, w, "webhook", false)
}

// DeleteListener is DeleteWebhook for a listener.
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

// Batch is how many deliveries one transaction takes, where there may be a month of
// them.
const Batch = 5_000

// TrimDeliveries removes the deliveries of an endpoint or a listener that was stopped,
// whatever has become of them, in as many transactions as it needs: they may be more
// than one has time for. What an error leaves over is removed by a repeat.
func (s *Store) TrimDeliveries(ctx context.Context, tenant id.TenantID, w id.WebhookID) error {
	return s.inBatches(ctx, tenant, func(ctx context.Context, tx *Tx, after id.DeliveryID) (int, id.DeliveryID, error) {
		return tx.batch(ctx, after, "deliveries_trim", w, after, Batch)
	})
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
	if f.Status != nil && *f.Status == lifecycle.DeliveryFailed {
		return listed[api.Delivery](ctx, v, "deliveries_failed", v.tenant, w, from, n, (*string)(f.Type))
	}
	return listed[api.Delivery](ctx, v, "deliveries", v.tenant, w, from, n, (*string)(f.Status), (*string)(f.Type))
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

// MaxListeners is how many listeners of a tenant live at a time: each is paid for by
// every commit that has an event.
const MaxListeners = 20

// CreateListener makes a listener, with its secret; one beyond MaxListeners is
// VALIDATION.
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
