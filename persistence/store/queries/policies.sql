-- name: policies
SELECT id, name, tool_pattern, source, agent_id, risk, required_approvals, approver_role, sla_minutes, escalate_to_role, enabled, created_at, updated_at
FROM approval_policies WHERE tenant_id = $1 AND id < $2 ORDER BY id DESC LIMIT $3

-- name: policy
SELECT id, name, tool_pattern, source, agent_id, risk, required_approvals, approver_role, sla_minutes, escalate_to_role, enabled, created_at, updated_at
FROM approval_policies WHERE tenant_id = $1 AND id = $2

-- name: policy_lock
SELECT id, name, tool_pattern, source, agent_id, risk, required_approvals, approver_role, sla_minutes, escalate_to_role, enabled, created_at, updated_at
FROM approval_policies WHERE tenant_id = $1 AND id = $2 FOR NO KEY UPDATE

-- name: policy_insert
INSERT INTO approval_policies (tenant_id, id, name, tool_pattern, source, agent_id, risk, required_approvals, approver_role, sla_minutes, escalate_to_role, enabled)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
RETURNING id, name, tool_pattern, source, agent_id, risk, required_approvals, approver_role, sla_minutes, escalate_to_role, enabled, created_at, updated_at

-- name: policy_update
UPDATE approval_policies SET name = $3, tool_pattern = $4, source = $5, agent_id = $6, risk = $7, required_approvals = $8, approver_role = $9,
  sla_minutes = $10, escalate_to_role = $11, enabled = $12, updated_at = now()
WHERE tenant_id = $1 AND id = $2
RETURNING id, name, tool_pattern, source, agent_id, risk, required_approvals, approver_role, sla_minutes, escalate_to_role, enabled, created_at, updated_at

-- name: policy_delete
DELETE FROM approval_policies WHERE tenant_id = $1 AND id = $2
