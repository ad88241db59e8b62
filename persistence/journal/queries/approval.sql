-- Approvals are rare beside runs: each is a statement of its own. Whoever changes
-- approvals, or their timers for good, locks their run's row first: by its swap, or
-- here. Two that concern one run meet there, so that the order of the rest, timers
-- before approvals in the commits of runs, cannot matter (docs/adr/0017).

-- name: approval_open
INSERT INTO approvals (tenant_id, id, run_id, step_idx, agent_id, node_id, risk, assignee_role, required_approvals, tool, args, schema,
                       frozen, digest, reasoning_summary, policy, escalate_to_role, on_timeout, expires_at, created_at, updated_at, last_op)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $20, $21)

-- A decision counts only while the run waits for it. It takes timers of the
-- approval away and may set the one by which the run looks at its approvals.
-- name: approval_update
WITH run AS MATERIALIZED (
  SELECT id FROM runs WHERE tenant_id = $1 AND id = $3 AND status = 'waiting_approval' FOR SHARE
), approval AS (
  UPDATE approvals a
  SET version = a.version + 1, owner_epoch = $6, status = $7, assignee_role = $8, approvals_so_far = $9, edited = coalesce($10, a.edited), digest = $11,
      decisions = $12, decision = $13, feedback = $14, escalated_at = $15, decided_at = $16, updated_at = $17, last_op = $18
  FROM run
  WHERE a.tenant_id = $1 AND a.id = $2 AND a.run_id = run.id AND a.version = $4 AND a.owner_epoch = $5 AND a.status = 'pending'
  RETURNING a.tenant_id, a.id, a.run_id
), dropped AS (
  DELETE FROM timers t USING approval a
  WHERE t.tenant_id = a.tenant_id AND t.kind = 'approval' AND t.entity_id = a.id AND t.name = ANY ($19)
), woken AS (
  INSERT INTO timers (tenant_id, kind, entity_id, name, due_at)
  SELECT a.tenant_id, 'run', a.run_id, a.id::text, $20::timestamptz FROM approval a WHERE $20::timestamptz IS NOT NULL
  ON CONFLICT (tenant_id, kind, entity_id, name) DO UPDATE SET due_at = excluded.due_at, claimed_until = NULL
)
SELECT FROM approval HAVING CASE WHEN count(*) = 0 THEN svc_missed() END

-- The same in the commit of the run that waits for it: its swap, in which the
-- run's row said that it waits, is what guards this one. The timers are among
-- that commit's, and nobody has to wake the run.
-- name: approval_join
WITH approval AS (
  UPDATE approvals a
  SET version = a.version + 1, owner_epoch = $6, status = $7, assignee_role = $8, approvals_so_far = $9, edited = coalesce($10, a.edited), digest = $11,
      decisions = $12, decision = $13, feedback = $14, escalated_at = $15, decided_at = $16, updated_at = $17, last_op = $18
  WHERE a.tenant_id = $1 AND a.id = $2 AND a.run_id = $3 AND a.version = $4 AND a.owner_epoch = $5 AND a.status = 'pending'
  RETURNING 1
)
SELECT FROM approval HAVING CASE WHEN count(*) = 0 THEN svc_missed() END

-- What is pending has to be what the run has read, in that version: what it says of
-- them in the same commit is what was cancelled.
-- name: approvals_cancel
WITH own AS MATERIALIZED (
  SELECT id, version FROM approvals WHERE (tenant_id = $1) IS TRUE AND run_id = $2 AND decided_at IS NULL ORDER BY id FOR UPDATE -- see approvals_step_key
), cancelled AS (
  UPDATE approvals a
  SET version = a.version + 1, status = 'cancelled', decision = 'cancel', decided_at = $3, updated_at = $3, last_op = $4
  FROM own WHERE a.tenant_id = $1 AND a.id = own.id
)
SELECT FROM own LEFT JOIN unnest($5::uuid[], $6::bigint[]) AS known (id, version) ON known.id = own.id AND known.version = own.version
HAVING CASE WHEN count(*) <> cardinality($5::uuid[]) OR count(known.id) <> count(*) THEN svc_missed() END
