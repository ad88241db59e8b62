-- Which of the owners of open streams may still watch, by their place in the
-- lists: those with a live key, and those with a session that has not ended.
-- name: owners_live
SELECT o.n FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::uuid[]) WITH ORDINALITY AS o(tenant_id, key_id, session_id, user_id, n)
WHERE EXISTS (SELECT FROM api_keys k WHERE k.tenant_id = o.tenant_id AND k.id = o.key_id AND k.revoked_at IS NULL)
   OR EXISTS (SELECT FROM sessions s WHERE s.tenant_id = o.tenant_id AND s.id = o.session_id AND s.user_id = o.user_id)
