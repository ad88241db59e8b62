-- Which of the owners of open streams may still watch, by their place in the
-- lists: those with a live key, those with a session that has not ended, of a user who
-- still has the role with which the stream was opened, and visitors
-- of an embed key under which their session was minted, that is neither paused nor
-- revoked since and still allows their page's origin, and whose end user, if they have
-- one, is there, and is asked for by the key only where they have one.
-- name: owners_live
SELECT o.n FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::uuid[], $5::uuid[], $6::bigint[], $7::uuid[], $8::text[], $9::text[])
  WITH ORDINALITY AS o(tenant_id, key_id, session_id, user_id, embed_key_id, epoch, end_user_id, origin, role, n)
WHERE EXISTS (SELECT FROM api_keys k WHERE k.tenant_id = o.tenant_id AND k.id = o.key_id AND k.revoked_at IS NULL)
   OR EXISTS (SELECT FROM sessions s JOIN users u ON u.tenant_id = s.tenant_id AND u.id = s.user_id
          WHERE s.tenant_id = o.tenant_id AND s.id = o.session_id AND s.user_id = o.user_id AND u.role = o.role)
   OR EXISTS (SELECT FROM embed_keys e WHERE e.tenant_id = o.tenant_id AND e.id = o.embed_key_id AND e.enabled AND e.revoked_at IS NULL AND e.generation = o.epoch
          AND e.allowed_origins && ARRAY['*', o.origin] AND (NOT e.identity_required OR o.end_user_id <> '00000000-0000-0000-0000-000000000000'))
      AND (o.end_user_id = '00000000-0000-0000-0000-000000000000'
        OR EXISTS (SELECT FROM end_users u WHERE u.tenant_id = o.tenant_id AND u.id = o.end_user_id AND u.deleted_at IS NULL))
