-- The last use of a key, to within some seconds: of many sessions that begin at once only one
-- writes it, and none waits.
-- name: visit_used
WITH due AS (
  SELECT id FROM embed_keys WHERE tenant_id = $1 AND id = $2 AND (last_used_at IS NULL OR last_used_at < now() - interval '5 seconds')
  FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE embed_keys k SET last_used_at = now() FROM due WHERE k.tenant_id = $1 AND k.id = due.id
