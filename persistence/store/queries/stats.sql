-- The sums of an agent, or of all together under the agent 0, of ranges. OFFSET keeps each
-- range a scan of its own.
-- name: stats_sums
SELECT s.at, s.succeeded, s.failed, s.cancelled, s.requested, s.decided, s.expired, s.delivered, s.undelivered, s.tokens_in, s.tokens_out, s.cost_usd, s.duration, s.first_token, s.decision
FROM unnest($3::int[], $4::timestamptz[], $5::timestamptz[]) AS r (minutes, since, until)
CROSS JOIN LATERAL (
  SELECT * FROM stats WHERE tenant_id = $1 AND agent_id = $2 AND minutes = r.minutes AND at >= r.since AND at < r.until OFFSET 0
) s

-- What no fold has added yet.
-- name: stats_rest
SELECT tenant_id, what::text AS what, at, agent_id, ms, first_ms, tokens_in, tokens_out, cost_usd FROM tallies
WHERE tenant_id = $1 AND xid >= (SELECT folded FROM stats_mark) AND at >= $2 AND at < $3 AND ($4::uuid IS NULL OR agent_id = $4)

-- The sums of the agents of which a run failed: in one of the hours since $2, or later than the
-- last fold.
-- name: stats_of_agents
SELECT a.id AS agent_id, coalesce(sum(s.succeeded), 0)::bigint AS succeeded, coalesce(sum(s.failed), 0)::bigint AS failed, coalesce(sum(s.cancelled), 0)::bigint AS cancelled,
  min(s.at) FILTER (WHERE s.failed > 0) AS since
FROM (
  SELECT agent_id FROM stats WHERE tenant_id = $1 AND minutes = 60 AND failed > 0 AND at >= $2 AND agent_id <> '00000000-0000-0000-0000-000000000000'
  UNION
  SELECT agent_id FROM tallies WHERE tenant_id = $1 AND xid >= (SELECT folded FROM stats_mark) AND what = 'failed' AND agent_id IS NOT NULL
  LIMIT 200
) AS a (id)
CROSS JOIN unnest($3::int[], $4::timestamptz[], $5::timestamptz[]) AS r (minutes, since, until)
LEFT JOIN LATERAL (
  SELECT * FROM stats WHERE tenant_id = $1 AND agent_id = a.id AND minutes = r.minutes AND at >= r.since AND at < r.until OFFSET 0
) s ON true GROUP BY a.id

-- name: overview_open
SELECT status::text AS status, count(*) AS n FROM runs WHERE tenant_id = $1 AND finished_at IS NULL GROUP BY 1

-- $2: the roles that the caller's satisfies, $3: the nodes that it manages, $4: its entry in the
-- ledgers. All keys of a tenant are one person. Those without a vote, nearly all, are read from the
-- index approvals_waiting alone.
-- name: overview_approvals
SELECT risk::text AS risk, count(*) AS pending, min(expires_at) AS next_expires_at,
  count(*) FILTER (WHERE mine) AS mine, min(created_at) FILTER (WHERE mine) AS since
FROM (
  SELECT risk, expires_at, created_at, (assignee_role = ANY ($2::text[]) OR assignee_role = 'manager' AND node_id = ANY ($3::uuid[])) AS mine
  FROM approvals WHERE tenant_id = $1 AND status = 'pending' AND approvals_so_far = 0
  UNION ALL
  SELECT risk, expires_at, created_at, (assignee_role = ANY ($2::text[]) OR assignee_role = 'manager' AND node_id = ANY ($3::uuid[]))
    AND NOT EXISTS (SELECT FROM json_array_elements(decisions) AS d (entry) WHERE regexp_replace(d.entry->>'principal', '^apikey:.*', 'apikey') = $4)
  FROM approvals WHERE tenant_id = $1 AND status = 'pending' AND approvals_so_far > 0
) p GROUP BY 1

-- name: overview_deliveries
SELECT coalesce(sum(p.n), 0)::bigint FROM webhooks w CROSS JOIN LATERAL (
  SELECT count(*) AS n FROM webhook_deliveries WHERE tenant_id = $1 AND webhook_id = w.id AND status = 'pending'
) p WHERE w.tenant_id = $1

-- $2 is the least id of the period.
-- name: attention_endpoints
SELECT w.id, w.url AS title, f.n AS count, f.since
FROM webhooks w CROSS JOIN LATERAL (
  SELECT count(*) AS n, min(created_at) AS since FROM (
    SELECT created_at FROM webhook_deliveries WHERE tenant_id = $1 AND webhook_id = w.id AND status = 'failed' AND id >= $2 ORDER BY id DESC LIMIT 10000
  ) d
) f
WHERE w.tenant_id = $1 AND w.enabled AND w.expires_at IS NULL AND f.n > 0 ORDER BY f.n DESC, w.id LIMIT 20

-- Tool servers whose last exchange failed.
-- name: attention_servers
SELECT id, name AS title, 1::bigint AS count, health_at AS since FROM mcp_servers
WHERE tenant_id = $1 AND enabled AND NOT health_ok AND health_at IS NOT NULL ORDER BY health_at DESC, id LIMIT 20

-- name: attention_sources
SELECT id, base_id AS parent_id, name AS title, 1::bigint AS count, updated_at AS since FROM knowledge_sources
WHERE tenant_id = $1 AND deleted_at IS NULL AND enabled AND status = 'failed' ORDER BY updated_at DESC, id LIMIT 20

-- Triggers of the newest 1000 runs of the period that ended badly.
-- name: attention_triggers
SELECT t.id, t.name AS title, f.n AS count, f.since
FROM (
  SELECT origin_id, count(*) AS n, min(finished_at) AS since FROM (
    SELECT origin_kind, origin_id, status, finished_at FROM runs WHERE tenant_id = $1 AND error_code IS NOT NULL AND id >= $2 ORDER BY id DESC LIMIT 1000
  ) r WHERE origin_kind = 'trigger' AND status = 'failed' GROUP BY 1
) f JOIN triggers t ON t.tenant_id = $1 AND t.id = f.origin_id
WHERE t.enabled ORDER BY f.n DESC, t.id LIMIT 20

-- name: attention_agents
SELECT id, name AS title FROM agents WHERE tenant_id = $1 AND id = ANY ($2) AND archived_at IS NULL
