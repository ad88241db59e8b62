-- Each query counts the rows that violate an invariant and names one of them.

-- A running run of an agent has a model call or a tool call in flight.
-- name: doctor_running_without_step
SELECT count(*), coalesce(min(r.id::text), '') FROM runs r
WHERE r.finished_at IS NULL AND r.status = 'running' AND r.workflow_id IS NULL
  AND NOT EXISTS (SELECT FROM run_steps s WHERE s.tenant_id = r.tenant_id AND s.run_id = r.id AND s.status IN ('running', 'waiting'))
  AND position('"delivers":true'::bytea IN coalesce(r.state, ''::bytea)) = 0; -- its file is being made

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

-- A workflow run that owes nothing waits for something outside: each of these ends an open step.
-- name: doctor_workflow_idle
SELECT count(*), coalesce(min(r.id::text), '') FROM runs r
JOIN workflow_runs w ON w.tenant_id = r.tenant_id AND w.id = r.id
WHERE r.finished_at IS NULL AND NOT w.owes
  AND NOT EXISTS (SELECT FROM run_steps s WHERE s.tenant_id = r.tenant_id AND s.run_id = r.id AND s.status IN ('running', 'waiting'));

-- A delay has its timer, a call that waits and a gate have an approval that is pending or wakes the run. Calls under way are owed.
-- name: doctor_workflow_step
SELECT count(DISTINCT r.id), coalesce(min(r.id::text), '') FROM runs r
JOIN workflow_runs w ON w.tenant_id = r.tenant_id AND w.id = r.id
JOIN run_steps s ON s.tenant_id = r.tenant_id AND s.run_id = r.id AND s.status IN ('running', 'waiting')
WHERE r.finished_at IS NULL AND NOT w.owes AND CASE
  WHEN s.kind = 'tool' AND s.status = 'running' THEN true
  WHEN s.kind IN ('tool', 'approval') THEN NOT EXISTS (
    SELECT FROM approvals a WHERE a.tenant_id = s.tenant_id AND a.run_id = s.run_id AND a.step_idx = s.idx AND (a.status = 'pending'
      OR EXISTS (SELECT FROM timers t WHERE t.tenant_id = a.tenant_id AND t.kind = 'run' AND t.entity_id = a.run_id AND t.name = a.id::text)))
  WHEN s.kind = 'node' THEN EXISTS (
    SELECT FROM run_marks m WHERE m.tenant_id = s.tenant_id AND m.run_id = s.run_id AND m.type = 'node.started'
      AND m.data ->> 'node_id' = s.name AND m.data ->> 'node_type' = 'delay')
    AND NOT EXISTS (SELECT FROM timers t WHERE t.tenant_id = s.tenant_id AND t.kind = 'workflow' AND t.entity_id = s.run_id AND t.name = 'node/' || s.idx)
  ELSE false END;

-- Each agent of a run that owes nothing has a child run that is open, or whose timer tells its end.
-- name: doctor_workflow_agent
SELECT count(*), coalesce(min(a.run_id::text), '') FROM (
  SELECT s.tenant_id, s.run_id, count(*) AS open FROM run_steps s
  JOIN workflow_runs w ON w.tenant_id = s.tenant_id AND w.id = s.run_id AND NOT w.owes
  WHERE s.kind = 'agent' AND s.status = 'running' GROUP BY s.tenant_id, s.run_id
) a
LEFT JOIN (
  SELECT c.tenant_id, c.parent_run_id, count(*) AS known FROM runs c
  WHERE c.parent_run_id IS NOT NULL AND (c.finished_at IS NULL
    OR EXISTS (SELECT FROM timers t WHERE t.tenant_id = c.tenant_id AND t.kind = 'workflow' AND t.entity_id = c.parent_run_id AND t.name = 'child/' || c.id))
  GROUP BY c.tenant_id, c.parent_run_id
) k ON k.tenant_id = a.tenant_id AND k.parent_run_id = a.run_id
WHERE a.open > coalesce(k.known, 0);

-- A run that has ended owes the cancel of its open children.
-- name: doctor_orphans
SELECT count(*), coalesce(min(c.id::text), '') FROM runs c
LEFT JOIN runs r ON r.tenant_id = c.tenant_id AND r.id = c.parent_run_id
LEFT JOIN workflow_runs w ON w.tenant_id = c.tenant_id AND w.id = c.parent_run_id
WHERE c.parent_run_id IS NOT NULL
  AND (r.id IS NULL OR c.finished_at IS NULL AND r.finished_at IS NOT NULL AND NOT coalesce(w.owes, false));
