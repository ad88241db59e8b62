-- name: agents
SELECT id, slug, name, description, emoji, node_id, published_version, latest_version, created_at, updated_at FROM agents
WHERE tenant_id = $1 AND id < $2 AND archived_at IS NULL ORDER BY id DESC LIMIT $3

-- name: agent
SELECT id, slug, name, description, emoji, node_id, published_version, latest_version, created_at, updated_at FROM agents
WHERE tenant_id = $1 AND id = $2 AND archived_at IS NULL

-- name: agent_lock
SELECT id, slug, name, description, emoji, node_id, published_version, latest_version, created_at, updated_at FROM agents
WHERE tenant_id = $1 AND id = $2 AND archived_at IS NULL FOR UPDATE

-- name: agent_published
SELECT published_version FROM agents WHERE tenant_id = $1 AND id = $2 AND archived_at IS NULL

-- name: agent_slugs
SELECT slug FROM agents WHERE tenant_id = $1 AND starts_with(slug, $2) AND archived_at IS NULL

-- name: agent_insert
INSERT INTO agents (tenant_id, id, slug, name, description, emoji, node_id) VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (tenant_id, slug) WHERE archived_at IS NULL DO NOTHING
RETURNING id, slug, name, description, emoji, node_id, published_version, latest_version, created_at, updated_at

-- name: agent_update
UPDATE agents SET slug = $3, name = $4, description = $5, emoji = $6, node_id = $7, updated_at = now()
WHERE tenant_id = $1 AND id = $2 AND archived_at IS NULL
RETURNING id, slug, name, description, emoji, node_id, published_version, latest_version, created_at, updated_at

-- name: agent_archive
UPDATE agents SET archived_at = now(), updated_at = now() WHERE tenant_id = $1 AND id = $2 AND archived_at IS NULL

-- name: agent_latest
UPDATE agents SET latest_version = latest_version + 1, updated_at = now()
WHERE tenant_id = $1 AND id = $2 AND archived_at IS NULL
RETURNING id, slug, name, description, emoji, node_id, published_version, latest_version, created_at, updated_at

-- name: agent_publish
UPDATE agents SET published_version = $3, updated_at = now()
WHERE tenant_id = $1 AND id = $2 AND archived_at IS NULL
RETURNING id, slug, name, description, emoji, node_id, published_version, latest_version, created_at, updated_at

-- name: versions
SELECT agent_id, version, status, manifest, created_at, published_at FROM agent_versions
WHERE tenant_id = $1 AND agent_id = $2 AND version < $3 ORDER BY version DESC LIMIT $4

-- name: version
SELECT agent_id, version, status, manifest, created_at, published_at FROM agent_versions
WHERE tenant_id = $1 AND agent_id = $2 AND version = $3

-- name: version_insert
INSERT INTO agent_versions (tenant_id, agent_id, version, status, manifest) VALUES ($1, $2, $3, 'draft', $4)
RETURNING agent_id, version, status, manifest, created_at, published_at

-- name: version_supersede
UPDATE agent_versions SET status = 'superseded' WHERE tenant_id = $1 AND agent_id = $2 AND status = 'published'

-- name: version_publish
UPDATE agent_versions SET status = 'published', published_at = now()
WHERE tenant_id = $1 AND agent_id = $2 AND version = $3
RETURNING agent_id, version, status, manifest, created_at, published_at

-- name: agents_of_slugs
SELECT slug FROM agents WHERE tenant_id = $1 AND slug = ANY ($2) AND archived_at IS NULL
