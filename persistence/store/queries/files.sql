-- Stored files that are still needed, across tenants.

-- name: file_owners
SELECT o.id FROM unnest($1::text[]) AS o (id)
WHERE NOT EXISTS (SELECT FROM members m WHERE m.id::text = o.id AND m.dead_at IS NULL)

-- name: file_orphans
SELECT u.tenant_id, u.id FROM unnest($1::uuid[], $2::uuid[]) AS u (tenant_id, id)
WHERE EXISTS (SELECT FROM tenants t WHERE t.id = u.tenant_id)
  AND NOT EXISTS (SELECT FROM attachments a WHERE a.tenant_id = u.tenant_id AND a.id = u.id)

-- name: file_sums
SELECT a.tenant_id, a.id, a.sha256 FROM unnest($1::uuid[], $2::uuid[]) AS u (tenant_id, id)
JOIN attachments a ON a.tenant_id = u.tenant_id AND a.id = u.id
