-- name: audit
SELECT id, at, actor, action, target_kind, target_id, nullif(ip, '') AS ip, detail FROM audit_log
WHERE tenant_id = $1 AND id < $2 AND id >= $10 AND ($3::text IS NULL OR actor = $3) AND ($4::text IS NULL OR action = $4)
  AND ($5::text IS NULL OR target_kind = $5) AND ($6::uuid IS NULL OR target_id = $6)
  AND ($7::timestamptz IS NULL OR at >= $7) AND ($8::timestamptz IS NULL OR at < $8)
ORDER BY id DESC LIMIT $9
