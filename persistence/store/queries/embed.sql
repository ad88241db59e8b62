-- A browser's call does not name the tenant. Paused and revoked keys, and those of an
-- archived agent, are included: their refusals have texts of their own.
-- name: embed_access
SELECT k.tenant_id AS tenant, k.id, k.agent_id AS agent, a.name AS agent_name, a.emoji AS agent_emoji, k.key_hash AS hash, k.allowed_origins AS origins,
  k.enabled, k.revoked_at IS NOT NULL OR a.archived_at IS NOT NULL AS revoked, k.generation, k.rate_limit_per_min, k.identity_required, k.identity_secret,
  k.theme, k.config
FROM embed_keys k JOIN agents a ON a.tenant_id = k.tenant_id AND a.id = k.agent_id WHERE k.id = $1

-- name: embed_keys
SELECT id, agent_id, name, key_prefix, allowed_origins, enabled, rate_limit_per_min, identity_required, identity_secret IS NOT NULL AS has_identity_secret,
  theme, config, last_used_at, revoked_at, created_at, updated_at FROM embed_keys
WHERE tenant_id = $1 AND id < $2 AND ($3::uuid IS NULL OR agent_id = $3) AND ($4::boolean OR revoked_at IS NULL) ORDER BY id DESC LIMIT $5

-- name: embed_key
SELECT id, agent_id, name, key_prefix, allowed_origins, enabled, rate_limit_per_min, identity_required, identity_secret IS NOT NULL AS has_identity_secret,
  theme, config, last_used_at, revoked_at, created_at, updated_at FROM embed_keys
WHERE tenant_id = $1 AND id = $2

-- Live keys only.
-- name: embed_key_lock
SELECT id, agent_id, name, key_prefix, allowed_origins, enabled, rate_limit_per_min, identity_required, identity_secret IS NOT NULL AS has_identity_secret,
  theme, config, last_used_at, revoked_at, created_at, updated_at FROM embed_keys
WHERE tenant_id = $1 AND id = $2 AND revoked_at IS NULL FOR NO KEY UPDATE

-- Locks the agent against archiving until the change is committed: archiving revokes the
-- embed keys that it sees.
-- name: embed_key_agent
SELECT id FROM agents WHERE tenant_id = $1 AND id = $2 AND archived_at IS NULL FOR SHARE

-- name: embed_key_insert
INSERT INTO embed_keys (tenant_id, id, agent_id, name, key_hash, key_prefix, allowed_origins, enabled, rate_limit_per_min, identity_required, identity_secret, theme, config)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
RETURNING id, agent_id, name, key_prefix, allowed_origins, enabled, rate_limit_per_min, identity_required, identity_secret IS NOT NULL AS has_identity_secret,
  theme, config, last_used_at, revoked_at, created_at, updated_at

-- $10 is 1 if the sessions of the key end, else 0.
-- name: embed_key_update
UPDATE embed_keys SET name = $3, allowed_origins = $4, enabled = $5, rate_limit_per_min = $6, identity_required = $7, theme = $8, config = $9,
  generation = generation + $10::int, updated_at = now()
WHERE tenant_id = $1 AND id = $2
RETURNING id, agent_id, name, key_prefix, allowed_origins, enabled, rate_limit_per_min, identity_required, identity_secret IS NOT NULL AS has_identity_secret,
  theme, config, last_used_at, revoked_at, created_at, updated_at

-- name: embed_key_rotate
UPDATE embed_keys SET key_hash = $3, key_prefix = $4, generation = generation + 1, updated_at = now()
WHERE tenant_id = $1 AND id = $2 AND revoked_at IS NULL
RETURNING id, agent_id, name, key_prefix, allowed_origins, enabled, rate_limit_per_min, identity_required, identity_secret IS NOT NULL AS has_identity_secret,
  theme, config, last_used_at, revoked_at, created_at, updated_at

-- name: embed_key_identity_secret
UPDATE embed_keys SET identity_secret = $3, updated_at = now() WHERE tenant_id = $1 AND id = $2 AND revoked_at IS NULL

-- name: embed_key_revoke
UPDATE embed_keys SET revoked_at = coalesce(revoked_at, now()), generation = generation + (revoked_at IS NULL)::int,
  updated_at = CASE WHEN revoked_at IS NULL THEN now() ELSE updated_at END
WHERE tenant_id = $1 AND id = $2
RETURNING revoked_at = now() AS changed

-- In the order of ids, as triggers_pause.
-- name: embed_keys_revoke
WITH own AS MATERIALIZED (
  SELECT id FROM embed_keys WHERE tenant_id = $1 AND agent_id = $2 AND revoked_at IS NULL ORDER BY id FOR NO KEY UPDATE
)
UPDATE embed_keys k SET revoked_at = now(), generation = generation + 1, updated_at = now()
FROM own WHERE k.tenant_id = $1 AND k.id = own.id
RETURNING k.id

-- Keys that ended with their agent: revoked in the same transaction and so at the same time.
-- name: embed_keys_archived
SELECT k.id FROM embed_keys k JOIN agents a ON a.tenant_id = k.tenant_id AND a.id = k.agent_id
WHERE k.tenant_id = $1 AND k.agent_id = $2 AND k.revoked_at = a.archived_at
