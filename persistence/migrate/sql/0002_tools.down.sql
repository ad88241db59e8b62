DROP TABLE approvals, approval_policies, tool_grants, connections, mcp_servers, login_links, sessions, org_node_managers;
ALTER TABLE run_steps DROP COLUMN called_seq;
DROP INDEX users_email;
DROP INDEX agents_node;
ALTER TABLE agents DROP CONSTRAINT agents_node_fkey;
DROP TABLE org_nodes;
DROP DOMAIN approval_status, risk, approver_role, tool_source;
