-- Embed keys, and the people who use them.

-- generation counts what ended the sessions of a key: rotations, and each time it was
-- paused. A session carries the one it was minted under.
CREATE TABLE embed_keys (
  tenant_id          uuid NOT NULL REFERENCES tenants,
  id                 uuid NOT NULL,
  agent_id           uuid NOT NULL,
  name               text NOT NULL CHECK (char_length(name) BETWEEN 1 AND 120),
  key_hash           bytea NOT NULL CHECK (octet_length(key_hash) = 32),
  key_prefix         text NOT NULL,
  allowed_origins    text[] NOT NULL DEFAULT '{}',
  enabled            boolean NOT NULL DEFAULT true,
  rate_limit_per_min int NOT NULL DEFAULT 60 CHECK (rate_limit_per_min BETWEEN 1 AND 10000),
  identity_required  boolean NOT NULL DEFAULT false,
  identity_secret    bytea, -- sealed
  theme              json NOT NULL DEFAULT '{}',
  config             json NOT NULL DEFAULT '{}',
  generation         bigint NOT NULL DEFAULT 1,
  last_used_at       timestamptz,
  revoked_at         timestamptz,
  created_at         timestamptz NOT NULL DEFAULT now(),
  updated_at         timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, id),
  FOREIGN KEY (tenant_id, agent_id) REFERENCES agents,
  CHECK (NOT identity_required OR identity_secret IS NOT NULL)
);
CREATE UNIQUE INDEX embed_keys_name ON embed_keys (tenant_id, agent_id, name) WHERE revoked_at IS NULL;
-- A browser's call names no tenant.
CREATE UNIQUE INDEX embed_keys_id ON embed_keys (id);

-- The people of a tenant's own product. A row with deleted_at is gone for everybody; it
-- goes once nothing of its person is left.
CREATE TABLE end_users (
  tenant_id   uuid NOT NULL REFERENCES tenants,
  id          uuid NOT NULL,
  external_id text NOT NULL CHECK (char_length(external_id) BETWEEN 1 AND 255),
  name        text,
  email       text,
  attributes  json NOT NULL DEFAULT '{}',
  tags        text[] NOT NULL DEFAULT '{}',
  residency   text,
  created_at  timestamptz NOT NULL DEFAULT now(),
  updated_at  timestamptz NOT NULL DEFAULT now(),
  deleted_at  timestamptz,
  PRIMARY KEY (tenant_id, id)
);
CREATE UNIQUE INDEX end_users_external_id ON end_users (tenant_id, external_id) WHERE deleted_at IS NULL;
CREATE INDEX end_users_tags ON end_users USING gin (tags);
CREATE INDEX end_users_deleted ON end_users (id) WHERE deleted_at IS NOT NULL;

DO $$
DECLARE t text;
BEGIN
  FOREACH t IN ARRAY ARRAY['embed_keys', 'end_users']
  LOOP
    EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', t);
    EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', t);
    EXECUTE format('CREATE POLICY %I ON %I TO svc_api USING (tenant_id = svc_tenant())', t || '_api', t);
    EXECUTE format('CREATE POLICY %I ON %I TO svc_system USING (true)', t || '_system', t);
  END LOOP;
END $$;

-- The conversations of one visitor and of one end user, and the runs that are one end
-- user's data: what stands and what has ended is told apart by the index. Without the
-- tenant in front: see runs_agent. Whoever has large tables has made all of this before,
-- without locks (operator-guide.md, Upgrade); what locks most comes last.
CREATE INDEX IF NOT EXISTS threads_visitor ON threads (created_by, id) WHERE created_by LIKE 'embed:%';
CREATE INDEX IF NOT EXISTS threads_end_user ON threads (end_user_id, deleted_at) WHERE end_user_id IS NOT NULL;

-- Whose data a run is: the end user's of its thread, whoever asked for it, or else the
-- one's on whose behalf it runs.
ALTER TABLE runs ADD COLUMN IF NOT EXISTS person_id uuid;
CREATE INDEX IF NOT EXISTS runs_person ON runs (person_id, finished_at) WHERE person_id IS NOT NULL;
