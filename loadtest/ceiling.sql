-- The ceiling of "make bench": the least that a payment can cost in PostgreSQL, as a script of pgbench. One statement
-- reserves; one settles, with an event and a notice.
--
-- This file never changes, and neither does ceiling_tables.sql: the ratio "bare" of one version is compared with that
-- of another, and with other people's. A test holds its bytes.
\set i :i + 1
INSERT INTO ceiling_payments (order_id, amount, status)
	VALUES ('ceiling-' || :client_id || '-' || :i, 15000, 'PENDING') RETURNING id \gset
WITH moved AS (
		UPDATE ceiling_payments SET status = 'PAID', updated_at = now() WHERE id = :id AND status = 'PENDING' RETURNING id
	), event AS (
		INSERT INTO ceiling_events (payment_id, from_status, to_status) SELECT id, 'PENDING', 'PAID' FROM moved
	)
	INSERT INTO ceiling_notices (payment_id, kind) SELECT id, 'payment.paid' FROM moved;
