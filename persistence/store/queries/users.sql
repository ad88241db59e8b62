-- name: users
SELECT id, email, name, role, created_at, updated_at FROM users
WHERE tenant_id = $1 AND id < $2 ORDER BY id DESC LIMIT $3

-- The user and every owner: changes of owners are serialised.
-- name: users_lock
SELECT id, email, name, role, created_at, updated_at FROM users
WHERE tenant_id = $1 AND (id = $2 OR role = 'owner') ORDER BY id FOR NO KEY UPDATE

-- name: user_update
UPDATE users SET email = $3, name = $4, role = $5, password_hash = coalesce($6, password_hash), updated_at = now()
WHERE tenant_id = $1 AND id = $2
RETURNING id, email, name, role, created_at, updated_at

-- name: user_delete
DELETE FROM users WHERE tenant_id = $1 AND id = $2

-- name: user_by_email
SELECT id, email, name, role, created_at, updated_at FROM users WHERE tenant_id = $1 AND lower(email) = lower($2)

-- name: user_password
SELECT password_hash FROM users WHERE tenant_id = $1 AND id = $2

-- name: user_password_set
UPDATE users SET password_hash = $3, updated_at = now() WHERE tenant_id = $1 AND id = $2 AND password_hash = $4

-- Across tenants: a login may name none.
-- name: users_login
SELECT tenant_id AS tenant, id, role, password_hash FROM users
WHERE lower(email) = lower($1) AND password_hash IS NOT NULL ORDER BY id
