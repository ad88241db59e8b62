-- Vectors of chunks (docs/adr/0057).
ALTER TABLE kb_documents ADD COLUMN embedded_by text; -- provider/model of the vectors of the generation shown; NULL: it has none
