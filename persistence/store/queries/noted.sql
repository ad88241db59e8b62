-- What nodes note and write now and then, over all tenants: see Noted. Rows of deleted objects are
-- not there any more.

-- The newest outcome stays. One that the row already has is written again only if the row is
-- older than $5: several nodes may note the same.
-- name: note_servers
UPDATE mcp_servers s SET health_ok = n.error IS NULL, health_at = n.at, health_error = n.error
FROM unnest($1::uuid[], $2::uuid[], $3::timestamptz[], $4::text[]) AS n (tenant_id, id, at, error)
WHERE s.tenant_id = n.tenant_id AND s.id = n.id AND (s.health_at IS NULL OR s.health_at < n.at)
  AND NOT (coalesce(s.health_at > n.at - $5::interval, false) AND s.health_ok IS NOT DISTINCT FROM (n.error IS NULL) AND s.health_error IS NOT DISTINCT FROM n.error)
RETURNING s.tenant_id, s.id

-- name: note_connections
UPDATE connections c SET last_used_at = n.at, last_error = n.error
FROM unnest($1::uuid[], $2::uuid[], $3::timestamptz[], $4::text[]) AS n (tenant_id, id, at, error)
WHERE c.tenant_id = n.tenant_id AND c.id = n.id AND (c.last_used_at IS NULL OR c.last_used_at < n.at)
  AND NOT (coalesce(c.last_used_at > n.at - $5::interval, false) AND c.last_error IS NOT DISTINCT FROM n.error)
RETURNING c.tenant_id, c.id

-- name: note_denied
WITH written AS (
  INSERT INTO embed_denied_origins AS d (tenant_id, key_id, origin, day, count, last_at)
  SELECT n.tenant_id, n.key_id, n.origin, (n.at AT TIME ZONE 'UTC')::date, n.count, n.at
  FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::bigint[], $5::timestamptz[]) AS n (tenant_id, key_id, origin, count, at)
  JOIN embed_keys k ON k.tenant_id = n.tenant_id AND k.id = n.key_id
  ORDER BY n.tenant_id, n.key_id, n.origin
  ON CONFLICT (tenant_id, key_id, origin, day) DO UPDATE SET count = d.count + excluded.count, last_at = greatest(d.last_at, excluded.last_at)
  RETURNING d.tenant_id, d.key_id
)
SELECT DISTINCT tenant_id, key_id FROM written

-- Keeps the $3 most frequent and the $3 latest origins of a key: neither many invented origins
-- nor a few noisy ones drive the others out.
-- name: note_denied_trim
DELETE FROM embed_denied_origins d USING (
  SELECT tenant_id, key_id, origin FROM (
    SELECT tenant_id, key_id, origin, row_number() OVER (PARTITION BY tenant_id, key_id ORDER BY sum(count) DESC, max(last_at) DESC) AS often,
      row_number() OVER (PARTITION BY tenant_id, key_id ORDER BY max(last_at) DESC, sum(count) DESC) AS late
    FROM embed_denied_origins WHERE (tenant_id, key_id) IN (SELECT * FROM unnest($1::uuid[], $2::uuid[])) GROUP BY tenant_id, key_id, origin
  ) kept WHERE often > $3 AND late > $3
) gone
WHERE d.tenant_id = gone.tenant_id AND d.key_id = gone.key_id AND d.origin = gone.origin

-- name: denied_origins
SELECT origin, sum(count)::bigint AS count, max(last_at) AS last_at FROM embed_denied_origins
WHERE tenant_id = $1 AND key_id = $2 AND last_at > now() - interval '30 days' GROUP BY origin ORDER BY max(last_at) DESC, origin LIMIT $3
