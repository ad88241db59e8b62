-- name: usage_records
SELECT id, at, kind, run_id, agent_id, model, tokens_in, tokens_out, cost_usd, detail FROM usage_records
WHERE tenant_id = $1 AND id < $2 AND ($3::text IS NULL OR kind = $3) ORDER BY id DESC LIMIT $4

-- The same for a kind of which not every message makes one, for its index.
-- name: usage_of_kind
SELECT id, at, kind, run_id, agent_id, model, tokens_in, tokens_out, cost_usd, detail FROM usage_records
WHERE tenant_id = $1 AND id < $2 AND kind = $3 AND kind <> 'llm' ORDER BY id DESC LIMIT $4

-- Those of a run. The index leaves out its model turns, which have the run's times: from $6 on and before $7.
-- name: usage_of_run
SELECT id, at, kind, run_id, agent_id, model, tokens_in, tokens_out, cost_usd, detail FROM (
  (SELECT * FROM usage_records
   WHERE tenant_id = $1 AND id < $2 AND run_id = $5 AND kind <> 'llm' AND ($3::text IS NULL OR kind = $3) ORDER BY id DESC LIMIT $4)
  UNION ALL
  (SELECT * FROM usage_records
   WHERE tenant_id = $1 AND id < $7 AND id >= $6 AND run_id = $5 AND kind = 'llm' AND ($3::text IS NULL OR $3 = 'llm') ORDER BY id DESC LIMIT $4)
) u ORDER BY id DESC LIMIT $4

-- name: usage_of_run_between
SELECT created_at, finished_at FROM runs WHERE tenant_id = $1 AND id = $2

-- name: usage_by_day
SELECT to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD') AS day, count(DISTINCT run_id) AS runs, sum(tokens_in)::bigint AS tokens_in, sum(tokens_out)::bigint AS tokens_out,
  sum(cost_usd) AS cost_usd, count(*) FILTER (WHERE kind = 'browser_skill_run') AS browser_skill_runs
FROM usage_records WHERE tenant_id = $1 AND id >= $4 AND id < $5 AND at >= $2 AND at < $3 GROUP BY 1 ORDER BY 1 DESC LIMIT 10000

-- name: usage_by_agent
SELECT agent_id, count(DISTINCT run_id) AS runs, sum(tokens_in)::bigint AS tokens_in, sum(tokens_out)::bigint AS tokens_out,
  sum(cost_usd) AS cost_usd, count(*) FILTER (WHERE kind = 'browser_skill_run') AS browser_skill_runs
FROM usage_records WHERE tenant_id = $1 AND id >= $4 AND id < $5 AND at >= $2 AND at < $3 GROUP BY 1 ORDER BY cost_usd DESC, runs DESC, 1 LIMIT 10000

-- name: usage_by_model
SELECT model, count(DISTINCT run_id) AS runs, sum(tokens_in)::bigint AS tokens_in, sum(tokens_out)::bigint AS tokens_out,
  sum(cost_usd) AS cost_usd, count(*) FILTER (WHERE kind = 'browser_skill_run') AS browser_skill_runs
FROM usage_records WHERE tenant_id = $1 AND id >= $4 AND id < $5 AND at >= $2 AND at < $3 GROUP BY 1 ORDER BY cost_usd DESC, runs DESC, 1 LIMIT 10000

-- name: usage_by_kind
SELECT kind, count(DISTINCT run_id) AS runs, sum(tokens_in)::bigint AS tokens_in, sum(tokens_out)::bigint AS tokens_out,
  sum(cost_usd) AS cost_usd, count(*) FILTER (WHERE kind = 'browser_skill_run') AS browser_skill_runs
FROM usage_records WHERE tenant_id = $1 AND id >= $4 AND id < $5 AND at >= $2 AND at < $3 GROUP BY 1 ORDER BY cost_usd DESC, runs DESC, 1
