-- An endpoint with expires_at is a listener, which lists of endpoints leave out.

-- name: webhooks
SELECT id, url, events, description, enabled, created_at, updated_at FROM webhooks
WHERE tenant_id = $1 AND id < $2 AND expires_at IS NULL ORDER BY id DESC LIMIT $3

-- name: webhook
SELECT id, url, events, description, enabled, created_at, updated_at FROM webhooks WHERE tenant_id = $1 AND id = $2 AND expires_at IS NULL

-- This lock does not block commits that have an event for the endpoint.
-- name: webhook_lock
SELECT id, url, events, description, enabled, created_at, updated_at FROM webhooks
WHERE tenant_id = $1 AND id = $2 AND (expires_at IS NOT NULL) = $3 FOR NO KEY UPDATE

-- This lock waits for the commits that have an event for the endpoint. A disabled endpoint
-- gets no new ones, so the wait ends.
-- name: webhook_close
SELECT id FROM webhooks WHERE tenant_id = $1 AND id = $2 AND NOT enabled FOR UPDATE

-- name: webhook_end
SELECT id, url, events, description, enabled, created_at, updated_at FROM webhooks
WHERE tenant_id = $1 AND id = $2 AND (expires_at IS NOT NULL) = $3 FOR UPDATE

-- A change of deliveries locks their endpoint first, so that it cannot deadlock with a change
-- of both.
-- name: webhook_hold
SELECT enabled FROM webhooks WHERE tenant_id = $1 AND id = $2 AND expires_at IS NULL FOR SHARE

-- name: webhook_hold_off
SELECT id FROM webhooks WHERE tenant_id = $1 AND id = $2 AND NOT enabled FOR SHARE

-- name: webhook_insert
INSERT INTO webhooks (tenant_id, id, url, events, description, secret) VALUES ($1, $2, $3, $4, $5, $6)
RETURNING id, url, events, description, enabled, created_at, updated_at

-- name: webhook_update
UPDATE webhooks SET url = $3, events = $4, description = $5, enabled = $6, updated_at = now() WHERE tenant_id = $1 AND id = $2
RETURNING id, url, events, description, enabled, created_at, updated_at

-- name: webhook_rotate
UPDATE webhooks SET secret = $3, updated_at = now() WHERE tenant_id = $1 AND id = $2 AND expires_at IS NULL
RETURNING id, url, events, description, enabled, created_at, updated_at

-- name: webhook_delete
DELETE FROM webhooks WHERE tenant_id = $1 AND id = $2

-- name: webhook_sealed
SELECT url, secret, enabled FROM webhooks WHERE tenant_id = $1 AND id = $2

-- name: webhooks_hearing
SELECT id, events, expires_at IS NOT NULL AS listener FROM webhooks WHERE tenant_id = $1 AND enabled AND (expires_at IS NULL OR expires_at > now())

-- name: listener_insert
INSERT INTO webhooks (tenant_id, id, url, events, secret, expires_at) VALUES ($1, $2, '', $3, $4, now() + $5::interval)
RETURNING expires_at

-- name: listener_extend
UPDATE webhooks SET expires_at = now() + $3::interval WHERE tenant_id = $1 AND id = $2 AND expires_at > now() RETURNING secret, expires_at

-- Listeners of a tenant are created one at a time, so that they can be counted.
-- name: listeners_lock
SELECT id FROM tenants WHERE id = $1 FOR NO KEY UPDATE

-- name: listeners_live
SELECT count(*)::int FROM webhooks WHERE tenant_id = $1 AND expires_at > now()

-- name: listener_stop
UPDATE webhooks SET enabled = false, expires_at = least(expires_at, now()) WHERE tenant_id = $1 AND id = $2

-- While the fifth attempt is in flight, no next attempt is shown.

-- name: deliveries
SELECT id, event_id, type, status, attempts, last_http_status, last_error, created_at, attempt_log,
  CASE WHEN attempts < 5 OR begun_at IS NULL THEN next_attempt_at END AS next_attempt_at
FROM webhook_deliveries
WHERE tenant_id = $1 AND webhook_id = $2 AND id < $3 AND ($5::text IS NULL OR status = $5) AND ($6::text IS NULL OR type = $6)
ORDER BY id DESC LIMIT $4

-- The status is a literal: only then every plan uses webhook_deliveries_failed.
-- name: deliveries_failed
SELECT id, event_id, type, status, attempts, last_http_status, last_error, created_at, attempt_log, next_attempt_at
FROM webhook_deliveries
WHERE tenant_id = $1 AND webhook_id = $2 AND id < $3 AND status = 'failed' AND ($5::text IS NULL OR type = $5)
ORDER BY id DESC LIMIT $4

-- name: delivery
SELECT d.id, d.event_id, d.type, d.status, d.attempts, d.last_http_status, d.last_error, d.created_at, d.attempt_log, d.body AS event,
  CASE WHEN d.attempts < 5 OR d.begun_at IS NULL THEN d.next_attempt_at END AS next_attempt_at
FROM webhook_deliveries d JOIN webhooks w ON w.tenant_id = d.tenant_id AND w.id = d.webhook_id AND w.expires_at IS NULL
WHERE d.tenant_id = $1 AND d.webhook_id = $2 AND d.id = $3

-- name: delivery_insert
INSERT INTO webhook_deliveries (tenant_id, id, webhook_id, event_id, type, body, next_attempt_at, created_at) VALUES ($1, $2, $3, $4, $5, $6, now(), $7)

-- An attempt in flight stays the current one: another would run at the same time. If the
-- delivery ended because its endpoint was disabled and its attempt has no result, the
-- attempt's outcome is logged as unknown.
-- name: delivery_redeliver
UPDATE webhook_deliveries SET
  next_attempt_at = CASE WHEN status = 'pending' AND begun_at IS NOT NULL THEN next_attempt_at ELSE now() END,
  attempts = CASE status WHEN 'pending' THEN attempts ELSE 0 END,
  begun_at = CASE status WHEN 'pending' THEN begun_at END,
  attempt_log = CASE WHEN status = 'pending' OR begun_at IS NULL THEN attempt_log ELSE with_attempt(attempt_log, begun_at, NULL, $4, NULL) END,
  status = 'pending'
WHERE tenant_id = $1 AND webhook_id = $2 AND id = $3 RETURNING id

-- Several rows are always locked in the order of their ids.

-- name: deliveries_recover
WITH lost AS MATERIALIZED (
  SELECT id FROM webhook_deliveries WHERE tenant_id = $1 AND webhook_id = $2 AND id > $3 AND created_at >= $4 AND status = 'failed'
  ORDER BY id LIMIT $5 FOR UPDATE
)
UPDATE webhook_deliveries d SET status = 'pending', attempts = 0, begun_at = NULL, next_attempt_at = now(),
  attempt_log = CASE WHEN d.begun_at IS NULL THEN d.attempt_log ELSE with_attempt(d.attempt_log, d.begun_at, NULL, $6, NULL) END
FROM lost WHERE d.tenant_id = $1 AND d.id = lost.id RETURNING d.id

-- An attempt in flight may still succeed; its sender settles it, and counts a success beside this failure.
-- name: deliveries_fail
WITH open AS MATERIALIZED (
  SELECT id FROM webhook_deliveries WHERE tenant_id = $1 AND webhook_id = $2 AND id > $3 AND status = 'pending' ORDER BY id LIMIT $4 FOR UPDATE
), ended AS (
  UPDATE webhook_deliveries d SET status = 'failed', last_error = $5, next_attempt_at = NULL
  FROM open WHERE d.tenant_id = $1 AND d.id = open.id RETURNING d.id
), tallied AS (
  INSERT INTO tallies (tenant_id, what, at) SELECT $1, 'undelivered', now() FROM ended
)
SELECT id FROM ended

-- name: deliveries_trim
WITH every AS MATERIALIZED (
  SELECT id FROM webhook_deliveries WHERE tenant_id = $1 AND webhook_id = $2 AND id > $3 ORDER BY id LIMIT $4 FOR UPDATE
)
DELETE FROM webhook_deliveries d USING every WHERE d.tenant_id = $1 AND d.id = every.id RETURNING d.id

-- name: deliveries_delete
WITH every AS MATERIALIZED (
  SELECT id FROM webhook_deliveries WHERE tenant_id = $1 AND webhook_id = $2 ORDER BY id FOR UPDATE
)
DELETE FROM webhook_deliveries d USING every WHERE d.tenant_id = $1 AND d.id = every.id
