package store

import (
	"context"
	"time"

	"paymentd/internal/approval"
	"paymentd/internal/payment"
)

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
