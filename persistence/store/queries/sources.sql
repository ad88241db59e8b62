-- name: sources
SELECT id, kind, name, config, cron AS schedule, timezone, enabled, status, last_synced_at, nullif(last_error, '') AS last_error, credential_keys, listed, created_at, updated_at
FROM knowledge_sources WHERE tenant_id = $1 AND base_id = $2 AND id < $3 AND deleted_at IS NULL ORDER BY id DESC LIMIT $4

-- name: source
SELECT id, kind, name, config, cron AS schedule, timezone, enabled, status, last_synced_at, nullif(last_error, '') AS last_error, credential_keys, listed, created_at, updated_at
FROM knowledge_sources WHERE tenant_id = $1 AND base_id = $2 AND id = $3 AND deleted_at IS NULL

-- name: source_lock
SELECT id, kind, name, config, cron AS schedule, timezone, enabled, status, last_synced_at, nullif(last_error, '') AS last_error, credential_keys, listed, created_at, updated_at
FROM knowledge_sources WHERE tenant_id = $1 AND base_id = $2 AND id = $3 AND deleted_at IS NULL FOR NO KEY UPDATE

-- Locks the base against deletion until the change is committed.
-- name: source_base
SELECT id FROM knowledge_bases WHERE tenant_id = $1 AND id = $2 AND deleted_at IS NULL FOR SHARE

-- name: source_moment
SELECT now()

-- name: source_insert
INSERT INTO knowledge_sources (tenant_id, id, base_id, kind, name, config, credentials, credential_keys, cron, timezone, enabled, next_sync_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
RETURNING id, kind, name, config, cron AS schedule, timezone, enabled, status, last_synced_at, nullif(last_error, '') AS last_error, credential_keys, listed, created_at, updated_at

-- $8 replaces the credentials ($9, $10), $12 the time of the next sync ($11). Another
-- configuration ($13) makes the next sync a full one; a sync on its way begins anew.
-- name: source_update
UPDATE knowledge_sources SET version = version + 1, name = $4, config = $5, cron = $6, timezone = $7,
  credentials = CASE WHEN $8 THEN $9 ELSE credentials END, credential_keys = CASE WHEN $8 THEN $10 ELSE credential_keys END,
  next_sync_at = CASE WHEN $12 THEN $11 ELSE next_sync_at END,
  delta = CASE WHEN $13 THEN NULL ELSE delta END,
  resume = CASE WHEN $13 OR NOT $14 THEN NULL ELSE resume END,
  sync = CASE WHEN $13 AND status IN ('queued', 'syncing') THEN sync + 1 ELSE sync END,
  status = CASE
    WHEN status NOT IN ('queued', 'syncing') THEN status
    WHEN NOT $14 AND nullif(last_error, '') IS NOT NULL THEN 'failed'
    WHEN NOT $14 AND last_synced_at IS NOT NULL THEN 'ok'
    WHEN NOT $14 THEN 'idle'
    WHEN $13 THEN 'queued'
    ELSE status END,
  enabled = $14, updated_at = now()
WHERE tenant_id = $1 AND base_id = $2 AND id = $3
RETURNING id, kind, name, config, cron AS schedule, timezone, enabled, status, last_synced_at, nullif(last_error, '') AS last_error, credential_keys, listed, created_at, updated_at

-- name: source_queue
UPDATE knowledge_sources SET version = version + 1, status = 'queued', sync = sync + 1, resume = NULL
WHERE tenant_id = $1 AND base_id = $2 AND id = $3 AND status NOT IN ('queued', 'syncing')

-- name: source_delete
UPDATE knowledge_sources SET version = version + 1, deleted_at = now(), credentials = NULL, credential_keys = '{}', resume = NULL, delta = NULL, next_sync_at = NULL, updated_at = now()
WHERE tenant_id = $1 AND base_id = $2 AND id = $3 AND deleted_at IS NULL

-- The rows are locked in the order of their ids, like everywhere.
-- name: source_delete_documents
WITH own AS MATERIALIZED (
  SELECT id FROM kb_documents WHERE tenant_id = $1 AND source_id = $2 AND deleted_at IS NULL ORDER BY id FOR NO KEY UPDATE
)
UPDATE kb_documents d SET version = d.version + 1, deleted_at = now(), owes = true, updated_at = now()
FROM own WHERE d.tenant_id = $1 AND d.id = own.id

-- name: sources_delete
WITH own AS MATERIALIZED (
  SELECT id FROM knowledge_sources WHERE tenant_id = $1 AND base_id = $2 AND deleted_at IS NULL ORDER BY id FOR NO KEY UPDATE
)
UPDATE knowledge_sources s SET version = s.version + 1, deleted_at = now(), credentials = NULL, credential_keys = '{}', resume = NULL, delta = NULL, next_sync_at = NULL, updated_at = now()
FROM own WHERE s.tenant_id = $1 AND s.id = own.id

-- name: sources_delete_timers
WITH own AS MATERIALIZED (
  SELECT t.entity_id, t.name FROM timers t JOIN knowledge_sources s ON s.tenant_id = t.tenant_id AND s.id = t.entity_id
  WHERE t.tenant_id = $1 AND t.kind = 'sync' AND s.base_id = $2 ORDER BY t.entity_id, t.name FOR UPDATE OF t
)
DELETE FROM timers t USING own WHERE t.tenant_id = $1 AND t.kind = 'sync' AND t.entity_id = own.entity_id AND t.name = own.name

-- name: source_timer_set
INSERT INTO timers (tenant_id, kind, entity_id, name, due_at) VALUES ($1, 'sync', $2, 'due', $3)
ON CONFLICT (tenant_id, kind, entity_id, name) DO UPDATE SET due_at = excluded.due_at, claimed_until = NULL

-- name: source_timer_drop
DELETE FROM timers WHERE tenant_id = $1 AND kind = 'sync' AND entity_id = $2 AND name = 'due'

-- What the actor of a source needs.
-- name: sync_load
SELECT base_id AS base, enabled, status, sync AS number, cron, timezone, next_sync_at AS due, version, owner_epoch AS epoch
FROM knowledge_sources WHERE tenant_id = $1 AND id = $2 AND deleted_at IS NULL

-- A walk owns the row while the row has the epoch of the activation that performs it and the number of
-- its sync. Another configuration and another sync count the number up.
-- name: sync_begin
UPDATE knowledge_sources SET status = 'syncing', listed = CASE WHEN status = 'queued' THEN 0 ELSE listed END, resume = CASE WHEN status = 'queued' THEN NULL ELSE resume END
WHERE tenant_id = $1 AND id = $2 AND owner_epoch = $3 AND status IN ('queued', 'syncing') AND enabled AND deleted_at IS NULL
RETURNING base_id AS base, kind, name, config, credentials, sync, coalesce(resume, '') AS resume, coalesce(delta, '') AS delta

-- Locks the row for a page of the walk.
-- name: sync_hold
SELECT id FROM knowledge_sources
WHERE tenant_id = $1 AND id = $2 AND sync = $3 AND owner_epoch = $4 AND status = 'syncing' AND enabled AND deleted_at IS NULL FOR NO KEY UPDATE

-- name: sync_progress
UPDATE knowledge_sources SET sync = $3, resume = coalesce($4, resume), listed = CASE WHEN $6 THEN 0 ELSE listed END + $5 WHERE tenant_id = $1 AND id = $2

-- One look-up in the index for each item. again: it has a content of its source that could not be indexed, for a reason that is not the file's.
-- name: sync_known
SELECT d.item, d.id, d.version, d.name, d.uri, d.sum, d.failed, d.again FROM unnest($3::text[]) AS u (item) CROSS JOIN LATERAL (
  SELECT item, id, item_version AS version, name, uri, sha256 AS sum, status = 'failed' OR source_error IS NOT NULL AS failed,
    status = 'failed' AND source_error IS NULL AND read_content < 0 AS again FROM kb_documents
  WHERE tenant_id = $1 AND source_id = $2 AND deleted_at IS NULL AND item = u.item LIMIT 1
) d

-- Documents of the source ($3) that this walk ($4) has not met and that failed for a reason that may end without a change of the file: it gave no
-- right, or its content could not be indexed. Those first that were tried the longest time ago.
-- name: sync_again
SELECT item, id, item_version AS version, name, uri, sha256 AS sum, true AS failed, true AS again, media_type FROM kb_documents
WHERE tenant_id = $1 AND base_id = $2 AND source_id = $3 AND status = 'failed' AND (item_version IS NULL OR source_error IS NULL AND read_content < 0)
  AND seen < $4 AND deleted_at IS NULL
ORDER BY seen, id LIMIT $5

-- Documents that the walk met and whose contents it did not fetch. A document whose name or
-- address changed counts its version up, and its attempts anew: that interrupts a reading. Returns
-- these.
-- name: sync_meet
WITH own AS MATERIALIZED (
  SELECT d.id, u.name, u.uri, u.version, d.name IS DISTINCT FROM u.name OR d.uri IS DISTINCT FROM u.uri AS renamed
  FROM unnest($3::uuid[], $4::text[], $5::text[], $6::text[]) AS u (id, name, uri, version)
  JOIN kb_documents d ON d.tenant_id = $1 AND d.id = u.id
  WHERE d.source_id = $2 AND d.deleted_at IS NULL ORDER BY d.id FOR NO KEY UPDATE OF d
), met AS (
  UPDATE kb_documents d SET seen = $7, item_version = own.version, name = own.name, uri = own.uri,
    version = d.version + CASE WHEN own.renamed THEN 1 ELSE 0 END,
    attempts = CASE WHEN own.renamed THEN 0 ELSE d.attempts END,
    updated_at = CASE WHEN own.renamed THEN now() ELSE d.updated_at END
  FROM own WHERE d.tenant_id = $1 AND d.id = own.id
  RETURNING d.id, own.renamed
)
SELECT id FROM met WHERE renamed

-- Locks the documents that a step writes. A deletion that is on its way is over then, and the step finds the ACL that it left.
-- name: sync_items
SELECT d.id FROM unnest($3::text[]) AS u (item) JOIN kb_documents d ON d.tenant_id = $1 AND d.item = u.item
WHERE d.source_id = $2 AND d.deleted_at IS NULL ORDER BY d.id FOR NO KEY UPDATE OF d

-- A document with new contents: it keeps its id and its ACL. One that was deleted and comes back has a new id and takes the ACL over:
-- retention keeps a deleted row with an ACL as long as the source is there (actors/ingest).
-- name: sync_put
WITH former AS (
  UPDATE kb_documents SET acl = '{}' WHERE tenant_id = $1 AND source_id = $4 AND item = $5 AND deleted_at IS NOT NULL AND acl <> '{}'
)
INSERT INTO kb_documents (tenant_id, id, base_id, source_id, item, item_version, seen, name, uri, media_type, size_bytes, file, sha256, acl)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, coalesce((
  SELECT acl FROM kb_documents WHERE tenant_id = $1 AND source_id = $4 AND item = $5 AND deleted_at IS NOT NULL ORDER BY deleted_at DESC LIMIT 1), '{}'))
ON CONFLICT (tenant_id, source_id, item) WHERE deleted_at IS NULL DO UPDATE SET
  item_version = excluded.item_version, seen = excluded.seen, name = excluded.name, uri = excluded.uri, media_type = excluded.media_type,
  size_bytes = excluded.size_bytes, file = excluded.file, sha256 = excluded.sha256, content = kb_documents.content + 1,
  status = 'queued', error = NULL, source_error = NULL, attempts = 0, owes = true, version = kb_documents.version + 1, updated_at = now()
RETURNING id

-- A document whose contents cannot be had. What was indexed before stays, and a content that waits for its index gets it.
-- name: sync_fail
WITH former AS (
  UPDATE kb_documents SET acl = '{}' WHERE tenant_id = $1 AND source_id = $4 AND item = $5 AND deleted_at IS NOT NULL AND acl <> '{}'
)
INSERT INTO kb_documents (tenant_id, id, base_id, source_id, item, item_version, seen, name, uri, media_type, size_bytes, file, sha256, status, error, source_error, owes, acl)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, 0, $11, $12, 'failed', $13, $13, false, coalesce((
  SELECT acl FROM kb_documents WHERE tenant_id = $1 AND source_id = $4 AND item = $5 AND deleted_at IS NOT NULL ORDER BY deleted_at DESC LIMIT 1), '{}'))
ON CONFLICT (tenant_id, source_id, item) WHERE deleted_at IS NULL DO UPDATE SET
  item_version = excluded.item_version, seen = excluded.seen, name = excluded.name, uri = excluded.uri,
  status = 'failed', error = excluded.error, source_error = excluded.source_error, owes = kb_documents.owes OR kb_documents.status = 'queued', version = kb_documents.version + 1, updated_at = now()
RETURNING id

-- name: sync_delete
WITH own AS MATERIALIZED (
  SELECT d.id FROM unnest($3::uuid[]) AS u (id) JOIN kb_documents d ON d.tenant_id = $1 AND d.id = u.id
  WHERE d.source_id = $2 AND d.deleted_at IS NULL ORDER BY d.id FOR NO KEY UPDATE OF d
)
UPDATE kb_documents d SET version = d.version + 1, deleted_at = now(), owes = true, updated_at = now()
FROM own WHERE d.tenant_id = $1 AND d.id = own.id
RETURNING d.id

-- Documents that a full walk did not meet are gone at the source.
-- name: sync_gone
WITH own AS MATERIALIZED (
  SELECT id FROM kb_documents WHERE tenant_id = $1 AND source_id = $2 AND deleted_at IS NULL AND seen < $3 ORDER BY id LIMIT $4 FOR NO KEY UPDATE
)
UPDATE kb_documents d SET version = d.version + 1, deleted_at = now(), owes = true, updated_at = now()
FROM own WHERE d.tenant_id = $1 AND d.id = own.id
RETURNING d.id

-- name: sync_count
SELECT count(*) FROM kb_documents WHERE tenant_id = $1 AND source_id = $2 AND deleted_at IS NULL
