package main

import (
	"context"

	"agentsvc/actors/delivery"
	"agentsvc/actors/durable"
	"agentsvc/cluster"
	"agentsvc/persistence/outbox"
	"agentsvc/persistence/store"
	"agentsvc/schemas/id"
	"agentsvc/transport/webhook"
)

// endpoints are the webhook endpoints of all tenants, as the delivery actors read
// them.
type endpoints struct{ tables *store.Store }

func (e endpoints) Endpoint(ctx context.Context, t id.TenantID, w id.WebhookID) (delivery.Target, bool, error) {
	row, err := e.tables.Endpoint(ctx, t, w)
	if err != nil || row == nil {
		return delivery.Target{}, false, err
	}
	return delivery.Target{URL: row.URL, Secret: string(row.Secret.Reveal()), Enabled: row.Enabled}, true, nil
}

// Hearing is all that hear, listeners among them: their events are written all the
// same.
func (e endpoints) Hearing(ctx context.Context, t id.TenantID) ([]delivery.Hearing, error) {
	rows, err := e.tables.View(t).Hearing(ctx)
	if err != nil {
		return nil, err
	}
	hearing := make([]delivery.Hearing, len(rows))
	for i, r := range rows {
		hearing[i] = delivery.Hearing{ID: r.ID, Events: r.Events, Listener: r.Listener}
	}
	return hearing, nil
}

// sender sends the attempts of the delivery actors.
type sender struct{ *webhook.Sender }

func (s sender) Send(ctx context.Context, to delivery.Target, a outbox.Attempt) delivery.Outcome {
	return delivery.Outcome(s.Sender.Send(ctx, webhook.Message{URL: to.URL, Secret: to.Secret, Delivery: a.Delivery, Body: a.Body}))
}

// deliveries is what the routes know of what is sent (platform.Deliveries).
type deliveries struct {
	node    *cluster.Node
	targets *delivery.Targets
	hearers *delivery.Hearers
}

func (d deliveries) Wake(t id.TenantID, w id.WebhookID) {
	d.node.Tell(delivery.Address(t, w), durable.Wake{})
}

func (d deliveries) Forget(t id.TenantID, w id.WebhookID) {
	d.hearers.Forget(t)
	d.targets.Forget(t, w)
}

func (d deliveries) ForgetAll() {
	d.hearers.ForgetAll()
	d.targets.ForgetAll()
}
