DROP INDEX usage_records_kind, usage_records_run, audit_log_user, audit_log_action, audit_log_target;
