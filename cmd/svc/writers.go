package main

import (
	"context"

	"agentsvc/actors/delivery"
	"agentsvc/actors/durable"
	"agentsvc/cluster"
	"agentsvc/persistence/journal"
	"agentsvc/persistence/outbox"
	"agentsvc/persistence/store"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
	"agentsvc/transport/webhook"
)

// writers is the part of a node that commits: the journal of the actors and the outbox of
// webhook deliveries.
type writers struct {
	writer *journal.Writer
	out    *outbox.Outbox
	sent   deliveries
}

func (s *service) startWriters(ctx context.Context) error {
	s.sent = deliveries{
		node:    s.node,
		targets: delivery.NewTargets(delivery.TargetsConfig{Endpoints: s.tables, Live: s.trusted}),
		hearers: delivery.NewHearers(delivery.HearersConfig{Reader: hearing{s.tables}, Tell: s.node, Live: s.trusted, Log: s.log}),
	}
	s.writer = journal.New(journal.Config{Pool: s.pools.writer, Member: s.self, Tables: tablesOfKinds(), Log: s.log, Metrics: journal.NewMetrics(s.metrics), OnFenced: s.declaredDead,
		OnEvent: s.sent.hearers.Committed, OnCommit: s.committed})
	if err := s.writer.Start(ctx); err != nil {
		return err
	}
	s.onStop(s.writer.Stop)
	s.out = outbox.New(outbox.Config{Pool: s.pools.writer, Member: s.self, Timeout: s.c.WebhookTimeout, Backoff: s.c.WebhookBackoff, Now: s.member.Now, Log: s.log,
		Metrics: outbox.NewMetrics(s.metrics), OnFenced: s.declaredDead,
		OnChange: func(t id.TenantID, d id.DeliveryID) {
			s.board.Note(t, msg.Change{Kind: msg.ChangedDelivery, ID: d.UUID})
		}})
	if err := s.out.Start(ctx); err != nil {
		return err
	}
	s.onStop(s.out.Stop)
	if err := s.sent.hearers.Start(ctx); err != nil {
		return err
	}
	s.onStop(infallible(s.sent.hearers.Stop))
	return nil
}

// hearing reads who hears the events of a tenant, for the delivery actors.
type hearing struct{ tables *store.Store }

// Hearing returns all endpoints that subscribe to events, listeners included: their
// events are written too.
func (h hearing) Hearing(ctx context.Context, t id.TenantID) ([]store.Hearing, error) {
	return h.tables.View(t).Hearing(ctx)
}

// sender sends the attempts of the delivery actors.
type sender struct{ *webhook.Sender }

func (s sender) Send(ctx context.Context, to *store.Endpoint, a outbox.Attempt) delivery.Outcome {
	return delivery.Outcome(s.Sender.Send(ctx, webhook.Message{URL: to.URL, Secret: string(to.Secret.Reveal()), Delivery: a.Delivery, Body: a.Body}))
}

// deliveries is how the routes reach the delivery actors and their caches
// (platform.Deliveries).
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
