package store

import (
	"context"
	"time"

	"paymentd/internal/payment"
)

const claimDueSQL = `WITH due AS (
		SELECT d.id FROM payments AS d WHERE d.due_at <= now() ORDER BY d.due_at LIMIT $1 FOR UPDATE SKIP LOCKED
	)
	UPDATE payments AS p
	SET version = p.version + 1, looks = p.looks + 1, leased = true, due_at = now() + $2::interval,
		told = p.told OR ` + holderDied + `
	FROM due WHERE p.id = due.id
	RETURNING ` + columns

// ClaimDue leases up to limit payments whose time has come, the longest due first: fresh doubts, second looks, and
// those whose holder let the lease run out. Every claim raises the version, so a holder that wakes up late is fenced.
func (s *Store) ClaimDue(ctx context.Context, limit int, lease time.Duration) ([]payment.Payment, error) {
	return s.readPayments(ctx, "claim due payments", claimDueSQL, limit, lease)
}

// A finished row keeps its time: a look that comes before its second look must not replace it.
const claimOneSQL = `UPDATE payments AS p
	SET version = p.version + 1, looks = p.looks + 1, told = p.told OR ` + holderDied + `,
		leased = p.status IN ('PENDING', 'AWAITING_DEPOSIT') OR COALESCE(p.due_at <= now(), false),
		due_at = CASE WHEN p.status IN ('PENDING', 'AWAITING_DEPOSIT') OR p.due_at <= now() THEN now() + $2::interval
			ELSE p.due_at END
	WHERE p.id IN (
		SELECT c.id FROM payments AS c WHERE c.payment_key = $1 AND (NOT c.leased OR c.due_at <= now()) FOR UPDATE SKIP LOCKED)
	RETURNING ` + columns

// ClaimOne leases one payment in whatever state for sync; a finished one is only fenced. NoRows: somebody works on it,
// or it is not there.
func (s *Store) ClaimOne(ctx context.Context, paymentKey string, lease time.Duration) (payment.Payment, payment.Ending, error) {
	return s.writePayment(ctx, statement{"claim payment", claimOneSQL, []any{paymentKey, lease}})
}

// stuckSQL finds what no due loop would: parked rows whose incident is closed, leases longer than any holder's, and
// unfinished cancels of rows that are not due.
const stuckSQL = `UPDATE payments AS p SET due_at = now(), leased = false, version = p.version + 1
	WHERE p.id IN (
		SELECT q.id FROM payments AS q WHERE q.due_at IS NOT NULL AND (
			q.due_at = 'infinity' AND NOT EXISTS (
				SELECT FROM incidents AS i WHERE i.payment_key = q.payment_key AND i.resolved_at IS NULL AND i.kind = 'mismatch')
			OR q.leased AND q.due_at > now() + $1::interval)
		UNION ALL
		SELECT c.payment_id FROM cancels AS c JOIN payments AS r ON r.id = c.payment_id
		WHERE c.done_at IS NULL AND r.due_at IS NULL
	)
	RETURNING ` + columns

// SweepStuck makes rows due that are stuck by a mistake of whatever origin, and returns them. lease is longer than
// any lease given.
func (s *Store) SweepStuck(ctx context.Context, lease time.Duration) ([]payment.Payment, error) {
	return s.readPayments(ctx, "sweep stuck payments", stuckSQL, lease)
}

const missingNoticesSQL = `WITH due AS (
		SELECT d.id FROM payments AS d WHERE d.notices_missing ORDER BY d.id LIMIT 1000 FOR UPDATE SKIP LOCKED
	), cleared AS (
		UPDATE payments AS p SET notices_missing = false FROM due WHERE p.id = due.id
		RETURNING p.id, p.version, p.status, p.reserved_at, p.told
	), added AS (
		INSERT INTO notices (payment_id, kind, event, sequence)
		SELECT p.id, n.kind, n.event, p.version
		FROM cleared AS p, (VALUES ('payment.paid', 'paid'), ('receipt', 'receipt')) AS n (kind, event)
		WHERE p.status IN ('PAID', 'CANCELED')
		UNION ALL
		SELECT p.id, 'payment.failed', ` + failedEvent + `, p.version FROM cleared AS p WHERE p.status = 'FAILED' AND p.told
		UNION ALL
		SELECT p.id, 'payment.canceled', c.id, p.version FROM cleared AS p JOIN cancels AS c ON c.payment_id = p.id
		WHERE c.state = 'done' AND p.status IN ('PAID', 'CANCELED')
		ON CONFLICT DO NOTHING
		RETURNING 1
	)
	SELECT count(*) FROM added`

// SweepMissingNotices adds the notices that settles had to leave out, up to 1,000 payments of them, and says how many.
// It fails as long as what kept them out is still there.
func (s *Store) SweepMissingNotices(ctx context.Context) (int, error) {
	return s.count(ctx, "add missing notices", missingNoticesSQL)
}
