-- name: idempotency
SELECT fingerprint, status, response, created_at < now() - interval '24 hours' AS expired
FROM idempotency WHERE tenant_id = $1 AND digest = $2

-- name: idempotency_forget
DELETE FROM idempotency WHERE tenant_id = $1 AND digest = $2 AND created_at < now() - interval '24 hours'

-- name: idempotency_insert
INSERT INTO idempotency (tenant_id, digest, fingerprint, status, response, created_at) VALUES ($1, $2, $3, $4, $5, now())
ON CONFLICT (tenant_id, digest) DO NOTHING
