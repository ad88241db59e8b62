-- The node and everything above it. UNION stops at a node that was already visited.
-- name: node_manages
WITH RECURSIVE chain AS (
  SELECT id, parent_id FROM org_nodes WHERE tenant_id = $1 AND id = $2
  UNION
  SELECT n.id, n.parent_id FROM chain c JOIN org_nodes n ON n.tenant_id = $1 AND n.id = c.parent_id
)
SELECT EXISTS (SELECT FROM chain c JOIN org_node_managers m ON m.tenant_id = $1 AND m.node_id = c.id AND m.user_id = $3) AS manages

-- The nodes that the user manages and everything below them.
-- name: nodes_managed
WITH RECURSIVE below AS (
  SELECT node_id AS id FROM org_node_managers WHERE tenant_id = $1 AND user_id = $2
  UNION
  SELECT n.id FROM below b JOIN org_nodes n ON n.tenant_id = $1 AND n.parent_id = b.id
)
SELECT id FROM below ORDER BY id

-- name: nodes
SELECT id, name, parent_id, ARRAY(SELECT m.user_id FROM org_node_managers m WHERE m.tenant_id = n.tenant_id AND m.node_id = n.id ORDER BY m.user_id) AS manager_ids,
  created_at, updated_at FROM org_nodes n
WHERE tenant_id = $1 AND id < $2 ORDER BY id DESC LIMIT $3

-- name: node
SELECT id, name, parent_id, ARRAY(SELECT m.user_id FROM org_node_managers m WHERE m.tenant_id = n.tenant_id AND m.node_id = n.id ORDER BY m.user_id) AS manager_ids,
  created_at, updated_at FROM org_nodes n
WHERE tenant_id = $1 AND id = $2

-- Changes of a tenant's tree are serialised: two changes that are each free of cycles could
-- form one together.
-- name: nodes_lock
SELECT id FROM tenants WHERE id = $1 FOR NO KEY UPDATE

-- The node $3 and everything above it.
-- name: node_is_below
WITH RECURSIVE chain AS (
  SELECT id, parent_id FROM org_nodes WHERE tenant_id = $1 AND id = $3
  UNION
  SELECT n.id, n.parent_id FROM chain c JOIN org_nodes n ON n.tenant_id = $1 AND n.id = c.parent_id
)
SELECT EXISTS (SELECT FROM chain WHERE id = $2) AS below

-- How many nodes would be above one another if the node $2 were under $3; no more are counted than
-- are needed to know that there are more than 100.
-- name: node_levels
WITH RECURSIVE above (id, n) AS (
  SELECT $3::uuid, 1
  UNION ALL
  SELECT o.parent_id, a.n + 1 FROM above a JOIN org_nodes o ON o.tenant_id = $1 AND o.id = a.id WHERE o.parent_id IS NOT NULL AND a.n <= 100
), below (id, n) AS (
  SELECT $2::uuid, 1
  UNION ALL
  SELECT o.id, b.n + 1 FROM below b JOIN org_nodes o ON o.tenant_id = $1 AND o.parent_id = b.id WHERE b.n <= 100
)
SELECT (SELECT max(n) FROM above) + (SELECT max(n) FROM below) AS levels

-- name: node_insert
INSERT INTO org_nodes (tenant_id, id, name, parent_id) VALUES ($1, $2, $3, $4)

-- name: node_update
UPDATE org_nodes SET name = $3, parent_id = $4, updated_at = now() WHERE tenant_id = $1 AND id = $2

-- Archived agents do not block the deletion of their org node. They move to the node above, so that
-- their runs that go on keep the grants and denials of the nodes there.
-- name: node_archived_agents
UPDATE agents SET node_id = (SELECT parent_id FROM org_nodes WHERE tenant_id = $1 AND id = $2)
WHERE tenant_id = $1 AND node_id = $2 AND archived_at IS NOT NULL

-- name: node_archived_workflows
UPDATE workflows SET node_id = (SELECT parent_id FROM org_nodes WHERE tenant_id = $1 AND id = $2)
WHERE tenant_id = $1 AND node_id = $2 AND archived_at IS NOT NULL

-- Whether managers of the node, or of those above it, may still have to decide: an approval keeps the node that it
-- was opened with, and a run of a workflow the one that it was started with.
-- name: node_decides
SELECT EXISTS (SELECT FROM approvals WHERE tenant_id = $1 AND status = 'pending' AND node_id = $2)
  OR EXISTS (SELECT FROM runs r JOIN workflow_runs w ON w.tenant_id = $1 AND w.id = r.id
    WHERE r.tenant_id = $1 AND r.finished_at IS NULL AND r.workflow_id IS NOT NULL AND w.node_id = $2)

-- name: node_delete
DELETE FROM org_nodes WHERE tenant_id = $1 AND id = $2

-- name: node_manager_insert
INSERT INTO org_node_managers (tenant_id, node_id, user_id) VALUES ($1, $2, $3) ON CONFLICT (tenant_id, node_id, user_id) DO NOTHING

-- name: node_manager_delete
DELETE FROM org_node_managers WHERE tenant_id = $1 AND node_id = $2 AND user_id = $3
