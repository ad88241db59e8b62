-- name: begin
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;

-- name: tenant
SELECT set_config('svc.tenant', $1, true);

-- name: run
SELECT agent_id, status, started_at IS NOT NULL, seq, output, coalesce(error_code, ''), coalesce(error_message, ''), tokens_in, tokens_out, cost_usd
FROM runs WHERE tenant_id = $1 AND id = $2;

-- The steps that a reader at a position needs: those that began, were called or ended after
-- it, and the step that contains it. Of the arguments and the output of a call the frames show a
-- preview only: 513 characters tell its 512 bytes and whether there are more. Of an abandoned step they show the beginning
-- only, and what it said counts against no limit of its run.
-- name: steps_after
SELECT idx, kind, name, status, began_seq, coalesce(called_seq, 0), coalesce(ended_seq, 0),
       CASE WHEN kind IN ('tool', 'retrieval') THEN left(input::text, 513) END,
       CASE WHEN kind = 'tool' THEN left(output::text, 513) WHEN status <> 'abandoned' THEN output::text END, segments, NOT withheld
FROM run_steps WHERE tenant_id = $1 AND run_id = $2 AND (began_seq >= $3 OR called_seq > $3 OR ended_seq > $3)
ORDER BY idx;

-- The steps after an idx, each with its beginning and the thinking of its model only. The first segment is thinking; a model
-- that spoke first has it empty, and its next thinking is the third.
-- name: steps_since
SELECT idx, kind, name, status, began_seq, 0::bigint, 0::bigint, NULL::json,
       CASE WHEN kind = 'llm' AND status <> 'abandoned' AND (segments[1] > 0 OR segments[3] > 0) THEN json_build_object('thinking', output -> 'thinking') END, segments, NOT withheld
FROM run_steps WHERE tenant_id = $1 AND run_id = $2 AND idx > $3
ORDER BY idx;

-- name: marks_after
SELECT seq, type, data FROM run_marks WHERE tenant_id = $1 AND run_id = $2 AND seq > $3 ORDER BY seq;

-- name: end
COMMIT;

-- name: heads
SELECT k.run_id, r.seq, r.status IN ('succeeded', 'failed', 'cancelled', 'expired')
FROM unnest($1::uuid[], $2::uuid[]) AS k (tenant_id, run_id)
JOIN runs r ON r.tenant_id = k.tenant_id AND r.id = k.run_id;
