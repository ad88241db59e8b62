-- A run of a workflow.
-- name: workflow
SELECT r.status, r.workflow_id, w.workflow_version, w.test, w.variables, w.progress, w.node_id, w.owes, r.input, r.output, r.error_code, r.error_message, r.origin_kind, r.origin_id, r.end_user_id,
       r.tokens_in, r.tokens_out, r.cost_usd, r.created_at, r.started_at, r.finished_at, r.seq, r.steps, r.version, r.owner_epoch
FROM runs r JOIN workflow_runs w ON w.tenant_id = r.tenant_id AND w.id = r.id
WHERE r.tenant_id = $1 AND r.id = $2

-- name: definition
SELECT definition FROM workflow_versions WHERE tenant_id = $1 AND workflow_id = $2 AND version = $3

-- name: workflow_steps
SELECT idx, name, status, began_seq, sealed FROM run_steps WHERE tenant_id = $1 AND run_id = $2 ORDER BY idx

-- The payload of an event that woke a node is part of the node's output.
-- name: workflow_events
SELECT seq, op, coalesce(event_id, ''), name, CASE WHEN step_idx IS NULL THEN payload END, step_idx IS NOT NULL
FROM workflow_events WHERE tenant_id = $1 AND run_id = $2 ORDER BY seq

-- As in open_steps no index may be used for the tenant.
-- name: workflow_approvals
SELECT id, step_idx, status, coalesce(decision, ''), edited, decisions, risk, assignee_role, expires_at, digest, version, tool
FROM approvals WHERE run_id = $2 AND (tenant_id = $1) IS TRUE ORDER BY step_idx

-- name: children
SELECT id, status, output, coalesce(error_code, ''), coalesce(error_message, ''), tokens_in, tokens_out, cost_usd
FROM runs WHERE tenant_id = $1 AND id = ANY ($2::uuid[])
