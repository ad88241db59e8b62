package api

import (
	"time"

	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
)

// Agent as open-parts.md shows it.
type Agent struct {
	ID               id.AgentID `json:"id" doc:"The id, a version 7 UUID."`
	Slug             string     `json:"slug" doc:"Unique in the tenant."`
	Name             string     `json:"name" doc:"For people."`
	Description      string     `json:"description" doc:"For people."`
	Emoji            string     `json:"emoji" doc:"For people."`
	NodeID           *id.NodeID `json:"node_id" doc:"The org node it belongs to."`
	PublishedVersion *int       `json:"published_version" doc:"What new runs take; null: none yet."`
	LatestVersion    int        `json:"latest_version" doc:"0: there is none yet"`
	CreatedAt        time.Time  `json:"created_at" doc:"UTC."`
	UpdatedAt        time.Time  `json:"updated_at" doc:"UTC."`
}

// AgentVersion is one version of an agent.
type AgentVersion struct {
	AgentID     id.AgentID              `json:"agent_id" doc:"The agent."`
	Version     int                     `json:"version" doc:"1, 2, …"`
	Status      lifecycle.VersionStatus `json:"status"`
	Manifest    Manifest                `json:"manifest" doc:"As it was sent."`
	CreatedAt   time.Time               `json:"created_at" doc:"UTC."`
	PublishedAt *time.Time              `json:"published_at" doc:"When it was last published; null: never."`
}

// AgentCreate is the body of POST /v1/agents.
type AgentCreate struct {
	Name        string     `json:"name" minLength:"1" maxLength:"120" doc:"For people."`
	Slug        *string    `json:"slug,omitempty" pattern:"^[a-z0-9][a-z0-9-]{0,62}$" doc:"made from the name when omitted"`
	Description string     `json:"description,omitempty" maxLength:"2000" doc:"For people."`
	Emoji       string     `json:"emoji,omitempty" maxLength:"32" doc:"For people."`
	NodeID      *id.NodeID `json:"node_id,omitempty" nullable:"true" doc:"An org node of the tenant."`
	Manifest    Manifest   `json:"manifest,omitempty" doc:"of version 1"`
}

// AgentPatch is the body of PATCH /v1/agents/{id}.
type AgentPatch struct {
	Name        *string        `json:"name,omitempty" minLength:"1" maxLength:"120" doc:"For people."`
	Slug        *string        `json:"slug,omitempty" pattern:"^[a-z0-9][a-z0-9-]{0,62}$" doc:"Unique in the tenant."`
	Description *string        `json:"description,omitempty" maxLength:"2000" doc:"For people."`
	Emoji       *string        `json:"emoji,omitempty" maxLength:"32" doc:"For people."`
	NodeID      Opt[id.NodeID] `json:"node_id,omitzero" doc:"null takes it off its org node."`
}

// AgentVersionCreate is the body of POST /v1/agents/{id}/versions.
type AgentVersionCreate struct {
	Manifest Manifest `json:"manifest"`
}

// AgentAnswer wraps an agent, with the version that the call made or published.
type AgentAnswer struct {
	Agent   *Agent        `json:"agent" null:"false"`
	Version *AgentVersion `json:"version,omitempty" doc:"The version that the call made or published."`
}

// AgentPublished is the response to a publish.
type AgentPublished struct {
	Agent    *Agent        `json:"agent" null:"false"`
	Version  *AgentVersion `json:"version" null:"false" doc:"The version that was published."`
	Warnings []string      `json:"warnings" doc:"What the manifest names that does not exist or is not granted now; empty: nothing."`
}

// AgentVersionAnswer wraps a new version.
type AgentVersionAnswer struct {
	Version  *AgentVersion `json:"version" null:"false"`
	Warnings []string      `json:"warnings" doc:"What the manifest names that does not exist or is not granted now; empty: nothing."`
}
