-- Workflows and their versions.

CREATE TABLE workflows (
  tenant_id         uuid NOT NULL REFERENCES tenants,
  id                uuid NOT NULL,
  slug              text NOT NULL CHECK (slug ~ '^[a-z0-9][a-z0-9-]{0,62}$'),
  name              text NOT NULL CHECK (char_length(name) BETWEEN 1 AND 120),
  node_id           uuid,
  published_version int,
  latest_version    int NOT NULL DEFAULT 0,
  archived_at       timestamptz,
  created_at        timestamptz NOT NULL DEFAULT now(),
  updated_at        timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, id),
  FOREIGN KEY (tenant_id, node_id) REFERENCES org_nodes
);
CREATE UNIQUE INDEX workflows_slug_key ON workflows (tenant_id, slug) WHERE archived_at IS NULL;
CREATE INDEX workflows_node ON workflows (tenant_id, node_id) WHERE node_id IS NOT NULL;

CREATE TABLE workflow_versions (
  tenant_id    uuid NOT NULL,
  workflow_id  uuid NOT NULL,
  version      int  NOT NULL CHECK (version >= 1),
  status       text NOT NULL CONSTRAINT workflow_versions_status_check CHECK (status IN ('draft', 'published', 'superseded')),
  definition   json NOT NULL CHECK (octet_length(definition::text) <= 262144),
  created_at   timestamptz NOT NULL DEFAULT now(),
  published_at timestamptz,
  PRIMARY KEY (tenant_id, workflow_id, version),
  FOREIGN KEY (tenant_id, workflow_id) REFERENCES workflows
);
CREATE UNIQUE INDEX workflow_versions_published_key ON workflow_versions (tenant_id, workflow_id) WHERE status = 'published';

-- A definition never changes: a run continues with the version that it started with.
REVOKE UPDATE, DELETE ON workflow_versions FROM svc_api;
GRANT UPDATE (status, published_at) ON workflow_versions TO svc_api;

-- No trigger names a workflow yet, so that nothing has to be checked.
ALTER TABLE triggers ADD CONSTRAINT triggers_workflow_fkey FOREIGN KEY (tenant_id, workflow_id) REFERENCES workflows;
CREATE INDEX triggers_workflow ON triggers (tenant_id, workflow_id) WHERE workflow_id IS NOT NULL;

-- runs.workflow_id has no foreign key, like runs.agent_id: its check would be part of every
-- accepted run. Neither a workflow nor a version of it is ever deleted.

DO $$
DECLARE t text;
BEGIN
  FOREACH t IN ARRAY ARRAY['workflows', 'workflow_versions']
  LOOP
    EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', t);
    EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', t);
    EXECUTE format('CREATE POLICY %I ON %I TO svc_api USING (tenant_id = svc_tenant())', t || '_api', t);
    EXECUTE format('CREATE POLICY %I ON %I TO svc_system USING (true)', t || '_system', t);
  END LOOP;
END $$;
