-- A lane's connection.

-- name: lane_setup
-- The shapes of the statements never change with their arrays: one plan for all.
-- A row that another session holds locked must not stop a lane for long.
SELECT set_config('plan_cache_mode', 'force_generic_plan', false),
       set_config('lock_timeout', '500ms', false),
       set_config('enable_hashjoin', 'off', false),
       set_config('enable_mergejoin', 'off', false),
       set_config('jit', 'off', false)

-- name: lane_backend
SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()

-- name: old_backend
-- A lost connection's backend may still be at work on what was sent to it. A login sees its own
-- sessions whole. After a restart or a fail-over the number may belong to a session of another
-- login, whose start is hidden: that one is no backend of ours.
SELECT pid FROM pg_stat_activity WHERE pid = $1 AND backend_start = $2

-- name: forget_dead
-- The evidence that processes which have ended left behind. A process that was declared
-- dead writes nothing more, so it needs none.
DELETE FROM flushes f USING (
  SELECT lane, n FROM flushes o
  WHERE NOT EXISTS (SELECT FROM members m WHERE m.id = o.member_id AND m.dead_at IS NULL)
  FOR UPDATE SKIP LOCKED
) AS old WHERE f.lane = old.lane AND f.n = old.n

-- name: touch_keys
-- Lazy: a key that another session is writing keeps its older value.
UPDATE api_keys k SET last_used_at = u.at
FROM (SELECT a.tenant_id, a.id, v.at
      FROM unnest($1::uuid[], $2::uuid[], $3::timestamptz[]) AS v (tenant_id, id, at)
      JOIN api_keys a ON a.tenant_id = v.tenant_id AND a.id = v.id
      WHERE a.last_used_at IS NULL OR a.last_used_at < v.at
      FOR NO KEY UPDATE OF a SKIP LOCKED) AS u
WHERE k.tenant_id = u.tenant_id AND k.id = u.id
