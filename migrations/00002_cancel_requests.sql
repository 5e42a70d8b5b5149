-- +goose Up
-- A cancel that somebody asked for carries what a repetition of the request must match, and what recovery needs to end it.
ALTER TABLE cancels
    ADD COLUMN idempotency_key text NOT NULL DEFAULT '',
    -- asked is the amount in the request; NULL asked for all that was left.
    ADD COLUMN asked bigint,
    ADD COLUMN asked_by text NOT NULL DEFAULT '',
    -- needs_account: Toss wants a refund account with it, which is never stored; nobody can send this cancel again.
    ADD COLUMN needs_account boolean NOT NULL DEFAULT false,
    -- failure is the code with which an unfinished payment ends when this cancel is done; empty means given_back.
    ADD COLUMN failure text NOT NULL DEFAULT '',
    ADD COLUMN refusal_code text NOT NULL DEFAULT '';

CREATE UNIQUE INDEX cancels_idempotency_key ON cancels (payment_id, idempotency_key) WHERE idempotency_key <> '';

-- Incidents are listed newest first, whatever their state.
CREATE INDEX incidents_payment_key_idx ON incidents (payment_key);

-- +goose Down
DROP INDEX incidents_payment_key_idx, cancels_idempotency_key;
ALTER TABLE cancels
    DROP COLUMN idempotency_key, DROP COLUMN asked, DROP COLUMN asked_by, DROP COLUMN needs_account, DROP COLUMN failure,
    DROP COLUMN refusal_code;
