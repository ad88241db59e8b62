package api

import (
	"time"

	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
)

// Source is a source of a knowledge base (open-parts.md, Knowledge), without its credentials.
type Source struct {
	ID             id.SourceID            `json:"id" doc:"The id, a version 7 UUID."`
	Kind           lifecycle.SourceKind   `json:"kind" doc:"What it reads."`
	Name           string                 `json:"name" doc:"For people."`
	Config         Value                  `json:"config" doc:"Where it reads, by kind."`
	Schedule       *string                `json:"schedule" doc:"When it syncs, as a cron expression; null: by hand only."`
	Timezone       string                 `json:"timezone" doc:"Of the schedule: UTC, or a name of the IANA time zone database."`
	Enabled        bool                   `json:"enabled" doc:"false: its documents stay, and it does not sync."`
	Status         lifecycle.SourceStatus `json:"status" doc:"How the last sync stands; idle: there was none."`
	LastSyncedAt   *time.Time             `json:"last_synced_at" doc:"When the last sync ended that succeeded; null: none has."`
	LastError      *string                `json:"last_error" doc:"What went wrong in the last sync, in plain words; null: nothing."`
	CredentialMeta CredentialKeys         `json:"credential_meta" doc:"What is known of the credentials."`
	Listed         int                    `json:"listed" doc:"How many documents the last sync, or the one on its way, has met so far."`
	CreatedAt      time.Time              `json:"created_at" doc:"UTC."`
	UpdatedAt      time.Time              `json:"updated_at" doc:"UTC."`
}

// CredentialKeys names credentials without their values.
type CredentialKeys struct {
	Keys []string `json:"keys" doc:"The names of the stored credentials."`
}

// SourceCreate is the body of POST /v1/knowledge-bases/{id}/connectors.
type SourceCreate struct {
	Kind        lifecycle.SourceKind `json:"kind" doc:"What it reads. It stays."`
	Name        string               `json:"name" minLength:"1" maxLength:"120" doc:"For people."`
	Config      Object               `json:"config,omitempty" doc:"Where it reads: office_drive {drive_id}, wiki {base_url, space_key?}, cloud_drive {folder_id?}, object_store {endpoint, region, bucket, prefix?}, web {url or urls, depth?, max_pages?}, upload nothing."`
	Credentials map[string]string    `json:"credentials,omitempty" doc:"Stored encrypted, never returned: office_drive and cloud_drive {access_token}, wiki {email, api_token}, object_store {access_key_id, secret_access_key, session_token?}, others none."`
	Schedule    *string              `json:"schedule,omitempty" nullable:"true" maxLength:"200" doc:"When it syncs, as a cron expression: minute, hour, day of month, month, day of week. null or omitted: by hand only."`
	Timezone    string               `json:"timezone,omitempty" maxLength:"100" default:"UTC" doc:"Of the schedule. Omitted: UTC."`
	Enabled     *bool                `json:"enabled,omitempty" default:"true" doc:"Omitted: true."`
}

// SourcePatch is the body of PATCH /v1/knowledge-bases/{id}/connectors/{cid}; omitted fields stay.
type SourcePatch struct {
	Kind        *lifecycle.SourceKind `json:"kind,omitempty" doc:"It stays: another one is refused."`
	Name        *string               `json:"name,omitempty" minLength:"1" maxLength:"120" doc:"For people."`
	Config      Object                `json:"config,omitempty" doc:"Replaces the old one. At another origin (scheme, host, port) the stored credentials are dropped unless the same body has credentials."`
	Credentials map[string]string     `json:"credentials,omitempty" doc:"Replace the old ones."`
	Schedule    Opt[string]           `json:"schedule,omitzero" maxLength:"200" doc:"When it syncs; null: by hand only."`
	Timezone    *string               `json:"timezone,omitempty" maxLength:"100" doc:"Of the schedule."`
	Enabled     *bool                 `json:"enabled,omitempty" doc:"false ends a sync on its way; its documents stay."`
}

// SourceUpdated is the response of PATCH /v1/knowledge-bases/{id}/connectors/{cid}.
type SourceUpdated struct {
	Source
	CredentialsDropped bool `json:"credentials_dropped,omitempty" doc:"true: the source reads at another origin now, and the old credentials were dropped."`
}

// SourceSync is the response of POST /v1/knowledge-bases/{id}/connectors/{cid}/sync.
type SourceSync struct {
	Status lifecycle.SourceStatus `json:"status" doc:"queued, also while a sync is on its way: no second one is started."`
}
