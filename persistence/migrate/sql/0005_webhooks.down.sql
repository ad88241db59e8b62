DROP TABLE triggers, webhook_deliveries, webhooks;
DROP FUNCTION new_id(timestamptz);
DROP FUNCTION with_attempt(json, timestamptz, int, text, bigint);
DROP DOMAIN delivery_status;
