-- Runs of browser skills, as their actors and the calls of agents read them. Only the actors write
-- them.

-- name: skillrun_load
SELECT skill_id, slug, revision, agent_run_id, agent_id, approval_id, created_by, reason, mode, status, code, key, held, args, precommit, steps, verification, result, compensation, fault, state,
       created_at, finished_at, version, owner_epoch AS epoch
FROM browser_skill_runs WHERE tenant_id = $1 AND id = $2

-- name: skillrun_exists
SELECT EXISTS (SELECT FROM browser_skill_runs WHERE tenant_id = $1 AND id = $2)

-- name: skillruns
SELECT id, skill_id, slug, revision, agent_run_id, agent_id, approval_id, created_by, reason, mode, status, code, key, held, args, precommit, steps, verification, result,
       compensation, fault, state, created_at, finished_at, version, owner_epoch AS epoch
FROM browser_skill_runs
WHERE tenant_id = $1 AND id < $2 AND ($3::uuid IS NULL OR skill_id = $3) AND ($4::uuid IS NULL OR agent_run_id = $4) ORDER BY id DESC LIMIT $5

-- name: skillrun_holder
SELECT id FROM browser_skill_runs WHERE tenant_id = $1 AND key = $2 AND held

-- An approval that is not there, and a run that is not, are NULL.
-- name: skillrun_standing
SELECT (SELECT a.status FROM approvals a WHERE a.tenant_id = $1 AND a.id = $2) AS approval,
       (SELECT a.digest FROM approvals a WHERE a.tenant_id = $1 AND a.id = $2) AS digest,
       (SELECT r.finished_at IS NOT NULL FROM runs r WHERE r.tenant_id = $1 AND r.id = $3) AS ended,
       (SELECT r.workflow_id FROM runs r WHERE r.tenant_id = $1 AND r.id = $3) AS workflow
