-- Retention finds old rows through B-tree indexes on their age. A BRIN index stops
-- working once space is reused: each of its ranges then holds old and new rows.
-- Operators with large tables make these indexes before, without locks
-- (operator-guide.md, Upgrade).
CREATE INDEX IF NOT EXISTS idempotency_created ON idempotency (created_at);
DROP INDEX IF EXISTS idempotency_age;
-- A pending delivery is not in the index: it stays, however old it is.
CREATE INDEX IF NOT EXISTS webhook_deliveries_ended ON webhook_deliveries (created_at) WHERE status <> 'pending';
DROP INDEX IF EXISTS webhook_deliveries_age;
-- Retention ends what is pending of endpoints that were disabled recently.
CREATE INDEX IF NOT EXISTS webhooks_disabled ON webhooks (updated_at) WHERE NOT enabled;
CREATE INDEX IF NOT EXISTS sessions_created ON sessions (created_at);
CREATE INDEX IF NOT EXISTS login_links_expire ON login_links (expires_at);
-- Deleted end users are looked at in the order in which they were deleted, so that a
-- look can begin behind those that are gone.
CREATE INDEX IF NOT EXISTS end_users_gone ON end_users (deleted_at, id) WHERE deleted_at IS NOT NULL;
DROP INDEX IF EXISTS end_users_deleted;
