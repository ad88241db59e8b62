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

-- Planned with its arguments: a condition without an argument vanishes. What statuses imply is
-- repeated ($6: some are open, $7: some failed, $8: some others), so that the small indexes are
-- used. A thread's runs are found by its messages, an end user's among the runs of that person, and
-- times by the index of origins.
-- $17 leaves contents out, and reads the beginning of what was asked.
-- name: runs
SELECT id, status, agent_id, agent_version, workflow_id,
  CASE WHEN workflow_id IS NOT NULL THEN (SELECT w.workflow_version FROM workflow_runs w WHERE w.tenant_id = $1 AND w.id = runs.id) END AS workflow_version,
  thread_id, parent_run_id, CASE WHEN NOT $17 THEN input END AS input, CASE WHEN NOT $17 THEN output END AS output,
  CASE WHEN $17 THEN left(input::text, 4096) END AS asked, error_code, error_message,
  origin_kind, origin_id, end_user_id, tokens_in, tokens_out, cost_usd, created_at, started_at, finished_at
FROM (
  SELECT id AS of FROM runs
  WHERE tenant_id = $1 AND id < $2 AND ($3::uuid IS NULL OR agent_id = $3) AND ($4::uuid IS NULL OR workflow_id = $4) AND ($5::text[] IS NULL OR status = ANY ($5))
    AND ($7::boolean OR $8::boolean OR finished_at IS NULL) AND ($6::boolean OR $8 OR error_code IS NOT NULL) AND ($8 OR finished_at IS NULL OR error_code IS NOT NULL)
    AND ($9::text IS NULL OR origin_kind = $9)
    AND ($19::uuid IS NULL OR origin_id = $19) AND ($19 IS NULL OR origin_kind = 'trigger')
    AND ($10::uuid IS NULL OR person_id = $10) AND ($10 IS NULL OR end_user_id = $10)
    AND ($11::uuid IS NULL OR id = ANY (ARRAY(SELECT run_id FROM messages WHERE tenant_id = $1 AND thread_id = $11 AND run_id IS NOT NULL))) AND ($11 IS NULL OR thread_id = $11)
    AND ($12::uuid IS NULL OR parent_run_id = $12) AND (NOT $13::boolean OR parent_run_id IS NULL)
    AND ($14::text IS NULL OR error_code = $14)
    AND ($15::timestamptz IS NULL OR created_at >= $15) AND ($16::timestamptz IS NULL OR created_at < $16)
    AND ($15 IS NULL AND $16 IS NULL OR origin_kind = ANY ('{api_key,user,trigger,channel,embed_key,workflow}'))
  ORDER BY id DESC LIMIT $18
) page JOIN runs ON tenant_id = $1 AND id = page.of
ORDER BY id DESC LIMIT $18

-- $3 leaves contents out, as above.
-- name: run
SELECT id, status, agent_id, agent_version, workflow_id,
  CASE WHEN workflow_id IS NOT NULL THEN (SELECT w.workflow_version FROM workflow_runs w WHERE w.tenant_id = $1 AND w.id = runs.id) END AS workflow_version,
  thread_id, parent_run_id, CASE WHEN NOT $3::boolean THEN input END AS input, CASE WHEN NOT $3 THEN output END AS output,
  CASE WHEN $3 THEN left(input::text, 4096) END AS asked, error_code, error_message,
  origin_kind, origin_id, end_user_id, tokens_in, tokens_out, cost_usd, created_at, started_at, finished_at FROM runs
WHERE tenant_id = $1 AND id = $2

-- name: run_exists
SELECT id FROM runs WHERE tenant_id = $1 AND id = $2

-- name: artifacts
SELECT id, kind, name, media_type, size_bytes, created_at FROM artifacts WHERE tenant_id = $1 AND run_id = $2 AND id < $3 ORDER BY id DESC LIMIT $4

-- name: artifact
SELECT id, kind, name, media_type, size_bytes, created_at FROM artifacts WHERE tenant_id = $1 AND run_id = $2 AND id = $3

-- $4 leaves contents out.
-- name: steps
SELECT idx, kind, name, status, CASE WHEN NOT $4::boolean THEN input END AS input, CASE WHEN NOT $4 THEN output END AS output,
  tokens_in, tokens_out, cost_usd, started_at, finished_at FROM run_steps
WHERE tenant_id = $1 AND run_id = $2 AND idx > $3 ORDER BY idx

-- name: step
SELECT idx, kind, name, status, input, output, tokens_in, tokens_out, cost_usd, started_at, finished_at FROM run_steps
WHERE tenant_id = $1 AND run_id = $2 AND idx = $3
