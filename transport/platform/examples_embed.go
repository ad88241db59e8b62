package platform

import (
	"encoding/json"

	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/transport/edge"
)

const (
	samplePublishable    = "svc_pk_5dTqV0WkB2xY8zR4mN6pLc_3fJ7hG1sD9aK5uE2oI8yT4wQ6rZ0xV7cB3nM1lP5kJ9h_2Xb4Q8"
	sampleSnippet        = `<script async src="https://agents.example.com/embed/v1/widget.js" data-key="`
	sampleIdentitySecret = "idsec_Zk3vN8pR1tX6yB0cF5hJ9mQ2sU7wE4aD1gL8oI6rT3k"
)

var (
	sampleEmbedKey = api.EmbedKey{ID: id.EmbedKeyID{UUID: sample(70)}, AgentID: sampleAgentID, Name: "Shop", KeyPrefix: samplePublishable[:15],
		AllowedOrigins: []string{"https://shop.example.com"}, Enabled: true, RateLimitPerMin: 60, HasIdentitySecret: true,
		Theme: api.EmbedTheme{Accent: "#0f766e"}, Config: api.EmbedDisplayConfig{Greeting: "Hello! What may I do for you?", StarterPrompts: []string{"Where is my order?"}},
		Snippet: sampleSnippet + samplePublishable[:15] + `…"></script>`, LastUsedAt: &sampleTime, CreatedAt: sampleTime, UpdatedAt: sampleTime}
	// shownEmbedKey is the key where its value is shown.
	shownEmbedKey = func() api.EmbedKey {
		k := sampleEmbedKey
		k.Snippet = sampleSnippet + samplePublishable + `"></script>`
		return k
	}()
	sampleDenied  = api.DeniedOrigin{Origin: "https://www.example.com", Count: 12, LastAt: sampleEnd}
	sampleEndUser = api.EndUser{ID: id.EndUserID{UUID: sample(71)}, ExternalID: "customer-1001", Name: ptr("Kim"), Email: ptr("kim@example.com"),
		Attributes: json.RawMessage(`{"groups":["gold"],"meta":{"groups":["gold"],"plan":"pro"}}`), Tags: []string{"vip"}, Residency: ptr("eu"),
		CreatedAt: sampleTime, UpdatedAt: sampleTime}
)

// describeEmbedKeys adds the descriptions of this section's types.
func describeEmbedKeys(t *edge.Table) {
	edge.Doc[api.DeniedOrigin](t, "An origin that an embed key refused.")
	edge.Doc[api.Items[api.DeniedOrigin]](t, "Refused origins, the latest first.")
	edge.Enum(t, api.ColorSchemes...)
	edge.Enum(t, api.Radii...)
	edge.Enum(t, api.Densities...)
	edge.Enum(t, api.Positions...)
	edge.Doc[api.EmbedKey](t, "Lets a chat widget talk to one agent.")
	edge.Doc[api.Whole[api.EmbedKey]](t, "Embed keys.")
	edge.Doc[api.EmbedKeyCreate](t, "An embed key to create.")
	edge.Doc[api.EmbedKeyPatch](t, "A change of an embed key; omitted fields stay.")
	edge.Doc[api.EmbedKeyCreated](t, "An embed key with the secrets that are shown once.")
	edge.Doc[api.EmbedKeyRotated](t, "An embed key with its new value.")
	edge.Doc[api.EmbedIdentitySecret](t, "An embed key's new identity secret.")
	edge.Doc[api.EmbedTheme](t, "The look of a widget.")
	edge.Doc[api.EmbedDisplayConfig](t, "The texts and options of a widget.")
}

// describeEndUsers adds the descriptions of this section's types.
func describeEndUsers(t *edge.Table) {
	edge.Doc[api.EndUser](t, "A person of the tenant's own product.")
	edge.Doc[api.List[api.EndUser]](t, "A page of end users.")
	edge.Doc[api.EndUserPatch](t, "A change of an end user; omitted fields stay.")
}
