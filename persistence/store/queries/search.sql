-- Searches (console.md, GET /v1/search). Each query finds objects of one kind: by an id ($3), by the
-- last four bytes of an id ($4), or by text: in lower case, or the bounds of the texts that begin
-- with it, as found_by makes them. Absent are NULL; the queries are planned with their arguments.
-- Large tables are read by indexes. rank is 0 for an id, 1 for the beginning of a text, and 2 for
-- another part of it.

-- name: search_runs
SELECT 'run' AS kind, id, CASE WHEN workflow_id IS NULL THEN 'Agent run' ELSE 'Workflow run' END AS title, status::text AS detail, 0 AS rank
FROM runs WHERE tenant_id = $1 AND ($3::uuid IS NULL OR id = $3) AND ($4::bytea IS NULL OR short_of(id) = $4) AND ($3 IS NOT NULL OR $4 IS NOT NULL)
ORDER BY id DESC LIMIT $2

-- Approvals that the caller's role may decide ($5), and those for managers of its nodes ($6).
-- name: search_approvals
SELECT 'approval' AS kind, id, tool AS title, status::text || ', ' || risk::text || ' risk' AS detail, 0 AS rank
FROM approvals WHERE tenant_id = $1 AND ($3::uuid IS NULL OR id = $3) AND ($4::bytea IS NULL OR short_of(id) = $4) AND ($3 IS NOT NULL OR $4 IS NOT NULL)
  AND (assignee_role = ANY ($5::text[]) OR assignee_role = 'manager' AND node_id = ANY ($6::uuid[]))
ORDER BY id DESC LIMIT $2

-- name: search_threads
SELECT 'thread' AS kind, id, coalesce(title, 'Thread') AS title, created_by AS detail, 0 AS rank
FROM threads WHERE tenant_id = $1 AND ($3::uuid IS NULL OR id = $3) AND ($4::bytea IS NULL OR short_of(id) = $4) AND ($3 IS NOT NULL OR $4 IS NOT NULL) AND deleted_at IS NULL
ORDER BY id DESC LIMIT $2

-- name: search_titles
SELECT 'thread' AS kind, id, title, created_by AS detail, 1 AS rank
FROM threads WHERE tenant_id = $1 AND found_by(tenant_id, title) ~>=~ $3::text AND found_by(tenant_id, title) ~<~ $4::text AND title IS NOT NULL AND deleted_at IS NULL
ORDER BY found_by(tenant_id, title) USING ~<~ LIMIT $2

-- $5: e-mails are shown too.
-- name: search_end_users
SELECT 'end_user' AS kind, id, coalesce(name, external_id) AS title, concat_ws(', ', external_id, CASE WHEN $5::boolean THEN email END) AS detail, 0 AS rank
FROM end_users WHERE tenant_id = $1 AND ($3::uuid IS NULL OR id = $3) AND ($4::bytea IS NULL OR short_of(id) = $4) AND ($3 IS NOT NULL OR $4 IS NOT NULL) AND deleted_at IS NULL
ORDER BY id DESC LIMIT $2

-- $5: e-mails are searched and shown too.
-- name: search_people
(SELECT 'end_user' AS kind, id, coalesce(name, external_id) AS title, concat_ws(', ', external_id, CASE WHEN $5::boolean THEN email END) AS detail, 1 AS rank
FROM end_users WHERE tenant_id = $1 AND found_by(tenant_id, external_id) ~>=~ $3::text AND found_by(tenant_id, external_id) ~<~ $4::text AND deleted_at IS NULL
ORDER BY found_by(tenant_id, external_id) USING ~<~ LIMIT $2)
UNION
(SELECT 'end_user', id, coalesce(name, external_id), concat_ws(', ', external_id, CASE WHEN $5 THEN email END), 1
FROM end_users WHERE tenant_id = $1 AND found_by(tenant_id, name) ~>=~ $3 AND found_by(tenant_id, name) ~<~ $4 AND name IS NOT NULL AND deleted_at IS NULL
ORDER BY found_by(tenant_id, name) USING ~<~ LIMIT $2)
UNION
(SELECT 'end_user', id, coalesce(name, external_id), concat_ws(', ', external_id, email), 1
FROM end_users WHERE $5 AND tenant_id = $1 AND found_by(tenant_id, email) ~>=~ $3 AND found_by(tenant_id, email) ~<~ $4 AND email IS NOT NULL AND deleted_at IS NULL
ORDER BY found_by(tenant_id, email) USING ~<~ LIMIT $2)

-- name: search_mails
SELECT 'user' AS kind, id, email AS title, name AS detail, 1 AS rank
FROM users WHERE tenant_id = $1 AND found_by(tenant_id, email) ~>=~ $3::text AND found_by(tenant_id, email) ~<~ $4::text
ORDER BY found_by(tenant_id, email) USING ~<~ LIMIT $2

-- The kinds whose tables are small, of which the newest 2,000 rows are searched by any part of
-- their texts: {kind}, {table}, {title}, {detail}, {found} and {live} are those of a kind.
-- name: search_newest
SELECT '{kind}' AS kind, id, title, detail,
  CASE WHEN $3::uuid IS NOT NULL OR short_of(id) = $4 THEN 0 WHEN starts_with(found, $5) OR position(E'\n' || $5 IN found) > 0 THEN 1 ELSE 2 END AS rank
FROM (
  SELECT id, {title} AS title, {detail} AS detail, lower(concat_ws(E'\n', {found})) AS found FROM {table}
  WHERE tenant_id = $1 AND {live} AND ($3::uuid IS NULL OR id = $3) ORDER BY id DESC LIMIT 2000
) newest
WHERE $3 IS NOT NULL OR short_of(id) = $4::bytea OR position($5::text IN found) > 0
ORDER BY rank, id DESC LIMIT $2
