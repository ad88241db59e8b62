-- A page of the endpoints with pending deliveries, after an id. It goes from one endpoint to
-- the next and reads only the delivery that is due first, so that its cost does not depend
-- on the number of pending deliveries. It returns the enabled endpoints of the shards that
-- are no listeners and have a due delivery, and always the last endpoint of the page. The
-- ids of endpoints are unique over all tenants.
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

-- For the rest of the transaction: prevents scans of whole tables that have no statistics
-- yet. Where such a scan is the only plan, its inflated cost would start the compiler, so jit
-- is off.
-- name: by_index
SELECT set_config('enable_seqscan', 'off', true), set_config('enable_sort', 'off', true), set_config('jit', 'off', true);
