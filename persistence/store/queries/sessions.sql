-- name: session
SELECT s.user_id AS "user", u.role, s.secret_hash, s.created_at, s.used_at
FROM sessions s JOIN users u ON u.tenant_id = s.tenant_id AND u.id = s.user_id
WHERE s.tenant_id = $1 AND s.id = $2

-- name: sessions
SELECT s.tenant_id AS tenant, s.id, s.user_id AS "user", u.role, s.secret_hash, s.created_at, s.used_at
FROM unnest($1::uuid[], $2::uuid[]) AS k (tenant_id, id)
JOIN sessions s ON s.tenant_id = k.tenant_id AND s.id = k.id
JOIN users u ON u.tenant_id = s.tenant_id AND u.id = s.user_id

-- Begins a session of a user whose password is still the one that was checked. A concurrent
-- change of the user waits for the lock and then ends this session too, or this statement
-- sees the change.
-- name: session_insert
INSERT INTO sessions (tenant_id, id, user_id, secret_hash, created_at, used_at)
SELECT tenant_id, $3, id, $4, $5, $5 FROM users
WHERE tenant_id = $1 AND id = $2 AND ($6::text IS NULL OR password_hash = $6) FOR SHARE

-- name: session_use
UPDATE sessions SET used_at = $3 WHERE tenant_id = $1 AND id = $2 AND used_at < $3

-- name: session_delete
DELETE FROM sessions WHERE tenant_id = $1 AND id = $2

-- name: sessions_delete
DELETE FROM sessions WHERE tenant_id = $1 AND user_id = $2

-- name: link_insert
INSERT INTO login_links (tenant_id, id, user_id, secret_hash, expires_at) VALUES ($1, $2, $3, $4, now() + $5)
RETURNING expires_at

-- name: link
SELECT user_id AS "user", secret_hash, expires_at FROM login_links WHERE tenant_id = $1 AND id = $2

-- name: link_lock
SELECT user_id AS "user", secret_hash, expires_at FROM login_links WHERE tenant_id = $1 AND id = $2 FOR UPDATE

-- name: link_delete
DELETE FROM login_links WHERE tenant_id = $1 AND id = $2

-- name: links_delete
DELETE FROM login_links WHERE tenant_id = $1 AND user_id = $2
