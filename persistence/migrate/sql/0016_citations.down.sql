ALTER TABLE messages DROP COLUMN citations;
