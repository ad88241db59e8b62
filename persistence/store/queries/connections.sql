-- name: connections
SELECT id, mcp_server_id, name, credentials <> '' AS has_credential, credential_meta, node_id, created_at, updated_at, last_used_at, last_error FROM connections
WHERE tenant_id = $1 AND id < $2 ORDER BY id DESC LIMIT $3

-- name: connection
SELECT id, mcp_server_id, name, credentials <> '' AS has_credential, credential_meta, node_id, created_at, updated_at, last_used_at, last_error FROM connections WHERE tenant_id = $1 AND id = $2

-- name: connection_lock
SELECT id, mcp_server_id, name, credentials <> '' AS has_credential, credential_meta, node_id, created_at, updated_at, last_used_at, last_error FROM connections WHERE tenant_id = $1 AND id = $2 FOR NO KEY UPDATE

-- name: connections_sealed
SELECT c.id, c.mcp_server_id AS server, s.transport, s.endpoint, c.credentials, c.updated_at
FROM connections c JOIN mcp_servers s ON s.tenant_id = c.tenant_id AND s.id = c.mcp_server_id
WHERE c.tenant_id = $1 AND c.id = ANY($2)

-- name: connection_tenant_wide
SELECT id FROM (
  SELECT id, credentials FROM connections WHERE tenant_id = $1 AND mcp_server_id = $2 AND node_id IS NULL ORDER BY id DESC LIMIT 1
) newest WHERE credentials <> ''

-- name: connection_insert
INSERT INTO connections (tenant_id, id, mcp_server_id, name, credentials, credential_meta, node_id) VALUES ($1, $2, $3, $4, $5, $6, $7)
RETURNING id, mcp_server_id, name, credentials <> '' AS has_credential, credential_meta, node_id, created_at, updated_at, last_used_at, last_error

-- name: connection_update
UPDATE connections SET name = $3, credentials = coalesce($4, credentials), credential_meta = $5, node_id = $6, updated_at = now(), last_error = CASE WHEN $4::bytea IS NULL THEN last_error END
WHERE tenant_id = $1 AND id = $2
RETURNING id, mcp_server_id, name, credentials <> '' AS has_credential, credential_meta, node_id, created_at, updated_at, last_used_at, last_error

-- name: connection_delete
DELETE FROM connections WHERE tenant_id = $1 AND id = $2

-- The empty value means no credential.
-- name: connections_empty
UPDATE connections SET credentials = '', updated_at = now(), last_error = NULL WHERE tenant_id = $1 AND mcp_server_id = $2 AND credentials <> ''
