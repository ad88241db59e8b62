-- The statements of one flush, in this order, after the fence. None waits for a row that
-- another session has locked.

-- One plan serves all array sizes. It must use webhook_deliveries_due, even while the planner
-- has no statistics of the table yet. Only the fence can wait for a lock, that of a session
-- which marks this process dead.
-- name: setup
SELECT set_config('plan_cache_mode', 'force_generic_plan', false), set_config('lock_timeout', '2s', false),
       set_config('enable_hashjoin', 'off', false), set_config('enable_mergejoin', 'off', false),
       set_config('enable_seqscan', 'off', false), set_config('enable_bitmapscan', 'off', false),
       set_config('enable_sort', 'off', false), set_config('jit', 'off', false)

-- name: fence
WITH own AS MATERIALIZED (
  SELECT id FROM members WHERE id = $1 AND dead_at IS NULL FOR KEY SHARE
)
SELECT FROM own HAVING CASE WHEN count(*) = 0 THEN svc_missed() END

-- An attempt is identified by its number and, if given, by when it began: a delivery sent
-- again by hand starts again at the first attempt. A delivery that stopped being pending
-- while its attempt was in flight was ended by the disabling of its endpoint: only a success
-- changes it.
-- name: settle
WITH own AS MATERIALIZED (
  SELECT u.*, d.status AS was
  FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::int[], $5::timestamptz[], $6::text[], $7::int[], $8::text[], $9::bigint[], $10::timestamptz[], $11::boolean[])
    AS u (tenant_id, webhook_id, id, n, begun_at, status, http_status, error, duration_ms, next_at, unsent)
  JOIN webhook_deliveries d ON d.tenant_id = u.tenant_id AND d.id = u.id
  WHERE d.webhook_id = u.webhook_id AND d.attempts = u.n AND d.begun_at = coalesce(u.begun_at, d.begun_at)
  FOR NO KEY UPDATE OF d SKIP LOCKED
), done AS (
UPDATE webhook_deliveries d
SET status = CASE WHEN u.unsent OR u.status = 'pending' THEN d.status::text ELSE u.status END,
    attempts = CASE WHEN u.unsent THEN d.attempts - 1 ELSE d.attempts END,
    begun_at = NULL,
    next_attempt_at = CASE WHEN d.status = 'pending' AND (u.unsent OR u.status = 'pending') THEN u.next_at END,
    last_http_status = CASE WHEN u.unsent THEN d.last_http_status ELSE u.http_status END,
    last_error = CASE WHEN u.unsent OR (d.status <> 'pending' AND u.status <> 'succeeded') THEN d.last_error ELSE u.error END,
    attempt_log = CASE WHEN u.unsent THEN d.attempt_log ELSE with_attempt(d.attempt_log, d.begun_at, u.http_status, u.error, u.duration_ms) END
FROM own u
WHERE d.tenant_id = u.tenant_id AND d.id = u.id AND d.webhook_id = u.webhook_id AND d.attempts = u.n AND d.begun_at = coalesce(u.begun_at, d.begun_at)
RETURNING d.tenant_id, u.was, d.status::text AS status, u.unsent
), tallied AS (
  INSERT INTO tallies (tenant_id, what, at)
  SELECT tenant_id, CASE status WHEN 'succeeded' THEN 'delivered' ELSE 'undelivered' END, $12::timestamptz FROM done WHERE status <> was AND status <> 'pending'
)
SELECT CASE WHEN unsent THEN 'unsent' ELSE status END FROM done

-- Results whose attempts are still in flight: other sessions hold their rows.
-- name: unsettled
SELECT u.ord
FROM unnest($1::int[], $2::uuid[], $3::uuid[], $4::uuid[], $5::int[], $6::timestamptz[]) AS u (ord, tenant_id, webhook_id, id, n, begun_at)
JOIN webhook_deliveries d ON d.tenant_id = u.tenant_id AND d.id = u.id
WHERE d.webhook_id = u.webhook_id AND d.attempts = u.n AND d.begun_at = coalesce(u.begun_at, d.begun_at)

-- $6 is when a delivery is attempted again, by how many attempts began before: the parameter
-- has one time for each possible attempt. A delivery whose begun_at is set was in flight in a
-- process that reported no result; after the last attempt the delivery ends. $7 limits the
-- bytes of each endpoint, and $9 those of all together: the delivery that exceeds one is the last.
-- name: claim
WITH turn AS MATERIALIZED (
  SELECT u.ord, u.tenant_id, u.webhook_id, u.want, u.bytes
  FROM unnest($1::int[], $2::uuid[], $3::uuid[], $4::int[], $7::bigint[]) AS u (ord, tenant_id, webhook_id, want, bytes)
  JOIN webhooks w ON w.tenant_id = u.tenant_id AND w.id = u.webhook_id
  WHERE w.enabled AND (w.expires_at IS NULL OR w.expires_at > $5)
), found AS MATERIALIZED (
  SELECT t.ord, x.*
  FROM turn t CROSS JOIN LATERAL (
    SELECT l.*, sum(l.size) OVER (ROWS UNBOUNDED PRECEDING) - l.size AS before
    FROM (
      SELECT d.tenant_id, d.id, d.next_attempt_at, d.begun_at, octet_length(d.body) AS size
      FROM webhook_deliveries d
      WHERE d.tenant_id = t.tenant_id AND d.webhook_id = t.webhook_id AND d.status = 'pending' AND d.next_attempt_at <= $5
      ORDER BY d.next_attempt_at LIMIT t.want
      FOR NO KEY UPDATE SKIP LOCKED
    ) l
  ) x
  WHERE x.before < t.bytes
), due AS MATERIALIZED (
  SELECT f.*, sum(f.size) OVER (ROWS UNBOUNDED PRECEDING) - f.size AS before_all FROM found f
), claimed AS (
UPDATE webhook_deliveries d
SET status = CASE WHEN d.attempts < cardinality($6::timestamptz[]) THEN 'pending' ELSE 'failed' END,
    attempts = least(d.attempts + 1, cardinality($6::timestamptz[])),
    begun_at = CASE WHEN d.attempts < cardinality($6::timestamptz[]) THEN $5::timestamptz END,
    next_attempt_at = ($6::timestamptz[])[d.attempts + 1],
    last_http_status = CASE WHEN d.begun_at IS NULL THEN d.last_http_status END,
    last_error = CASE WHEN d.begun_at IS NULL THEN d.last_error ELSE $8 END,
    attempt_log = CASE WHEN d.begun_at IS NULL THEN d.attempt_log ELSE with_attempt(d.attempt_log, d.begun_at, NULL, $8, NULL) END
FROM due u
WHERE d.tenant_id = u.tenant_id AND d.id = u.id AND u.before_all < $9
RETURNING u.ord, u.next_attempt_at AS due, u.begun_at IS NOT NULL AS lost, d.status = 'failed' AS last, d.tenant_id, d.id, d.event_id, d.type, d.body, d.attempts
), tallied AS (
  INSERT INTO tallies (tenant_id, what, at) SELECT tenant_id, 'undelivered', $5 FROM claimed WHERE last
)
SELECT ord, due, lost, last, id, event_id, type, body, attempts FROM claimed

-- name: next
SELECT t.ord, n.next_attempt_at
FROM unnest($1::int[], $2::uuid[], $3::uuid[]) AS t (ord, tenant_id, webhook_id)
JOIN webhooks w ON w.tenant_id = t.tenant_id AND w.id = t.webhook_id
CROSS JOIN LATERAL (
  SELECT d.next_attempt_at FROM webhook_deliveries d
  WHERE d.tenant_id = t.tenant_id AND d.webhook_id = t.webhook_id AND d.status = 'pending' AND (d.begun_at IS NULL OR d.begun_at <> $4)
  ORDER BY d.next_attempt_at LIMIT 1
) n
WHERE w.enabled AND (w.expires_at IS NULL OR w.expires_at > $4)
