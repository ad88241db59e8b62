-- What the console reads: filters and orders of lists, searches, the health of tool servers,
-- origins that embed keys refused. Operators with a large table of runs make its indexes before,
-- without locks (operator-guide.md, Upgrade).

-- The last 8 hex digits of an id, as bytes: how people name things. Not STRICT, as shard_of.
CREATE OR REPLACE FUNCTION short_of(uuid) RETURNS bytea IMMUTABLE PARALLEL SAFE LANGUAGE sql AS $$ SELECT substring(uuid_send($1) from 13) $$;

-- Filters of the list of runs. None names status, and none begins with the tenant: see runs_agent.
-- A run that begins or waits is still updated in place. The first one is for the kinds of origin
-- and, over all kinds, for times.
CREATE INDEX IF NOT EXISTS runs_origin ON runs (origin_kind, tenant_id, created_at);
CREATE INDEX IF NOT EXISTS runs_parent ON runs (parent_run_id, id) WHERE parent_run_id IS NOT NULL;
CREATE INDEX IF NOT EXISTS runs_code ON runs (error_code, tenant_id, id) WHERE error_code IS NOT NULL;
CREATE INDEX IF NOT EXISTS runs_short ON runs (short_of(id));
CREATE INDEX IF NOT EXISTS threads_short ON threads (short_of(id));

-- Orders and filters of the list of approvals.
CREATE FUNCTION risk_order(text) RETURNS int IMMUTABLE PARALLEL SAFE LANGUAGE sql AS $$
  SELECT CASE $1 WHEN 'critical' THEN 0 WHEN 'high' THEN 1 WHEN 'medium' THEN 2 ELSE 3 END
$$;
CREATE INDEX approvals_status ON approvals (status, tenant_id, id);
CREATE INDEX approvals_expire ON approvals (status, tenant_id, expires_at, id);
CREATE INDEX approvals_risk ON approvals (status, tenant_id, risk_order(risk), expires_at, id);
CREATE INDEX approvals_tool ON approvals (tool, tenant_id, id);
CREATE INDEX approvals_agent ON approvals (agent_id, id) WHERE agent_id IS NOT NULL;
CREATE INDEX approvals_short ON approvals (short_of(id));

-- Searches by the beginning of a text, whatever its case. The tenant is a part of the text, so
-- that the planner does not take these indexes for those of a tenant's rows (see runs_agent), and
-- a search reads nothing of other tenants.
CREATE OR REPLACE FUNCTION found_by(uuid, text) RETURNS text IMMUTABLE PARALLEL SAFE LANGUAGE sql AS $$ SELECT $1::text || lower($2) $$;
CREATE INDEX IF NOT EXISTS threads_found ON threads (found_by(tenant_id, title) text_pattern_ops) WHERE title IS NOT NULL AND deleted_at IS NULL;
CREATE INDEX end_users_found ON end_users (found_by(tenant_id, external_id) text_pattern_ops) WHERE deleted_at IS NULL;
CREATE INDEX end_users_named ON end_users (found_by(tenant_id, name) text_pattern_ops) WHERE name IS NOT NULL AND deleted_at IS NULL;
CREATE INDEX end_users_mailed ON end_users (found_by(tenant_id, email) text_pattern_ops) WHERE email IS NOT NULL AND deleted_at IS NULL;
CREATE INDEX end_users_short ON end_users (short_of(id)) WHERE deleted_at IS NULL;
CREATE INDEX users_found ON users (found_by(tenant_id, email) text_pattern_ops);

-- How the last exchange with a tool server went, and the last use of a credential. Nodes write
-- them when they change, and else once a minute at most.
ALTER TABLE mcp_servers
  ADD COLUMN health_ok    boolean,
  ADD COLUMN health_at    timestamptz,
  ADD COLUMN health_error text;
ALTER TABLE connections
  ADD COLUMN last_used_at timestamptz,
  ADD COLUMN last_error   text;
CREATE FUNCTION health_of(boolean, timestamptz, text) RETURNS json STABLE PARALLEL SAFE LANGUAGE sql AS $$
  SELECT json_build_object('state', CASE WHEN $1 IS NULL THEN 'unknown' WHEN $1 THEN 'ok' ELSE 'failing' END,
    'at', to_char($2 AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'), 'error', $3)
$$;

-- Origins that an embed key refused, by day. What strangers send ends here: a node adds its
-- counts up in memory, and of one key no more than 100 origins are kept.
CREATE TABLE embed_denied_origins (
  tenant_id uuid NOT NULL,
  key_id    uuid NOT NULL,
  origin    text NOT NULL CHECK (char_length(origin) BETWEEN 1 AND 512),
  day       date NOT NULL,
  count     bigint NOT NULL CHECK (count > 0),
  last_at   timestamptz NOT NULL,
  PRIMARY KEY (tenant_id, key_id, origin, day),
  FOREIGN KEY (tenant_id, key_id) REFERENCES embed_keys ON DELETE CASCADE
);
CREATE INDEX embed_denied_origins_age ON embed_denied_origins (last_at);

ALTER TABLE embed_denied_origins ENABLE ROW LEVEL SECURITY;
ALTER TABLE embed_denied_origins FORCE ROW LEVEL SECURITY;
CREATE POLICY embed_denied_origins_api ON embed_denied_origins TO svc_api USING (tenant_id = svc_tenant());
CREATE POLICY embed_denied_origins_system ON embed_denied_origins TO svc_system USING (true);
REVOKE INSERT, UPDATE, DELETE ON embed_denied_origins FROM svc_api;
