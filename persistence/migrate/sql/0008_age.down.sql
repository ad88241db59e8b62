CREATE INDEX IF NOT EXISTS end_users_deleted ON end_users (id) WHERE deleted_at IS NOT NULL;
DROP INDEX IF EXISTS end_users_gone;
DROP INDEX IF EXISTS login_links_expire;
DROP INDEX IF EXISTS sessions_created;
DROP INDEX IF EXISTS webhooks_disabled;
CREATE INDEX IF NOT EXISTS webhook_deliveries_age ON webhook_deliveries USING brin (created_at);
DROP INDEX IF EXISTS webhook_deliveries_ended;
CREATE INDEX IF NOT EXISTS idempotency_age ON idempotency USING brin (created_at);
DROP INDEX IF EXISTS idempotency_created;
