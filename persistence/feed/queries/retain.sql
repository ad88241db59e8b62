-- What retention deletes or ends, over all tenants. Each statement begins at a lower
-- bound on its index, behind what earlier passes deleted: entries of deleted rows stay in
-- an index until it is vacuumed, and a scan from the left end would read all of them
-- again. It reads in the order of the index, stops where the batch is full, and changes
-- rows by their ctid, so that a batch costs what it changes, whatever the tables hold.
-- A ctid holds for the statement, because the row is locked. Rows that another session
-- has locked are skipped.

-- Bounds of the transaction: a lock on a table ends the pass soon, and the planner must
-- not read what it has not counted yet as a whole.
-- name: retain_bounds
SELECT set_config('lock_timeout', '1s', true), set_config('statement_timeout', '5s', true),
       set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
       set_config('enable_sort', 'off', true), set_config('jit', 'off', true);

-- Each drop answers how many rows it took and where the next pass begins: at the last
-- row of a full batch, else at the bound of age, below which nothing is left.

-- The rows of one table: {of} says of which, {at} is the column that says how old they are.
-- name: drop_aged
WITH old AS MATERIALIZED (
  SELECT ctid, {at} AS at FROM {table} WHERE {of} AND {at} >= $2 AND {at} < now() - $3::interval
  ORDER BY {at} LIMIT $1 FOR UPDATE SKIP LOCKED
), gone AS (
  DELETE FROM {table} WHERE ctid = ANY (ARRAY(SELECT ctid FROM old))
)
SELECT count(*)::int, CASE WHEN count(*) < $1 THEN now() - $3::interval ELSE max(at) END FROM old;

-- Deliveries of listeners that have expired. Of the listener $3 those up to $4 were
-- deleted by the batch before. Answers the deliveries in order.
-- name: drop_unheard
WITH old AS MATERIALIZED (
  SELECT d.ctid AS row, d.webhook_id, d.id
  FROM (SELECT tenant_id, id FROM webhooks WHERE expires_at >= $2 AND expires_at <= now() ORDER BY expires_at) w CROSS JOIN LATERAL (
    SELECT ctid, webhook_id, id FROM webhook_deliveries
    WHERE tenant_id = w.tenant_id AND webhook_id = w.id
      AND id > CASE WHEN w.id = $3 THEN $4::uuid ELSE '00000000-0000-0000-0000-000000000000' END
    ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED
  ) d
  LIMIT $1
), gone AS (
  DELETE FROM webhook_deliveries WHERE ctid = ANY (ARRAY(SELECT row FROM old))
)
SELECT webhook_id, id FROM old;

-- A listener that has deliveries stays until they are gone: with it they would go all
-- at once.
-- name: drop_listeners
WITH old AS MATERIALIZED (
  SELECT ctid, expires_at FROM webhooks e
  WHERE expires_at >= $2 AND expires_at <= now()
    AND (SELECT d.id FROM webhook_deliveries d WHERE d.tenant_id = e.tenant_id AND d.webhook_id = e.id LIMIT 1) IS NULL
  ORDER BY expires_at LIMIT $1 FOR UPDATE SKIP LOCKED
), gone AS (
  DELETE FROM webhooks WHERE ctid = ANY (ARRAY(SELECT ctid FROM old))
)
SELECT count(*)::int, CASE WHEN count(*) < $1 THEN now() ELSE max(expires_at) END FROM old;

-- Ends what a commit has put into the outbox while its endpoint was being disabled. $3
-- is how long such a commit may be under way: endpoints that were disabled since are
-- looked at again. The tenant is compared so that the planner takes
-- webhook_deliveries_due: what has ended is not looked at.
-- name: end_disabled
WITH late AS MATERIALIZED (
  SELECT d.ctid AS row, w.updated_at
  FROM (SELECT tenant_id, id, updated_at FROM webhooks WHERE NOT enabled AND updated_at >= $2 ORDER BY updated_at) w CROSS JOIN LATERAL (
    SELECT ctid FROM webhook_deliveries
    WHERE (tenant_id = w.tenant_id) IS TRUE AND webhook_id = w.id AND status = 'pending'
    LIMIT $1 FOR NO KEY UPDATE SKIP LOCKED
  ) d
  LIMIT $1
), ended AS (
  UPDATE webhook_deliveries SET status = 'failed', next_attempt_at = NULL, last_error = 'the endpoint was disabled'
  WHERE ctid = ANY (ARRAY(SELECT row FROM late))
)
SELECT count(*)::int, CASE WHEN count(*) < $1 THEN now() - $3::interval ELSE max(updated_at) END FROM late;
