-- name: knowledge_bases
SELECT id, name, description, max_tokens, overlap_tokens, embedding_provider, embedding_model, created_at, updated_at FROM knowledge_bases
WHERE tenant_id = $1 AND id < $2 AND deleted_at IS NULL ORDER BY id DESC LIMIT $3

-- name: knowledge_base
SELECT id, name, description, max_tokens, overlap_tokens, embedding_provider, embedding_model, created_at, updated_at FROM knowledge_bases
WHERE tenant_id = $1 AND id = $2 AND deleted_at IS NULL

-- name: knowledge_base_lock
SELECT id, name, description, max_tokens, overlap_tokens, embedding_provider, embedding_model, created_at, updated_at FROM knowledge_bases
WHERE tenant_id = $1 AND id = $2 AND deleted_at IS NULL FOR NO KEY UPDATE

-- Those of the given bases that exist.
-- name: knowledge_bases_live
SELECT id FROM knowledge_bases WHERE tenant_id = $1 AND id = ANY($2::uuid[]) AND deleted_at IS NULL

-- name: knowledge_base_insert
INSERT INTO knowledge_bases (tenant_id, id, name, description, max_tokens, overlap_tokens, embedding_provider, embedding_model)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
RETURNING id, name, description, max_tokens, overlap_tokens, embedding_provider, embedding_model, created_at, updated_at

-- $9: the chunking or the embedding changes.
-- name: knowledge_base_update
UPDATE knowledge_bases SET name = $3, description = $4, max_tokens = $5, overlap_tokens = $6, embedding_provider = $7, embedding_model = $8,
  settings = settings + CASE WHEN $9 THEN 1 ELSE 0 END, updated_at = now()
WHERE tenant_id = $1 AND id = $2
RETURNING id, name, description, max_tokens, overlap_tokens, embedding_provider, embedding_model, created_at, updated_at

-- name: knowledge_base_delete
UPDATE knowledge_bases SET deleted_at = now(), updated_at = now() WHERE tenant_id = $1 AND id = $2 AND deleted_at IS NULL

-- Waits for the walks over the base's sources that are about to write documents, and holds the
-- others back: they lock documents in an order of their own.
-- name: sources_hold
SELECT id FROM knowledge_sources WHERE tenant_id = $1 AND base_id = $2 AND deleted_at IS NULL ORDER BY id FOR SHARE

-- Every document of the base is indexed anew, but those of sources that never gave a content: they keep the reason. Attempts count
-- anew too: a reading that this interrupts is none that failed. The rows are locked in the order of their ids, like everywhere.
-- name: documents_index_anew
WITH own AS MATERIALIZED (
  SELECT id FROM kb_documents WHERE tenant_id = $1 AND base_id = $2 AND deleted_at IS NULL AND NOT (source_id IS NOT NULL AND status = 'failed' AND size_bytes = 0)
  ORDER BY id FOR NO KEY UPDATE
)
UPDATE kb_documents d SET version = d.version + 1, owes = true, attempts = 0 FROM own WHERE d.tenant_id = $1 AND d.id = own.id

-- name: documents_delete
WITH own AS MATERIALIZED (
  SELECT id FROM kb_documents WHERE tenant_id = $1 AND base_id = $2 AND deleted_at IS NULL ORDER BY id FOR NO KEY UPDATE
)
UPDATE kb_documents d SET version = d.version + 1, deleted_at = now(), owes = true, updated_at = now() FROM own WHERE d.tenant_id = $1 AND d.id = own.id

-- Documents of the base with work for their actors, deleted ones too.
-- name: documents_owing
SELECT id FROM kb_documents WHERE tenant_id = $1 AND base_id = $2 AND owes LIMIT $3

-- Sources of the base that were just deleted.
-- name: sources_of_base
SELECT id FROM knowledge_sources WHERE tenant_id = $1 AND base_id = $2 LIMIT $3

-- Lists are planned with their arguments: see runs.
-- name: documents
SELECT id, name, media_type, size_bytes, status, error, chunks, source_id, uri, created_at, updated_at FROM kb_documents
WHERE tenant_id = $1 AND base_id = $2 AND id < $3 AND deleted_at IS NULL AND ($4::text IS NULL OR status = $4)
ORDER BY id DESC LIMIT $5

-- The same of one source ($5). The arm is repeated for each status ($4): it reads its page by an index in the order of the list.
-- name: documents_of_source
SELECT d.id, d.name, d.media_type, d.size_bytes, d.status, d.error, d.chunks, d.source_id, d.uri, d.created_at, d.updated_at
FROM (
  SELECT k.id FROM (
    /*arm*/(SELECT id FROM kb_documents
    WHERE tenant_id = $1 AND base_id = $2 AND source_id = $5 AND status = ($4::text[])[1] AND id < $3 AND deleted_at IS NULL
    ORDER BY id DESC LIMIT $6)/*end*/
  ) k
  ORDER BY id DESC LIMIT $6
) page JOIN kb_documents d ON d.tenant_id = $1 AND d.id = page.id
ORDER BY d.id DESC LIMIT $6

-- name: document
SELECT id, name, media_type, size_bytes, status, error, chunks, source_id, uri, created_at, updated_at FROM kb_documents
WHERE tenant_id = $1 AND base_id = $2 AND id = $3 AND deleted_at IS NULL

-- name: document_file
SELECT name, media_type, file FROM kb_documents WHERE tenant_id = $1 AND base_id = $2 AND id = $3 AND deleted_at IS NULL

-- Locks the uploads of these names.
-- name: documents_named
SELECT name, file FROM kb_documents
WHERE tenant_id = $1 AND base_id = $2 AND source_id IS NULL AND deleted_at IS NULL AND name = ANY($3::text[]) ORDER BY id FOR NO KEY UPDATE

-- A document that replaces another keeps its id and its ACL. Its old text stays in searches
-- until the new one is indexed.
-- name: document_put
INSERT INTO kb_documents (tenant_id, id, base_id, name, media_type, size_bytes, file, sha256) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
ON CONFLICT (tenant_id, base_id, name) WHERE source_id IS NULL AND deleted_at IS NULL DO UPDATE SET
  media_type = excluded.media_type, size_bytes = excluded.size_bytes, file = excluded.file, sha256 = excluded.sha256,
  content = kb_documents.content + 1, status = 'queued', error = NULL, attempts = 0, owes = true, version = kb_documents.version + 1, updated_at = now()
RETURNING id, name, media_type, size_bytes, status, error, chunks, source_id, uri, created_at, updated_at

-- name: document_delete
UPDATE kb_documents SET version = version + 1, deleted_at = now(), owes = true, updated_at = now()
WHERE tenant_id = $1 AND base_id = $2 AND id = $3 AND deleted_at IS NULL

-- name: document_acl
SELECT acl FROM kb_documents WHERE tenant_id = $1 AND base_id = $2 AND id = $3 AND deleted_at IS NULL

-- An ACL is no concern of the document's actor: the version stays.
-- name: document_acl_set
UPDATE kb_documents SET acl = $4 WHERE tenant_id = $1 AND base_id = $2 AND id = $3 AND deleted_at IS NULL

-- Those of the given end users that exist.
-- name: acl_end_users
SELECT id FROM end_users WHERE tenant_id = $1 AND id = ANY($2::uuid[]) AND deleted_at IS NULL

-- The groups of an end user: what is no text in attributes.groups is no group.
-- name: end_user_groups
SELECT ARRAY(SELECT g #>> '{}' FROM json_array_elements(CASE WHEN json_typeof(attributes -> 'groups') = 'array' THEN attributes -> 'groups' ELSE '[]' END) AS a (g)
  WHERE json_typeof(g) = 'string') AS groups
FROM end_users WHERE tenant_id = $1 AND id = $2 AND deleted_at IS NULL
