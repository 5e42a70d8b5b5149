-- +goose Up
ALTER TABLE webhook_deliveries
    -- claim is the status word of the webhook; empty if it has none, or if several of one payment claim different ones.
    ADD COLUMN claim text NOT NULL DEFAULT '',
    -- version is the fence of whoever works on the row; a further webhook of the same payment raises it too.
    ADD COLUMN version bigint NOT NULL DEFAULT 0;

-- One row of work per payment, however many webhooks claim something of it.
CREATE UNIQUE INDEX webhook_deliveries_work_key ON webhook_deliveries (payment_key, order_id) WHERE due_at IS NOT NULL;
-- A flood of unknown ones must not stand before those of payments.
CREATE INDEX webhook_deliveries_state_due_at_idx ON webhook_deliveries (state, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX webhook_deliveries_done_at_idx ON webhook_deliveries (done_at) WHERE done_at IS NOT NULL;
DROP INDEX webhook_deliveries_due_at_idx;

-- +goose Down
CREATE INDEX webhook_deliveries_due_at_idx ON webhook_deliveries (due_at) WHERE due_at IS NOT NULL;
DROP INDEX webhook_deliveries_work_key, webhook_deliveries_state_due_at_idx, webhook_deliveries_done_at_idx;
ALTER TABLE webhook_deliveries DROP COLUMN claim, DROP COLUMN version;
