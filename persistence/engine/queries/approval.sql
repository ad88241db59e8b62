-- An approval, and when it escalates. The timer is a subquery, not a join: without statistics
-- a join would read all timers of the tenant.
-- name: approval
SELECT a.run_id, r.status, a.status, a.tool, a.risk, a.assignee_role, coalesce(a.escalate_to_role, ''), a.required_approvals, a.approvals_so_far,
       a.args, a.schema, a.frozen, a.digest, a.decisions, coalesce(a.decision, ''), a.feedback, a.escalated_at,
       (SELECT t.due_at FROM timers t WHERE t.tenant_id = a.tenant_id AND t.kind = 'approval' AND t.entity_id = a.id AND t.name = 'escalate'),
       a.expires_at, a.decided_at,
       a.version, a.owner_epoch
FROM approvals a JOIN runs r ON r.tenant_id = a.tenant_id AND r.id = a.run_id
WHERE a.tenant_id = $1 AND a.id = $2
