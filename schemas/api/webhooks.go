package api

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/webhook"
)

// Webhook is a webhook endpoint, without its secret (service.md, Webhook
// endpoint).
type Webhook struct {
	ID          id.WebhookID   `json:"id" doc:"The id, a version 7 UUID."`
	URL         string         `json:"url" doc:"Where its deliveries are sent."`
	Events      []webhook.Type `json:"events" doc:"What it hears of; * is everything."`
	Description string         `json:"description" doc:"For people."`
	Enabled     bool           `json:"enabled" doc:"false: nothing is sent to it, and nothing is kept for later."`
	CreatedAt   time.Time      `json:"created_at" doc:"UTC."`
	UpdatedAt   time.Time      `json:"updated_at" doc:"UTC."`
}

// WebhookWithSecret is a webhook endpoint that is new or has a new secret.
type WebhookWithSecret struct {
	Webhook
	Secret string `json:"secret" doc:"Signs its deliveries. It is in this answer only."`
}

// WebhookCreate is the body of POST /v1/webhooks.
type WebhookCreate struct {
	URL         string `json:"url" minLength:"1" maxLength:"2000" doc:"https, and a public host."`
	Events      Events `json:"events" doc:"What it hears of: 1 to 16 event types, or *."`
	Description string `json:"description,omitempty" maxLength:"2000" doc:"For people."`
}

// WebhookPatch is the body of PATCH /v1/webhooks/{id}.
type WebhookPatch struct {
	URL         *string `json:"url,omitempty" minLength:"1" maxLength:"2000" doc:"Deliveries that are still to be sent go there too."`
	Events      Events  `json:"events,omitempty" doc:"Replace the old ones; of what has happened before nothing is sent."`
	Description *string `json:"description,omitempty" maxLength:"2000" doc:"For people."`
	Enabled     *bool   `json:"enabled,omitempty" doc:"false: what is still to be sent to it fails."`
}

// Events are the event types that an endpoint subscribes to: a list, each type once, or the
// text "*".
type Events []webhook.Type

// maxEventName limits how much of a name a complaint quotes.
const maxEventName = 100

// UnmarshalJSON decodes and validates them; an error is a VALIDATION problem of the field
// events.
func (e *Events) UnmarshalJSON(b []byte) error {
	list, ok := listOfTypes(b)
	switch {
	case !ok:
		return problem.Invalid("events", `must be a list of event types, or "*"`)
	case len(list) > webhook.MostTypes:
		return problem.Invalid("events", webhook.Check(list))
	}
	types := make([]webhook.Type, 0, len(list))
	for _, t := range list {
		if len(t) > maxEventName {
			return problem.Invalid("events", "has an event type that is too long")
		}
		if !slices.Contains(types, t) {
			types = append(types, t)
		}
	}
	if why := webhook.Check(types); why != "" {
		return problem.Invalid("events", why)
	}
	*e = types
	return nil
}

func listOfTypes(b []byte) (list []webhook.Type, ok bool) {
	if err := json.Unmarshal(b, &list); err == nil {
		return list, list != nil
	}
	var one webhook.Type
	err := json.Unmarshal(b, &one)
	return []webhook.Type{one}, err == nil && one == webhook.All
}

// eventsName is the component shown in the document.
const eventsName = "WebhookEvents"

// Schema has no constraints, because the complaints come from UnmarshalJSON; the document
// shows what that accepts.
func (Events) Schema(r huma.Registry) *huma.Schema {
	least, most := 1, webhook.MostTypes
	names := make([]any, 0, len(webhook.Catalog()))
	for _, t := range webhook.Catalog() {
		names = append(names, string(t))
	}
	r.Map()[eventsName] = &huma.Schema{
		Description: "Event types, or * for all of them, which stands alone.",
		AnyOf: []*huma.Schema{
			{Type: huma.TypeArray, MinItems: &least, MaxItems: &most, Items: &huma.Schema{Type: huma.TypeString, Enum: names}},
			{Type: huma.TypeString, Enum: []any{string(webhook.All)}},
		},
		Examples: []any{[]any{string(webhook.RunCompleted), string(webhook.RunFailed)}, string(webhook.All)},
	}
	return &huma.Schema{Extensions: map[string]any{ShownAs: "#/components/schemas/" + eventsName}}
}

// WebhookEventType is a type that endpoints may subscribe to.
type WebhookEventType struct {
	Type        webhook.Type `json:"type" doc:"As events name it."`
	Description string       `json:"description" doc:"When it is sent, and what its data is about."`
}

// EventType is a webhook.Type that an event can have: all but *.
type EventType webhook.Type

// EventTypes lists every value.
var EventTypes = func() (types []EventType) {
	for _, t := range webhook.Catalog() {
		if t != webhook.All {
			types = append(types, EventType(t))
		}
	}
	return types
}()

// Delivery is one event for one endpoint (open-parts.md, Webhooks).
type Delivery struct {
	ID             id.DeliveryID            `json:"id" doc:"What every attempt sends as Svc-Delivery-Id."`
	EventID        id.EventID               `json:"event_id" doc:"The id in the body; the same for all endpoints."`
	Type           EventType                `json:"type" doc:"Of the event."`
	Status         lifecycle.DeliveryStatus `json:"status" doc:"succeeded: an attempt was answered with 2xx. failed: no attempt follows."`
	Attempts       int                      `json:"attempts" doc:"How many of its five were begun; a redelivery of one that has ended counts from 0."`
	LastHTTPStatus *int                     `json:"last_http_status" doc:"Of the last attempt; null: there was no answer, or no attempt."`
	LastError      *string                  `json:"last_error" doc:"What went wrong last."`
	NextAttemptAt  *time.Time               `json:"next_attempt_at" doc:"When the next attempt comes, at the latest; null: none does."`
	CreatedAt      time.Time                `json:"created_at" doc:"UTC."`
	AttemptLog     []DeliveryAttempt        `json:"attempt_log" doc:"Attempts whose outcome is settled, oldest first; the last 20."`
}

// DeliveryAttempt is one attempt of a delivery.
type DeliveryAttempt struct {
	At         time.Time `json:"at" doc:"When it began."`
	HTTPStatus *int      `json:"http_status" doc:"null: there was no answer."`
	Error      *string   `json:"error" doc:"null: it succeeded."`
	DurationMS *int64    `json:"duration_ms" doc:"Milliseconds; null: not known."`
}

// DeliveryWithEvent is a delivery and its event.
type DeliveryWithEvent struct {
	Delivery
	Event Value `json:"event" doc:"The body: id, type, data and created_at."`
}

// DeliveryAccepted identifies the delivery that will be sent.
type DeliveryAccepted struct {
	DeliveryID id.DeliveryID `json:"delivery_id" doc:"Its outcome is in the list of deliveries."`
}

// WebhookRecover is the body of POST /v1/webhooks/{id}/recover.
type WebhookRecover struct {
	Since time.Time `json:"since" doc:"Deliveries made at this time and later."`
}

// WebhookRecovered is the response to it.
type WebhookRecovered struct {
	Deliveries int `json:"deliveries" doc:"How many had failed and are sent again."`
}

// ListenerCreate is the body of POST /v1/webhooks/listeners.
type ListenerCreate struct {
	Events Events `json:"events,omitempty" doc:"What it hears of: 1 to 16 event types, or *. Omitted: *."`
}

// Listener is an endpoint that pulls its deliveries.
type Listener struct {
	ID        id.WebhookID   `json:"id" doc:"The id, a version 7 UUID."`
	Events    []webhook.Type `json:"events" doc:"What it hears of."`
	Secret    string         `json:"secret" doc:"Signs its deliveries. It is in this answer only."`
	ExpiresAt time.Time      `json:"expires_at" doc:"Each pull puts it off by a minute; then the listener is gone, with what it did not fetch."`
}

// MaxPulled limits the deliveries in the response to one pull.
const MaxPulled = 20

// ListenerPull is the body of POST /v1/webhooks/listeners/{id}/pull.
type ListenerPull struct {
	Results []ListenerResult `json:"results,omitempty" maxItems:"100" doc:"What became of deliveries that were pulled before. One that nobody reports counts as failed."`
}

// ListenerResult is the result of an attempt.
type ListenerResult struct {
	DeliveryID id.DeliveryID `json:"delivery_id" doc:"As it was pulled."`
	Attempt    int           `json:"attempt" minimum:"1" maximum:"5" doc:"As it was pulled."`
	HTTPStatus int           `json:"http_status,omitempty" minimum:"0" maximum:"999" doc:"2xx is success. Omitted or 0: there was no answer."`
	Error      string        `json:"error,omitempty" maxLength:"1000" doc:"What went wrong."`
	DurationMS int64         `json:"duration_ms,omitempty" minimum:"0" maximum:"86400000" doc:"How long it took."`
}

// ListenerPulled is the response to it.
type ListenerPulled struct {
	Items     []ListenerItem `json:"items" doc:"Deliveries to make now, at most 20."`
	ExpiresAt time.Time      `json:"expires_at" doc:"When the listener is gone unless it pulls again."`
}

// ListenerItem is one attempt of a delivery.
type ListenerItem struct {
	DeliveryID id.DeliveryID `json:"delivery_id" doc:"To be sent as Svc-Delivery-Id."`
	EventID    id.EventID    `json:"event_id" doc:"The id in the body."`
	Type       EventType     `json:"type" doc:"Of the event."`
	Attempt    int           `json:"attempt" doc:"1 to 5."`
	Signature  string        `json:"signature" doc:"To be sent as Svc-Signature."`
	Body       string        `json:"body" doc:"To be sent as it is: the signature is of these bytes."`
}
