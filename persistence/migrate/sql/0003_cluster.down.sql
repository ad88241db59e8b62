DROP INDEX runs_open_shard;
DROP FUNCTION shard_of(uuid);
DROP SEQUENCE revocations;
ALTER TABLE members DROP COLUMN lease, DROP COLUMN version, DROP COLUMN draining, DROP COLUMN forgot, DROP COLUMN secret, DROP COLUMN uploads, DROP COLUMN keys;
