-- The list of a workflow's runs. Without the tenant in front: see runs_agent. An operator with a large table has created it
-- before, without locks (operator-guide.md, Upgrade).
CREATE INDEX IF NOT EXISTS runs_workflow ON runs (workflow_id, id) WHERE workflow_id IS NOT NULL;
