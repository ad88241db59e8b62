-- A run of a workflow. Of one that has ended only the status is asked, events that came again, and the children that it cancels: what it
-- worked with, up to 8 MiB several times, is not read.
-- name: workflow
SELECT r.status, r.workflow_id, w.workflow_version, w.test, CASE WHEN r.finished_at IS NULL THEN w.variables END, w.progress, w.node_id, w.owes,
       CASE WHEN r.finished_at IS NULL THEN r.input END, r.error_code, r.error_message, r.origin_kind, r.origin_id, r.end_user_id,
       r.tokens_in, r.tokens_out, r.cost_usd, r.created_at, r.started_at, r.finished_at, r.seq, r.steps, r.version, r.owner_epoch
FROM runs r JOIN workflow_runs w ON w.tenant_id = r.tenant_id AND w.id = r.id
WHERE r.tenant_id = $1 AND r.id = $2

-- name: definition
SELECT definition FROM workflow_versions WHERE tenant_id = $1 AND workflow_id = $2 AND version = $3

-- name: workflow_steps
SELECT idx, name, status, began_seq, CASE WHEN (SELECT finished_at IS NULL FROM runs WHERE tenant_id = $1 AND id = $2) THEN sealed END
FROM run_steps WHERE tenant_id = $1 AND run_id = $2 ORDER BY idx

-- The payload of an event that woke a node is part of the node's output.
-- name: workflow_events
SELECT seq, op, coalesce(event_id, ''), name,
       CASE WHEN step_idx IS NULL AND (SELECT finished_at IS NULL FROM runs WHERE tenant_id = $1 AND id = $2) THEN payload END, step_idx IS NOT NULL
FROM workflow_events WHERE tenant_id = $1 AND run_id = $2 ORDER BY seq

-- The approvals of open steps. What people answered is read once it is decided: a run that waits for many edits reads none of them. As in
-- open_steps no index may be used for the tenant.
-- name: workflow_approvals
SELECT a.id, a.step_idx, a.status, coalesce(a.decision, ''), CASE WHEN a.status = 'edited' THEN a.edited END, CASE WHEN a.decided_at IS NOT NULL THEN a.decisions END,
       a.risk, a.assignee_role, a.expires_at, a.digest, a.version, a.tool
FROM approvals a
WHERE a.run_id = $2 AND (a.tenant_id = $1) IS TRUE
  AND EXISTS (SELECT FROM run_steps s WHERE s.tenant_id = $1 AND s.run_id = $2 AND s.idx = a.step_idx AND s.status IN ('running', 'waiting'))
ORDER BY a.step_idx

-- name: children
SELECT id, status, output, coalesce(error_code, ''), coalesce(error_message, ''), tokens_in, tokens_out, cost_usd
FROM runs WHERE tenant_id = $1 AND id = ANY ($2::uuid[])

-- name: used
SELECT coalesce(sum(tokens_in), 0)::bigint, coalesce(sum(tokens_out), 0)::bigint, coalesce(sum(cost_usd), 0)::float8
FROM runs WHERE tenant_id = $1 AND id = ANY ($2::uuid[])
