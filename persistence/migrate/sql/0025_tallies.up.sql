-- Disabling an endpoint ends deliveries, which is counted.
GRANT INSERT (tenant_id, what, at) ON tallies TO svc_api;
