DROP TABLE artifacts;
