-- The bare tables of ceiling.sql. This file never changes either.
CREATE TABLE ceiling_payments (
	id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	order_id text NOT NULL UNIQUE,
	amount bigint NOT NULL,
	status text NOT NULL,
	updated_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE ceiling_events (
	id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	payment_id bigint NOT NULL,
	from_status text NOT NULL,
	to_status text NOT NULL,
	at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE ceiling_notices (
	id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	payment_id bigint NOT NULL,
	kind text NOT NULL,
	due_at timestamptz NOT NULL DEFAULT now()
);
