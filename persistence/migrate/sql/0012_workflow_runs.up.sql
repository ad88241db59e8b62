-- Runs of workflows (docs/adr/0051). Their rows of runs and run_steps are like those of agents.
CREATE TABLE workflow_runs (
  tenant_id        uuid NOT NULL,
  id               uuid NOT NULL, -- of the run
  workflow_version int  NOT NULL,
  test             boolean NOT NULL,
  variables        json,          -- those that the run was started with
  progress         text CHECK (octet_length(progress) <= 1024), -- a letter per node and edge; NULL: not begun
  node_id          uuid, -- where the managers' chain of its approvals begins: the workflow's org node when it started
  owes             boolean NOT NULL, -- the run has something to do, also after its end
  PRIMARY KEY (tenant_id, id),
  FOREIGN KEY (tenant_id, id) REFERENCES runs
) WITH (fillfactor = 70);
CREATE INDEX workflow_runs_owes ON workflow_runs (coalesce(shard_of(id), -1), id) WHERE owes;

-- Events that were sent to a run, in the order in which they came.
CREATE TABLE workflow_events (
  tenant_id  uuid NOT NULL,
  run_id     uuid NOT NULL,
  seq        int  NOT NULL,
  op         uuid NOT NULL, -- of the request
  event_id   text,          -- given by the sender: a repeat counts once
  name       text NOT NULL,
  payload    json,
  step_idx   int,           -- the step that it woke; NULL: it waits
  created_at timestamptz NOT NULL,
  PRIMARY KEY (tenant_id, run_id, seq),
  FOREIGN KEY (tenant_id, run_id) REFERENCES workflow_runs
) WITH (fillfactor = 70);

DO $$
DECLARE t text;
BEGIN
  FOREACH t IN ARRAY ARRAY['workflow_runs', 'workflow_events']
  LOOP
    EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', t);
    EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', t);
    EXECUTE format('CREATE POLICY %I ON %I TO svc_api USING (tenant_id = svc_tenant())', t || '_api', t);
    EXECUTE format('CREATE POLICY %I ON %I TO svc_system USING (true)', t || '_system', t);
    EXECUTE format('REVOKE INSERT, UPDATE, DELETE ON %I FROM svc_api', t);
  END LOOP;
END $$;
