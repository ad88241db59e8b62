package api

import (
	"encoding/json"
	"time"

	"agentsvc/schemas/id"
	"agentsvc/schemas/knowledge"
)

// Types of a theme's fields.
type (
	// ColorScheme makes a widget light or dark.
	ColorScheme string
	// Radius is the roundness of a widget's corners.
	Radius string
	// Density is the spacing of a widget.
	Density string
	// Position is the side of a widget's launcher.
	Position string
)

// Values of ColorScheme, Radius, Density and Position (open-parts.md, Embed).
var (
	ColorSchemes = []ColorScheme{"auto", "light", "dark"}
	Radii        = []Radius{"soft", "none", "round"}
	Densities    = []Density{"normal", "compact"}
	Positions    = []Position{"right", "left"}
)

// EmbedTheme is the look of a widget (open-parts.md, Embed).
type EmbedTheme struct {
	ColorScheme ColorScheme `json:"color_scheme,omitempty" default:"auto" doc:"auto follows the visitor's system."`
	Accent      string      `json:"accent,omitempty" pattern:"^#[0-9a-fA-F]{6}$" default:"#2563eb" doc:"A colour, #rrggbb."`
	Radius      Radius      `json:"radius,omitempty" default:"soft" doc:"How round the corners are."`
	Density     Density     `json:"density,omitempty" default:"normal" doc:"How much air there is."`
	FontFamily  string      `json:"font_family,omitempty" maxLength:"200" doc:"A CSS font-family list of fonts that the page or the system has. Omitted: the system's."`
	Position    Position    `json:"position,omitempty" default:"right" doc:"The side of the window that the launcher is on."`
	ZIndex      *int        `json:"z_index,omitempty" minimum:"0" maximum:"2147483647" doc:"The CSS z-index. Omitted: above everything."`
	AvatarURL   string      `json:"avatar_url,omitempty" maxLength:"2000" doc:"An https URL of a picture of the agent. The widget shows one of the page's or the service's own origin; another host would learn of every visitor."`
}

// EmbedDisplayConfig holds the texts and options of a widget (open-parts.md, Embed).
type EmbedDisplayConfig struct {
	Title            string   `json:"title,omitempty" maxLength:"120" doc:"In the head of the panel. Omitted: the agent's name."`
	Greeting         string   `json:"greeting,omitempty" maxLength:"2000" doc:"Shown before the first message."`
	StarterPrompts   []string `json:"starter_prompts" required:"false" maxItems:"4" doc:"Up to four messages to begin with, each 1 to 200 characters."`
	Placeholder      string   `json:"placeholder,omitempty" maxLength:"120" doc:"In the empty field."`
	Disclaimer       string   `json:"disclaimer,omitempty" maxLength:"500" doc:"Below the field."`
	LauncherLabel    string   `json:"launcher_label,omitempty" maxLength:"120" doc:"What the launcher is called."`
	Locale           string   `json:"locale,omitempty" maxLength:"35" doc:"A BCP 47 language tag. Omitted: the visitor's."`
	ContactURL       string   `json:"contact_url,omitempty" maxLength:"2000" doc:"An https: or mailto: URL. The widget links to it after a failed answer and while a person decides."`
	ShowHistory      *bool    `json:"show_history,omitempty" default:"true" doc:"Visitors see their earlier conversations."`
	ShowToolActivity *bool    `json:"show_tool_activity,omitempty" default:"true" doc:"Visitors see that a tool is at work."`
	ShowSources      *bool    `json:"show_sources,omitempty" default:"false" doc:"Visitors see which documents an answer cites: those that everybody may see, or that name the visitor in their ACL."`
}

// EmbedKey is an embed key as open-parts.md, Embed defines it, without its key and identity
// secret.
type EmbedKey struct {
	ID                id.EmbedKeyID      `json:"id" doc:"The id, a version 7 UUID."`
	AgentID           id.AgentID         `json:"agent_id" doc:"The one agent that it talks to."`
	Name              string             `json:"name" doc:"For people; unique among the live keys of the agent."`
	KeyPrefix         string             `json:"key_prefix" doc:"How the publishable key begins."`
	AllowedOrigins    []string           `json:"allowed_origins" doc:"Where it may be used. Empty: nowhere; *: everywhere."`
	Enabled           bool               `json:"enabled" doc:"false: it is paused."`
	RateLimitPerMin   int                `json:"rate_limit_per_min" doc:"Messages a minute, of all visitors together; session mints are ten times as many."`
	IdentityRequired  bool               `json:"identity_required" doc:"Visitors must be identified by the tenant's back end."`
	HasIdentitySecret bool               `json:"has_identity_secret" doc:"There is a secret that identity tokens are signed with."`
	Theme             EmbedTheme         `json:"theme" doc:"How the widget looks."`
	Config            EmbedDisplayConfig `json:"config" doc:"What the widget says and shows."`
	LastUsedAt        *time.Time         `json:"last_used_at" doc:"When a session was last minted; null: never. It may be some seconds behind."`
	RevokedAt         *time.Time         `json:"revoked_at" doc:"When it was revoked; null: it is live."`
	CreatedAt         time.Time          `json:"created_at" doc:"UTC."`
	UpdatedAt         time.Time          `json:"updated_at" doc:"UTC."`
	Snippet           string             `db:"-" json:"snippet" doc:"The script element for a page, with the public address of the service and the key; how the key begins, except where it is shown."`
}

// EmbedKeyCreated is an embed key with the secrets that are shown once.
type EmbedKeyCreated struct {
	EmbedKey
	Key            string `json:"key" doc:"The publishable key, for the page that the widget is on; never shown again."`
	IdentitySecret string `json:"identity_secret,omitempty" doc:"What identity tokens are signed with, for the tenant's back end; never shown again."`
}

// EmbedKeyRotated is an embed key with its new value.
type EmbedKeyRotated struct {
	EmbedKey
	Key string `json:"key" doc:"The publishable key; the former one is not accepted any more. Never shown again."`
}

// EmbedIdentitySecret is the response of POST /v1/embed-keys/{id}/identity-secret.
type EmbedIdentitySecret struct {
	ID             id.EmbedKeyID `json:"id" doc:"The key."`
	IdentitySecret string        `json:"identity_secret" doc:"What identity tokens are signed with from now on; never shown again."`
}

// EmbedKeyCreate is the body of POST /v1/embed-keys.
type EmbedKeyCreate struct {
	AgentID            id.AgentID          `json:"agent_id" doc:"The one agent that it talks to."`
	Name               string              `json:"name" minLength:"1" maxLength:"120" doc:"For people; unique among the live keys of the agent."`
	AllowedOrigins     []string            `json:"allowed_origins" maxItems:"100" doc:"Where it may be used: https://host[:port] each, or *. Empty: nowhere."`
	Enabled            *bool               `json:"enabled,omitempty" default:"true" doc:"Omitted: true."`
	RateLimitPerMin    *int                `json:"rate_limit_per_min,omitempty" minimum:"1" maximum:"10000" default:"60" doc:"Messages a minute, of all visitors together."`
	IdentityRequired   bool                `json:"identity_required,omitempty" default:"false" doc:"true needs with_identity_secret."`
	WithIdentitySecret bool                `json:"with_identity_secret,omitempty" default:"false" doc:"Make an identity secret as well."`
	Theme              *EmbedTheme         `json:"theme,omitempty" doc:"How the widget looks."`
	Config             *EmbedDisplayConfig `json:"config,omitempty" doc:"What the widget says and shows."`
}

// EmbedKeyPatch is the body of PATCH /v1/embed-keys/{id}.
type EmbedKeyPatch struct {
	Name             *string             `json:"name,omitempty" minLength:"1" maxLength:"120" doc:"For people."`
	AllowedOrigins   *[]string           `json:"allowed_origins,omitempty" maxItems:"100" doc:"Where it may be used from now on."`
	Enabled          *bool               `json:"enabled,omitempty" doc:"false pauses it: its sessions and streams end at once."`
	RateLimitPerMin  *int                `json:"rate_limit_per_min,omitempty" minimum:"1" maximum:"10000" doc:"Messages a minute, of all visitors together."`
	IdentityRequired *bool               `json:"identity_required,omitempty" doc:"true needs an identity secret; sessions of visitors whom nobody knows end at once."`
	Theme            *EmbedTheme         `json:"theme,omitempty" doc:"In place of the former one."`
	Config           *EmbedDisplayConfig `json:"config,omitempty" doc:"In place of the former one."`
}

// EmbedAgent is an agent as a visitor sees it.
type EmbedAgent struct {
	Name  string `json:"name" doc:"Its name."`
	Emoji string `json:"emoji" doc:"Its emoji; may be empty."`
}

// EmbedConfig is the response of GET /v1/embed/config: theme and config with defaults.
type EmbedConfig struct {
	KeyID            id.EmbedKeyID      `json:"key_id" doc:"The embed key."`
	Agent            EmbedAgent         `json:"agent" doc:"Who answers."`
	Theme            EmbedTheme         `json:"theme" doc:"How the widget looks."`
	Config           EmbedDisplayConfig `json:"config" doc:"What the widget says and shows."`
	IdentityRequired bool               `json:"identity_required" doc:"A session needs an identity token."`
}

// EmbedSessionCreate is the body of POST /v1/embed/session.
type EmbedSessionCreate struct {
	Visitor string             `json:"visitor,omitempty" doc:"The visitor value of a former session: the same visitor goes on. Missing, altered or of another key: a new visitor begins."`
	User    *EmbedUserIdentity `json:"user,omitempty" null:"true" doc:"Who the visitor is, as the tenant's back end says."`
}

// EmbedUserIdentity is the identity token of a visitor.
type EmbedUserIdentity struct {
	Token string `json:"token" doc:"A JWT that the tenant's back end signed with the key's identity secret (HS256)."`
}

// EmbedSession is the response of POST /v1/embed/session.
type EmbedSession struct {
	Token     string        `json:"token" doc:"For Authorization: Bearer, from this origin only."`
	ExpiresAt time.Time     `json:"expires_at" doc:"When the token ends; a new session goes on as the same visitor."`
	VisitorID id.VisitorID  `json:"visitor_id" doc:"The visitor."`
	Visitor   string        `json:"visitor" doc:"To be sent with the next session. Opaque, and signed."`
	EndUserID *id.EndUserID `json:"end_user_id,omitempty" doc:"Who the visitor is; absent: nobody knows."`
}

// EmbedMessagePost is the body of POST /v1/embed/messages.
type EmbedMessagePost struct {
	Content  string       `json:"content" minLength:"1" maxLength:"8000" doc:"What the visitor says, 1 to 8,000 characters."`
	ThreadID *id.ThreadID `json:"thread_id,omitempty" doc:"The conversation. Omitted: a new one begins."`
}

// EmbedMessagePosted is the response of POST /v1/embed/messages.
type EmbedMessagePosted struct {
	ThreadID  id.ThreadID  `json:"thread_id" doc:"The conversation."`
	RunID     id.RunID     `json:"run_id" doc:"The run that answers; follow its events."`
	MessageID id.MessageID `json:"message_id" doc:"The message."`
}

// EmbedMessage is a message as its visitor sees it.
type EmbedMessage struct {
	ID        id.MessageID         `json:"id" doc:"The id."`
	Role      string               `json:"role" enum:"user,assistant" doc:"Who speaks."`
	Content   string               `json:"content" doc:"The text."`
	Citations []knowledge.Citation `json:"citations,omitempty" doc:"Only if the key's config has show_sources: the documents that an answer cites, in the order of the text, without those that the visitor may not see now."`
	RunID     *id.RunID            `json:"run_id" doc:"The run that it began, or that it answers; null: none."`
	CreatedAt time.Time            `json:"created_at" doc:"UTC."`
}

// EmbedMessages is the response of GET /v1/embed/threads/{id}/messages: the newest 100.
type EmbedMessages struct {
	Items []EmbedMessage `json:"items" doc:"Oldest first. Where the last one is the visitor's, its run may not have ended: its events say."`
}

// EmbedThread is a conversation as its visitor sees it.
type EmbedThread struct {
	ID        id.ThreadID `json:"id" doc:"The id."`
	Title     *string     `json:"title" doc:"How it is called; null: it has no title."`
	CreatedAt time.Time   `json:"created_at" doc:"UTC."`
	UpdatedAt time.Time   `json:"updated_at" doc:"UTC."`
}

// EndUser is a person of the tenant's own product (open-parts.md, End users).
type EndUser struct {
	ID         id.EndUserID    `json:"id" doc:"The id, a version 7 UUID."`
	ExternalID string          `json:"external_id" doc:"What the tenant calls the person: sub of identity tokens."`
	Name       *string         `json:"name" doc:"As the last identity token said; null: unknown."`
	Email      *string         `json:"email" doc:"As the last identity token said; null: unknown."`
	Attributes json.RawMessage `json:"attributes" doc:"An object: meta and groups of the last identity token, and what the tenant put there."`
	Tags       []string        `json:"tags" doc:"For the tenant's own use."`
	Residency  *string         `json:"residency" doc:"A label; null: none."`
	CreatedAt  time.Time       `json:"created_at" doc:"UTC."`
	UpdatedAt  time.Time       `json:"updated_at" doc:"UTC."`
}

// EndUserPatch is the body of PATCH /v1/end-users/{id}.
type EndUserPatch struct {
	Name       Opt[string] `json:"name,omitzero" doc:"1 to 120 characters; null: unknown."`
	Email      Opt[string] `json:"email,omitzero" doc:"Up to 320 characters; null: unknown."`
	Attributes Object      `json:"attributes,omitempty" doc:"In place of the former ones, up to 16 KiB."`
	Tags       *[]string   `json:"tags,omitempty" maxItems:"50" doc:"In place of the former ones; each 1 to 60 characters."`
	Residency  Opt[string] `json:"residency,omitzero" doc:"A label of up to 60 characters; null: none."`
}
