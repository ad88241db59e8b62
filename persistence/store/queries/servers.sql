-- name: servers
SELECT id, slug, name, transport, endpoint, auth_kind, enabled, meta, created_at, updated_at, health_of(health_ok, health_at, health_error) AS health FROM mcp_servers
WHERE tenant_id = $1 AND id < $2 ORDER BY id DESC LIMIT $3

-- name: server
SELECT id, slug, name, transport, endpoint, auth_kind, enabled, meta, created_at, updated_at, health_of(health_ok, health_at, health_error) AS health FROM mcp_servers WHERE tenant_id = $1 AND id = $2

-- name: server_lock
SELECT id, slug, name, transport, endpoint, auth_kind, enabled, meta, created_at, updated_at, health_of(health_ok, health_at, health_error) AS health FROM mcp_servers WHERE tenant_id = $1 AND id = $2 FOR UPDATE

-- name: server_insert
INSERT INTO mcp_servers (tenant_id, id, slug, name, transport, endpoint, auth_kind, enabled, meta) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
RETURNING id, slug, name, transport, endpoint, auth_kind, enabled, meta, created_at, updated_at, health_of(health_ok, health_at, health_error) AS health

-- name: server_update
UPDATE mcp_servers SET slug = $3, name = $4, transport = $5, endpoint = $6, auth_kind = $7, enabled = $8, meta = $9, updated_at = now(),
  health_ok = CASE WHEN (transport, endpoint, auth_kind) = ($5, $6, $7) THEN health_ok END, health_at = CASE WHEN (transport, endpoint, auth_kind) = ($5, $6, $7) THEN health_at END,
  health_error = CASE WHEN (transport, endpoint, auth_kind) = ($5, $6, $7) THEN health_error END
WHERE tenant_id = $1 AND id = $2
RETURNING id, slug, name, transport, endpoint, auth_kind, enabled, meta, created_at, updated_at, health_of(health_ok, health_at, health_error) AS health

-- name: server_delete
DELETE FROM mcp_servers WHERE tenant_id = $1 AND id = $2

-- Connections and grants are deleted before their server, to be counted.

-- name: server_delete_grants
DELETE FROM tool_grants WHERE tenant_id = $1 AND mcp_server_id = $2

-- name: server_delete_connections
DELETE FROM connections WHERE tenant_id = $1 AND mcp_server_id = $2

-- Not a change by a caller: it touches neither updated_at nor the audit log.

-- name: server_tools_save
UPDATE mcp_servers SET tools = $3, listed_at = now() WHERE tenant_id = $1 AND id = $2 RETURNING id

-- The order of qualified names, which begin with a slug and a dot. A list without tools has two
-- bytes; pg_column_size does not read a list to measure it.
-- name: server_catalog
SELECT id, slug, listed_at AS at, tools FROM mcp_servers
WHERE tenant_id = $1 AND enabled AND listed_at IS NOT NULL AND pg_column_size(tools) > 8 AND (slug || '.') COLLATE "C" >= $2
ORDER BY (slug || '.') COLLATE "C" LIMIT $3

-- name: server_tools
SELECT id, slug, listed_at AS at, tools FROM mcp_servers WHERE tenant_id = $1 AND id = $2 AND enabled AND listed_at IS NOT NULL AND tools IS NOT NULL

-- Each with its newest tenant-wide connection, if that has a credential.
-- name: servers_asked
SELECT s.id, s.slug, s.transport, s.endpoint, s.auth_kind, s.updated_at, c.id AS connection
FROM (
  SELECT id, slug, transport, endpoint, auth_kind, updated_at FROM mcp_servers WHERE tenant_id = $1 AND enabled ORDER BY slug = ANY ($2) DESC, slug LIMIT $3
) s LEFT JOIN LATERAL (
  SELECT id, credentials FROM connections WHERE tenant_id = $1 AND mcp_server_id = s.id AND node_id IS NULL ORDER BY id DESC LIMIT 1
) c ON s.auth_kind <> 'none' AND c.credentials <> ''
ORDER BY s.slug = ANY ($2) DESC, s.slug
