-- Lists of documents and end users that read what they return. An operator with a large table of documents has
-- created its indexes before, without locks (operator-guide.md, Upgrade).

-- Of a base by status, and of one source of it: that list reads a page for each status.
CREATE INDEX IF NOT EXISTS kb_documents_status ON kb_documents (tenant_id, base_id, status, id) WHERE deleted_at IS NULL;
CREATE INDEX IF NOT EXISTS kb_documents_source ON kb_documents (tenant_id, base_id, source_id, status, id) WHERE source_id IS NOT NULL AND deleted_at IS NULL;

-- Each tag of each end user, for lists by tag in the order of ids: under row-level security Postgres does not use an index of
-- arrays, because their operators are not leakproof. A trigger keeps it, because nodes of the former release write tags too.
CREATE TABLE end_user_tags (
  tenant_id   uuid NOT NULL,
  tag         text NOT NULL,
  end_user_id uuid NOT NULL,
  PRIMARY KEY (tenant_id, tag, end_user_id)
);
ALTER TABLE end_user_tags ENABLE ROW LEVEL SECURITY;
ALTER TABLE end_user_tags FORCE ROW LEVEL SECURITY;
CREATE POLICY end_user_tags_api ON end_user_tags TO svc_api USING (tenant_id = svc_tenant());
CREATE POLICY end_user_tags_system ON end_user_tags TO svc_system USING (true);

CREATE FUNCTION keep_end_user_tags() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP <> 'INSERT' THEN
    DELETE FROM end_user_tags WHERE tenant_id = OLD.tenant_id AND tag = ANY (OLD.tags) AND end_user_id = OLD.id;
  END IF;
  IF TG_OP <> 'DELETE' THEN
    INSERT INTO end_user_tags SELECT DISTINCT NEW.tenant_id, tag, NEW.id FROM unnest(NEW.tags) AS tag;
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER end_users_tagged AFTER INSERT ON end_users FOR EACH ROW WHEN (NEW.tags <> '{}') EXECUTE FUNCTION keep_end_user_tags();
CREATE TRIGGER end_users_retagged AFTER UPDATE OF tags ON end_users FOR EACH ROW WHEN (OLD.tags <> NEW.tags) EXECUTE FUNCTION keep_end_user_tags();
CREATE TRIGGER end_users_untagged AFTER DELETE ON end_users FOR EACH ROW WHEN (OLD.tags <> '{}') EXECUTE FUNCTION keep_end_user_tags();

-- The owner of the tables sees no rows of tenants.
SET LOCAL ROLE svc_system;
INSERT INTO end_user_tags SELECT DISTINCT u.tenant_id, t.tag, u.id FROM end_users u CROSS JOIN LATERAL unnest(u.tags) AS t (tag);
RESET ROLE;
