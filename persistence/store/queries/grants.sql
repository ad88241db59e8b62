-- name: grants
SELECT id, source, mcp_server_id, browser_skill_id, tool_pattern, effect, agent_id, node_id, connection_id, created_at, updated_at FROM tool_grants
WHERE tenant_id = $1 AND id < $2 ORDER BY id DESC LIMIT $3

-- name: grant
SELECT id, source, mcp_server_id, browser_skill_id, tool_pattern, effect, agent_id, node_id, connection_id, created_at, updated_at FROM tool_grants
WHERE tenant_id = $1 AND id = $2

-- name: grant_lock
SELECT id, source, mcp_server_id, browser_skill_id, tool_pattern, effect, agent_id, node_id, connection_id, created_at, updated_at FROM tool_grants
WHERE tenant_id = $1 AND id = $2 FOR NO KEY UPDATE

-- name: grant_insert
INSERT INTO tool_grants (tenant_id, id, source, mcp_server_id, tool_pattern, effect, agent_id, node_id, connection_id) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
RETURNING id, source, mcp_server_id, browser_skill_id, tool_pattern, effect, agent_id, node_id, connection_id, created_at, updated_at

-- name: grant_update
UPDATE tool_grants SET tool_pattern = $3, effect = $4, agent_id = $5, node_id = $6, connection_id = $7, updated_at = now()
WHERE tenant_id = $1 AND id = $2
RETURNING id, source, mcp_server_id, browser_skill_id, tool_pattern, effect, agent_id, node_id, connection_id, created_at, updated_at

-- name: grant_delete
DELETE FROM tool_grants WHERE tenant_id = $1 AND id = $2

-- What a body refers to is locked until the change is committed.

-- name: refer_agent
SELECT id FROM agents WHERE tenant_id = $1 AND id = $2 AND archived_at IS NULL FOR KEY SHARE

-- name: refer_node
SELECT id FROM org_nodes WHERE tenant_id = $1 AND id = $2 FOR KEY SHARE

-- name: refer_server
SELECT id FROM mcp_servers WHERE tenant_id = $1 AND id = $2 FOR KEY SHARE

-- name: refer_connection
SELECT id FROM connections WHERE tenant_id = $1 AND mcp_server_id = $2 AND id = $3 FOR KEY SHARE

-- The inputs of decisions on the tools of one agent. The chain of its org nodes begins with a
-- row for the agent itself. Each query computes the chain again, so that all of them go in
-- one round trip.

-- name: access_chain
WITH RECURSIVE chain (id, depth) AS (
  SELECT node_id, 0 FROM agents WHERE tenant_id = $1 AND id = $2
  UNION ALL
  SELECT n.parent_id, c.depth + 1 FROM chain c JOIN org_nodes n ON n.tenant_id = $1 AND n.id = c.id WHERE n.parent_id IS NOT NULL AND c.depth < 100
)
SELECT id FROM chain ORDER BY depth

-- name: access_servers
SELECT id, slug, transport, endpoint, auth_kind, enabled, updated_at FROM mcp_servers WHERE tenant_id = $1 ORDER BY slug

-- name: access_connections
WITH RECURSIVE chain (id, depth) AS (
  SELECT node_id, 0 FROM agents WHERE tenant_id = $1 AND id = $2
  UNION ALL
  SELECT n.parent_id, c.depth + 1 FROM chain c JOIN org_nodes n ON n.tenant_id = $1 AND n.id = c.id WHERE n.parent_id IS NOT NULL AND c.depth < 100
)
SELECT id, mcp_server_id, node_id, created_at, credentials = '' AS empty FROM connections
WHERE tenant_id = $1 AND (node_id IS NULL OR node_id IN (SELECT id FROM chain)
  OR EXISTS (SELECT FROM tool_grants g WHERE g.tenant_id = $1 AND g.connection_id = connections.id))

-- name: access_grants
WITH RECURSIVE chain (id, depth) AS (
  SELECT node_id, 0 FROM agents WHERE tenant_id = $1 AND id = $2
  UNION ALL
  SELECT n.parent_id, c.depth + 1 FROM chain c JOIN org_nodes n ON n.tenant_id = $1 AND n.id = c.id WHERE n.parent_id IS NOT NULL AND c.depth < 100
)
SELECT id, source, mcp_server_id, browser_skill_id, tool_pattern, effect, agent_id, node_id, connection_id, created_at FROM tool_grants
WHERE tenant_id = $1 AND (agent_id = $2 OR agent_id IS NULL AND (node_id IS NULL OR node_id IN (SELECT id FROM chain)))

-- name: access_policies
SELECT id, name, tool_pattern, coalesce(source::text, '') AS source, agent_id, risk, required_approvals, approver_role, sla_minutes,
       coalesce(escalate_to_role::text, '') AS escalate, created_at FROM approval_policies
WHERE tenant_id = $1 AND enabled AND (agent_id IS NULL OR agent_id = $2)
