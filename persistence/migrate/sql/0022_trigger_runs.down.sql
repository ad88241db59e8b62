DROP INDEX runs_trigger;
