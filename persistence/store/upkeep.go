package store

import (
	"time"

	"agentsvc/persistence/feed"
	"agentsvc/persistence/reseal"
)

// Retentions delete old rows of the tables that no actor owns.
var Retentions = []feed.Retention{
	feed.Aged("idempotency", "created_at", "", 24*time.Hour), // open-parts.md: remembered 24 h
	// A day longer than a session can live (SessionLife), so that the clocks of nodes do
	// not matter.
	feed.Aged("sessions", "created_at", "", 8*24*time.Hour),
	feed.Aged("login_links", "expires_at", "", time.Hour),
	feed.Aged("embed_denied_origins", "last_at", "", 30*24*time.Hour),
	// A day longer than the rows of a deleted base's sources stay.
	feed.Aged("knowledge_bases", "deleted_at", `deleted_at IS NOT NULL
  AND NOT EXISTS (SELECT FROM kb_documents d WHERE d.tenant_id = knowledge_bases.tenant_id AND d.base_id = knowledge_bases.id)
  AND NOT EXISTS (SELECT FROM knowledge_sources s WHERE s.tenant_id = knowledge_bases.tenant_id AND s.base_id = knowledge_bases.id)`, 8*24*time.Hour),
}

// Sealed lists the columns with sealed values in the tables that no actor owns.
var Sealed = []reseal.Column{
	{Table: "model_providers", Name: "credentials", By: reseal.ByID},
	{Table: "connections", Name: "credentials", By: reseal.ByID},
	{Table: "idempotency", Name: "response", By: reseal.Key{reseal.BytesPart("digest")}},
	{Table: "webhooks", Name: "secret", By: reseal.ByID},
	{Table: "embed_keys", Name: "identity_secret", By: reseal.ByID},
	{Table: "browser_skills", Name: "credentials", By: reseal.ByID},
}
