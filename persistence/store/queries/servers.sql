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

-- name: server_catalog
SELECT id, slug, tools, listed_at AS at FROM mcp_servers WHERE tenant_id = $1 AND enabled AND tools IS NOT NULL AND listed_at IS NOT NULL ORDER BY slug

-- name: server_tools
SELECT slug, tools FROM mcp_servers WHERE tenant_id = $1 AND enabled AND tools IS NOT NULL
