-- Figures for charts (docs/adr/0060). The commit that ends a run, opens or decides an approval,
-- or ends a delivery inserts a tally. A sweep folds tallies into stats and deletes them, in one
-- transaction.

CREATE DOMAIN tally AS text CONSTRAINT tally_check
  CHECK (VALUE IN ('succeeded', 'failed', 'cancelled', 'requested', 'decided', 'expired', 'delivered', 'undelivered'));

CREATE TABLE tallies (
  tenant_id  uuid NOT NULL,
  -- Of the transaction that inserted it: a fold takes those of all transactions that have ended.
  xid        xid8 NOT NULL DEFAULT pg_current_xact_id(),
  n          bigint GENERATED ALWAYS AS IDENTITY,
  what       tally NOT NULL,
  at         timestamptz NOT NULL,
  agent_id   uuid,
  ms         bigint, -- how long the run or the decision took
  first_ms   bigint, -- of a run: until its first text
  tokens_in  bigint NOT NULL DEFAULT 0,
  tokens_out bigint NOT NULL DEFAULT 0,
  cost_usd   double precision NOT NULL DEFAULT 0,
  PRIMARY KEY (tenant_id, xid, n)
);
CREATE INDEX tallies_xid ON tallies (xid);

-- Tallies of transactions before this one are in stats.
CREATE TABLE stats_mark (
  one    boolean PRIMARY KEY DEFAULT true CHECK (one),
  folded xid8 NOT NULL
);
INSERT INTO stats_mark (folded) VALUES ('0');
REVOKE ALL ON stats_mark FROM svc_api;
GRANT SELECT ON stats_mark TO svc_api;

-- Sums of a minute, of 15 minutes or of an hour of one agent, and of all together under the
-- agent 0. The times are histograms (persistence/rollup).
CREATE TABLE stats (
  tenant_id   uuid NOT NULL,
  agent_id    uuid NOT NULL,
  minutes     int  NOT NULL, -- 1, 15 or 60
  at          timestamptz NOT NULL,
  succeeded   bigint NOT NULL,
  failed      bigint NOT NULL,
  cancelled   bigint NOT NULL,
  requested   bigint NOT NULL,
  decided     bigint NOT NULL,
  expired     bigint NOT NULL,
  delivered   bigint NOT NULL,
  undelivered bigint NOT NULL,
  tokens_in   bigint NOT NULL,
  tokens_out  bigint NOT NULL,
  cost_usd    double precision NOT NULL,
  duration    bytea NOT NULL,
  first_token bytea NOT NULL,
  decision    bytea NOT NULL,
  PRIMARY KEY (tenant_id, agent_id, minutes, at)
) WITH (fillfactor = 80);
-- The agents with failed runs of a day.
CREATE INDEX stats_failed ON stats (tenant_id, at) WHERE minutes = 60 AND failed > 0;

-- Counts of pending approvals are read from the index alone.
CREATE INDEX approvals_waiting ON approvals (tenant_id, risk, assignee_role, node_id, approvals_so_far, expires_at, created_at) WHERE status = 'pending';

DO $$
DECLARE t text;
BEGIN
  FOREACH t IN ARRAY ARRAY['tallies', 'stats']
  LOOP
    EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', t);
    EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', t);
    EXECUTE format('CREATE POLICY %I ON %I TO svc_api USING (tenant_id = svc_tenant())', t || '_api', t);
    EXECUTE format('CREATE POLICY %I ON %I TO svc_system USING (true)', t || '_system', t);
    EXECUTE format('REVOKE INSERT, UPDATE, DELETE ON %I FROM svc_api', t);
  END LOOP;
END $$;
