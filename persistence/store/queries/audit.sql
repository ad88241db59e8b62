-- name: audit
SELECT id, at, actor, action, target_kind, target_id, nullif(ip, '') AS ip, detail FROM audit_log
WHERE tenant_id = $1 AND id < $2 AND id >= $10 AND ($3::text IS NULL OR actor = $3) AND ($4::text IS NULL OR action = $4)
  AND ($5::text IS NULL OR target_kind = $5) AND ($6::uuid IS NULL OR target_id = $6)
  AND ($7::timestamptz IS NULL OR at >= $7) AND ($8::timestamptz IS NULL OR at < $8)
ORDER BY id DESC LIMIT $9

-- The same for an action that not every message writes, for its index.
-- name: audit_of_action
SELECT id, at, actor, action, target_kind, target_id, nullif(ip, '') AS ip, detail FROM audit_log
WHERE tenant_id = $1 AND id < $2 AND id >= $10 AND ($3::text IS NULL OR actor = $3) AND action = $4 AND action <> 'message.create'
  AND ($5::text IS NULL OR target_kind = $5) AND ($6::uuid IS NULL OR target_id = $6)
  AND ($7::timestamptz IS NULL OR at >= $7) AND ($8::timestamptz IS NULL OR at < $8)
ORDER BY id DESC LIMIT $9

-- The same for a person, for the index of people.
-- name: audit_of_user
SELECT id, at, actor, action, target_kind, target_id, nullif(ip, '') AS ip, detail FROM audit_log
WHERE tenant_id = $1 AND id < $2 AND id >= $10 AND actor = $3 AND actor LIKE 'user:%' AND ($4::text IS NULL OR action = $4)
  AND ($5::text IS NULL OR target_kind = $5) AND ($6::uuid IS NULL OR target_id = $6)
  AND ($7::timestamptz IS NULL OR at >= $7) AND ($8::timestamptz IS NULL OR at < $8)
ORDER BY id DESC LIMIT $9

-- The same for a target. The index leaves out messages: the one row of a message has its time, from $11 on and before $12.
-- name: audit_of_target
SELECT id, at, actor, action, target_kind, target_id, nullif(ip, '') AS ip, detail FROM (
  (SELECT * FROM audit_log
   WHERE tenant_id = $1 AND id < $2 AND id >= $10 AND action <> 'message.create' AND target_id = $6
     AND ($3::text IS NULL OR actor = $3) AND ($4::text IS NULL OR action = $4) AND ($5::text IS NULL OR target_kind = $5)
     AND ($7::timestamptz IS NULL OR at >= $7) AND ($8::timestamptz IS NULL OR at < $8)
   ORDER BY id DESC LIMIT $9)
  UNION ALL
  (SELECT * FROM audit_log
   WHERE tenant_id = $1 AND id < $12 AND id >= $11 AND action = 'message.create' AND target_id = $6 AND ($5::text IS NULL OR $5 = 'message')
     AND ($3::text IS NULL OR actor = $3) AND ($4::text IS NULL OR action = $4)
     AND ($7::timestamptz IS NULL OR at >= $7) AND ($8::timestamptz IS NULL OR at < $8)
   ORDER BY id DESC LIMIT $9)
) a ORDER BY id DESC LIMIT $9
