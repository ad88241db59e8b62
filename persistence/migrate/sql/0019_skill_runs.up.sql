-- Runs of browser skills. A row is the snapshot of an actor; it goes with its skill and with the
-- agent's run that made it.

CREATE TABLE browser_skill_runs (
  tenant_id    uuid NOT NULL,
  id           uuid NOT NULL,
  skill_id     uuid NOT NULL,
  slug         text NOT NULL,
  revision     int  NOT NULL, -- of the definition that its values were checked against
  agent_run_id uuid, -- NULL: a person's dry run
  agent_id     uuid,
  approval_id  uuid,
  created_by   text NOT NULL,
  reason       text NOT NULL DEFAULT '',
  mode         text NOT NULL CONSTRAINT browser_skill_runs_mode_check CHECK (mode IN ('run', 'dry_run')),
  status       text NOT NULL CONSTRAINT browser_skill_runs_status_check CHECK (status IN
                 ('running', 'prepared', 'committing', 'committed', 'succeeded', 'failed', 'rejected', 'verification_failed', 'out_of_scope')),
  code         text CONSTRAINT browser_skill_runs_code_check CHECK (code IN
                 ('not_found', 'step_failed', 'session_expired', 'precommit_mismatch', 'verification_failed', 'out_of_scope', 'unknown_outcome')),
  key          text NOT NULL, -- of tenant, agent run, tool and values
  held         boolean NOT NULL DEFAULT true, -- no other run may have this key
  args         bytea NOT NULL, -- sealed: the values that are typed
  precommit    json,
  steps        json NOT NULL DEFAULT '[]',
  verification json NOT NULL DEFAULT '[]',
  result       json,
  compensation json,
  fault        json,
  state        bytea NOT NULL,
  created_at   timestamptz NOT NULL,
  finished_at  timestamptz,
  version      bigint NOT NULL DEFAULT 1,
  owner_epoch  bigint NOT NULL DEFAULT 0,
  last_op      uuid,
  PRIMARY KEY (tenant_id, id),
  FOREIGN KEY (tenant_id, skill_id) REFERENCES browser_skills ON DELETE CASCADE,
  FOREIGN KEY (tenant_id, agent_run_id) REFERENCES runs ON DELETE CASCADE,
  CHECK (finished_at IS NOT NULL OR held),
  CHECK (finished_at IS NOT NULL OR status IN ('running', 'prepared', 'committing', 'committed', 'verification_failed')),
  CHECK (finished_at IS NULL OR status NOT IN ('running', 'prepared'))
) WITH (fillfactor = 70);
CREATE UNIQUE INDEX browser_skill_runs_held_key ON browser_skill_runs (tenant_id, key) WHERE held;
CREATE INDEX browser_skill_runs_work ON browser_skill_runs (coalesce(shard_of(id), -1), id) WHERE finished_at IS NULL AND status <> 'prepared';
CREATE INDEX browser_skill_runs_skill ON browser_skill_runs (tenant_id, skill_id, id);
CREATE INDEX browser_skill_runs_old ON browser_skill_runs (finished_at) WHERE agent_run_id IS NULL AND finished_at IS NOT NULL;
CREATE INDEX browser_skill_runs_agent_run ON browser_skill_runs (tenant_id, agent_run_id, id) WHERE agent_run_id IS NOT NULL;

ALTER TABLE browser_skill_runs ENABLE ROW LEVEL SECURITY;
ALTER TABLE browser_skill_runs FORCE ROW LEVEL SECURITY;
CREATE POLICY browser_skill_runs_api ON browser_skill_runs TO svc_api USING (tenant_id = svc_tenant());
CREATE POLICY browser_skill_runs_system ON browser_skill_runs TO svc_system USING (true);
REVOKE INSERT, UPDATE, DELETE ON browser_skill_runs FROM svc_api; -- only its actor writes it

-- The run of a browser skill on which an approval decides. It may be gone with its skill.
ALTER TABLE approvals ADD COLUMN browser_skill_run_id uuid;
