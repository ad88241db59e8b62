-- Due timers that nobody has claimed, oldest first. Nodes take different rows.
-- name: claim_timers
UPDATE timers t SET claimed_until = now() + $2::interval
FROM (
  SELECT tenant_id, kind, entity_id, name FROM timers
  WHERE due_at <= now() AND (claimed_until IS NULL OR claimed_until <= now())
  ORDER BY due_at LIMIT $1 FOR UPDATE SKIP LOCKED
) due
WHERE t.tenant_id = due.tenant_id AND t.kind = due.kind AND t.entity_id = due.entity_id AND t.name = due.name
RETURNING t.tenant_id, t.kind, t.entity_id, t.name;

-- name: release_timers
UPDATE timers SET claimed_until = NULL WHERE due_at <= now() AND claimed_until > now();

-- Open runs that could go on by themselves, in the order of their ids. Of a
-- thread's runs that is the first open one. The open runs are found through
-- their partial index first: in the order of the primary key the planner would
-- read every run that ever ended. What becomes of a queued run, and of one whose
-- thread was deleted, its thread says.
-- name: open_runs
WITH able AS MATERIALIZED (
  SELECT tenant_id, id, thread_id, status FROM runs r
  WHERE r.finished_at IS NULL AND r.status IN ('queued', 'running')
    AND NOT EXISTS (
      SELECT FROM runs e WHERE e.tenant_id = r.tenant_id AND e.thread_id = r.thread_id AND e.thread_seq < r.thread_seq
        AND e.finished_at IS NULL)
)
SELECT tenant_id, id, thread_id,
       status = 'queued' OR EXISTS (SELECT FROM threads t WHERE t.tenant_id = able.tenant_id AND t.id = able.thread_id AND t.deleted_at IS NOT NULL)
FROM able
WHERE (tenant_id, id) > ($1, $2) ORDER BY tenant_id, id LIMIT $3;

-- name: drop_idempotency
DELETE FROM idempotency i USING (
  SELECT tenant_id, digest FROM idempotency WHERE created_at < now() - $2::interval LIMIT $1 FOR UPDATE SKIP LOCKED
) old
WHERE i.tenant_id = old.tenant_id AND i.digest = old.digest;

-- Running places of a tenant that are taken.
-- name: running
SELECT id FROM runs WHERE tenant_id = $1 AND finished_at IS NULL AND status = 'running';
