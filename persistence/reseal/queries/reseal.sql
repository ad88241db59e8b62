-- Each query is completed for one column of one table: {table}, {column}, {keys} (the
-- primary key after the tenant), {row} (that key as text, as in the place of a sealed value),
-- {after} and {own} (the key as parameters).

-- A page of sealed values after a row, without NULL and empty values. The values before the
-- last one have less than $2 bytes together, so a large value does not make a page empty.
-- name: page
SELECT tenant_id, row, value
FROM (
  SELECT tenant_id, row, value, n, sum(octet_length(value)) OVER (ORDER BY n) - octet_length(value) AS before
  FROM (
    SELECT tenant_id, {row} AS row, {column} AS value, row_number() OVER (ORDER BY tenant_id, {keys}) AS n
    FROM (
      SELECT tenant_id, {keys}, {column} FROM {table}
      WHERE (tenant_id, {keys}) > ($3::uuid, {after}) AND {column} <> ''
      ORDER BY tenant_id, {keys} LIMIT $1
    ) found
  ) numbered
) summed
WHERE before < $2::bigint
ORDER BY n

-- Skips a locked row, and one that was written since it was read: the writer wins, and no
-- session waits for a lock while it holds another.
-- name: swap
UPDATE {table} t SET {column} = $2
FROM (
  SELECT tenant_id FROM {table} WHERE tenant_id = $3::uuid AND ({keys}) = ({own}) AND {column} = $1 FOR NO KEY UPDATE SKIP LOCKED
) own
WHERE t.tenant_id = own.tenant_id AND ({keys}) = ({own}) AND t.{column} = $1

-- The first value of a column, without NULL and empty values.
-- name: sample
SELECT tenant_id, {row} AS row, {column} AS value FROM {table} WHERE {column} <> '' LIMIT 1

-- name: canary
SELECT value FROM canary

-- name: canary_insert
INSERT INTO canary (value) VALUES ($1) ON CONFLICT DO NOTHING

-- name: canary_swap
UPDATE canary SET value = $2 WHERE value = $1

-- The living servers that do not know a key. One that published no keys is of a release that had none to publish.
-- name: unknowing
SELECT id::text, address FROM members
WHERE dead_at IS NULL AND lease_until > clock_timestamp() AND cardinality(keys) > 0 AND NOT ($1 = ANY (keys))
ORDER BY id

-- Whether a living server seals under another key than this one.
-- name: sealing_otherwise
SELECT EXISTS (SELECT FROM members
  WHERE dead_at IS NULL AND lease_until > clock_timestamp() AND cardinality(keys) > 0 AND keys[1] <> $1)
