-- A schedule's row is the snapshot of its actor, like the rows of runs, threads and
-- approvals: every change of the row counts version up.
ALTER TABLE triggers
  ADD COLUMN IF NOT EXISTS version     bigint NOT NULL DEFAULT 1,
  ADD COLUMN IF NOT EXISTS owner_epoch bigint NOT NULL DEFAULT 0,
  ADD COLUMN IF NOT EXISTS last_op     uuid;
