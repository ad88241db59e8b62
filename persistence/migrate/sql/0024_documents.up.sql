-- What documents of sources keep. An operator with a large table of documents has created its index before,
-- without locks (operator-guide.md, Upgrade).

-- The rows of deleted documents by their item: one that comes back gets the ACL that it had. It comes first: while it is
-- built, documents can be read, and the column's lock lets no one read until the commit.
CREATE INDEX IF NOT EXISTS kb_documents_gone ON kb_documents (tenant_id, source_id, item, deleted_at) WHERE source_id IS NOT NULL AND deleted_at IS NOT NULL;

-- Why the source does not give the document's content now. It stays while an older content is indexed anew; NULL: it gave it.
ALTER TABLE kb_documents ADD COLUMN source_error text;
