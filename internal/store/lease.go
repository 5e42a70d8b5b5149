package store

import (
	"context"
	"time"

	"paymentd/internal/approval"
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

// A finished row that was claimed without a lease keeps its second look. A parked row is due at infinity.
const releaseSQL = `WITH freed AS (
		UPDATE payments AS p
		SET leased = false,
			due_at = CASE
				WHEN $3 AND p.status IN ('PENDING', 'AWAITING_DEPOSIT') THEN 'infinity'
				WHEN p.status IN ('PENDING', 'AWAITING_DEPOSIT') OR p.holds_order AND p.status = 'FAILED' THEN now() + $4::interval
				WHEN NOT p.leased THEN p.due_at
				WHEN $5 THEN NULL
				ELSE now() + $4::interval END,
			maybe_sent = CASE WHEN $6 THEN false WHEN $7 THEN true ELSE p.maybe_sent END,
			first_sent_at = CASE WHEN $6 THEN NULL WHEN $7 THEN COALESCE(p.first_sent_at, now()) ELSE p.first_sent_at END,
			last_sent_at = CASE WHEN $6 THEN NULL WHEN $7 THEN now() ELSE p.last_sent_at END,
			key_spent = p.key_spent OR $8,
			told = p.told OR $9
		WHERE p.id = $1 AND p.version = $2
		RETURNING ` + columns + `
	), incident AS (
		INSERT INTO incidents (payment_id, payment_key, order_id, kind, evidence)
		SELECT p.id, p.payment_key, p.order_id, $10, $11::jsonb FROM freed AS p WHERE $10 <> ''
		ON CONFLICT (payment_key, kind) WHERE resolved_at IS NULL DO NOTHING
	)
	SELECT ` + columns + ` FROM freed AS p`

// Release gives the lease back and says when to look again. NoRows: the row is no longer at the version read. A
// FAILED row for which Toss shows that all money went back gets its cancels recorded and lets its order go; one that
// holds its order for a give back is looked at again until then.
func (s *Store) Release(ctx context.Context, r approval.Release) (payment.Ending, error) {
	p := r.Payment
	if p.Status == payment.Failed && r.Observation.Returned() {
		_, ending, err := s.EndGiveBack(ctx, approval.GiveBackEnd{
			Payment: p, Done: true, Observation: r.Observation, Actor: r.Actor, Reason: r.Reason,
		})
		return ending, err
	}
	_, ending, err := s.writePayment(ctx, statement{"release payment", releaseSQL, []any{
		p.ID, p.Version, r.Park, nextLook(p, r.DueIn), r.Forget, r.NotSent, r.Sent, r.KeySpent, r.Told,
		string(r.Incident), evidenceOf(r.Observation, r.Reason),
	}})
	return ending, err
}

const (
	mostLook                          = 5 * time.Minute
	firstDepositLook, mostDepositLook = 10 * time.Minute, 6 * time.Hour
)

// nextLook is the delay until the next look at p: in, or if that is negative one that doubles with every look.
func nextLook(p payment.Payment, in time.Duration) time.Duration {
	if in >= 0 {
		return in
	}
	if p.Status == payment.AwaitingDeposit {
		return depositLook(p.VirtualAccount, p.Looks, p.ReadAt)
	}
	return min(payment.LookAgainIn<<min(p.Looks, 10), mostLook)
}

// depositLook also looks when the account can no longer be paid into.
func depositLook(account *payment.VirtualAccount, looks int, now time.Time) time.Duration {
	delay := min(firstDepositLook<<min(looks, 10), mostDepositLook)
	if account == nil || account.DueDate.IsZero() {
		return delay
	}
	if left := account.DueDate.Add(payment.DepositGrace).Sub(now); left > 0 && left < delay {
		return left
	}
	return delay
}

// The age is PostgreSQL's, so that no clock of an instance can stretch the gateway's window.
const beginSendSQL = `UPDATE payments AS p
	SET version = p.version + 1, leased = true, due_at = now() + $3::interval, maybe_sent = true,
		first_sent_at = CASE WHEN p.maybe_sent THEN COALESCE(p.first_sent_at, now()) ELSE now() END,
		last_sent_at = now(), sends = p.sends + CASE WHEN $4 THEN 1 ELSE 0 END, key_spent = p.key_spent AND NOT $4
	WHERE p.id = $1 AND p.version = $2 AND p.status = 'PENDING'
	  AND ($5::interval IS NULL OR p.reserved_at > now() - $5::interval)
	RETURNING ` + columns

// BeginSend stores a send before it happens. NoRows: the fence is lost, or the reservation is older than b.Within.
func (s *Store) BeginSend(ctx context.Context, b approval.BeginSend) (payment.Payment, payment.Ending, error) {
	var within *time.Duration
	if b.Within > 0 {
		within = &b.Within
	}
	return s.writePayment(ctx, statement{"begin send", beginSendSQL, []any{b.Payment.ID, b.Payment.Version, b.Lease, b.NextKey, within}})
}
