DROP TABLE audit_log, usage_records, idempotency, timers, run_marks, run_steps, runs, messages, threads, attachments,
  model_providers, agent_versions, agents, api_keys, users, tenants, members;
DROP DOMAIN message_role, run_status, origin_kind, step_kind, step_status, usage_kind;
DROP FUNCTION svc_tenant();
ALTER DEFAULT PRIVILEGES IN SCHEMA public REVOKE SELECT, INSERT, UPDATE, DELETE ON TABLES FROM svc_api, svc_system;
