-- name: usage_records
SELECT id, at, kind, run_id, agent_id, model, tokens_in, tokens_out, cost_usd, detail FROM usage_records
WHERE tenant_id = $1 AND id < $2 AND ($3::text IS NULL OR kind = $3) AND ($4::uuid IS NULL OR run_id = $4)
ORDER BY id DESC LIMIT $5

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
