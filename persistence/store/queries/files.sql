-- Stored files that are still needed, across tenants.

-- A change of a member is not fenced by its row, as the commits of actors are. One that was on its way when the member
-- was marked may take effect some time later, so its files are left alone until then (doubtful of persistence/blob). The row
-- of a dead member stays for a day; a member that left has none.
-- name: file_owners
SELECT o.id FROM unnest($1::text[]) AS o (id)
WHERE NOT EXISTS (SELECT FROM members m WHERE m.id::text = o.id AND (m.dead_at IS NULL OR m.dead_at > now() - interval '10 minutes'))

-- name: file_orphans
SELECT u.at FROM unnest($1::text[], $2::uuid[], $3::uuid[]) WITH ORDINALITY AS u (kind, tenant_id, id, at)
WHERE EXISTS (SELECT FROM tenants t WHERE t.id = u.tenant_id)
  AND NOT EXISTS (SELECT FROM attachments a WHERE a.tenant_id = u.tenant_id AND a.id = u.id AND u.kind = 'attachments')
  AND NOT EXISTS (SELECT FROM kb_documents d WHERE d.tenant_id = u.tenant_id AND d.file = u.id AND u.kind = 'documents')
  AND NOT EXISTS (SELECT FROM artifacts a WHERE a.tenant_id = u.tenant_id AND a.id = u.id AND u.kind = 'artifacts')
  AND NOT EXISTS (SELECT FROM browser_skill_runs r WHERE r.tenant_id = u.tenant_id AND r.id = u.id AND u.kind = 'browser-skills')

-- A deleted document has none: its file goes when its actor comes to it.
-- name: file_sums
SELECT u.kind, a.tenant_id, a.id, a.sha256 FROM unnest($1::text[], $2::uuid[], $3::uuid[]) AS u (kind, tenant_id, id)
JOIN attachments a ON a.tenant_id = u.tenant_id AND a.id = u.id AND u.kind = 'attachments'
UNION ALL
SELECT u.kind, d.tenant_id, d.file, d.sha256 FROM unnest($1::text[], $2::uuid[], $3::uuid[]) AS u (kind, tenant_id, id)
JOIN kb_documents d ON d.tenant_id = u.tenant_id AND d.file = u.id AND u.kind = 'documents' AND d.deleted_at IS NULL
UNION ALL
SELECT u.kind, f.tenant_id, f.id, f.sha256 FROM unnest($1::text[], $2::uuid[], $3::uuid[]) AS u (kind, tenant_id, id)
JOIN artifacts f ON f.tenant_id = u.tenant_id AND f.id = u.id AND u.kind = 'artifacts'

-- Whether a row names a file. A screenshot that is missing is no loss of a person's.
-- name: file_named
SELECT EXISTS (SELECT FROM attachments) OR EXISTS (SELECT FROM artifacts) OR EXISTS (SELECT FROM kb_documents WHERE deleted_at IS NULL)

-- The files that rows name, a page of each table. A document whose source has never given its content has a checksum
-- of zeros, and no file.
-- name: files_attachments
SELECT tenant_id, id, size_bytes, sha256 FROM attachments WHERE (tenant_id, id) > ($1, $2) ORDER BY tenant_id, id LIMIT $3

-- name: files_artifacts
SELECT tenant_id, id, size_bytes, sha256 FROM artifacts WHERE (tenant_id, id) > ($1, $2) ORDER BY tenant_id, id LIMIT $3

-- name: files_documents
SELECT tenant_id, file, size_bytes, sha256 FROM kb_documents WHERE (tenant_id, file) > ($1, $2) AND deleted_at IS NULL AND sha256 <> decode(repeat('00', 32), 'hex')
ORDER BY tenant_id, file LIMIT $3
