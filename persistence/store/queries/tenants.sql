-- name: tenant
SELECT id, name, residency, created_at, updated_at FROM tenants WHERE id = $1

-- name: tenant_lock
SELECT id, name, residency, created_at, updated_at FROM tenants WHERE id = $1 FOR NO KEY UPDATE

-- name: tenant_insert
INSERT INTO tenants (id, name) VALUES ($1, $2)

-- name: tenants
SELECT id, name, residency, created_at, updated_at FROM tenants ORDER BY id

-- name: tenant_update
UPDATE tenants SET name = $2, residency = $3, updated_at = now()
WHERE id = $1
RETURNING id, name, residency, created_at, updated_at

-- name: user
SELECT id, email, name, role, created_at, updated_at FROM users WHERE tenant_id = $1 AND id = $2

-- name: user_insert
INSERT INTO users (tenant_id, id, email, name, role, password_hash) VALUES ($1, $2, $3, $4, $5, $6)
RETURNING id, email, name, role, created_at, updated_at

-- name: audit_insert
INSERT INTO audit_log (tenant_id, id, at, actor, action, target_kind, target_id, ip, detail)
VALUES ($1, $2, now(), $3, $4, $5, $6, $7, $8)

-- name: audit_insert_all
INSERT INTO audit_log (tenant_id, id, at, actor, action, target_kind, target_id, ip)
SELECT $1, u.id, now(), $3, $4, $5, u.target_id, $7 FROM unnest($2::uuid[], $6::uuid[]) AS u (id, target_id)
