DELETE FROM tool_grants WHERE browser_skill_id IS NOT NULL;
DROP INDEX tool_grants_skill_key;
ALTER TABLE tool_grants DROP CONSTRAINT tool_grants_skill_check, DROP CONSTRAINT tool_grants_skill_fkey;
DROP TABLE browser_skills;
