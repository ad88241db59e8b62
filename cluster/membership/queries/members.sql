-- name: lock_joins
-- Two processes that start at once must not both find nobody. The lock ends
-- with the transaction; its key is 'svc' and 'join' in ASCII.
SELECT pg_advisory_xact_lock(x'737663'::int, x'6a6f696e'::int);

-- name: others
SELECT id, lease_until, clock_timestamp() AS clock
FROM members WHERE id <> $1 AND dead_at IS NULL ORDER BY id;

-- name: lock_others
-- FOR UPDATE waits for the commits whose fence holds the row; the beat and the
-- fence of later ones wait for us.
SELECT id, lease_until, clock_timestamp() AS clock
FROM members WHERE id <> $1 AND dead_at IS NULL ORDER BY id FOR UPDATE;

-- name: mark_dead
UPDATE members SET dead_at = clock_timestamp() WHERE id = ANY ($1::uuid[]) AND dead_at IS NULL;

-- name: forget_dead
DELETE FROM members WHERE dead_at < clock_timestamp() - interval '1 day';

-- name: join
INSERT INTO members (id, address, started_at, lease_until)
VALUES ($1, $2, clock_timestamp(), clock_timestamp() + $3::interval)
RETURNING clock_timestamp() AS clock;

-- name: beat
UPDATE members SET lease_until = clock_timestamp() + $2::interval
WHERE id = $1 AND dead_at IS NULL
RETURNING clock_timestamp() AS clock;

-- name: leave
DELETE FROM members WHERE id = $1;
