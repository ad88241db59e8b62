-- Lists are planned with their arguments: see runs.
-- name: end_users
SELECT id, external_id, name, email, attributes, tags, residency, created_at, updated_at FROM end_users
WHERE tenant_id = $1 AND id < $2 AND deleted_at IS NULL AND ($3::text IS NULL OR external_id = $3) AND ($4::text IS NULL OR tags @> ARRAY[$4]) ORDER BY id DESC LIMIT $5

-- name: end_users_tagged
SELECT e.id, e.external_id, e.name, e.email, e.attributes, e.tags, e.residency, e.created_at, e.updated_at
FROM end_user_tags t JOIN end_users e ON e.tenant_id = $1 AND e.id = t.end_user_id
WHERE t.tenant_id = $1 AND t.tag = $3 AND t.end_user_id < $2 AND e.deleted_at IS NULL ORDER BY t.end_user_id DESC LIMIT $4

-- name: end_user
SELECT id, external_id, name, email, attributes, tags, residency, created_at, updated_at FROM end_users
WHERE tenant_id = $1 AND id = $2 AND deleted_at IS NULL

-- name: end_user_lock
SELECT id, external_id, name, email, attributes, tags, residency, created_at, updated_at FROM end_users
WHERE tenant_id = $1 AND id = $2 AND deleted_at IS NULL FOR NO KEY UPDATE

-- name: end_user_live
SELECT id FROM end_users WHERE tenant_id = $1 AND id = $2 AND deleted_at IS NULL

-- name: end_user_known
SELECT id, external_id, name, email, attributes, tags, residency, created_at, updated_at FROM end_users
WHERE tenant_id = $1 AND external_id = $2 AND deleted_at IS NULL

-- name: end_user_insert
INSERT INTO end_users (tenant_id, id, external_id, name, email, attributes) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (tenant_id, external_id) WHERE deleted_at IS NULL DO NOTHING
RETURNING id

-- name: end_user_update
UPDATE end_users SET name = $3, email = $4, attributes = $5, tags = $6, residency = $7, updated_at = now()
WHERE tenant_id = $1 AND id = $2
RETURNING id, external_id, name, email, attributes, tags, residency, created_at, updated_at

-- No data of the person stays in the row.
-- name: end_user_delete
UPDATE end_users SET deleted_at = now(), updated_at = now(), external_id = id::text, name = NULL, email = NULL, attributes = '{}', tags = '{}', residency = NULL
WHERE tenant_id = $1 AND id = $2 AND deleted_at IS NULL

-- Threads with open runs come first. The comparison of the tenant makes the planner use
-- runs_person and threads_end_user.
-- name: end_user_threads
WITH open AS MATERIALIZED (
  SELECT DISTINCT thread_id AS id FROM runs
  WHERE (tenant_id = $1) IS TRUE AND person_id = $2 AND finished_at IS NULL AND thread_id IS NOT NULL
)
SELECT t.id FROM threads t LEFT JOIN open o ON o.id = t.id
WHERE (t.tenant_id = $1) IS TRUE AND t.end_user_id = $2 AND t.deleted_at IS NULL
ORDER BY o.id IS NULL, t.id DESC LIMIT $3
