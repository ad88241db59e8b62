ALTER TABLE kb_documents DROP COLUMN embedded_by;
