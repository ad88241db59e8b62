-- The evidence of the group-commit writer's flushes. Each flush inserts its row in its
-- own transaction, so the row is there if and only if the flush was committed. A lane
-- that lost its connection before the answer looks for it. lane is the id of one lane of
-- one process, n counts its flushes. A lane deletes its rows once their outcome is known.
-- A row for each lane that every flush updates would become slow while a backup or
-- another long transaction holds old row versions back.
CREATE TABLE flushes (
  lane      uuid   NOT NULL,
  n         bigint NOT NULL,
  member_id uuid   NOT NULL,
  PRIMARY KEY (lane, n)
);
REVOKE ALL ON flushes FROM svc_api;
