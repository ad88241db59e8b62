DROP TABLE embed_denied_origins;
ALTER TABLE connections DROP COLUMN last_used_at, DROP COLUMN last_error;
ALTER TABLE mcp_servers DROP COLUMN health_ok, DROP COLUMN health_at, DROP COLUMN health_error;
DROP INDEX users_found, end_users_short, end_users_mailed, end_users_named, end_users_found, threads_found;
DROP FUNCTION found_by(uuid, text);
DROP INDEX approvals_short, approvals_agent, approvals_tool, approvals_risk, approvals_expire, approvals_status;
DROP FUNCTION risk_order(text);
DROP INDEX threads_short, runs_short, runs_code, runs_parent, runs_created, runs_origin;
DROP FUNCTION short_of(uuid);
