-- The node and everything above it. UNION ends at a node that was met before.
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
