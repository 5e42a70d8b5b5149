-- +goose Up
-- A replayed notice has a new life of 24 hours; created_at stays the time of the event that it tells of.
ALTER TABLE notices ADD COLUMN replayed_at timestamptz;

-- +goose Down
ALTER TABLE notices DROP COLUMN replayed_at;
