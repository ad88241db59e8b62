-- The chunks that an assistant's message cites, in the order of its text; NULL: none.
ALTER TABLE messages ADD COLUMN citations json;
