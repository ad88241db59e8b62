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
