ALTER TABLE approvals DROP COLUMN browser_skill_run_id;
DROP TABLE browser_skill_runs;
