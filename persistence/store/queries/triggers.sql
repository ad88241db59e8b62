-- name: triggers
SELECT id, name, kind, agent_id, workflow_id, enabled, cron, timezone, input, last_fired_at, next_fire_at, created_at, updated_at FROM triggers
WHERE tenant_id = $1 AND id < $2 ORDER BY id DESC LIMIT $3

-- name: trigger
SELECT id, name, kind, agent_id, workflow_id, enabled, cron, timezone, input, last_fired_at, next_fire_at, created_at, updated_at FROM triggers
WHERE tenant_id = $1 AND id = $2

-- name: trigger_lock
SELECT id, name, kind, agent_id, workflow_id, enabled, cron, timezone, input, last_fired_at, next_fire_at, created_at, updated_at FROM triggers
WHERE tenant_id = $1 AND id = $2 FOR NO KEY UPDATE

-- Locks the target against archiving until the change is committed: archiving pauses the
-- triggers that it sees.
-- name: trigger_agent
SELECT id FROM agents WHERE tenant_id = $1 AND id = $2 AND archived_at IS NULL FOR SHARE

-- name: trigger_workflow
SELECT id FROM workflows WHERE tenant_id = $1 AND id = $2 AND archived_at IS NULL FOR SHARE

-- name: trigger_moment
SELECT now()

-- name: trigger_insert
INSERT INTO triggers (tenant_id, id, name, kind, agent_id, enabled, cron, timezone, input, secret, next_fire_at, workflow_id)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
RETURNING id, name, kind, agent_id, workflow_id, enabled, cron, timezone, input, last_fired_at, next_fire_at, created_at, updated_at

-- Changes that the actor of a schedule has to notice count the version up.
-- name: trigger_update
UPDATE triggers SET version = version + 1, name = $3, agent_id = $4, enabled = $5, cron = $6, timezone = $7, input = $8, next_fire_at = $9, workflow_id = $10, updated_at = now()
WHERE tenant_id = $1 AND id = $2
RETURNING id, name, kind, agent_id, workflow_id, enabled, cron, timezone, input, last_fired_at, next_fire_at, created_at, updated_at

-- name: trigger_rotate
UPDATE triggers SET secret = $3, updated_at = now() WHERE tenant_id = $1 AND id = $2
RETURNING id, name, kind, agent_id, workflow_id, enabled, cron, timezone, input, last_fired_at, next_fire_at, created_at, updated_at

-- name: trigger_delete
DELETE FROM triggers WHERE tenant_id = $1 AND id = $2

-- name: trigger_timer_set
INSERT INTO timers (tenant_id, kind, entity_id, name, due_at) VALUES ($1, 'trigger', $2, 'due', $3)
ON CONFLICT (tenant_id, kind, entity_id, name) DO UPDATE SET due_at = excluded.due_at, claimed_until = NULL

-- name: trigger_timer_drop
DELETE FROM timers WHERE tenant_id = $1 AND kind = 'trigger' AND entity_id = $2 AND name = 'due'

-- Includes paused triggers: one of them may just be being resumed. Here and where
-- last_fired_at is advanced, rows are locked in the order of their ids.
-- Returns those that were enabled.
-- name: triggers_pause
WITH own AS MATERIALIZED (
  SELECT id, enabled FROM triggers WHERE tenant_id = $1 AND (agent_id = $2 OR workflow_id = $2) ORDER BY id FOR NO KEY UPDATE
), paused AS (
  UPDATE triggers t SET version = t.version + 1, enabled = false, next_fire_at = NULL, updated_at = CASE WHEN t.enabled THEN now() ELSE t.updated_at END
  FROM own WHERE t.tenant_id = $1 AND t.id = own.id
  RETURNING t.id, own.enabled
)
SELECT id FROM paused WHERE enabled ORDER BY id

-- A separate statement: it sees the timer of a trigger that was just being resumed.
-- name: triggers_pause_timers
WITH own AS MATERIALIZED (
  SELECT t.entity_id, t.name FROM timers t JOIN triggers g ON g.tenant_id = t.tenant_id AND g.id = t.entity_id
  WHERE t.tenant_id = $1 AND t.kind = 'trigger' AND (g.agent_id = $2 OR g.workflow_id = $2) ORDER BY t.entity_id, t.name FOR UPDATE OF t
)
DELETE FROM timers t USING own WHERE t.tenant_id = $1 AND t.kind = 'trigger' AND t.entity_id = own.entity_id AND t.name = own.name

-- name: workflow_hooks
SELECT id FROM triggers WHERE tenant_id = $1 AND workflow_id = $2 AND kind = 'hook' ORDER BY id

-- A hook's URL does not name the tenant.
-- name: hook
SELECT tenant_id AS tenant, id, agent_id AS agent, workflow_id AS workflow, input, secret FROM triggers
WHERE id = $1 AND kind = 'hook' AND enabled

-- What the actor of a schedule needs. A hook, and a schedule that is paused, has no due time.
-- name: schedule
SELECT agent_id AS agent, workflow_id AS workflow, cron, timezone, input, next_fire_at AS due, version, owner_epoch AS epoch FROM triggers WHERE tenant_id = $1 AND id = $2

-- Rows locked by another change are skipped and returned.
-- name: triggers_fired
WITH fired AS MATERIALIZED (
  SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::timestamptz[]) AS f (tenant, trigger, at)
), own AS MATERIALIZED (
  SELECT t.tenant_id, t.id, f.at FROM triggers t JOIN fired f ON t.tenant_id = f.tenant AND t.id = f.trigger ORDER BY t.id FOR NO KEY UPDATE OF t SKIP LOCKED
), noted AS (
  UPDATE triggers t SET last_fired_at = greatest(t.last_fired_at, own.at) FROM own
  WHERE t.tenant_id = own.tenant_id AND t.id = own.id
)
SELECT f.tenant, f.trigger, f.at FROM fired f JOIN triggers t ON t.tenant_id = f.tenant AND t.id = f.trigger
WHERE NOT EXISTS (SELECT FROM own WHERE own.id = f.trigger)
