DROP INDEX kb_documents_gone;
ALTER TABLE kb_documents DROP COLUMN source_error;
