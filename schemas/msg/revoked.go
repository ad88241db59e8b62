package msg

import "agentsvc/schemas/id"

// RevokedWhat is the kind of a Revoked.
type RevokedWhat string

// Values of RevokedWhat. Never reuse a value with another meaning: nodes of two versions may run
// together.
const (
	// RevokedKey: the API key Key was revoked. Its streams are cut.
	RevokedKey RevokedWhat = "key"
	// RevokedSession: Session of User has ended. Its streams are cut.
	RevokedSession RevokedWhat = "session"
	// RevokedUser: User was removed or has a new password; all sessions of the user have
	// ended. The user's streams are cut.
	RevokedUser RevokedWhat = "user"
	// ChangedUser: User has another role.
	ChangedUser RevokedWhat = "user_changed"
	// ChangedAgent: Agent has another published version, or is archived. EmbedKeys are the
	// keys that ended with it; their visitors' streams are cut.
	ChangedAgent RevokedWhat = "agent"
	// ChangedServer: the tool server Server or one of its connections was changed or
	// removed.
	ChangedServer RevokedWhat = "server"
	// ChangedAccess: an input of tool-call decisions changed: grants, policies, the place of
	// agents in the organisation.
	ChangedAccess RevokedWhat = "access"
	// ChangedWebhook: the webhook endpoint Webhook was changed, removed, or got another
	// secret; zero means that a new endpoint was added.
	ChangedWebhook RevokedWhat = "webhook"
	// ChangedTrigger: Trigger was changed, removed, or got another secret.
	ChangedTrigger RevokedWhat = "trigger"
	// ChangedEmbedKey: the embed key EmbedKey, or each of EmbedKeys, was changed or its agent
	// has another name, and its sessions continue.
	ChangedEmbedKey RevokedWhat = "embed_key"
	// RevokedEmbedKey: sessions of EmbedKey have ended, because it was rotated, paused or
	// revoked, or has other origins. Its visitors' streams are cut; visitors that are still
	// allowed reconnect and are checked again.
	RevokedEmbedKey RevokedWhat = "embed_key_ended"
	// RevokedEndUser: EndUser was deleted and its sessions have ended. Its streams are cut.
	RevokedEndUser RevokedWhat = "end_user"
)

// Revoked tells every node that its cached state of something is stale. Fields that What does
// not use are zero.
type Revoked struct {
	What   RevokedWhat `json:"what"`
	Tenant id.TenantID `json:"tenant"`

	Key     id.KeyID     `json:"key,omitzero"`
	User    id.UserID    `json:"user,omitzero"`
	Session id.SessionID `json:"session,omitzero"`
	Agent   id.AgentID   `json:"agent,omitzero"`
	Server  id.ServerID  `json:"server,omitzero"`
	Webhook id.WebhookID `json:"webhook,omitzero"`
	Trigger id.TriggerID `json:"trigger,omitzero"`

	Triggers  []id.TriggerID  `json:"triggers,omitempty"`
	EmbedKey  id.EmbedKeyID   `json:"embed_key,omitzero"`
	EmbedKeys []id.EmbedKeyID `json:"embed_keys,omitempty"`
	EndUser   id.EndUserID    `json:"end_user,omitzero"`

	// Number is the position in the order of all revocations, in a cluster of several nodes.
	Number int64 `json:"number,omitzero"`
}
