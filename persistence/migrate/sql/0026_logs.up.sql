-- Filters of the audit log and of usage that read what they return. An operator with large tables has created
-- the indexes before, without locks (operator-guide.md, Upgrade). They leave out what every message writes.

-- None begins with the tenant: see runs_agent.
CREATE INDEX IF NOT EXISTS audit_log_target ON audit_log (target_id, id) WHERE action <> 'message.create';
CREATE INDEX IF NOT EXISTS audit_log_action ON audit_log (action, tenant_id, id) WHERE action <> 'message.create';
-- People write less than keys and visitors.
CREATE INDEX IF NOT EXISTS audit_log_user ON audit_log (actor, tenant_id, id) WHERE actor LIKE 'user:%';

CREATE INDEX IF NOT EXISTS usage_records_run ON usage_records (run_id, id) WHERE run_id IS NOT NULL AND kind <> 'llm';
CREATE INDEX IF NOT EXISTS usage_records_kind ON usage_records (kind, tenant_id, id) WHERE kind <> 'llm';
