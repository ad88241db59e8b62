REVOKE INSERT (tenant_id, what, at) ON tallies FROM svc_api;
