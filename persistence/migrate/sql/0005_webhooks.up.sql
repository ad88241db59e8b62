-- Webhooks out, triggers in.

CREATE DOMAIN delivery_status AS text CONSTRAINT delivery_status_check CHECK (VALUE IN ('pending', 'succeeded', 'failed'));

-- An endpoint with expires_at is a listener: it has no URL, its deliveries are
-- fetched, and it goes when nobody has fetched for a while.
CREATE TABLE webhooks (
  tenant_id   uuid NOT NULL REFERENCES tenants,
  id          uuid NOT NULL,
  url         text NOT NULL,
  events      text[] NOT NULL CHECK (cardinality(events) BETWEEN 1 AND 16),
  description text NOT NULL DEFAULT '' CHECK (char_length(description) <= 2000),
  enabled     boolean NOT NULL DEFAULT true,
  secret      bytea NOT NULL, -- sealed
  expires_at  timestamptz,
  created_at  timestamptz NOT NULL DEFAULT now(),
  updated_at  timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, id),
  CHECK ((url = '') = (expires_at IS NOT NULL))
);
CREATE INDEX webhooks_expire ON webhooks (expires_at) WHERE expires_at IS NOT NULL;

-- The outbox. body are the bytes of the envelope, frozen by the commit of what
-- they report; attempts counts those that were begun, so that there is never one
-- too many; begun_at is set while one is on its way. next_attempt_at is when a
-- pending delivery is begun next; while an attempt is on its way, when it is begun
-- next should its node be gone.
CREATE TABLE webhook_deliveries (
  tenant_id        uuid NOT NULL,
  id               uuid NOT NULL,
  webhook_id       uuid NOT NULL,
  event_id         uuid NOT NULL,
  type             text NOT NULL,
  body             bytea NOT NULL,
  status           delivery_status NOT NULL DEFAULT 'pending',
  attempts         int NOT NULL DEFAULT 0 CHECK (attempts BETWEEN 0 AND 5),
  begun_at         timestamptz,
  next_attempt_at  timestamptz,
  last_http_status int,
  last_error       text,
  attempt_log      json NOT NULL DEFAULT '[]',
  created_at       timestamptz NOT NULL,
  PRIMARY KEY (tenant_id, id),
  FOREIGN KEY (tenant_id, webhook_id) REFERENCES webhooks ON DELETE CASCADE,
  CHECK ((status = 'pending') = (next_attempt_at IS NOT NULL)),
  CHECK (begun_at IS NULL OR attempts > 0)
) WITH (fillfactor = 70);
CREATE INDEX webhook_deliveries_of ON webhook_deliveries (tenant_id, webhook_id, id);
-- Few have failed, of all that are kept: lists of them, and recover.
CREATE INDEX webhook_deliveries_failed ON webhook_deliveries (tenant_id, webhook_id, id) WHERE status = 'failed';
CREATE INDEX webhook_deliveries_age ON webhook_deliveries USING brin (created_at);
-- Without the tenant in front: see runs_agent. It finds the endpoints that have
-- something pending, and what of one endpoint is due.
CREATE INDEX webhook_deliveries_due ON webhook_deliveries (webhook_id, next_attempt_at) WHERE status = 'pending';

CREATE TABLE triggers (
  tenant_id     uuid NOT NULL REFERENCES tenants,
  id            uuid NOT NULL,
  name          text NOT NULL CHECK (char_length(name) BETWEEN 1 AND 120),
  kind          text NOT NULL CONSTRAINT triggers_kind_check CHECK (kind IN ('hook', 'schedule')),
  agent_id      uuid,
  workflow_id   uuid,
  enabled       boolean NOT NULL DEFAULT true,
  cron          text,
  timezone      text,
  input         json,
  secret        bytea, -- sealed
  last_fired_at timestamptz,
  next_fire_at  timestamptz, -- of a schedule that is enabled; its timer has the same time
  created_at    timestamptz NOT NULL DEFAULT now(),
  updated_at    timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, id),
  FOREIGN KEY (tenant_id, agent_id) REFERENCES agents,
  CHECK ((agent_id IS NULL) <> (workflow_id IS NULL)),
  CHECK ((kind = 'schedule') = (cron IS NOT NULL AND timezone IS NOT NULL)),
  CHECK ((kind = 'hook') = (secret IS NOT NULL)),
  CHECK ((next_fire_at IS NOT NULL) = (kind = 'schedule' AND enabled))
);
-- A hook's call names no tenant.
CREATE UNIQUE INDEX triggers_id ON triggers (id);
CREATE INDEX triggers_agent ON triggers (tenant_id, agent_id) WHERE agent_id IS NOT NULL;

-- An id of version 7 whose time is at, for rows that a statement makes. It carries
-- no shard that means anything.
CREATE FUNCTION new_id(at timestamptz) RETURNS uuid VOLATILE PARALLEL SAFE LANGUAGE sql AS $$
  SELECT encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid()) PLACING substring(int8send(floor(extract(epoch FROM at) * 1000)::bigint) FROM 3) FROM 1 FOR 6), 52, 1), 53, 1), 'hex')::uuid
$$;

-- An attempt_log with one more attempt, which has the last 20. What is not known of
-- the attempt is null.
CREATE FUNCTION with_attempt(attempt_log json, at timestamptz, http_status int, error text, duration_ms bigint) RETURNS json STABLE PARALLEL SAFE LANGUAGE sql AS $$
  SELECT (CASE WHEN json_array_length($1) >= 20 THEN $1::jsonb - 0 ELSE $1::jsonb END || jsonb_build_object(
    'at', to_char($2 AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'), 'http_status', $3, 'error', $4, 'duration_ms', $5))::json
$$;

DO $$
DECLARE t text;
BEGIN
  FOREACH t IN ARRAY ARRAY['webhooks', 'webhook_deliveries', 'triggers']
  LOOP
    EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', t);
    EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', t);
    EXECUTE format('CREATE POLICY %I ON %I TO svc_api USING (tenant_id = svc_tenant())', t || '_api', t);
    EXECUTE format('CREATE POLICY %I ON %I TO svc_system USING (true)', t || '_system', t);
  END LOOP;
END $$;
