-- name: workflows
SELECT id, slug, name, node_id, published_version, latest_version, created_at, updated_at FROM workflows
WHERE tenant_id = $1 AND id < $2 AND archived_at IS NULL ORDER BY id DESC LIMIT $3

-- name: workflow
SELECT id, slug, name, node_id, published_version, latest_version, created_at, updated_at FROM workflows
WHERE tenant_id = $1 AND id = $2 AND archived_at IS NULL

-- name: workflow_lock
SELECT id, slug, name, node_id, published_version, latest_version, created_at, updated_at FROM workflows
WHERE tenant_id = $1 AND id = $2 AND archived_at IS NULL FOR UPDATE

-- name: workflow_slugs
SELECT slug FROM workflows WHERE tenant_id = $1 AND starts_with(slug, $2) AND archived_at IS NULL

-- name: workflow_insert
INSERT INTO workflows (tenant_id, id, slug, name, node_id) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (tenant_id, slug) WHERE archived_at IS NULL DO NOTHING
RETURNING id, slug, name, node_id, published_version, latest_version, created_at, updated_at

-- name: workflow_update
UPDATE workflows SET slug = $3, name = $4, node_id = $5, updated_at = now()
WHERE tenant_id = $1 AND id = $2 AND archived_at IS NULL
RETURNING id, slug, name, node_id, published_version, latest_version, created_at, updated_at

-- name: workflow_archive
UPDATE workflows SET archived_at = now(), updated_at = now() WHERE tenant_id = $1 AND id = $2 AND archived_at IS NULL

-- name: workflow_latest
UPDATE workflows SET latest_version = latest_version + 1, updated_at = now()
WHERE tenant_id = $1 AND id = $2 AND archived_at IS NULL
RETURNING id, slug, name, node_id, published_version, latest_version, created_at, updated_at

-- name: workflow_publish
UPDATE workflows SET published_version = $3, updated_at = now()
WHERE tenant_id = $1 AND id = $2 AND archived_at IS NULL
RETURNING id, slug, name, node_id, published_version, latest_version, created_at, updated_at

-- name: workflow_versions
SELECT workflow_id, version, status, definition, created_at, published_at FROM workflow_versions
WHERE tenant_id = $1 AND workflow_id = $2 AND version < $3 ORDER BY version DESC LIMIT $4

-- name: workflow_version
SELECT workflow_id, version, status, definition, created_at, published_at FROM workflow_versions
WHERE tenant_id = $1 AND workflow_id = $2 AND version = $3

-- The version that a run starts with: the newest one if $3, else the published one. version
-- is null if there is none.
-- name: workflow_start
SELECT w.node_id, v.version, v.definition FROM workflows w
LEFT JOIN workflow_versions v ON v.tenant_id = $1 AND v.workflow_id = w.id AND v.version = CASE WHEN $3 THEN w.latest_version ELSE w.published_version END
WHERE w.tenant_id = $1 AND w.id = $2 AND w.archived_at IS NULL

-- name: workflow_version_insert
INSERT INTO workflow_versions (tenant_id, workflow_id, version, status, definition) VALUES ($1, $2, $3, 'draft', $4)
RETURNING workflow_id, version, status, definition, created_at, published_at

-- name: workflow_version_supersede
UPDATE workflow_versions SET status = 'superseded' WHERE tenant_id = $1 AND workflow_id = $2 AND status = 'published'

-- name: workflow_version_publish
UPDATE workflow_versions SET status = 'published', published_at = now()
WHERE tenant_id = $1 AND workflow_id = $2 AND version = $3
RETURNING workflow_id, version, status, definition, created_at, published_at

-- The agents that a definition names stay until the version is committed. They are locked in
-- the order of their ids.
-- name: workflow_agents
SELECT id FROM agents WHERE tenant_id = $1 AND id = ANY ($2) AND archived_at IS NULL ORDER BY id FOR KEY SHARE

-- What is published of agents, by their ids or slugs.
-- name: agents_published
SELECT id, slug, published_version FROM agents WHERE tenant_id = $1 AND (id = ANY ($2) OR slug = ANY ($3)) AND archived_at IS NULL

-- The inputs of decisions on the tools of one workflow, as for an agent (grants.sql): those of
-- the tenant and of the org nodes above the workflow.

-- name: workflow_chain
WITH RECURSIVE chain (id, depth) AS (
  SELECT node_id, 0 FROM workflows WHERE tenant_id = $1 AND id = $2
  UNION ALL
  SELECT n.parent_id, c.depth + 1 FROM chain c JOIN org_nodes n ON n.tenant_id = $1 AND n.id = c.id WHERE n.parent_id IS NOT NULL AND c.depth < 100
)
SELECT id FROM chain ORDER BY depth

-- name: workflow_connections
WITH RECURSIVE chain (id, depth) AS (
  SELECT node_id, 0 FROM workflows WHERE tenant_id = $1 AND id = $2
  UNION ALL
  SELECT n.parent_id, c.depth + 1 FROM chain c JOIN org_nodes n ON n.tenant_id = $1 AND n.id = c.id WHERE n.parent_id IS NOT NULL AND c.depth < 100
)
SELECT id, mcp_server_id, node_id, created_at, credentials = '' AS empty FROM connections
WHERE tenant_id = $1 AND (node_id IS NULL OR node_id IN (SELECT id FROM chain)
  OR EXISTS (SELECT FROM tool_grants g WHERE g.tenant_id = $1 AND g.connection_id = connections.id))

-- name: workflow_grants
WITH RECURSIVE chain (id, depth) AS (
  SELECT node_id, 0 FROM workflows WHERE tenant_id = $1 AND id = $2
  UNION ALL
  SELECT n.parent_id, c.depth + 1 FROM chain c JOIN org_nodes n ON n.tenant_id = $1 AND n.id = c.id WHERE n.parent_id IS NOT NULL AND c.depth < 100
)
SELECT id, source, mcp_server_id, browser_skill_id, tool_pattern, effect, agent_id, node_id, connection_id, created_at FROM tool_grants
WHERE tenant_id = $1 AND agent_id IS NULL AND (node_id IS NULL OR node_id IN (SELECT id FROM chain))
