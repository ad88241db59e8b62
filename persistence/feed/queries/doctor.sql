-- Each query counts the rows that violate an invariant and names one of them.

-- A running run of an agent has a model call or a tool call in flight.
-- name: doctor_running_without_step
SELECT count(*), coalesce(min(r.id::text), '') FROM runs r
WHERE r.finished_at IS NULL AND r.status = 'running' AND r.workflow_id IS NULL
  AND NOT EXISTS (SELECT FROM run_steps s WHERE s.tenant_id = r.tenant_id AND s.run_id = r.id AND s.status IN ('running', 'waiting'));

-- name: doctor_ended_with_open_step
SELECT count(DISTINCT r.id), coalesce(min(r.id::text), '') FROM runs r
JOIN run_steps s ON s.tenant_id = r.tenant_id AND s.run_id = r.id AND s.status IN ('running', 'waiting')
WHERE r.status IN ('succeeded', 'failed', 'cancelled', 'expired');

-- name: doctor_step_gap
SELECT count(*), coalesce(min(g.id::text), '') FROM (
  SELECT r.id FROM runs r LEFT JOIN run_steps s ON s.tenant_id = r.tenant_id AND s.run_id = r.id
  GROUP BY r.tenant_id, r.id, r.steps
  HAVING count(s.idx) <> r.steps OR coalesce(max(s.idx), -1) <> r.steps - 1
) g;

-- name: doctor_succeeded_without_reply
SELECT count(*), coalesce(min(r.id::text), '') FROM runs r
JOIN threads t ON t.tenant_id = r.tenant_id AND t.id = r.thread_id AND t.deleted_at IS NULL
WHERE r.status = 'succeeded'
  AND NOT EXISTS (SELECT FROM messages m WHERE m.tenant_id = r.tenant_id AND m.thread_id = r.thread_id AND m.seq = r.thread_seq + 1);

-- name: doctor_overdue_timers
SELECT count(*), coalesce(min(entity_id::text), '') FROM timers WHERE due_at < now() - interval '1 minute';

-- name: doctor_stuck_queue
SELECT count(*), coalesce(min(r.id::text), '') FROM runs r
WHERE r.finished_at IS NULL AND r.status = 'queued' AND r.created_at < now() - interval '1 minute'
  AND NOT EXISTS (SELECT FROM runs e WHERE e.tenant_id = r.tenant_id AND e.thread_id = r.thread_id AND e.thread_seq < r.thread_seq
                  AND e.finished_at IS NULL)
  AND NOT EXISTS (SELECT FROM runs e WHERE e.tenant_id = r.tenant_id AND e.finished_at IS NULL AND e.status = 'running');

-- A waiting run is woken by a person's decision, by the expiry of an approval or, when all
-- approvals are decided, by its own timer.
-- name: doctor_waiting_for_nobody
SELECT count(*), coalesce(min(r.id::text), '') FROM runs r
WHERE r.finished_at IS NULL AND r.status = 'waiting_approval'
  AND NOT EXISTS (SELECT FROM approvals a WHERE a.tenant_id = r.tenant_id AND a.run_id = r.id AND a.status = 'pending')
  AND NOT EXISTS (SELECT FROM approvals a JOIN timers t ON t.tenant_id = a.tenant_id AND t.kind = 'run' AND t.entity_id = a.run_id AND t.name = a.id::text
                  WHERE a.tenant_id = r.tenant_id AND a.run_id = r.id);

-- name: doctor_waiting_step_without_approval
SELECT count(DISTINCT r.id), coalesce(min(r.id::text), '') FROM runs r
JOIN run_steps s ON s.tenant_id = r.tenant_id AND s.run_id = r.id AND s.status = 'waiting'
WHERE r.finished_at IS NULL AND r.status = 'waiting_approval'
  AND (r.workflow_id IS NULL OR s.kind IN ('tool', 'approval')) -- other nodes of a workflow wait for something else
  AND NOT EXISTS (SELECT FROM approvals a WHERE a.tenant_id = s.tenant_id AND a.run_id = s.run_id AND a.step_idx = s.idx);

-- name: doctor_pending_without_waiting_run
SELECT count(*), coalesce(min(a.id::text), '') FROM approvals a
JOIN runs r ON r.tenant_id = a.tenant_id AND r.id = a.run_id
WHERE a.status = 'pending' AND r.status <> 'waiting_approval';

-- name: doctor_pending_without_expiry
SELECT count(*), coalesce(min(a.id::text), '') FROM approvals a
WHERE a.status = 'pending'
  AND NOT EXISTS (SELECT FROM timers t WHERE t.tenant_id = a.tenant_id AND t.kind = 'approval' AND t.entity_id = a.id AND t.name = 'expire');
