-- name: skills
SELECT id, slug, name, description, definition, policy, secret_refs, node_id, enabled, recorder_session_id, created_at, updated_at FROM browser_skills
WHERE tenant_id = $1 AND id < $2 ORDER BY id DESC LIMIT $3

-- name: skill
SELECT id, slug, name, description, definition, policy, secret_refs, node_id, enabled, recorder_session_id, created_at, updated_at FROM browser_skills
WHERE tenant_id = $1 AND id = $2

-- name: skill_lock
SELECT id, slug, name, description, definition, policy, secret_refs, node_id, enabled, recorder_session_id, created_at, updated_at FROM browser_skills
WHERE tenant_id = $1 AND id = $2 FOR NO KEY UPDATE

-- Grants are made while the skill is locked against deletion.
-- name: skill_hold
SELECT slug FROM browser_skills WHERE tenant_id = $1 AND id = $2 FOR KEY SHARE

-- name: skill_slugs
SELECT slug FROM browser_skills WHERE tenant_id = $1 AND starts_with(slug, $2)

-- name: skill_insert
INSERT INTO browser_skills (tenant_id, id, slug, name, description, definition, policy, credentials, secret_refs, node_id, enabled, recorder_session_id)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
ON CONFLICT (tenant_id, slug) DO NOTHING
RETURNING id, slug, name, description, definition, policy, secret_refs, node_id, enabled, recorder_session_id, created_at, updated_at

-- $8 replaces the secrets ($9, $10), $11 says that the definition is another one.
-- name: skill_update
UPDATE browser_skills SET name = $3, description = $4, definition = $5, policy = $6, node_id = $7,
  credentials = CASE WHEN $8 THEN $9 ELSE credentials END, secret_refs = CASE WHEN $8 THEN $10 ELSE secret_refs END,
  revision = revision + CASE WHEN $11 THEN 1 ELSE 0 END, enabled = $12, recorder_session_id = $13, updated_at = now()
WHERE tenant_id = $1 AND id = $2
RETURNING id, slug, name, description, definition, policy, secret_refs, node_id, enabled, recorder_session_id, created_at, updated_at

-- name: skill_lock_whole
SELECT slug FROM browser_skills WHERE tenant_id = $1 AND id = $2 FOR UPDATE

-- What a run has committed at the site is told by its row.
-- name: skill_commits
SELECT EXISTS (SELECT FROM browser_skill_runs WHERE tenant_id = $1 AND skill_id = $2 AND finished_at IS NULL AND status NOT IN ('running', 'prepared'))

-- Its grants and runs go with it.
-- name: skill_delete
DELETE FROM browser_skills WHERE tenant_id = $1 AND id = $2

-- name: skill_of
SELECT s.id, s.slug, s.name, s.description, s.definition, s.policy, s.secret_refs, s.revision, s.node_id, s.enabled, t.residency
FROM browser_skills s JOIN tenants t ON t.id = s.tenant_id WHERE s.tenant_id = $1 AND s.id = $2

-- name: skills_of_slugs
SELECT s.id, s.slug, s.name, s.description, s.definition, s.policy, s.secret_refs, s.revision, s.node_id, s.enabled, t.residency
FROM browser_skills s JOIN tenants t ON t.id = s.tenant_id WHERE s.tenant_id = $1 AND s.slug = ANY ($2) ORDER BY s.slug

-- The first of them whose definitions have $3 bytes together.
-- name: skills_within
SELECT s.id, s.slug, s.name, s.description, s.definition, s.policy, s.secret_refs, s.revision, s.node_id, s.enabled, t.residency
FROM (SELECT *, sum(octet_length(definition::text)) OVER (ORDER BY slug) AS upto FROM browser_skills WHERE tenant_id = $1 AND slug = ANY ($2)) s
JOIN tenants t ON t.id = s.tenant_id WHERE s.tenant_id = $1 AND s.upto <= $3 ORDER BY s.slug

-- Names of tools need no definitions.
-- name: skills_known
SELECT slug, policy->>'approval' AS approval FROM browser_skills WHERE tenant_id = $1 AND enabled

-- name: skill_slugs_known
SELECT slug FROM browser_skills WHERE tenant_id = $1 AND slug = ANY ($2)

-- The lock makes a change of the secrets wait: what is opened is what the audit says.
-- name: skill_secret
SELECT credentials, revision FROM browser_skills WHERE tenant_id = $1 AND id = $2 FOR KEY SHARE

-- name: skill_grants
SELECT id, agent_id, node_id, tool_pattern, created_at FROM tool_grants
WHERE tenant_id = $1 AND browser_skill_id = $2 AND id < $3 ORDER BY id DESC LIMIT $4

-- A grant that is there already is returned as it is.
-- name: skill_grant_insert
INSERT INTO tool_grants (tenant_id, id, source, browser_skill_id, tool_pattern, effect, agent_id, node_id) VALUES ($1, $2, 'browser_skill', $3, $4, 'allow', $5, $6)
ON CONFLICT (tenant_id, browser_skill_id, tool_pattern, agent_id, node_id) WHERE browser_skill_id IS NOT NULL DO UPDATE SET updated_at = now()
RETURNING id, agent_id, node_id, tool_pattern, created_at

-- name: skill_grant_delete
DELETE FROM tool_grants WHERE tenant_id = $1 AND browser_skill_id = $2 AND id = $3

-- name: skill_grants_count
SELECT count(*) FROM tool_grants WHERE tenant_id = $1 AND browser_skill_id = $2

-- The skills that a grant names, without their definitions.
-- name: access_skills
SELECT id, slug, node_id, enabled, policy FROM browser_skills s WHERE tenant_id = $1
  AND EXISTS (SELECT FROM tool_grants g WHERE g.tenant_id = $1 AND g.browser_skill_id = s.id)
