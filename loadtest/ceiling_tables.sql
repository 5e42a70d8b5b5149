-- The bare tables of ceiling.sql: what no payment can do without. An order and a key are there once, an event has its
-- place, a worker finds the notices that are due. This file never changes either.
CREATE TABLE ceiling_payments (
	id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	order_id text NOT NULL UNIQUE,
	payment_key text NOT NULL UNIQUE,
	amount bigint NOT NULL,
	status text NOT NULL,
	created_at timestamptz NOT NULL DEFAULT now(),
	updated_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE ceiling_events (
	payment_id bigint NOT NULL,
	version bigint NOT NULL,
	from_status text NOT NULL,
	to_status text NOT NULL,
	at timestamptz NOT NULL DEFAULT now(),
	PRIMARY KEY (payment_id, version)
);
CREATE TABLE ceiling_notices (
	id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	payment_id bigint NOT NULL,
	kind text NOT NULL,
	due_at timestamptz DEFAULT now(),
	UNIQUE (payment_id, kind)
);
CREATE INDEX ON ceiling_notices (due_at) WHERE due_at IS NOT NULL;
