package api

import (
	"time"

	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
)

// Tenant as GET /v1/tenant shows it.
type Tenant struct {
	ID        id.TenantID `json:"id" doc:"The id, a version 7 UUID."`
	Name      string      `json:"name" doc:"For people."`
	Residency *Residency  `json:"residency" doc:"null: no limit"`
	CreatedAt time.Time   `json:"created_at" doc:"UTC."`
	UpdatedAt time.Time   `json:"updated_at" doc:"UTC."`
}

// Residency limits the hosts that the tenant's browser skills may reach.
type Residency struct {
	AllowedHosts []string `json:"allowed_hosts" maxItems:"200" doc:"exact hosts or *.suffix"`
}

// User is a person of the tenant.
type User struct {
	ID        id.UserID      `json:"id" doc:"The id, a version 7 UUID."`
	Email     string         `json:"email" doc:"Unique in the tenant."`
	Name      string         `json:"name" doc:"For people."`
	Role      lifecycle.Role `json:"role" enum:"member,admin,owner"`
	CreatedAt time.Time      `json:"created_at" doc:"UTC."`
	UpdatedAt time.Time      `json:"updated_at" doc:"UTC."`
}

// Me identifies the caller (GET /v1/auth/me).
type Me struct {
	Principal string         `json:"principal" doc:"apikey:<id> or user:<id>, as in the audit log"`
	Role      lifecycle.Role `json:"role" enum:"member,admin,owner"`
	Tenant    *Tenant        `json:"tenant" null:"false"`
	User      *User          `json:"user,omitempty" doc:"of a console session"`
}

// TenantPatch is the body of PATCH /v1/tenant.
type TenantPatch struct {
	Name      *string        `json:"name,omitempty" minLength:"1" maxLength:"120" doc:"For people."`
	Residency Opt[Residency] `json:"residency,omitzero" doc:"null: no limit."`
}

// APIKey is an API key without its secret.
type APIKey struct {
	ID         id.KeyID   `json:"id" doc:"The id, a version 7 UUID."`
	Name       string     `json:"name" doc:"For people."`
	Prefix     string     `json:"prefix" doc:"the start of the key"`
	LastUsedAt *time.Time `json:"last_used_at" doc:"null: never used."`
	RevokedAt  *time.Time `json:"revoked_at" doc:"null: live."`
	CreatedAt  time.Time  `json:"created_at" doc:"UTC."`
	UpdatedAt  time.Time  `json:"updated_at" doc:"UTC."`
}

// APIKeyCreated is the only response with the secret.
type APIKeyCreated struct {
	APIKey
	Secret string `json:"secret" doc:"the whole key; never shown again"`
}

// APIKeyName is the body of POST and PATCH of an API key.
type APIKeyName struct {
	Name string `json:"name" minLength:"1" maxLength:"120" doc:"For people."`
}

// ModelProvider is a tenant's own model provider, without its credentials.
type ModelProvider struct {
	ID             id.ProviderID    `json:"id" doc:"The id, a version 7 UUID."`
	Slug           string           `json:"slug" doc:"The name that manifests use."`
	Kind           string           `json:"kind" enum:"openai,anthropic" doc:"The wire protocol it speaks."`
	BaseURL        string           `json:"base_url" doc:"Where it is reached."`
	Prices         map[string]Price `json:"prices" doc:"by model name; empty: cost is 0"`
	CreatedAt      time.Time        `json:"created_at" doc:"UTC."`
	UpdatedAt      time.Time        `json:"updated_at" doc:"UTC."`
	HasCredentials bool             `json:"has_credentials" doc:"false: they were dropped when base_url changed to another origin."`
}

// Price of a model in US dollars for a million tokens.
type Price struct {
	InputPerMTok  float64 `json:"input_per_mtok" minimum:"0" maximum:"1000000" doc:"For input tokens."`
	OutputPerMTok float64 `json:"output_per_mtok" minimum:"0" maximum:"1000000" doc:"For output tokens."`
}

// ProviderCredentials are write-only.
type ProviderCredentials struct {
	APIKey string `json:"api_key" minLength:"1" maxLength:"4096" doc:"Write-only."`
}

// ModelProviderCreate is the body of POST /v1/model-providers.
type ModelProviderCreate struct {
	Slug        string              `json:"slug" pattern:"^[a-z0-9][a-z0-9-]{0,62}$" doc:"The name that manifests use."`
	Kind        string              `json:"kind" enum:"openai,anthropic" doc:"The wire protocol it speaks: POST {base_url}/chat/completions, or /v1/messages."`
	BaseURL     string              `json:"base_url" minLength:"1" maxLength:"2000" doc:"Public, and https in production; without query and fragment."`
	Credentials ProviderCredentials `json:"credentials" doc:"Stored encrypted, never returned."`
	Prices      map[string]Price    `json:"prices,omitempty" maxProperties:"500" doc:"By model name; omitted: cost is 0."`
}

// ModelProviderPatch is the body of PATCH /v1/model-providers/{id}.
type ModelProviderPatch struct {
	Slug        *string               `json:"slug,omitempty" pattern:"^[a-z0-9][a-z0-9-]{0,62}$" doc:"The name that manifests use."`
	Kind        *string               `json:"kind,omitempty" enum:"openai,anthropic" doc:"The wire protocol it speaks."`
	BaseURL     *string               `json:"base_url,omitempty" minLength:"1" maxLength:"2000" doc:"Public, and https in production; without query and fragment. At another origin (scheme, host, port) the stored credentials are dropped unless the same body has credentials."`
	Credentials *ProviderCredentials  `json:"credentials,omitempty" doc:"Replace the old ones."`
	Prices      Opt[map[string]Price] `json:"prices,omitzero" maxProperties:"500" doc:"Replace the old ones; null takes them away."`
}

// ModelProviderUpdated is the response of PATCH /v1/model-providers/{id}.
type ModelProviderUpdated struct {
	ModelProvider
	CredentialsDropped bool `json:"credentials_dropped,omitempty" doc:"true: base_url is at another origin now, and the old credentials were dropped."`
}
