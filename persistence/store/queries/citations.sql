-- Those of the given bases that exist.
-- name: knowledge_bases_named
SELECT id, name, description FROM knowledge_bases WHERE tenant_id = $1 AND id = ANY($2::uuid[]) AND deleted_at IS NULL ORDER BY id

-- Those of the given documents that exist and that the viewer ($3) may see.
-- name: documents_seen
SELECT id FROM kb_documents WHERE tenant_id = $1 AND id = ANY($2::uuid[]) AND deleted_at IS NULL AND (acl = '{}' OR acl && $3::text[])

-- Those of the given documents that exist, with their bases.
-- name: documents_bases
SELECT id, base_id AS base FROM kb_documents WHERE tenant_id = $1 AND id = ANY($2::uuid[]) AND deleted_at IS NULL
