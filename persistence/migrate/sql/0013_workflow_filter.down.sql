DROP INDEX runs_workflow;
