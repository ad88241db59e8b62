-- name: lock_joins
-- Two processes that start at once must not both find no other member. The lock ends with the
-- transaction; its key is 'svc' and 'join' in ASCII.
SELECT pg_advisory_xact_lock(x'737663'::int, x'6a6f696e'::int);

-- name: others
-- Members that the new process cannot run beside: all, or those without an address.
SELECT id, address, lease, lease_until, clock_timestamp() AS clock
FROM members WHERE id <> $1 AND dead_at IS NULL AND ($2::boolean OR address = '') ORDER BY id;

-- name: lock_others
-- FOR UPDATE waits for the commits whose fence holds the row; the beat, and the fence of
-- later commits, wait for us.
SELECT id, address, lease, lease_until, clock_timestamp() AS clock
FROM members WHERE id <> $1 AND dead_at IS NULL AND ($2::boolean OR address = '') ORDER BY id FOR UPDATE;

-- name: mark_others
UPDATE members SET dead_at = clock_timestamp() WHERE id = ANY ($1::uuid[]) AND dead_at IS NULL;

-- name: shares
-- The secret, uploads and keys of the members that hold a lease.
SELECT id, address, secret, uploads, keys FROM members
WHERE id <> $1 AND dead_at IS NULL AND lease_until > clock_timestamp() AND address <> '' ORDER BY id;

-- name: forget_dead
DELETE FROM members WHERE dead_at < clock_timestamp() - interval '1 day';

-- name: join
-- A new process has empty caches: it counts as having handled all revocations so far.
INSERT INTO members (id, address, version, lease, started_at, lease_until, forgot, secret, uploads, keys)
VALUES ($1, $2, $3, $4, clock_timestamp(), clock_timestamp() + $4::interval, coalesce(pg_sequence_last_value('revocations'), 0), $5, $6, $7)
RETURNING clock_timestamp() AS clock, forgot;

-- name: beat
-- The counter is read after this transaction holds the row: RETURNING calls a volatile
-- function when the row has been updated. So a revocation that was announced before is seen
-- here, and one announced later finds the row locked or renewed (see lapsed_mindful).
UPDATE members SET lease_until = clock_timestamp() + $2::interval, forgot = $3
WHERE id = $1 AND dead_at IS NULL
RETURNING clock_timestamp() AS clock, coalesce(pg_sequence_last_value('revocations'), 0) AS counter;

-- name: living
-- Living members, and dead ones whose lease has not expired.
SELECT id, address, version, draining, started_at, lease, lease_until, dead_at IS NOT NULL AS dead, clock_timestamp() AS clock
FROM members WHERE dead_at IS NULL OR lease_until > clock_timestamp() ORDER BY id;

-- name: patience
SELECT pg_backend_pid(), set_config('lock_timeout', $1, true);

-- name: mark_dead
-- Only the row in the state that was read: one renewed since has another end. FOR UPDATE
-- waits for the commits whose fence holds the row, and the condition is checked again after
-- the wait.
WITH gone AS (
  SELECT id FROM members WHERE id = $1 AND dead_at IS NULL AND lease_until = $2 FOR UPDATE
)
UPDATE members m SET dead_at = clock_timestamp() FROM gone WHERE m.id = gone.id;

-- name: as_login
-- Backends belong to the login, not to the role that it took.
SET LOCAL ROLE NONE;

-- name: cut
-- Ends the backends that block $1 while they wait for their own client.
SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE pid = ANY (pg_blocking_pids($1)) AND datname = current_database() AND wait_event_type = 'Client';

-- name: leave
DELETE FROM members WHERE id = $1 AND dead_at IS NULL;

-- name: drain
UPDATE members SET draining = $2 WHERE id = $1 AND dead_at IS NULL;

-- name: announce
SELECT nextval('revocations');

-- name: mindful
SELECT id FROM members WHERE id = ANY ($2::uuid[]) AND forgot < $1 AND lease_until > clock_timestamp() ORDER BY id;

-- name: lapsed_mindful
-- FOR SHARE waits for a beat in progress. It may have read the counter before it moved, and
-- would extend a lease that is not visible yet.
WITH held AS (
  SELECT id, lease_until FROM members WHERE id = ANY ($2::uuid[]) AND forgot < $1 AND dead_at IS NULL ORDER BY id FOR SHARE
)
SELECT id FROM held WHERE lease_until > clock_timestamp();

-- name: list
SELECT id, address, version, started_at, lease_until, draining, dead_at, forgot, clock_timestamp() AS clock
FROM members ORDER BY started_at, id;
