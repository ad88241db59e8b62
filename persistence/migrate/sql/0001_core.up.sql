-- The core tables. A table with a tenant_id is read by the role svc_api through
-- a policy on the setting svc.tenant; the role svc_system (writer, sweeps) sees
-- all tenants. Status values are compared with schemas/lifecycle by a test.

CREATE FUNCTION svc_tenant() RETURNS uuid LANGUAGE sql STABLE PARALLEL SAFE
  AS $$ SELECT nullif(current_setting('svc.tenant', true), '')::uuid $$;

-- One row per process. The fence of every commit reads it FOR KEY SHARE, the
-- beat updates only non-key columns, declaring dead takes FOR UPDATE.
CREATE TABLE members (
  id          uuid PRIMARY KEY,
  address     text NOT NULL,
  started_at  timestamptz NOT NULL DEFAULT now(),
  lease_until timestamptz NOT NULL,
  dead_at     timestamptz
) WITH (fillfactor = 50);

CREATE TABLE tenants (
  id         uuid PRIMARY KEY,
  name       text NOT NULL CHECK (char_length(name) BETWEEN 1 AND 120),
  residency  json,
  created_at timestamptz NOT NULL DEFAULT now(),
  updated_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE users (
  tenant_id     uuid NOT NULL REFERENCES tenants,
  id            uuid NOT NULL,
  email         text NOT NULL,
  name          text NOT NULL DEFAULT '',
  role          text NOT NULL CONSTRAINT users_role_check CHECK (role IN ('member', 'admin', 'owner')),
  password_hash text,
  created_at    timestamptz NOT NULL DEFAULT now(),
  updated_at    timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, id)
);
CREATE UNIQUE INDEX users_email_key ON users (tenant_id, lower(email));

CREATE TABLE api_keys (
  tenant_id    uuid NOT NULL REFERENCES tenants,
  id           uuid NOT NULL,
  name         text NOT NULL CHECK (char_length(name) BETWEEN 1 AND 120),
  prefix       text NOT NULL,
  secret_hash  bytea NOT NULL,
  last_used_at timestamptz,
  revoked_at   timestamptz,
  created_at   timestamptz NOT NULL DEFAULT now(),
  updated_at   timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, id)
);

CREATE TABLE agents (
  tenant_id         uuid NOT NULL REFERENCES tenants,
  id                uuid NOT NULL,
  slug              text NOT NULL CHECK (slug ~ '^[a-z0-9][a-z0-9-]{0,62}$'),
  name              text NOT NULL CHECK (char_length(name) BETWEEN 1 AND 120),
  description       text NOT NULL DEFAULT '',
  emoji             text NOT NULL DEFAULT '',
  node_id           uuid,
  published_version int,
  latest_version    int NOT NULL DEFAULT 0,
  archived_at       timestamptz,
  created_at        timestamptz NOT NULL DEFAULT now(),
  updated_at        timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, id)
);
CREATE UNIQUE INDEX agents_slug_key ON agents (tenant_id, slug) WHERE archived_at IS NULL;

CREATE TABLE agent_versions (
  tenant_id    uuid NOT NULL,
  agent_id     uuid NOT NULL,
  version      int  NOT NULL CHECK (version >= 1),
  status       text NOT NULL CONSTRAINT agent_versions_status_check CHECK (status IN ('draft', 'published', 'superseded')),
  manifest     json NOT NULL,
  created_at   timestamptz NOT NULL DEFAULT now(),
  published_at timestamptz,
  PRIMARY KEY (tenant_id, agent_id, version),
  FOREIGN KEY (tenant_id, agent_id) REFERENCES agents
);
CREATE UNIQUE INDEX agent_versions_published_key ON agent_versions (tenant_id, agent_id) WHERE status = 'published';

CREATE TABLE model_providers (
  tenant_id   uuid NOT NULL REFERENCES tenants,
  id          uuid NOT NULL,
  slug        text NOT NULL CHECK (slug ~ '^[a-z0-9][a-z0-9-]{0,62}$'),
  kind        text NOT NULL CONSTRAINT model_providers_kind_check CHECK (kind IN ('openai', 'anthropic')),
  base_url    text NOT NULL,
  credentials bytea NOT NULL, -- sealed
  prices      json,
  created_at  timestamptz NOT NULL DEFAULT now(),
  updated_at  timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, id)
);
CREATE UNIQUE INDEX model_providers_slug_key ON model_providers (tenant_id, slug);

CREATE TABLE attachments (
  tenant_id  uuid NOT NULL REFERENCES tenants,
  id         uuid NOT NULL,
  name       text NOT NULL,
  media_type text NOT NULL,
  size_bytes bigint NOT NULL CHECK (size_bytes >= 0),
  sha256     bytea NOT NULL,
  created_by text NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, id)
);

-- The enums of tables that are written all the time are domains: the server reads
-- the CHECK of a table anew in every statement, the one of a domain once.
CREATE DOMAIN message_role AS text CONSTRAINT message_role_check CHECK (VALUE IN ('user', 'assistant', 'system'));
CREATE DOMAIN run_status AS text CONSTRAINT run_status_check CHECK (VALUE IN ('queued', 'running', 'waiting_approval', 'succeeded', 'failed', 'cancelled', 'expired'));
CREATE DOMAIN origin_kind AS text CONSTRAINT origin_kind_check CHECK (VALUE IN ('api_key', 'user', 'trigger', 'channel', 'embed_key', 'workflow'));
CREATE DOMAIN step_kind AS text CONSTRAINT step_kind_check CHECK (VALUE IN ('llm', 'tool', 'approval', 'retrieval', 'handoff', 'agent', 'node'));
CREATE DOMAIN step_status AS text CONSTRAINT step_status_check CHECK (VALUE IN ('running', 'succeeded', 'failed', 'waiting', 'abandoned'));
CREATE DOMAIN usage_kind AS text CONSTRAINT usage_kind_check CHECK (VALUE IN ('llm', 'embedding', 'browser_skill_run'));

-- Actors' rows. version and owner_epoch are the compare-and-swap of every
-- commit, last_op says which commit wrote the row last, so that a commit of
-- unknown outcome can be repeated.
CREATE TABLE threads (
  tenant_id   uuid NOT NULL REFERENCES tenants,
  id          uuid NOT NULL,
  agent_id    uuid NOT NULL,
  title       text CHECK (char_length(title) BETWEEN 1 AND 200),
  created_by  text NOT NULL,
  end_user_id uuid,
  next_seq    bigint NOT NULL DEFAULT 1, -- a post takes two: its message and the place of its reply
  created_at  timestamptz NOT NULL DEFAULT now(),
  updated_at  timestamptz NOT NULL DEFAULT now(),
  deleted_at  timestamptz,
  version     bigint NOT NULL DEFAULT 1,
  owner_epoch bigint NOT NULL DEFAULT 0,
  last_op     uuid,
  PRIMARY KEY (tenant_id, id),
  FOREIGN KEY (tenant_id, agent_id) REFERENCES agents
) WITH (fillfactor = 70);

CREATE TABLE messages (
  tenant_id   uuid NOT NULL,
  thread_id   uuid NOT NULL,
  seq         bigint NOT NULL,
  id          uuid NOT NULL,
  role        message_role NOT NULL,
  content     text NOT NULL,
  attachments json,
  run_id      uuid,
  created_at  timestamptz NOT NULL,
  PRIMARY KEY (tenant_id, thread_id, seq),
  FOREIGN KEY (tenant_id, thread_id) REFERENCES threads
);

CREATE TABLE runs (
  tenant_id     uuid NOT NULL REFERENCES tenants,
  id            uuid NOT NULL,
  status        run_status NOT NULL,
  agent_id      uuid,
  agent_version int,
  workflow_id   uuid,
  thread_id     uuid,
  thread_seq    bigint, -- seq of the message that asked; the reply's is the next
  parent_run_id uuid,
  input         json,
  output        json,
  error_code    text,
  error_message text,
  origin_kind   origin_kind NOT NULL,
  origin_id     uuid NOT NULL,
  end_user_id   uuid,
  tokens_in     bigint NOT NULL DEFAULT 0,
  tokens_out    bigint NOT NULL DEFAULT 0,
  cost_usd      double precision NOT NULL DEFAULT 0,
  created_at    timestamptz NOT NULL,
  started_at    timestamptz,
  finished_at   timestamptz,
  seq           bigint NOT NULL DEFAULT 0, -- facts so far; the last one of an ended run is its terminal frame
  steps         int NOT NULL DEFAULT 0,
  version       bigint NOT NULL DEFAULT 1,
  owner_epoch   bigint NOT NULL DEFAULT 0,
  last_op       uuid,
  state         bytea CHECK (octet_length(state) <= 2048), -- what no column says
  PRIMARY KEY (tenant_id, id),
  FOREIGN KEY (tenant_id, thread_id) REFERENCES threads,
  CHECK ((error_code IS NULL) = (status NOT IN ('failed', 'cancelled'))),
  CHECK ((finished_at IS NULL) = (status IN ('queued', 'running', 'waiting_approval'))),
  CHECK ((agent_id IS NULL) <> (workflow_id IS NULL)),
  CHECK ((thread_id IS NULL) = (thread_seq IS NULL))
) WITH (fillfactor = 70);
-- No index names status: a run that begins is updated in place.
CREATE INDEX runs_open ON runs (tenant_id, thread_id, thread_seq) WHERE finished_at IS NULL;
CREATE INDEX runs_ended_badly ON runs (tenant_id, id) WHERE error_code IS NOT NULL;
-- Without the tenant in front: the planner must not take it for the primary key
-- while the table has no statistics yet (it read the whole index for each row).
CREATE INDEX runs_agent ON runs (agent_id, id);

CREATE TABLE run_steps (
  tenant_id     uuid NOT NULL,
  run_id        uuid NOT NULL,
  idx           int  NOT NULL CHECK (idx >= 0),
  kind          step_kind NOT NULL,
  name          text NOT NULL,
  status        step_status NOT NULL,
  input         json,  -- shown: redacted
  output        json,  -- shown: redacted
  segments      int[], -- byte lengths of the step's live text, thinking and text by turns, thinking first
  sealed        bytea, -- what model and tool get, and what the model's history needs
  agent_id      uuid,  -- who speaks in an llm step
  agent_version int,
  withheld      boolean NOT NULL DEFAULT false, -- live text is kept from the embed relay
  tokens_in     bigint NOT NULL DEFAULT 0,
  tokens_out    bigint NOT NULL DEFAULT 0,
  cost_usd      double precision NOT NULL DEFAULT 0,
  began_seq     bigint NOT NULL,
  ended_seq     bigint,
  started_at    timestamptz NOT NULL,
  finished_at   timestamptz,
  PRIMARY KEY (tenant_id, run_id, idx),
  FOREIGN KEY (tenant_id, run_id) REFERENCES runs
) WITH (fillfactor = 70);

-- Facts of a run that have no row of their own.
CREATE TABLE run_marks (
  tenant_id uuid   NOT NULL,
  run_id    uuid   NOT NULL,
  seq       bigint NOT NULL,
  type      text   NOT NULL,
  data      json   NOT NULL,
  PRIMARY KEY (tenant_id, run_id, seq),
  FOREIGN KEY (tenant_id, run_id) REFERENCES runs
);

-- Due moments of actors. The sweep claims due rows and tells their owners; the
-- commit of what the timer causes deletes the row.
CREATE TABLE timers (
  tenant_id     uuid NOT NULL REFERENCES tenants,
  kind          text NOT NULL,
  entity_id     uuid NOT NULL,
  name          text NOT NULL,
  due_at        timestamptz NOT NULL,
  claimed_until timestamptz,
  PRIMARY KEY (tenant_id, kind, entity_id, name)
);
CREATE INDEX timers_due ON timers (due_at);

CREATE TABLE idempotency (
  tenant_id   uuid  NOT NULL REFERENCES tenants,
  digest      bytea NOT NULL CHECK (octet_length(digest) = 32), -- of principal, method, path and key
  fingerprint bytea NOT NULL CHECK (octet_length(fingerprint) = 32), -- of the request
  status      int   NOT NULL CHECK (status BETWEEN 200 AND 299),
  response    bytea NOT NULL, -- sealed
  created_at  timestamptz NOT NULL,
  PRIMARY KEY (tenant_id, digest)
);
CREATE INDEX idempotency_age ON idempotency USING brin (created_at);

CREATE TABLE usage_records (
  tenant_id  uuid NOT NULL REFERENCES tenants,
  id         uuid NOT NULL,
  at         timestamptz NOT NULL,
  kind       usage_kind NOT NULL,
  run_id     uuid,
  agent_id   uuid,
  model      text NOT NULL DEFAULT '',
  tokens_in  bigint NOT NULL DEFAULT 0,
  tokens_out bigint NOT NULL DEFAULT 0,
  cost_usd   double precision NOT NULL DEFAULT 0,
  detail     json,
  PRIMARY KEY (tenant_id, id)
);

CREATE TABLE audit_log (
  tenant_id   uuid NOT NULL REFERENCES tenants,
  id          uuid NOT NULL,
  at          timestamptz NOT NULL,
  actor       text NOT NULL,
  action      text NOT NULL,
  target_kind text NOT NULL,
  target_id   uuid NOT NULL,
  ip          text NOT NULL DEFAULT '',
  detail      json,
  PRIMARY KEY (tenant_id, id)
);

GRANT USAGE ON SCHEMA public TO svc_api, svc_system;
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO svc_api, svc_system;
REVOKE ALL ON members FROM svc_api;
REVOKE UPDATE, DELETE ON audit_log, usage_records FROM svc_api;
ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO svc_api, svc_system;

ALTER TABLE tenants ENABLE ROW LEVEL SECURITY;
ALTER TABLE tenants FORCE ROW LEVEL SECURITY;
CREATE POLICY tenants_api ON tenants TO svc_api USING (id = svc_tenant());
CREATE POLICY tenants_system ON tenants TO svc_system USING (true);

DO $$
DECLARE t text;
BEGIN
  FOR t IN SELECT c.table_name FROM information_schema.columns c JOIN information_schema.tables b USING (table_schema, table_name)
           WHERE c.table_schema = 'public' AND c.column_name = 'tenant_id' AND b.table_type = 'BASE TABLE'
  LOOP
    EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', t);
    EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', t);
    EXECUTE format('CREATE POLICY %I ON %I TO svc_api USING (tenant_id = svc_tenant())', t || '_api', t);
    EXECUTE format('CREATE POLICY %I ON %I TO svc_system USING (true)', t || '_system', t);
  END LOOP;
END $$;
