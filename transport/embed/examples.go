package embed

import (
	"time"

	"agentsvc/schemas/api"
	"agentsvc/schemas/embed"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/transport/edge"
)

// sample returns an id for the OpenAPI document.
func sample(n byte) id.UUID {
	return id.UUID{0x01, 0xa1, 0xfe, 0x1a, 0xf0, 0xb8, 0x76, 0xf3, 0x94, 0x42, 0xf6, 0x22, 0x5b, 0xb3, 0xaf, n}
}

func ref[T any](v T) *T { return &v }

var (
	sampleTime    = time.Date(2026, 3, 1, 9, 30, 0, 0, time.UTC)
	sampleRunID   = id.RunID{UUID: sample(81)}
	sampleVisitor = id.VisitorID{UUID: sample(82)}
	sampleThread  = api.EmbedThread{ID: id.ThreadID{UUID: sample(83)}, Title: ref("Where is my order?"), CreatedAt: sampleTime, UpdatedAt: sampleTime}
	sampleMessage = api.EmbedMessage{ID: id.MessageID{UUID: sample(84)}, Role: "user", Content: "Where is my order?", RunID: &sampleRunID, CreatedAt: sampleTime}

	sampleConfig = api.EmbedConfig{KeyID: id.EmbedKeyID{UUID: sample(85)}, Agent: api.EmbedAgent{Name: "Order desk", Emoji: "📦"},
		Theme: embed.FilledTheme(api.EmbedTheme{}), Config: embed.FilledConfig(api.EmbedDisplayConfig{Greeting: "Hello! What can I do for you?", StarterPrompts: []string{"Where is my order?"}})}
	sampleSession = api.EmbedSession{Token: "svc_es_…", ExpiresAt: sampleTime.Add(time.Hour), VisitorID: sampleVisitor, Visitor: "svc_vi_…"}
	samplePosted  = api.EmbedMessagePosted{ThreadID: sampleThread.ID, RunID: sampleRunID, MessageID: sampleMessage.ID}

	sampleCancelled = api.RunStatus{RunID: sampleRunID, Status: lifecycle.RunCancelled}
)

// Payloads of the relay's frames (service.md, Embed relay), for the OpenAPI document. Package
// schemas/event makes the frames themselves.
type (
	relayStarted struct {
		RunID  id.RunID            `json:"run_id"`
		Status lifecycle.RunStatus `json:"status"`
	}
	relayDelta struct {
		Idx  int    `json:"idx" doc:"The step."`
		Text string `json:"text" doc:"A piece of text."`
	}
	relayCalled struct {
		Idx int `json:"idx" doc:"The step."`
	}
	relayResult struct {
		Idx int  `json:"idx" doc:"The step."`
		OK  bool `json:"ok"`
	}
	relayCompleted struct {
		Status lifecycle.RunStatus `json:"status"`
		Text   *string             `json:"text" doc:"The whole answer; null: there is none."`
	}
	relayFailed struct {
		Code string `json:"code" doc:"Why."`
	}
	relayNothing struct{}
)

// describe adds the descriptions of this section's types.
func describe(t *edge.Table) {
	edge.Doc[api.EmbedConfig](t, "The configuration that a widget reads first.")
	edge.Doc[api.EmbedAgent](t, "An agent as a visitor sees it.")
	edge.Doc[api.EmbedSessionCreate](t, "The identity token of a visitor.")
	edge.Doc[api.EmbedUserIdentity](t, "A visitor's identity.")
	edge.Doc[api.EmbedSession](t, "A session of a visitor.")
	edge.Doc[api.EmbedMessagePost](t, "A message of a visitor.")
	edge.Doc[api.EmbedMessagePosted](t, "A message that was accepted.")
	edge.Doc[api.EmbedThread](t, "A conversation as its visitor sees it.")
	edge.Doc[api.List[api.EmbedThread]](t, "A page of a visitor's conversations.")
	edge.Doc[api.EmbedMessage](t, "A message as its visitor sees it.")
	edge.Doc[api.EmbedMessages](t, "A conversation.")
}
