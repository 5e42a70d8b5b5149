-- The two statements of a plain approval as a script of pgbench. Written by
-- go test ./internal/store -run TestHotScript -update
\set i :i + 1
INSERT INTO payments AS p (order_id, payment_key, amount, currency, member_id, receipt_email,
		status, holds_order, version, maybe_sent, leased, due_at, reserved_at, first_sent_at, last_sent_at, sends,
		created_at, updated_at)
	VALUES ('bench-' || :client_id || '-' || :i, 'test_' || :client_id || '-' || :i, 15000, 'KRW', '', '', 'PENDING', true, 1, true, true, now() + '60 seconds'::interval, now(), now(), now(), 1, now(), now())
	ON CONFLICT DO NOTHING
	RETURNING p.id, p.order_id, p.payment_key, p.amount, p.currency, p.status, p.method, p.approved_at,
	p.receipt_url, p.canceled_amount, p.virtual_account::text, p.failure_code, p.failure_gateway_code, p.failure_message,
	p.member_id, p.receipt_email, p.created_at, p.updated_at, p.version, p.holds_order, p.maybe_sent, p.leased,
	NULLIF(p.due_at, 'infinity') AS due_at, p.reserved_at, p.first_sent_at, p.last_sent_at, p.sends, p.key_spent,
	p.looks, p.told, now() AS read_at \gset
WITH moved AS (
		UPDATE payments AS p
		SET status = 'PAID', version = p.version + 1, leased = false, due_at = NULL, looks = 0,
			told = p.told OR false, method = '카드', approved_at = '20261130T100000Z', receipt_url = 'https://dashboard.tosspayments.com/receipt', notices_missing = false,
			updated_at = now()
		WHERE p.id = :id AND p.status IN ('PENDING', 'AWAITING_DEPOSIT')
		RETURNING p.id, p.order_id, p.payment_key, p.amount, p.currency, p.status, p.method, p.approved_at,
	p.receipt_url, p.canceled_amount, p.virtual_account::text, p.failure_code, p.failure_gateway_code, p.failure_message,
	p.member_id, p.receipt_email, p.created_at, p.updated_at, p.version, p.holds_order, p.maybe_sent, p.leased,
	NULLIF(p.due_at, 'infinity') AS due_at, p.reserved_at, p.first_sent_at, p.last_sent_at, p.sends, p.key_spent,
	p.looks, p.told, now() AS read_at
	), event AS (
		INSERT INTO payment_events (payment_id, version, from_status, to_status, actor, reason, evidence)
		SELECT p.id, p.version, CASE WHEN p.virtual_account IS NULL THEN 'PENDING' ELSE 'AWAITING_DEPOSIT' END,
			p.status, 'confirm', 'approved', '{"sighting": "DONE","paymentKey": "test_b0123456789","orderId": "bench-0-1","total": 15000,"balance": 15000,"currency": "KRW","method": "카드","approvedAt": "2026-11-30T10.00.00Z"}'::jsonb FROM moved AS p
	), notice AS (
		INSERT INTO notices (id, payment_id, kind, event, sequence, attempts, fence, due_at)
		SELECT n.id, p.id, n.kind, n.event, p.version, 0::int, 0, now() + '0 seconds'::interval
		FROM moved AS p, (VALUES (('00000000-0000-7000-8000-' || lpad(:client_id || '', 3, '0') || lpad(:i || '', 9, '0'))::uuid::uuid, 'payment.paid', 'paid'), (('00000000-0000-7000-9000-' || lpad(:client_id || '', 3, '0') || lpad(:i || '', 9, '0'))::uuid, 'receipt', 'receipt')) AS n (id, kind, event)
		ON CONFLICT DO NOTHING
		RETURNING id
	)
	SELECT p.id, p.order_id, p.payment_key, p.amount, p.currency, p.status, p.method, p.approved_at,
	p.receipt_url, p.canceled_amount, p.virtual_account::text, p.failure_code, p.failure_gateway_code, p.failure_message,
	p.member_id, p.receipt_email, p.created_at, p.updated_at, p.version, p.holds_order, p.maybe_sent, p.leased,
	NULLIF(p.due_at, 'infinity') AS due_at, p.reserved_at, p.first_sent_at, p.last_sent_at, p.sends, p.key_spent,
	p.looks, p.told, now() AS read_at, (SELECT count(*) FROM notice) FROM moved AS p;
