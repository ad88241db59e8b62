DROP TABLE workflow_events, workflow_runs;
