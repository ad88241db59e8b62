-- Retention, over all tenants. Each statement begins at a lower bound on its index, after the
-- rows that earlier passes deleted: entries of deleted rows stay in an index until a vacuum,
-- and a scan from the start would read all of them again. It reads in the order of the
-- index, stops when the batch is full, and changes rows by their ctid, so that its cost
-- depends on the rows changed and not on the size of the tables. A ctid is valid throughout
-- the statement, because the row is locked. Rows that another session has locked are skipped.

-- Settings of the transaction: a lock on a table ends the pass soon, and the planner does not
-- scan whole tables that have no statistics yet.
-- name: retain_bounds
SELECT set_config('lock_timeout', '1s', true), set_config('statement_timeout', '5s', true),
       set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
       set_config('enable_sort', 'off', true), set_config('jit', 'off', true);

-- Each drop returns the number of rows and the time where the next pass begins: that of the
-- last row of a full batch, else the limit of age, below which no row is left.

-- The old rows of one table: {of} is a condition on them, {at} the column with their time.
-- name: drop_aged
WITH old AS MATERIALIZED (
  SELECT ctid, {at} AS at FROM {table} WHERE {of} AND {at} >= $2 AND {at} < now() - $3::interval
  ORDER BY {at} LIMIT $1 FOR UPDATE SKIP LOCKED
), gone AS (
  DELETE FROM {table} WHERE ctid = ANY (ARRAY(SELECT ctid FROM old))
)
SELECT count(*)::int, CASE WHEN count(*) < $1 THEN now() - $3::interval ELSE max(at) END FROM old;

-- Deliveries of expired listeners. The batch before deleted those of the listener $3 up to
-- the delivery $4. Returns the deliveries in order.
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

-- A listener with deliveries stays until they are deleted: deleting it would delete all of
-- them at once.
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

-- Ends deliveries that a commit added while their endpoint was being disabled. $3 is an upper
-- bound on the time in flight of such a commit: endpoints that were disabled since then are
-- read again by the next pass. The comparison of the tenant makes the planner use
-- webhook_deliveries_due, which has no ended deliveries.
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
  RETURNING tenant_id
), tallied AS (
  INSERT INTO tallies (tenant_id, what, at) SELECT tenant_id, 'undelivered', now() FROM ended
)
SELECT count(*)::int, CASE WHEN count(*) < $1 THEN now() - $3::interval ELSE max(updated_at) END FROM late;
