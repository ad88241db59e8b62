-- name: settle_flush
-- Reports whether a flush was committed.
SELECT EXISTS (SELECT FROM flushes WHERE lane = $1 AND n = $2)
