-- Erasure of the rows of deleted end users (docs/adr/0027). Each statement is idempotent and
-- may run on several nodes at once; locked rows are left for the next pass. Each goes from a
-- list of people to their rows by an index, one person after another, until the limit. A
-- LATERAL with a LIMIT and an EXISTS with an OFFSET fix this plan. So the cost depends on
-- the rows found and not on the size of the tables.

-- name: erase_whose
SELECT tenant_id, id, deleted_at FROM end_users WHERE deleted_at IS NOT NULL AND (deleted_at, id) > ($1, $2::uuid) ORDER BY deleted_at, id LIMIT $3;

-- Reads only the first threads that must be deleted. Their owners delete them; then the next
-- ones are first.
-- name: erase_threads
SELECT tenant_id, id FROM (
  SELECT t.tenant_id, t.id
  FROM unnest($1::uuid[], $2::uuid[]) AS u (tenant_id, id), LATERAL (
    SELECT tenant_id, id FROM threads
    WHERE end_user_id = u.id AND deleted_at IS NULL AND (tenant_id = u.tenant_id) IS TRUE
    LIMIT $5
  ) t
  LIMIT $5
) standing
WHERE coalesce(shard_of(id), -1) = ANY ($3::int[])
LIMIT $4;

-- Locks the run's row first, as every change of its approvals does (docs/adr/0042). A run of a browser skill goes with
-- the run that called it, but not between its click and its end: its compensation, its audit and its usage are to come.
-- name: erase_runs
SELECT r.tenant_id, r.id, r.finished_at
FROM unnest($1::uuid[], $2::uuid[]) AS u (tenant_id, id), LATERAL (
  SELECT tenant_id, id, finished_at FROM runs c
  WHERE person_id = u.id AND finished_at < now() - $4::interval AND (tenant_id = u.tenant_id) IS TRUE
    AND NOT EXISTS (SELECT FROM browser_skill_runs s WHERE s.tenant_id = c.tenant_id AND s.agent_run_id = c.id AND s.finished_at IS NULL OFFSET 0)
  LIMIT $3 FOR UPDATE SKIP LOCKED
) r
LIMIT $3;

-- Only events about the end of a run hold its content. They are part of the commit that ends
-- the run and have its time, and the ids of their deliveries begin with that millisecond. So
-- the query reads few bodies.
-- name: erase_told
SELECT d.id, r.id FROM unnest($1::uuid[], $2::uuid[], $3::timestamptz[], $4::uuid[], $5::uuid[]) AS r (tenant_id, id, at, first, behind), LATERAL (
  SELECT id, body FROM webhook_deliveries
  WHERE tenant_id = r.tenant_id AND id >= r.first AND id < r.behind AND created_at = r.at AND type IN ('run.completed', 'run.failed')
  OFFSET 0
) d
WHERE position(convert_to(r.id::text, 'UTF8') IN d.body) > 0;

-- Skips deliveries that another session has locked.
-- name: erase_deliveries
DELETE FROM webhook_deliveries d USING (
  SELECT tenant_id, id FROM webhook_deliveries WHERE tenant_id = ANY ($1::uuid[]) AND id = ANY ($2::uuid[]) FOR UPDATE SKIP LOCKED
) free
WHERE d.tenant_id = free.tenant_id AND d.id = free.id
RETURNING d.id;

-- name: erase_approval_timers
DELETE FROM timers t USING unnest($1::uuid[], $2::uuid[]) AS r (tenant_id, id), approvals a
WHERE a.run_id = r.id AND (a.tenant_id = r.tenant_id) IS TRUE
  AND t.tenant_id = a.tenant_id AND t.kind = 'approval' AND t.entity_id = a.id;

-- name: erase_run_timers
DELETE FROM timers t USING unnest($1::uuid[], $2::uuid[]) AS r (tenant_id, id)
WHERE t.tenant_id = r.tenant_id AND t.kind = 'run' AND t.entity_id = r.id;

-- name: erase_approvals
DELETE FROM approvals a USING unnest($1::uuid[], $2::uuid[]) AS r (tenant_id, id)
WHERE a.run_id = r.id AND (a.tenant_id = r.tenant_id) IS TRUE;

-- name: erase_marks
DELETE FROM run_marks m USING unnest($1::uuid[], $2::uuid[]) AS r (tenant_id, id) WHERE m.tenant_id = r.tenant_id AND m.run_id = r.id;

-- name: erase_steps
DELETE FROM run_steps s USING unnest($1::uuid[], $2::uuid[]) AS r (tenant_id, id) WHERE s.tenant_id = r.tenant_id AND s.run_id = r.id;

-- name: erase_artifacts
DELETE FROM artifacts a USING unnest($1::uuid[], $2::uuid[]) AS r (tenant_id, id) WHERE a.tenant_id = r.tenant_id AND a.run_id = r.id;

-- name: erase_ended
DELETE FROM runs r USING unnest($1::uuid[], $2::uuid[]) AS e (tenant_id, id) WHERE r.tenant_id = e.tenant_id AND r.id = e.id;

-- Deleted threads without an open run. Their emptied rows stay, as those of all deleted
-- threads.
-- name: erase_conversations
SELECT t.tenant_id, t.id
FROM unnest($1::uuid[], $2::uuid[]) AS u (tenant_id, id), LATERAL (
  SELECT tenant_id, id FROM threads c
  WHERE end_user_id = u.id AND deleted_at < now() - $4::interval AND (tenant_id = u.tenant_id) IS TRUE
    AND NOT EXISTS (SELECT FROM runs r WHERE r.tenant_id = c.tenant_id AND r.thread_id = c.id AND r.finished_at IS NULL OFFSET 0)
  LIMIT $3 FOR NO KEY UPDATE SKIP LOCKED
) t
LIMIT $3;

-- name: erase_messages
DELETE FROM messages m USING unnest($1::uuid[], $2::uuid[]) AS t (tenant_id, id) WHERE m.tenant_id = t.tenant_id AND m.thread_id = t.id;

-- name: erase_titles
UPDATE threads t SET title = NULL, end_user_id = NULL, created_by = 'embed:erased' FROM unnest($1::uuid[], $2::uuid[]) AS e (tenant_id, id)
WHERE t.tenant_id = e.tenant_id AND t.id = e.id;

-- The rows of the people, once no new row can refer to them and none is left: {left} is the
-- condition for each kind.
-- name: erase_people
DELETE FROM end_users p USING (
  SELECT e.tenant_id, e.id FROM unnest($1::uuid[], $2::uuid[]) AS u (tenant_id, id)
  JOIN end_users e ON e.tenant_id = u.tenant_id AND e.id = u.id
  WHERE e.deleted_at < now() - $3::interval
    {left}
  FOR UPDATE OF e SKIP LOCKED
) gone
WHERE p.tenant_id = gone.tenant_id AND p.id = gone.id;
