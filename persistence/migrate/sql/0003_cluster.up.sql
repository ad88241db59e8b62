-- Several nodes are one service.

-- A node that drains owns no shards. forgot is the last revocation that it has
-- acted on, as of its last beat. lease says how long each renewal is good for:
-- lease_until - lease is when the last one was. secret names the cluster's secret,
-- uploads the node's directory of files, and keys its master keys, the one that it
-- seals under first: nodes that do not share them are not let in.
ALTER TABLE members
  ADD COLUMN lease    interval NOT NULL DEFAULT '3 seconds',
  ADD COLUMN version  text     NOT NULL DEFAULT '',
  ADD COLUMN draining boolean  NOT NULL DEFAULT false,
  ADD COLUMN forgot   bigint   NOT NULL DEFAULT 0,
  ADD COLUMN secret   text     NOT NULL DEFAULT '',
  ADD COLUMN uploads  text     NOT NULL DEFAULT '',
  ADD COLUMN keys     text[]   NOT NULL DEFAULT '{}';

-- Counts revocations: a node whose beat meets a higher value than before empties
-- its caches before it relies on its lease again.
CREATE SEQUENCE revocations MINVALUE 0 START 1;
SELECT setval('revocations', 0);

-- The shard that an id carries (package id), NULL for an id that was not minted
-- by the service. Not STRICT, so that it is taken into the expressions that call
-- it: a call for each row made an accepted run dearer by a tenth.
CREATE FUNCTION shard_of(uuid) RETURNS int IMMUTABLE PARALLEL SAFE LANGUAGE sql AS $$
  SELECT CASE WHEN get_byte(uuid_send($1), 6) >> 4 = 7
              THEN ((get_byte(uuid_send($1), 8) & 63) << 4) | (get_byte(uuid_send($1), 9) >> 4) END
$$;
-- How a node finds the open runs of its shards, -1 being those of foreign ids.
CREATE INDEX runs_open_shard ON runs (coalesce(shard_of(id), -1), id) WHERE finished_at IS NULL;
GRANT USAGE, SELECT ON SEQUENCE revocations TO svc_api, svc_system;
