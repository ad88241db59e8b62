-- Files that runs made of their final text. A row is part of the commit that makes its run
-- succeed; the content is in the store of files, under the row's id.

CREATE TABLE artifacts (
  tenant_id  uuid NOT NULL,
  id         uuid NOT NULL,
  run_id     uuid NOT NULL,
  kind       text NOT NULL CONSTRAINT artifacts_kind_check CHECK (kind IN ('xlsx', 'pptx', 'html')),
  name       text NOT NULL CHECK (name <> ''),
  media_type text NOT NULL,
  size_bytes bigint NOT NULL CHECK (size_bytes >= 0),
  sha256     bytea NOT NULL,
  created_at timestamptz NOT NULL,
  PRIMARY KEY (tenant_id, id),
  FOREIGN KEY (tenant_id, run_id) REFERENCES runs
);
CREATE INDEX artifacts_run ON artifacts (tenant_id, run_id, id);

ALTER TABLE artifacts ENABLE ROW LEVEL SECURITY;
ALTER TABLE artifacts FORCE ROW LEVEL SECURITY;
CREATE POLICY artifacts_api ON artifacts TO svc_api USING (tenant_id = svc_tenant());
CREATE POLICY artifacts_system ON artifacts TO svc_system USING (true);
REVOKE INSERT, UPDATE, DELETE ON artifacts FROM svc_api; -- only runs write them
