-- Several nodes are one service.

-- A node that drains owns no shards. forgot is the last revocation that it has
-- acted on, as of its last beat.
ALTER TABLE members
  ADD COLUMN version  text    NOT NULL DEFAULT '',
  ADD COLUMN draining boolean NOT NULL DEFAULT false,
  ADD COLUMN forgot   bigint  NOT NULL DEFAULT 0;

-- Counts revocations: a node whose beat meets a higher value than before empties
-- its caches before it relies on its lease again.
CREATE SEQUENCE revocations MINVALUE 0 START 1;
SELECT setval('revocations', 0);

-- The shard that an id carries (package id), NULL for an id that was not minted
-- by the service.
CREATE FUNCTION shard_of(uuid) RETURNS int IMMUTABLE STRICT PARALLEL SAFE LANGUAGE sql AS $$
  SELECT CASE WHEN get_byte(uuid_send($1), 6) >> 4 = 7
              THEN ((get_byte(uuid_send($1), 8) & 63) << 4) | (get_byte(uuid_send($1), 9) >> 4) END
$$;
CREATE INDEX runs_open_shard ON runs (shard_of(id)) WHERE finished_at IS NULL;
GRANT USAGE, SELECT ON SEQUENCE revocations TO svc_api, svc_system;
