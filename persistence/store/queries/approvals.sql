-- Approvals that the caller's role may decide ($4), and those for managers of its nodes ($5).
-- name: approvals
SELECT id, run_id, agent_id, node_id, step_idx, status, risk, assignee_role, required_approvals, approvals_so_far, tool, args, schema,
  reasoning_summary, policy, decisions, escalated_at, expires_at, created_at, decided_at, browser_skill_run_id FROM approvals
WHERE tenant_id = $1 AND id < $2 AND (assignee_role = ANY ($4::text[]) OR assignee_role = 'manager' AND node_id = ANY ($5::uuid[]))
  AND ($6::text IS NULL OR status = $6) AND ($7::uuid IS NULL OR run_id = $7) AND ($8::uuid IS NULL OR agent_id = $8) AND ($9::text IS NULL OR risk = $9)
ORDER BY id DESC LIMIT $3

-- name: approval
SELECT id, run_id, agent_id, node_id, step_idx, status, risk, assignee_role, required_approvals, approvals_so_far, tool, args, schema,
  reasoning_summary, policy, decisions, escalated_at, expires_at, created_at, decided_at, browser_skill_run_id FROM approvals
WHERE tenant_id = $1 AND id = $2

-- name: approvals_of_nodes
SELECT id FROM approvals WHERE tenant_id = $1 AND id = ANY ($2) AND node_id = ANY ($3)
