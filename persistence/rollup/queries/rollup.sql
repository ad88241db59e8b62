-- Is there anything to fold? idle passes take no lock.
-- name: any
SELECT EXISTS (SELECT FROM tallies)

-- The one fold at a time. behind: the counter of transactions is behind the mark, as after the
-- restore of a dump in a new server.
-- name: mark
SELECT folded::text, pg_snapshot_xmin(pg_current_snapshot())::text, folded > pg_snapshot_xmax(pg_current_snapshot()) FROM stats_mark FOR UPDATE SKIP LOCKED

-- After a restore, what is left was not folded.
-- name: restart
UPDATE tallies SET xid = pg_current_xact_id()

-- The transaction before which a fold of $3 tallies ends. The first transaction is folded whole,
-- however many tallies it has.
-- name: bound
SELECT xid::text FROM tallies
WHERE xid < $2::text::xid8
  AND xid >= (SELECT xid FROM tallies WHERE xid >= $1::text::xid8 AND xid < $2::text::xid8 ORDER BY xid OFFSET $3 LIMIT 1)
  AND xid > (SELECT xid FROM tallies WHERE xid >= $1::text::xid8 AND xid < $2::text::xid8 ORDER BY xid LIMIT 1)
ORDER BY xid LIMIT 1

-- name: take
DELETE FROM tallies WHERE xid >= $1::text::xid8 AND xid < $2::text::xid8
RETURNING tenant_id, what::text, at, agent_id, ms, first_ms, tokens_in, tokens_out, cost_usd

-- name: plan
SELECT set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true), set_config('jit', 'off', true)

-- name: histograms
SELECT u.ord, s.duration, s.first_token, s.decision
FROM unnest($1::int[], $2::uuid[], $3::uuid[], $4::int[], $5::timestamptz[]) AS u (ord, tenant_id, agent_id, minutes, at)
JOIN stats s ON s.tenant_id = u.tenant_id AND s.agent_id = u.agent_id AND s.minutes = u.minutes AND s.at = u.at

-- Only a fold writes, so the histograms that it read have not changed since.
-- 1e14: see most in sums.go.
-- name: put
INSERT INTO stats AS s (tenant_id, agent_id, minutes, at, succeeded, failed, cancelled, requested, decided, expired, delivered, undelivered,
  tokens_in, tokens_out, cost_usd, duration, first_token, decision)
SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::int[], $4::timestamptz[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[],
  $13::bigint[], $14::bigint[], $15::float8[], $16::bytea[], $17::bytea[], $18::bytea[])
ON CONFLICT (tenant_id, agent_id, minutes, at) DO UPDATE SET
  succeeded = s.succeeded + excluded.succeeded, failed = s.failed + excluded.failed, cancelled = s.cancelled + excluded.cancelled,
  requested = s.requested + excluded.requested, decided = s.decided + excluded.decided, expired = s.expired + excluded.expired,
  delivered = s.delivered + excluded.delivered, undelivered = s.undelivered + excluded.undelivered,
  tokens_in = least(s.tokens_in::numeric + excluded.tokens_in, 1e14)::bigint, tokens_out = least(s.tokens_out::numeric + excluded.tokens_out, 1e14)::bigint,
  cost_usd = least(s.cost_usd + excluded.cost_usd, 1e14),
  duration = excluded.duration, first_token = excluded.first_token, decision = excluded.decision

-- The oldest rows of the series that a fold adds to, if they are older than $4. Each fold deletes a
-- few, so that no fold takes long.
-- name: trim
DELETE FROM stats WHERE ctid = ANY (ARRAY(
  SELECT s.ctid FROM unnest($1::uuid[], $2::uuid[], $3::int[]) AS u (tenant_id, agent_id, minutes)
  CROSS JOIN LATERAL (SELECT ctid FROM stats WHERE tenant_id = u.tenant_id AND agent_id = u.agent_id AND minutes = u.minutes AND at < $4 ORDER BY at LIMIT 100) s))

-- name: advance
UPDATE stats_mark SET folded = $1::text::xid8
