-- What one flush consists of, in this order. Every bulk statement takes one
-- array per column. Of each the writer makes a second one, by text, for flushes
-- with a single row of that kind: its unnest of arrays becomes a SELECT of values.
--
-- A row that must take effect and does not is an error, so that the database
-- refuses the whole transaction and not the writer: its end may be on its way
-- already. Inserts meet a key; swaps raise SVC01 by svc_missed, in HAVING, so
-- that no row is answered.

-- name: begin
BEGIN

-- name: commit
COMMIT

-- name: rollback
ROLLBACK

-- name: fence
-- The process must not have been declared dead. The row of flushes is the evidence that
-- this very flush was committed.
WITH own AS MATERIALIZED (
  SELECT id FROM members WHERE id = $1 AND dead_at IS NULL FOR KEY SHARE
), evidence AS (
  INSERT INTO flushes (lane, n, member_id) SELECT $2, $3, id FROM own
)
SELECT FROM own HAVING CASE WHEN count(*) = 0 THEN svc_missed() END

-- name: forget
-- The evidence of flushes whose outcome is known. The lower bound keeps the scan from
-- visiting rows that were deleted before and are not vacuumed yet.
DELETE FROM flushes WHERE lane = $1 AND n >= $2 AND n < $3

-- name: idempotency_insert
INSERT INTO idempotency (tenant_id, digest, fingerprint, status, response, created_at)
SELECT u.tenant_id, u.digest, u.fingerprint, u.status, u.response, u.created_at
FROM unnest($1::uuid[], $2::bytea[], $3::bytea[], $4::int[], $5::bytea[], $6::timestamptz[])
  AS u (tenant_id, digest, fingerprint, status, response, created_at)
ORDER BY u.tenant_id, u.digest -- one order for all writers: no deadlock

-- name: thread_insert
INSERT INTO threads (tenant_id, id, agent_id, title, created_by, end_user_id, next_seq, created_at, updated_at, last_op)
SELECT u.tenant_id, u.id, u.agent_id, u.title, u.created_by, u.end_user_id, u.next_seq, u.created_at, u.created_at, u.op
FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::uuid[], $7::bigint[], $8::timestamptz[], $9::uuid[])
  AS u (tenant_id, id, agent_id, title, created_by, end_user_id, next_seq, created_at, op)

-- name: thread_update
WITH done AS (
  UPDATE threads t
  SET version = t.version + 1, owner_epoch = u.set_epoch, next_seq = u.next_seq, updated_at = u.updated_at,
      deleted_at = coalesce(u.deleted_at, t.deleted_at), last_op = u.op
  FROM unnest($1::uuid[], $2::uuid[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::timestamptz[], $8::timestamptz[], $9::uuid[])
    AS u (tenant_id, id, version, epoch, set_epoch, next_seq, updated_at, deleted_at, op)
  WHERE t.tenant_id = u.tenant_id AND t.id = u.id AND t.version = u.version AND t.owner_epoch = u.epoch
  RETURNING 1
)
SELECT FROM done HAVING CASE WHEN count(*) <> cardinality($1) THEN svc_missed() END

-- name: run_insert
INSERT INTO runs (tenant_id, id, status, agent_id, agent_version, workflow_id, thread_id, thread_seq, parent_run_id,
                  input, origin_kind, origin_id, end_user_id, person_id, created_at, state, last_op)
SELECT u.tenant_id, u.id, 'queued', u.agent_id, u.agent_version, u.workflow_id, u.thread_id, u.thread_seq, u.parent_run_id,
       u.input, u.origin_kind, u.origin_id, u.end_user_id, u.person_id, u.created_at, u.state, u.op
FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::int[], $5::uuid[], $6::uuid[], $7::bigint[], $8::uuid[],
            $9::json[], $10::text[], $11::uuid[], $12::uuid[], $13::uuid[], $14::timestamptz[], $15::bytea[], $16::uuid[])
  AS u (tenant_id, id, agent_id, agent_version, workflow_id, thread_id, thread_seq, parent_run_id,
        input, origin_kind, origin_id, end_user_id, person_id, created_at, state, op)

-- name: run_update
WITH done AS (
  UPDATE runs r
  SET version = r.version + 1, owner_epoch = u.set_epoch, status = u.status, output = u.output,
      error_code = u.error_code, error_message = u.error_message, tokens_in = u.tokens_in, tokens_out = u.tokens_out,
      cost_usd = u.cost_usd, started_at = u.started_at, finished_at = u.finished_at, seq = u.seq, steps = u.steps,
      state = u.state, last_op = u.op
  FROM unnest($1::uuid[], $2::uuid[], $3::bigint[], $4::bigint[], $5::bigint[], $6::text[], $7::json[], $8::text[], $9::text[],
              $10::bigint[], $11::bigint[], $12::float8[], $13::timestamptz[], $14::timestamptz[], $15::bigint[], $16::int[], $17::bytea[], $18::uuid[])
    AS u (tenant_id, id, version, epoch, set_epoch, status, output, error_code, error_message,
          tokens_in, tokens_out, cost_usd, started_at, finished_at, seq, steps, state, op)
  WHERE r.tenant_id = u.tenant_id AND r.id = u.id AND r.version = u.version AND r.owner_epoch = u.epoch
  RETURNING 1
)
SELECT FROM done HAVING CASE WHEN count(*) <> cardinality($1) THEN svc_missed() END

-- name: step_insert
INSERT INTO run_steps (tenant_id, run_id, idx, kind, name, status, input, sealed, agent_id, agent_version, withheld, began_seq, called_seq, started_at)
SELECT u.tenant_id, u.run_id, u.idx, u.kind, u.name, u.status, u.input, u.sealed, u.agent_id, u.agent_version, u.withheld, u.began_seq, u.called_seq, u.started_at
FROM unnest($1::uuid[], $2::uuid[], $3::int[], $4::text[], $5::text[], $6::text[], $7::json[], $8::bytea[], $9::uuid[], $10::int[],
            $11::boolean[], $12::bigint[], $13::bigint[], $14::timestamptz[])
  AS u (tenant_id, run_id, idx, kind, name, status, input, sealed, agent_id, agent_version, withheld, began_seq, called_seq, started_at)

-- name: step_call
WITH done AS (
  UPDATE run_steps s
  SET status = 'running', called_seq = u.called_seq, input = coalesce(u.input, s.input), sealed = coalesce(u.sealed, s.sealed)
  FROM unnest($1::uuid[], $2::uuid[], $3::int[], $4::bigint[], $5::json[], $6::bytea[]) AS u (tenant_id, run_id, idx, called_seq, input, sealed)
  WHERE s.tenant_id = u.tenant_id AND s.run_id = u.run_id AND s.idx = u.idx
  RETURNING 1
)
SELECT FROM done HAVING CASE WHEN count(*) <> cardinality($1) THEN svc_missed() END

-- name: step_update
WITH done AS (
  UPDATE run_steps s
  SET status = u.status, output = u.output, segments = u.segments::int[], sealed = coalesce(u.sealed, s.sealed),
      tokens_in = u.tokens_in, tokens_out = u.tokens_out, cost_usd = u.cost_usd, ended_seq = u.ended_seq, finished_at = u.finished_at
  FROM unnest($1::uuid[], $2::uuid[], $3::int[], $4::text[], $5::json[], $6::text[], $7::bytea[], $8::bigint[], $9::bigint[], $10::float8[],
              $11::bigint[], $12::timestamptz[])
    AS u (tenant_id, run_id, idx, status, output, segments, sealed, tokens_in, tokens_out, cost_usd, ended_seq, finished_at)
  WHERE s.tenant_id = u.tenant_id AND s.run_id = u.run_id AND s.idx = u.idx
  RETURNING 1
)
SELECT FROM done HAVING CASE WHEN count(*) <> cardinality($1) THEN svc_missed() END

-- name: mark_insert
INSERT INTO run_marks (tenant_id, run_id, seq, type, data)
SELECT u.tenant_id, u.run_id, u.seq, u.type, u.data
FROM unnest($1::uuid[], $2::uuid[], $3::bigint[], $4::text[], $5::json[]) AS u (tenant_id, run_id, seq, type, data)

-- name: message_purge
DELETE FROM messages m
USING unnest($1::uuid[], $2::uuid[]) AS u (tenant_id, thread_id)
WHERE m.tenant_id = u.tenant_id AND m.thread_id = u.thread_id

-- name: message_insert
INSERT INTO messages (tenant_id, thread_id, seq, id, role, content, attachments, run_id, created_at)
SELECT u.tenant_id, u.thread_id, u.seq, u.id, u.role, u.content, u.attachments, u.run_id, u.created_at
FROM unnest($1::uuid[], $2::uuid[], $3::bigint[], $4::uuid[], $5::text[], $6::text[], $7::json[], $8::uuid[], $9::timestamptz[])
  AS u (tenant_id, thread_id, seq, id, role, content, attachments, run_id, created_at)

-- name: timer_delete
DELETE FROM timers t
USING unnest($1::uuid[], $2::text[], $3::uuid[], $4::text[]) AS u (tenant_id, kind, entity_id, name)
WHERE t.tenant_id = u.tenant_id AND t.kind = u.kind AND t.entity_id = u.entity_id AND t.name = u.name

-- name: timer_set
INSERT INTO timers (tenant_id, kind, entity_id, name, due_at)
SELECT u.tenant_id, u.kind, u.entity_id, u.name, u.due_at
FROM unnest($1::uuid[], $2::text[], $3::uuid[], $4::text[], $5::timestamptz[]) AS u (tenant_id, kind, entity_id, name, due_at)
ON CONFLICT (tenant_id, kind, entity_id, name) DO UPDATE SET due_at = excluded.due_at, claimed_until = NULL

-- name: usage_insert
INSERT INTO usage_records (tenant_id, id, at, kind, run_id, agent_id, model, tokens_in, tokens_out, cost_usd, detail)
SELECT u.tenant_id, u.id, u.at, u.kind, u.run_id, u.agent_id, u.model, u.tokens_in, u.tokens_out, u.cost_usd, u.detail
FROM unnest($1::uuid[], $2::uuid[], $3::timestamptz[], $4::text[], $5::uuid[], $6::uuid[], $7::text[], $8::bigint[], $9::bigint[],
            $10::float8[], $11::json[])
  AS u (tenant_id, id, at, kind, run_id, agent_id, model, tokens_in, tokens_out, cost_usd, detail)

-- name: audit_insert
INSERT INTO audit_log (tenant_id, id, at, actor, action, target_kind, target_id, ip, detail)
SELECT u.tenant_id, u.id, u.at, u.actor, u.action, u.target_kind, u.target_id, u.ip, u.detail
FROM unnest($1::uuid[], $2::uuid[], $3::timestamptz[], $4::text[], $5::text[], $6::text[], $7::uuid[], $8::text[], $9::json[])
  AS u (tenant_id, id, at, actor, action, target_kind, target_id, ip, detail)

-- The lock keeps an endpoint that is being removed from being referred to: one that
-- is gone by then drops out of the join.
-- name: event_insert
WITH heard AS MATERIALIZED (
  SELECT u.tenant_id, u.id, u.type, u.body, u.created_at, w.id AS webhook_id
  FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::bytea[], $5::timestamptz[]) AS u (tenant_id, id, type, body, created_at)
  JOIN webhooks w ON w.tenant_id = u.tenant_id
  WHERE w.enabled AND w.events && ARRAY[u.type, '*'] AND (w.expires_at IS NULL OR w.expires_at > u.created_at)
  FOR KEY SHARE OF w
)
INSERT INTO webhook_deliveries (tenant_id, id, webhook_id, event_id, type, body, next_attempt_at, created_at)
SELECT h.tenant_id, new_id(h.created_at), h.webhook_id, h.id, h.type, h.body, h.created_at, h.created_at FROM heard h
