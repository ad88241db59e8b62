package platform

import (
	"time"

	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/webhook"
	"agentsvc/transport/edge"
)

const (
	sampleWebhookSecret = "whsec_…"
	sampleEvent         = `{"id":"01a1fe1a-f0b8-76f3-9442-f6225bb3af3e","type":"approval.requested","data":{"approval_id":"01a1fe1a-f0b8-76f3-9442-f6225bb3af07",` +
		`"run_id":"01a1fe1a-f0b8-76f3-9442-f6225bb3af03","tool":"orders.orders.refund","risk":"high","assignee_role":"admin","expires_at":"2026-03-02T11:30:00Z"},` +
		`"created_at":"2026-03-02T09:30:00Z"}`
)

var (
	sampleWebhook = api.Webhook{ID: id.WebhookID{UUID: sample(60)}, URL: "https://shop.example.com/svc-events", Events: []webhook.Type{webhook.RunCompleted, webhook.RunFailed},
		Description: "Order desk", Enabled: true, CreatedAt: sampleTime, UpdatedAt: sampleTime}
	sampleWebhookCreated = api.WebhookWithSecret{Webhook: sampleWebhook, Secret: sampleWebhookSecret}
	sampleDelivery       = api.Delivery{ID: id.DeliveryID{UUID: sample(61)}, EventID: id.EventID{UUID: sample(62)}, Type: api.EventType(webhook.ApprovalRequested),
		Status: lifecycle.DeliveryPending, Attempts: 1, LastHTTPStatus: ptr(503), LastError: ptr("the endpoint answered with status 503"), NextAttemptAt: ptr(sampleTime.Add(5 * time.Second)),
		CreatedAt: sampleTime, AttemptLog: []api.DeliveryAttempt{{At: sampleTime, HTTPStatus: ptr(503), Error: ptr("the endpoint answered with status 503"), DurationMS: ptr[int64](41)}}}
	sampleDeliveryWithEvent = api.DeliveryWithEvent{Delivery: sampleDelivery, Event: api.Value(sampleEvent)}
	sampleAccepted          = api.DeliveryAccepted{DeliveryID: sampleDelivery.ID}
	sampleListener          = api.Listener{ID: id.WebhookID{UUID: sample(63)}, Events: []webhook.Type{webhook.All}, Secret: sampleWebhookSecret, ExpiresAt: sampleTime.Add(time.Minute)}
	samplePulled            = api.ListenerPulled{ExpiresAt: sampleTime.Add(time.Minute), Items: []api.ListenerItem{{DeliveryID: sampleDelivery.ID, EventID: sampleDelivery.EventID,
		Type: sampleDelivery.Type, Attempt: 1, Signature: "t=1772443800,v1=5c919f1c07ca5cdd983861cfd554005d8492677901dcb4c16d13062f1bb22ce7", Body: sampleEvent}}}
)

// describeWebhooks adds the descriptions of this section's types.
func describeWebhooks(t *edge.Table) {
	edge.Enum(t, webhook.Catalog()...)
	edge.Enum(t, api.EventTypes...)
	edge.Enum(t, lifecycle.DeliveryStatuses...)
	edge.Doc[api.Webhook](t, "A webhook endpoint, without its secret.")
	edge.Doc[api.WebhookWithSecret](t, "A webhook endpoint; the only response with its secret.")
	edge.Doc[api.WebhookCreate](t, "A webhook endpoint to create.")
	edge.Doc[api.WebhookPatch](t, "A change of a webhook endpoint; omitted fields stay.")
	edge.Doc[api.WebhookEventType](t, "An event type.")
	edge.Doc[api.Items[api.WebhookEventType]](t, "The event types.")
	edge.Doc[api.Whole[api.Webhook]](t, "Webhook endpoints: all of them, or a page.")
	edge.Doc[api.Delivery](t, "One event for one endpoint.")
	edge.Doc[api.DeliveryAttempt](t, "One attempt of a delivery.")
	edge.Doc[api.DeliveryWithEvent](t, "A delivery and its event.")
	edge.Doc[api.DeliveryAccepted](t, "A delivery that will be sent.")
	edge.Doc[api.List[api.Delivery]](t, "A page of deliveries.")
	edge.Doc[api.WebhookRecover](t, "The deliveries to send again.")
	edge.Doc[api.WebhookRecovered](t, "The number of deliveries sent again.")
	edge.Doc[api.ListenerCreate](t, "A listener to create.")
	edge.Doc[api.Listener](t, "A listener; the only response with its secret.")
	edge.Doc[api.ListenerPull](t, "The results of deliveries pulled before.")
	edge.Doc[api.ListenerResult](t, "The result of an attempt.")
	edge.Doc[api.ListenerPulled](t, "Deliveries to make now.")
	edge.Doc[api.ListenerItem](t, "One attempt of a delivery, to be sent as it is.")
}
