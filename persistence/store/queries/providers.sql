-- name: providers
SELECT id, slug, kind, base_url, credentials <> '' AS has_credentials, coalesce(prices, '{}') AS prices, created_at, updated_at FROM model_providers
WHERE tenant_id = $1 AND id < $2 ORDER BY id DESC LIMIT $3

-- name: provider
SELECT id, slug, kind, base_url, credentials <> '' AS has_credentials, coalesce(prices, '{}') AS prices, created_at, updated_at FROM model_providers WHERE tenant_id = $1 AND id = $2

-- name: provider_lock
SELECT id, slug, kind, base_url, credentials <> '' AS has_credentials, coalesce(prices, '{}') AS prices, created_at, updated_at FROM model_providers WHERE tenant_id = $1 AND id = $2 FOR UPDATE

-- name: provider_slug
SELECT id FROM model_providers WHERE tenant_id = $1 AND slug = $2

-- name: provider_kind
SELECT kind FROM model_providers WHERE tenant_id = $1 AND slug = $2

-- name: provider_sealed
SELECT id, kind, base_url, prices, credentials FROM model_providers WHERE tenant_id = $1 AND slug = $2

-- name: provider_insert
INSERT INTO model_providers (tenant_id, id, slug, kind, base_url, credentials, prices) VALUES ($1, $2, $3, $4, $5, $6, $7)
RETURNING id, slug, kind, base_url, credentials <> '' AS has_credentials, coalesce(prices, '{}') AS prices, created_at, updated_at

-- name: provider_update
UPDATE model_providers SET slug = $3, kind = $4, base_url = $5, credentials = coalesce($6, credentials), prices = $7, updated_at = now()
WHERE tenant_id = $1 AND id = $2
RETURNING id, slug, kind, base_url, credentials <> '' AS has_credentials, coalesce(prices, '{}') AS prices, created_at, updated_at

-- The empty value means no credentials.
-- name: provider_empty
UPDATE model_providers SET credentials = '' WHERE tenant_id = $1 AND id = $2 AND credentials <> ''

-- name: provider_delete
DELETE FROM model_providers WHERE tenant_id = $1 AND id = $2
