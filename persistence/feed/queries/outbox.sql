-- A page of the endpoints that have something pending, behind an id: from one to the
-- next, and of each the one that is due first, so that a page costs the same however
-- much is pending. Of them those of some shards of which something is due, and that
-- somebody sends for: enabled, and no listener. The last of the page is there in any
-- case. An endpoint's id is its own over all tenants.
-- name: due_endpoints
WITH RECURSIVE page AS (
  (SELECT d.tenant_id, d.webhook_id, d.next_attempt_at, 1 AS place FROM webhook_deliveries d
   WHERE d.status = 'pending' AND d.webhook_id > $2
   ORDER BY d.webhook_id, d.next_attempt_at LIMIT 1)
  UNION ALL
  SELECT n.tenant_id, n.webhook_id, n.next_attempt_at, p.place + 1
  FROM page p CROSS JOIN LATERAL (
    SELECT d.tenant_id, d.webhook_id, d.next_attempt_at FROM webhook_deliveries d
    WHERE d.status = 'pending' AND d.webhook_id > p.webhook_id
    ORDER BY d.webhook_id, d.next_attempt_at LIMIT 1
  ) n
  WHERE p.place < $3
)
SELECT p.tenant_id, p.webhook_id, due.overdue, p.place
FROM page p LEFT JOIN LATERAL (
  SELECT now() - p.next_attempt_at AS overdue FROM webhooks w
  WHERE w.tenant_id = p.tenant_id AND w.id = p.webhook_id AND w.enabled AND w.expires_at IS NULL
    AND p.next_attempt_at <= now() AND coalesce(shard_of(p.webhook_id), -1) = ANY ($1::int[])
) due ON true
WHERE due.overdue IS NOT NULL OR p.place = (SELECT max(place) FROM page)
ORDER BY p.place;

-- For the rest of the transaction: what the planner has not counted yet is not to be
-- read as a whole. What cannot be had otherwise is priced as if it were endless, for
-- which the server would compile it.
-- name: by_index
SELECT set_config('enable_seqscan', 'off', true), set_config('enable_sort', 'off', true), set_config('jit', 'off', true);

-- name: drop_deliveries
DELETE FROM webhook_deliveries d USING (
  SELECT tenant_id, id FROM webhook_deliveries WHERE created_at < now() - $2::interval AND status <> 'pending' LIMIT $1 FOR UPDATE SKIP LOCKED
) old
WHERE d.tenant_id = old.tenant_id AND d.id = old.id;

-- name: drop_unheard
DELETE FROM webhook_deliveries d USING (
  SELECT p.tenant_id, p.id FROM webhooks w CROSS JOIN LATERAL (
    SELECT d.tenant_id, d.id FROM webhook_deliveries d
    WHERE d.tenant_id = w.tenant_id AND d.webhook_id = w.id LIMIT $1
    FOR UPDATE SKIP LOCKED
  ) p
  WHERE w.expires_at <= now() LIMIT $1
) old
WHERE d.tenant_id = old.tenant_id AND d.id = old.id;

-- One that has deliveries stays until they are gone: with it they would go all at once.
-- name: drop_listeners
DELETE FROM webhooks w USING (
  SELECT e.tenant_id, e.id FROM webhooks e
  WHERE e.expires_at <= now()
    AND (SELECT d.id FROM webhook_deliveries d WHERE d.tenant_id = e.tenant_id AND d.webhook_id = e.id LIMIT 1) IS NULL
  LIMIT $1 FOR UPDATE OF e SKIP LOCKED
) old
WHERE w.tenant_id = old.tenant_id AND w.id = old.id;

-- What a commit has put there while its endpoint was being disabled. The tenant is
-- compared so that it is webhook_deliveries_due that is gone by: what has ended is not
-- looked at.
-- name: end_disabled
UPDATE webhook_deliveries d SET status = 'failed', next_attempt_at = NULL, last_error = 'the endpoint was disabled'
FROM (
  SELECT p.tenant_id, p.id FROM webhooks w CROSS JOIN LATERAL (
    SELECT d.tenant_id, d.id FROM webhook_deliveries d
    WHERE (d.tenant_id = w.tenant_id) IS TRUE AND d.webhook_id = w.id AND d.status = 'pending' LIMIT $1
    FOR NO KEY UPDATE SKIP LOCKED
  ) p
  WHERE NOT w.enabled LIMIT $1
) late
WHERE d.tenant_id = late.tenant_id AND d.id = late.id;
