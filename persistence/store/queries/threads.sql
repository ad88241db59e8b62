-- name: attachment
SELECT id, name, media_type, size_bytes, created_at FROM attachments WHERE tenant_id = $1 AND id = $2

-- name: attachments
SELECT id, name, media_type, size_bytes, created_at FROM attachments WHERE tenant_id = $1 AND id = ANY($2)

-- name: attachment_insert
INSERT INTO attachments (tenant_id, id, name, media_type, size_bytes, sha256, created_by) VALUES ($1, $2, $3, $4, $5, $6, $7)
RETURNING id, name, media_type, size_bytes, created_at

-- name: threads
SELECT id, agent_id, title, created_by, end_user_id, created_at, updated_at FROM threads
WHERE tenant_id = $1 AND id < $2 AND deleted_at IS NULL ORDER BY id DESC LIMIT $3

-- name: thread
SELECT id, agent_id, title, created_by, end_user_id, created_at, updated_at FROM threads
WHERE tenant_id = $1 AND id = $2 AND deleted_at IS NULL

-- name: thread_insert
INSERT INTO threads (tenant_id, id, agent_id, title, created_by) VALUES ($1, $2, $3, $4, $5)

-- name: messages_newest
SELECT seq - 1 FROM messages WHERE tenant_id = $1 AND thread_id = $2 ORDER BY seq DESC OFFSET $3 - 1 LIMIT 1

-- name: messages_after
SELECT seq, id, role, content, attachments, citations, run_id, created_at FROM messages
WHERE tenant_id = $1 AND thread_id = $2 AND seq > $3 ORDER BY seq LIMIT $4

-- Conditions that a status implies are repeated, so that the small indexes are used.
-- name: runs
SELECT id, status, agent_id, agent_version, workflow_id, thread_id, parent_run_id, input, output, error_code, error_message,
  origin_kind, origin_id, end_user_id, tokens_in, tokens_out, cost_usd, created_at, started_at, finished_at FROM runs
WHERE tenant_id = $1 AND id < $2 AND ($3::uuid IS NULL OR agent_id = $3) AND ($4::uuid IS NULL OR workflow_id = $4) AND ($5::text IS NULL OR status = $5)
  AND ($5 IS NULL OR $5 NOT IN ('failed', 'cancelled') OR error_code IS NOT NULL)
  AND ($5 IS NULL OR $5 NOT IN ('queued', 'running', 'waiting_approval') OR finished_at IS NULL)
ORDER BY id DESC LIMIT $6

-- name: run
SELECT id, status, agent_id, agent_version, workflow_id, thread_id, parent_run_id, input, output, error_code, error_message,
  origin_kind, origin_id, end_user_id, tokens_in, tokens_out, cost_usd, created_at, started_at, finished_at FROM runs
WHERE tenant_id = $1 AND id = $2

-- name: run_exists
SELECT id FROM runs WHERE tenant_id = $1 AND id = $2

-- name: artifacts
SELECT id, kind, name, media_type, size_bytes, created_at FROM artifacts WHERE tenant_id = $1 AND run_id = $2 AND id < $3 ORDER BY id DESC LIMIT $4

-- name: artifact
SELECT id, kind, name, media_type, size_bytes, created_at FROM artifacts WHERE tenant_id = $1 AND run_id = $2 AND id = $3

-- name: steps
SELECT idx, kind, name, status, input, output, tokens_in, tokens_out, cost_usd, started_at, finished_at FROM run_steps
WHERE tenant_id = $1 AND run_id = $2 AND idx > $3 ORDER BY idx
