DROP TABLE triggers, webhook_deliveries, webhooks;
DROP FUNCTION new_id(timestamptz);
DROP DOMAIN delivery_status;
