-- name: keys
SELECT id, name, prefix, last_used_at, revoked_at, created_at, updated_at FROM api_keys
WHERE tenant_id = $1 AND id < $2 ORDER BY id DESC LIMIT $3

-- name: key_hash
SELECT secret_hash FROM api_keys WHERE tenant_id = $1 AND id = $2 AND revoked_at IS NULL

-- name: key_hashes
SELECT k.tenant_id AS tenant, k.id AS key, k.secret_hash FROM unnest($1::uuid[], $2::uuid[]) AS u (tenant_id, id)
JOIN api_keys k ON k.tenant_id = u.tenant_id AND k.id = u.id WHERE k.revoked_at IS NULL

-- name: key_insert
INSERT INTO api_keys (tenant_id, id, name, prefix, secret_hash) VALUES ($1, $2, $3, $4, $5)
RETURNING id, name, prefix, last_used_at, revoked_at, created_at, updated_at

-- name: key_rename
UPDATE api_keys SET name = $3, updated_at = now()
WHERE tenant_id = $1 AND id = $2 AND revoked_at IS NULL
RETURNING id, name, prefix, last_used_at, revoked_at, created_at, updated_at

-- name: key_revoke
UPDATE api_keys SET revoked_at = coalesce(revoked_at, now()), updated_at = CASE WHEN revoked_at IS NULL THEN now() ELSE updated_at END
WHERE tenant_id = $1 AND id = $2
RETURNING revoked_at = now() AS changed
