-- name: begin
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY

-- name: commit
COMMIT

-- name: run
SELECT status, agent_id, agent_version, thread_id, thread_seq, parent_run_id, input, output, error_code, error_message, origin_kind, origin_id, end_user_id,
       tokens_in, tokens_out, cost_usd, created_at, started_at, finished_at, seq, steps, version, owner_epoch, state
FROM runs WHERE tenant_id = $1 AND id = $2

-- Open steps in order, with their approvals. A turn has at most 128 calls, and no step begins
-- before its last one has ended. An edit is read once it is decided: a run that waits for many
-- edits reads none of them. No index may be used for the tenant of the approvals: see
-- approvals_step_key.
-- name: open_steps
SELECT s.idx, s.kind, s.name, s.status, s.began_seq, s.sealed,
       a.id, a.status, a.decision, a.feedback, CASE WHEN a.status = 'edited' THEN a.edited END, CASE WHEN a.status = 'edited' THEN a.decisions END,
       a.digest, a.on_timeout, a.risk, a.assignee_role, a.expires_at
FROM run_steps s
LEFT JOIN LATERAL (SELECT * FROM approvals WHERE run_id = $2 AND step_idx = s.idx AND (tenant_id = $1) IS TRUE LIMIT 1) a ON s.status = 'waiting'
WHERE s.tenant_id = $1 AND s.run_id = $2 AND s.idx >= (SELECT r.steps - 128 FROM runs r WHERE r.tenant_id = $1 AND r.id = $2)
  AND s.status IN ('running', 'waiting')
ORDER BY s.idx

-- The size of all values is read without the values: Postgres keeps it beside them. If they do not fit into $4 bytes, none is read.
-- name: sealed
SELECT idx, CASE WHEN size <= $4 THEN sealed END, size FROM (
  SELECT idx, sealed, sum(octet_length(sealed)) OVER () AS size FROM run_steps
  WHERE tenant_id = $1 AND run_id = $2 AND idx >= $3 AND sealed IS NOT NULL AND status IN ('succeeded', 'failed')
) s ORDER BY idx

-- The chunks that a run's searches found, of those that have one of the marks $3.
-- name: cited
SELECT c ->> 'cite', (c ->> 'document_id')::uuid, c ->> 'document_name', c ->> 'uri', (c ->> 'position')::int
FROM run_steps s, json_array_elements(s.output -> 'results') r, json_array_elements(r -> 'chunks') c
WHERE s.tenant_id = $1 AND s.run_id = $2 AND s.kind = 'retrieval' AND s.status = 'succeeded' AND c ->> 'cite' = ANY($3::text[])

-- name: manifest
SELECT manifest FROM agent_versions WHERE tenant_id = $1 AND agent_id = $2 AND version = $3

-- An archived agent no longer has a slug.
-- name: published
SELECT id, published_version FROM agents
WHERE tenant_id = $1 AND slug = $2 AND archived_at IS NULL AND published_version IS NOT NULL

-- name: slug
SELECT slug FROM agents WHERE tenant_id = $1 AND id = $2

-- The last messages up to a position, newest first: those that fit into $5 bytes, and the one at the position. The last column is the
-- size of all, with what they name of their attachments. Contents are not read for it: Postgres keeps their sizes beside them.
-- name: messages
SELECT seq, role, content, attachments, size FROM (
  SELECT seq, role, content, attachments, sum(bytes) OVER () AS size,
         sum(bytes) OVER (ORDER BY seq DESC ROWS UNBOUNDED PRECEDING) AS so_far
  FROM (
    SELECT seq, role, content, attachments, octet_length(content) + coalesce(octet_length(attachments::text), 0) AS bytes
    FROM messages WHERE tenant_id = $1 AND thread_id = $2 AND seq <= $3 ORDER BY seq DESC LIMIT $4
  ) last
) m WHERE so_far <= $5 OR seq = $3 ORDER BY seq DESC

-- name: thread
SELECT agent_id, created_by, end_user_id, next_seq, deleted_at, version, owner_epoch FROM threads WHERE tenant_id = $1 AND id = $2

-- name: open_runs
SELECT id, thread_seq FROM runs
WHERE tenant_id = $1 AND thread_id = $2 AND thread_seq > $3 AND finished_at IS NULL
ORDER BY thread_seq LIMIT $4

-- The runs of the newest messages, newest first.
-- name: asked
SELECT run_id FROM messages WHERE tenant_id = $1 AND thread_id = $2 AND role = 'user' AND run_id IS NOT NULL ORDER BY seq DESC LIMIT $3

-- name: audited
SELECT EXISTS (SELECT FROM audit_log WHERE tenant_id = $1 AND id = $2 AND action = $3 AND target_id = $4)

-- name: accepted
SELECT EXISTS (SELECT FROM runs WHERE tenant_id = $1 AND thread_id = $2 AND id = $3)

-- The state of a thread, in one statement and so at one moment.
-- name: standing
SELECT (SELECT count(*)::int FROM messages m WHERE m.tenant_id = $1 AND m.thread_id = $2),
       coalesce(last.owed, 0), last.id, last.status,
       EXISTS (SELECT FROM runs r WHERE r.tenant_id = $1 AND r.thread_id = $2 AND r.id = $3)
FROM (VALUES (1)) AS always (row)
LEFT JOIN LATERAL (
  SELECT r.id, r.status, count(*) OVER ()::int AS owed FROM runs r
  WHERE r.tenant_id = $1 AND r.thread_id = $2 AND r.finished_at IS NULL ORDER BY r.thread_seq DESC LIMIT 1
) last ON true
