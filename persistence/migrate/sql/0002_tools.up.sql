-- People, tool servers, grants, policies and approvals.

CREATE DOMAIN approval_status AS text CONSTRAINT approval_status_check
  CHECK (VALUE IN ('pending', 'approved', 'edited', 'rejected', 'responded', 'expired', 'cancelled'));
CREATE DOMAIN risk AS text CONSTRAINT risk_check CHECK (VALUE IN ('low', 'medium', 'high', 'critical'));
CREATE DOMAIN approver_role AS text CONSTRAINT approver_role_check CHECK (VALUE IN ('owner', 'admin', 'manager', 'member'));
CREATE DOMAIN tool_source AS text CONSTRAINT tool_source_check CHECK (VALUE IN ('mcp', 'builtin', 'a2a', 'connector', 'browser_skill'));

CREATE TABLE org_nodes (
  tenant_id  uuid NOT NULL REFERENCES tenants,
  id         uuid NOT NULL,
  name       text NOT NULL CHECK (char_length(name) BETWEEN 1 AND 120),
  parent_id  uuid,
  created_at timestamptz NOT NULL DEFAULT now(),
  updated_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, id),
  FOREIGN KEY (tenant_id, parent_id) REFERENCES org_nodes,
  CHECK (parent_id <> id)
);
CREATE INDEX org_nodes_parent ON org_nodes (tenant_id, parent_id);

CREATE TABLE org_node_managers (
  tenant_id  uuid NOT NULL,
  node_id    uuid NOT NULL,
  user_id    uuid NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, node_id, user_id),
  FOREIGN KEY (tenant_id, node_id) REFERENCES org_nodes ON DELETE CASCADE,
  FOREIGN KEY (tenant_id, user_id) REFERENCES users ON DELETE CASCADE
);
CREATE INDEX org_node_managers_user ON org_node_managers (tenant_id, user_id);

ALTER TABLE agents ADD CONSTRAINT agents_node_fkey FOREIGN KEY (tenant_id, node_id) REFERENCES org_nodes;
CREATE INDEX agents_node ON agents (tenant_id, node_id) WHERE node_id IS NOT NULL;

-- A login that names no tenant looks for the e-mail in all of them.
CREATE INDEX users_email ON users (lower(email));

-- Console sessions. The token names tenant, session and a secret, of which only
-- the hash is here.
CREATE TABLE sessions (
  tenant_id   uuid NOT NULL,
  id          uuid NOT NULL,
  user_id     uuid NOT NULL,
  secret_hash bytea NOT NULL CHECK (octet_length(secret_hash) = 32),
  created_at  timestamptz NOT NULL DEFAULT now(),
  used_at     timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, id),
  FOREIGN KEY (tenant_id, user_id) REFERENCES users ON DELETE CASCADE
);
CREATE INDEX sessions_user ON sessions (tenant_id, user_id);

-- One-time login links, as the command line makes them.
CREATE TABLE login_links (
  tenant_id   uuid NOT NULL,
  id          uuid NOT NULL,
  user_id     uuid NOT NULL,
  secret_hash bytea NOT NULL CHECK (octet_length(secret_hash) = 32),
  expires_at  timestamptz NOT NULL,
  created_at  timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, id),
  FOREIGN KEY (tenant_id, user_id) REFERENCES users ON DELETE CASCADE
);

CREATE TABLE mcp_servers (
  tenant_id  uuid NOT NULL REFERENCES tenants,
  id         uuid NOT NULL,
  slug       text NOT NULL CHECK (slug ~ '^[a-z0-9][a-z0-9-]{0,62}$'),
  name       text NOT NULL CHECK (char_length(name) BETWEEN 1 AND 120),
  transport  text NOT NULL CONSTRAINT mcp_servers_transport_check CHECK (transport IN ('http', 'stdio')),
  endpoint   text NOT NULL,
  auth_kind  text NOT NULL CONSTRAINT mcp_servers_auth_kind_check CHECK (auth_kind IN ('none', 'bearer', 'api_key', 'oauth')),
  enabled    boolean NOT NULL DEFAULT true,
  meta       json NOT NULL DEFAULT '{}',
  -- The last list of tools that the server gave, for when it is down.
  tools      json,
  listed_at  timestamptz,
  created_at timestamptz NOT NULL DEFAULT now(),
  updated_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, id)
);
CREATE UNIQUE INDEX mcp_servers_slug_key ON mcp_servers (tenant_id, slug);

CREATE TABLE connections (
  tenant_id       uuid NOT NULL,
  id              uuid NOT NULL,
  mcp_server_id   uuid NOT NULL,
  name            text NOT NULL CHECK (char_length(name) BETWEEN 1 AND 120),
  credentials     bytea NOT NULL, -- sealed
  credential_meta json NOT NULL DEFAULT '{}',
  node_id         uuid,
  created_at      timestamptz NOT NULL DEFAULT now(),
  updated_at      timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, id),
  UNIQUE (tenant_id, mcp_server_id, id),
  FOREIGN KEY (tenant_id, mcp_server_id) REFERENCES mcp_servers ON DELETE CASCADE,
  FOREIGN KEY (tenant_id, node_id) REFERENCES org_nodes
);
CREATE INDEX connections_node ON connections (tenant_id, node_id) WHERE node_id IS NOT NULL;

CREATE TABLE tool_grants (
  tenant_id        uuid NOT NULL REFERENCES tenants,
  id               uuid NOT NULL,
  source           tool_source NOT NULL,
  mcp_server_id    uuid,
  browser_skill_id uuid,
  tool_pattern     text NOT NULL CHECK (char_length(tool_pattern) BETWEEN 1 AND 200),
  effect           text NOT NULL CONSTRAINT tool_grants_effect_check CHECK (effect IN ('allow', 'deny')),
  agent_id         uuid,
  node_id          uuid,
  connection_id    uuid,
  created_at       timestamptz NOT NULL DEFAULT now(),
  updated_at       timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, id),
  FOREIGN KEY (tenant_id, mcp_server_id) REFERENCES mcp_servers ON DELETE CASCADE,
  FOREIGN KEY (tenant_id, mcp_server_id, connection_id) REFERENCES connections (tenant_id, mcp_server_id, id),
  FOREIGN KEY (tenant_id, agent_id) REFERENCES agents,
  FOREIGN KEY (tenant_id, node_id) REFERENCES org_nodes,
  CHECK ((source = 'mcp') = (mcp_server_id IS NOT NULL)),
  CHECK (agent_id IS NULL OR node_id IS NULL),
  CHECK (connection_id IS NULL OR mcp_server_id IS NOT NULL)
);
CREATE INDEX tool_grants_server ON tool_grants (tenant_id, mcp_server_id);
CREATE INDEX tool_grants_shared ON tool_grants (tenant_id) WHERE agent_id IS NULL;
CREATE INDEX tool_grants_agent ON tool_grants (tenant_id, agent_id) WHERE agent_id IS NOT NULL;
CREATE INDEX tool_grants_node ON tool_grants (tenant_id, node_id) WHERE node_id IS NOT NULL;
CREATE INDEX tool_grants_connection ON tool_grants (tenant_id, connection_id) WHERE connection_id IS NOT NULL;

CREATE TABLE approval_policies (
  tenant_id          uuid NOT NULL REFERENCES tenants,
  id                 uuid NOT NULL,
  name               text NOT NULL CHECK (char_length(name) BETWEEN 1 AND 120),
  tool_pattern       text NOT NULL CHECK (char_length(tool_pattern) BETWEEN 1 AND 200),
  source             tool_source,
  agent_id           uuid,
  risk               risk NOT NULL,
  required_approvals int NOT NULL CHECK (required_approvals BETWEEN 1 AND 5),
  approver_role      approver_role NOT NULL,
  sla_minutes        double precision NOT NULL CHECK (sla_minutes > 0 AND sla_minutes <= 525600),
  escalate_to_role   approver_role,
  enabled            boolean NOT NULL DEFAULT true,
  created_at         timestamptz NOT NULL DEFAULT now(),
  updated_at         timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, id),
  FOREIGN KEY (tenant_id, agent_id) REFERENCES agents
);
CREATE INDEX approval_policies_agent ON approval_policies (tenant_id, agent_id) WHERE agent_id IS NOT NULL;

-- A tool step that has been called: the number of its tool.called.
ALTER TABLE run_steps ADD COLUMN called_seq bigint;

-- Approvals are inserted by the run that waits for them and from then on written
-- by their own actors; a commit that ends a run cancels those that are pending.
CREATE TABLE approvals (
  tenant_id          uuid NOT NULL,
  id                 uuid NOT NULL,
  run_id             uuid NOT NULL,
  step_idx           int  NOT NULL,
  agent_id           uuid,
  node_id            uuid, -- where the managers' chain begins: the agent's org node when it was opened
  status             approval_status NOT NULL DEFAULT 'pending',
  risk               risk NOT NULL,
  assignee_role      approver_role NOT NULL,
  required_approvals int NOT NULL CHECK (required_approvals BETWEEN 1 AND 5),
  approvals_so_far   int NOT NULL DEFAULT 0 CHECK (approvals_so_far BETWEEN 0 AND 5),
  tool               text NOT NULL,
  args               json NOT NULL, -- shown: redacted
  schema             json,
  frozen             bytea NOT NULL, -- sealed: the arguments as they are called
  edited             bytea, -- sealed: the latest valid edit
  digest             bytea NOT NULL CHECK (octet_length(digest) = 32), -- of the arguments that will be called
  reasoning_summary  text NOT NULL DEFAULT '',
  policy             json NOT NULL,
  decisions          json NOT NULL DEFAULT '[]',
  decision           text CONSTRAINT approvals_decision_check CHECK (decision IN ('approve', 'edit', 'reject', 'respond', 'expire', 'cancel')),
  feedback           text, -- of a rejection or a response
  escalate_to_role   approver_role,
  on_timeout         text NOT NULL CONSTRAINT approvals_on_timeout_check CHECK (on_timeout IN ('reject', 'cancel_run')),
  escalated_at       timestamptz,
  expires_at         timestamptz NOT NULL,
  created_at         timestamptz NOT NULL,
  updated_at         timestamptz NOT NULL,
  decided_at         timestamptz,
  version            bigint NOT NULL DEFAULT 1,
  owner_epoch        bigint NOT NULL DEFAULT 0,
  last_op            uuid,
  PRIMARY KEY (tenant_id, id),
  FOREIGN KEY (tenant_id, run_id, step_idx) REFERENCES run_steps,
  CHECK ((status = 'pending') = (decided_at IS NULL)),
  CHECK ((status = 'pending') = (decision IS NULL)),
  CHECK (status NOT IN ('approved', 'edited') OR approvals_so_far = required_approvals),
  CHECK (status <> 'edited' OR edited IS NOT NULL)
) WITH (fillfactor = 70);
-- Without the tenant in front: while the table has no statistics yet the planner
-- takes any index that begins with it, and reads all of the tenant's rows.
CREATE UNIQUE INDEX approvals_step_key ON approvals (run_id, step_idx);
CREATE INDEX approvals_pending ON approvals (tenant_id, id) WHERE status = 'pending';

REVOKE INSERT, UPDATE, DELETE ON approvals FROM svc_api;

DO $$
DECLARE t text;
BEGIN
  FOREACH t IN ARRAY ARRAY['org_nodes', 'org_node_managers', 'sessions', 'login_links', 'mcp_servers', 'connections', 'tool_grants',
                           'approval_policies', 'approvals']
  LOOP
    EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', t);
    EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', t);
    EXECUTE format('CREATE POLICY %I ON %I TO svc_api USING (tenant_id = svc_tenant())', t || '_api', t);
    EXECUTE format('CREATE POLICY %I ON %I TO svc_system USING (true)', t || '_system', t);
  END LOOP;
END $$;
