-- Browser skills: what they do, who approves, and the sealed secrets of their sign-in.

CREATE TABLE browser_skills (
  tenant_id   uuid NOT NULL REFERENCES tenants,
  id          uuid NOT NULL,
  slug        text NOT NULL CHECK (slug ~ '^[a-z0-9][a-z0-9-]{0,62}$'),
  name        text NOT NULL CHECK (char_length(name) BETWEEN 1 AND 120),
  description text NOT NULL DEFAULT '' CHECK (char_length(description) <= 2000),
  definition  json NOT NULL,
  policy      json NOT NULL,
  credentials bytea, -- sealed: a JSON object of texts by secret_ref; NULL: there are none
  secret_refs text[] NOT NULL DEFAULT '{}', -- of the stored secrets
  revision    int NOT NULL DEFAULT 1, -- counts definitions: a secret is opened for the one that it was given for
  recorder_session_id uuid, -- whose steps it has; NULL: they were sent
  node_id     uuid, -- only agents on this org node or below it are offered the skill
  enabled     boolean NOT NULL DEFAULT true,
  created_at  timestamptz NOT NULL DEFAULT now(),
  updated_at  timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, id),
  FOREIGN KEY (tenant_id, node_id) REFERENCES org_nodes,
  CHECK ((credentials IS NULL) = (secret_refs = '{}'))
);
CREATE UNIQUE INDEX browser_skills_slug_key ON browser_skills (tenant_id, slug);
CREATE INDEX browser_skills_node ON browser_skills (tenant_id, node_id) WHERE node_id IS NOT NULL;

ALTER TABLE browser_skills ENABLE ROW LEVEL SECURITY;
ALTER TABLE browser_skills FORCE ROW LEVEL SECURITY;
CREATE POLICY browser_skills_api ON browser_skills TO svc_api USING (tenant_id = svc_tenant());
CREATE POLICY browser_skills_system ON browser_skills TO svc_system USING (true);

-- A grant of a skill allows one operation, or all, to one agent or org node, and goes with the
-- skill.
ALTER TABLE tool_grants
  ADD CONSTRAINT tool_grants_skill_fkey FOREIGN KEY (tenant_id, browser_skill_id) REFERENCES browser_skills ON DELETE CASCADE,
  ADD CONSTRAINT tool_grants_skill_check CHECK ((source = 'browser_skill') = (browser_skill_id IS NOT NULL));
CREATE UNIQUE INDEX tool_grants_skill_key ON tool_grants (tenant_id, browser_skill_id, tool_pattern, agent_id, node_id) NULLS NOT DISTINCT
  WHERE browser_skill_id IS NOT NULL;
