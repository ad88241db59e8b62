-- The statements of a flush besides those of its rows, which are made from their tables.
--
-- A row that must take effect and does not is an error, so that the database refuses the
-- whole transaction and not the writer: its end may be on its way already. Inserts meet a
-- key; swaps raise SVC01 by svc_missed, in HAVING, so that no row is answered.

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
