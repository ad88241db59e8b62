-- Claims unclaimed due timers of the shards, oldest first, without those of the tenants in $6.
-- A node that is marked dead or has lost its lease claims nothing. The lock on its row makes a peer that marks it wait, so that
-- the new owner, which ends the claims, sees all of them. Without a member ($3 is NULL) there
-- is no such check.
-- name: claim_timers
WITH fence AS MATERIALIZED (
  SELECT FROM members WHERE id = $3 AND dead_at IS NULL AND lease_until > now() FOR KEY SHARE
)
UPDATE timers t SET claimed_until = now() + $2::interval
FROM (
  SELECT tenant_id, kind, entity_id, name FROM timers
  WHERE ($3::uuid IS NULL OR EXISTS (SELECT FROM fence))
    AND due_at <= now() AND (claimed_until IS NULL OR claimed_until <= now())
    AND (shard_of(entity_id) = ANY ($4::int[]) OR entity_id = ANY ($5::uuid[])) AND tenant_id <> ALL ($6::uuid[])
  ORDER BY due_at LIMIT $1 FOR UPDATE SKIP LOCKED
) due
WHERE t.tenant_id = due.tenant_id AND t.kind = due.kind AND t.entity_id = due.entity_id AND t.name = due.name
RETURNING t.tenant_id, t.kind, t.entity_id, t.name, t.claimed_until;

-- Entities whose ids carry no shard: the service computes it.
-- name: foreign_timers
SELECT DISTINCT entity_id FROM timers
WHERE due_at <= now() AND (claimed_until IS NULL OR claimed_until <= now()) AND shard_of(entity_id) IS NULL LIMIT $1;

-- name: release_timers
UPDATE timers SET claimed_until = NULL
WHERE due_at <= now() AND claimed_until > now() AND (shard_of(entity_id) = ANY ($1::int[]) OR entity_id = ANY ($2::uuid[]));

-- name: claimed_foreign
SELECT DISTINCT entity_id FROM timers WHERE due_at <= now() AND claimed_until > now() AND shard_of(entity_id) IS NULL;

-- Leaves timers that were claimed again since.
-- name: return_timers
UPDATE timers t SET claimed_until = NULL
FROM unnest($1::uuid[], $2::text[], $3::uuid[], $4::text[], $5::timestamptz[]) AS k (tenant_id, kind, entity_id, name, claimed_until)
WHERE t.tenant_id = k.tenant_id AND t.kind = k.kind AND t.entity_id = k.entity_id AND t.name = k.name AND t.claimed_until = k.claimed_until;

-- For the rest of the transaction. A bitmap scan would read all rows of a shard for the first
-- ones.
-- name: in_order
SELECT set_config('enable_bitmapscan', 'off', true);

-- A page of the open runs of the shards, in order; in the first shard only runs after an id.
-- The limit counts all runs that were read, so that the many runs that wait for people do not
-- make a page more expensive. The query returns the runs that can continue by themselves,
-- which are queued or running and the first open run of their thread, and always the last
-- run of the page. A queued run, and one whose thread was deleted, is continued by its thread.
-- One subquery per shard with an order and a limit makes the planner use runs_open_shard and
-- runs_open and stop when the page is full, whatever its statistics are. Runs of workflows are
-- found by what they owe, and are skipped here.
-- name: open_runs
WITH page AS MATERIALIZED (
  SELECT s.shard, o.tenant_id, o.id, o.thread_id, o.status
  FROM unnest($1::int[]) AS s (shard), LATERAL (
    SELECT r.tenant_id, r.id, r.thread_id, CASE WHEN r.workflow_id IS NULL THEN r.status END AS status FROM runs r
    WHERE r.finished_at IS NULL AND coalesce(shard_of(r.id), -1) = s.shard
      AND r.id > CASE WHEN s.shard = ($1::int[])[1] THEN $2::uuid ELSE '00000000-0000-0000-0000-000000000000' END
    ORDER BY coalesce(shard_of(r.id), -1), r.id LIMIT $3 -- the first is the same for all: the order of the index
  ) o
  LIMIT $3
)
SELECT tenant_id, id, thread_id,
       coalesce(status = 'queued', false) OR EXISTS (SELECT FROM threads t WHERE t.tenant_id = p.tenant_id AND t.id = p.thread_id AND t.deleted_at IS NOT NULL),
       able, size
FROM (
  SELECT *, row_number() OVER (ORDER BY shard, id) AS place, count(*) OVER () AS size,
         coalesce(status IN ('queued', 'running'), false) AND (thread_id IS NULL OR id = (
           SELECT e.id FROM runs e WHERE e.tenant_id = page.tenant_id AND e.thread_id = page.thread_id AND e.finished_at IS NULL
           ORDER BY e.thread_seq LIMIT 1)) AS able
  FROM page
) p
WHERE able OR place = size
ORDER BY shard, id;

-- A page of the entities for which a condition holds, in the order of their shards, after an
-- id, read like the page of open_runs.
-- name: find_where
SELECT tenant_id, id FROM (
  SELECT s.shard, o.tenant_id, o.id
  FROM unnest($1::int[]) AS s (shard), LATERAL (
    SELECT e.tenant_id, e.id FROM {table} e
    WHERE ({condition}) AND coalesce(shard_of(e.id), -1) = s.shard
      AND e.id > CASE WHEN s.shard = ($1::int[])[1] THEN $2::uuid ELSE '00000000-0000-0000-0000-000000000000' END
    ORDER BY coalesce(shard_of(e.id), -1), e.id LIMIT $3
  ) o
  LIMIT $3
) page
ORDER BY shard, id;

-- The running runs of a tenant, each of which holds one of its slots. Child runs hold none.
-- name: running
SELECT id FROM runs WHERE tenant_id = $1 AND finished_at IS NULL AND status = 'running' AND parent_run_id IS NULL;
