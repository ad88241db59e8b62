package api

import (
	"time"

	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
)

// Agent as open-parts.md shows it.
type Agent struct {
	ID               id.AgentID `json:"id"`
	Slug             string     `json:"slug"`
	Name             string     `json:"name"`
	Description      string     `json:"description"`
	Emoji            string     `json:"emoji"`
	NodeID           *id.NodeID `json:"node_id"`
	PublishedVersion *int       `json:"published_version"`
	LatestVersion    int        `json:"latest_version" doc:"0: there is none yet"`
	CreatedAt        time.Time  `json:"created_at"`
	UpdatedAt        time.Time  `json:"updated_at"`
}

// AgentVersion is one version of an agent.
type AgentVersion struct {
	AgentID     id.AgentID              `json:"agent_id"`
	Version     int                     `json:"version"`
	Status      lifecycle.VersionStatus `json:"status"`
	Manifest    Manifest                `json:"manifest"`
	CreatedAt   time.Time               `json:"created_at"`
	PublishedAt *time.Time              `json:"published_at"`
}

// AgentCreate is the body of POST /v1/agents.
type AgentCreate struct {
	Name        string     `json:"name" minLength:"1" maxLength:"120"`
	Slug        *string    `json:"slug,omitempty" pattern:"^[a-z0-9][a-z0-9-]{0,62}$" doc:"made from the name when omitted"`
	Description string     `json:"description,omitempty" maxLength:"2000"`
	Emoji       string     `json:"emoji,omitempty" maxLength:"32"`
	NodeID      *id.NodeID `json:"node_id,omitempty"`
	Manifest    Manifest   `json:"manifest,omitempty" doc:"of version 1"`
}

// AgentPatch is the body of PATCH /v1/agents/{id}.
type AgentPatch struct {
	Name        *string        `json:"name,omitempty" minLength:"1" maxLength:"120"`
	Slug        *string        `json:"slug,omitempty" pattern:"^[a-z0-9][a-z0-9-]{0,62}$"`
	Description *string        `json:"description,omitempty" maxLength:"2000"`
	Emoji       *string        `json:"emoji,omitempty" maxLength:"32"`
	NodeID      Opt[id.NodeID] `json:"node_id,omitzero"`
}

// AgentVersionCreate is the body of POST /v1/agents/{id}/versions.
type AgentVersionCreate struct {
	Manifest Manifest `json:"manifest"`
}

// AgentAnswer wraps an agent, with the version that the call made or published.
type AgentAnswer struct {
	Agent   *Agent        `json:"agent"`
	Version *AgentVersion `json:"version,omitempty"`
}

// AgentVersionAnswer wraps a version.
type AgentVersionAnswer struct {
	Version *AgentVersion `json:"version"`
}
