-- name: settle_flush
-- Reports whether a flush was committed. With synchronous replication a row may be visible that
-- the standby does not have, because the commit's wait for it was cut off. The commit of this
-- update has a later position in the log, so it waits until the standby has both.
WITH seen AS (UPDATE flushes SET n = n WHERE lane = $1 AND n = $2 RETURNING n)
SELECT EXISTS (SELECT FROM seen)
