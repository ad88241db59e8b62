DROP TABLE flushes;
