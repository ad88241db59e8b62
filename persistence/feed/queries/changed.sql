-- The columns that a feed shows of changed runs.
-- name: changed_runs
SELECT r.tenant_id, r.id, r.status::text AS status, r.agent_id, r.workflow_id, r.thread_id, r.parent_run_id
FROM unnest($1::uuid[], $2::uuid[]) AS u (tenant_id, id) CROSS JOIN LATERAL (
  SELECT * FROM runs WHERE tenant_id = u.tenant_id AND id = u.id OFFSET 0
) r

-- name: changed_approvals
SELECT a.tenant_id, a.node_id, a.escalated_at IS NOT NULL, a.id, a.run_id, a.status::text AS status, a.risk::text AS risk, a.assignee_role::text AS assignee_role, a.approvals_so_far, a.expires_at
FROM unnest($1::uuid[], $2::uuid[]) AS u (tenant_id, id) CROSS JOIN LATERAL (
  SELECT * FROM approvals WHERE tenant_id = u.tenant_id AND id = u.id OFFSET 0
) a

-- The resource to which each one belongs.
-- name: changed_parents
SELECT u.tenant_id, u.kind, u.id, coalesce(
  CASE u.kind WHEN 'connection' THEN (SELECT mcp_server_id FROM connections WHERE tenant_id = u.tenant_id AND id = u.id) END,
  CASE u.kind WHEN 'kb.document' THEN (SELECT base_id FROM kb_documents WHERE tenant_id = u.tenant_id AND id = u.id) END,
  CASE u.kind WHEN 'kb.source' THEN (SELECT base_id FROM knowledge_sources WHERE tenant_id = u.tenant_id AND id = u.id) END,
  CASE u.kind WHEN 'delivery' THEN (SELECT webhook_id FROM webhook_deliveries WHERE tenant_id = u.tenant_id AND id = u.id) END,
  CASE u.kind WHEN 'browser_skill_run' THEN (SELECT skill_id FROM browser_skill_runs WHERE tenant_id = u.tenant_id AND id = u.id) END) AS parent_id
FROM unnest($1::uuid[], $2::text[], $3::uuid[]) AS u (tenant_id, kind, id)
