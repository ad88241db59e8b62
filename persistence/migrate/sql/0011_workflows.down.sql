DROP INDEX triggers_workflow;
ALTER TABLE triggers DROP CONSTRAINT triggers_workflow_fkey;
DROP TABLE workflow_versions, workflows;
