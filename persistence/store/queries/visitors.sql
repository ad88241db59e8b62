-- name: visitor_threads
SELECT id, title, created_at, updated_at FROM threads
WHERE tenant_id = $1 AND created_by = $2 AND created_by LIKE 'embed:%' AND agent_id = $3 AND id < $4 AND deleted_at IS NULL
ORDER BY id DESC LIMIT $5

-- name: visitor_thread
SELECT id FROM threads
WHERE tenant_id = $1 AND id = $2 AND created_by = $3 AND created_by LIKE 'embed:%' AND agent_id = $4 AND deleted_at IS NULL

-- The newest messages up to a total of $4 bytes, and the one that exceeds it.
-- name: visitor_messages
SELECT id, role, content, citations, run_id, created_at FROM (
  SELECT newest.*, sum(size) OVER (ORDER BY seq DESC) - size AS newer FROM (
    SELECT m.seq, m.id, m.role, m.content, m.citations, m.run_id, m.created_at,
      octet_length(m.content) + coalesce(octet_length(m.citations::text), 0) AS size FROM messages m
    WHERE m.tenant_id = $1 AND m.thread_id = $2 AND m.role IN ('user', 'assistant') ORDER BY m.seq DESC LIMIT $3
  ) newest
) counted WHERE newer < $4::bigint ORDER BY seq

-- name: visitor_run
SELECT r.id FROM runs r JOIN threads t ON t.tenant_id = r.tenant_id AND t.id = r.thread_id
WHERE r.tenant_id = $1 AND r.id = $2 AND t.created_by = $3 AND t.created_by LIKE 'embed:%' AND t.agent_id = $4 AND t.deleted_at IS NULL
