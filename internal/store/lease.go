package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

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

// A finished row keeps its time: a look that comes before its second look must not replace it. However often somebody
// asks, recovery's own delays do not grow by it.
const claimOneSQL = `UPDATE payments AS p
	SET version = p.version + 1, looks = GREATEST(p.looks, 1), told = p.told OR ` + holderDied + `,
		leased = p.status IN ('PENDING', 'AWAITING_DEPOSIT') OR COALESCE(p.due_at <= now(), false),
		due_at = CASE WHEN p.status IN ('PENDING', 'AWAITING_DEPOSIT') OR p.due_at <= now() THEN now() + $2::interval
			ELSE p.due_at END
	FROM (
		SELECT c.id, c.due_at FROM payments AS c
		WHERE c.payment_key = $1 AND (NOT c.leased OR c.due_at <= now()) FOR UPDATE SKIP LOCKED) AS was
	WHERE p.id = was.id
	RETURNING ` + columns + `, NULLIF(was.due_at, 'infinity')`

// ClaimOne leases one payment in whatever state for sync; a finished one is only fenced. NoRows: somebody works on it,
// or it is not there.
func (s *Store) ClaimOne(ctx context.Context, paymentKey string, lease time.Duration) (p payment.Payment, e payment.Ending, err error) {
	var was *time.Time
	e, err = s.write(ctx, statement{"claim payment", claimOneSQL, []any{paymentKey, lease}}, func(row pgx.Row) error {
		return scanPayment(row, &p, &was)
	})
	p.WasDue = timeOf(was)
	return p, e, err
}

// stuckSQL reads state, not events: whatever left these rows behind, no due time would lead to them. Finished rows are
// too many to read all of them every time; the newest ids are those of several sweeps. The version is matched again under the lock,
// so that a claim that came in between keeps its lease.
const stuckSQL = `WITH found AS (
		SELECT q.id, q.version FROM payments AS q
		WHERE q.due_at = 'infinity' AND NOT EXISTS (
			SELECT FROM incidents AS i WHERE i.payment_key = q.payment_key AND i.resolved_at IS NULL AND i.kind = 'mismatch')
		UNION
		SELECT q.id, q.version FROM payments AS q
		WHERE q.due_at > now() + $1::interval AND q.due_at < 'infinity' AND (
			q.leased OR q.status = 'PENDING'
			OR q.status <> 'AWAITING_DEPOSIT' AND EXISTS (SELECT FROM cancels AS c WHERE c.payment_id = q.id AND c.done_at IS NULL)
			OR q.status = 'AWAITING_DEPOSIT' AND q.due_at > now() + $2::interval)
		UNION
		SELECT q.id, q.version FROM payments AS q
		WHERE q.due_at > now() + $3::interval AND q.due_at < 'infinity' AND NOT q.leased AND q.status = 'AWAITING_DEPOSIT' AND CASE
			WHEN ` + dueDate + ` > now() THEN q.due_at > ` + dueDate + ` + $3::interval
			ELSE q.due_at > ` + dueDate + ` + $4::interval + $3::interval END
		UNION
		SELECT r.id, r.version FROM cancels AS c JOIN payments AS r ON r.id = c.payment_id
		WHERE c.done_at IS NULL AND (r.due_at IS NULL OR r.due_at = 'infinity')
		UNION
		SELECT r.id, r.version FROM incidents AS i JOIN payments AS r ON r.payment_key = i.payment_key
		WHERE i.resolved_at IS NULL AND i.kind = 'cancel_failed' AND r.due_at IS NULL AND r.status = 'FAILED' AND r.holds_order
		UNION
		SELECT q.id, q.version FROM payments AS q
		WHERE q.id > (SELECT max(m.id) FROM payments AS m) - $5 AND q.due_at IS NULL AND (
			q.status = 'AWAITING_DEPOSIT' OR q.status = 'FAILED' AND q.holds_order
			OR q.status IN ('PAID', 'FAILED') AND EXISTS (
				SELECT FROM payment_events AS e WHERE e.payment_id = q.id AND e.version = q.version AND e.to_status = q.status
				AND e.from_status <> e.to_status
				AND (q.status = 'FAILED' AND e.reason = $6 OR q.status = 'PAID' AND e.actor <> 'confirm')))
	), held AS (
		SELECT h.id FROM payments AS h JOIN found ON found.id = h.id AND found.version = h.version
		LIMIT $7 FOR UPDATE OF h SKIP LOCKED
	), freed AS (
		UPDATE payments AS p SET due_at = now(), leased = false, version = p.version + 1,
			told = p.told OR p.leased AND p.status IN ('PENDING', 'AWAITING_DEPOSIT')
		FROM held WHERE p.id = held.id
		RETURNING 1
	)
	SELECT count(*) FROM freed`

// dueDate of a virtual account; what is no time must not stop the sweep.
const dueDate = `(CASE WHEN q.virtual_account->>'dueDate' ~ '^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d' THEN (q.virtual_account->>'dueDate')::timestamptz END)`

// newestPayments are the ids of more than five sweeps at the default RATE_LIMIT.
const newestPayments = 100_000

// SweepStuck makes at most limit rows due that are stuck by a mistake of whatever origin, and says how many: parked rows
// whose incident is closed, times later than any that recovery sets, unfinished or refused cancels, deposits and second
// looks that nothing is due for. lease is longer than any lease given and any delay of a doubt; a lease beyond it counts
// as that of a holder that died.
func (s *Store) SweepStuck(ctx context.Context, lease time.Duration, limit int) (int, error) {
	return s.count(ctx, "sweep stuck payments", stuckSQL, lease, mostDepositLook+depositSlack, payment.MostLookIn+depositSlack,
		payment.DepositGrace, newestPayments, payment.WindowOver, limit)
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
			version = p.version + CASE WHEN $10 = '' OR EXISTS (
				SELECT FROM incidents AS i WHERE i.payment_key = p.payment_key AND i.kind = $10 AND i.resolved_at IS NULL) THEN 0 ELSE 1 END,
			due_at = CASE
				WHEN $3 AND p.status IN ('PENDING', 'AWAITING_DEPOSIT') THEN 'infinity'
				WHEN p.status IN ('PENDING', 'AWAITING_DEPOSIT') OR p.holds_order AND p.status = 'FAILED'
					THEN LEAST(now() + $4::interval, $14)
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
		SELECT n.id, n.payment_key, n.order_id, n.kind, n.evidence
		FROM (SELECT p.id, p.payment_key, p.order_id, $10 AS kind, $11::jsonb AS evidence FROM freed AS p) AS n
		WHERE n.kind <> '' AND ` + unlessDecided + `
		ON CONFLICT (payment_key, kind) WHERE resolved_at IS NULL DO NOTHING
		RETURNING 1
	), event AS (
		INSERT INTO payment_events (payment_id, version, from_status, to_status, actor, reason, evidence)
		SELECT p.id, p.version, p.status, p.status, $12, 'incident ' || $10 || ': ' || $13, $11::jsonb FROM freed AS p, incident
		WHERE p.version > $2
	), closed AS (
		UPDATE incidents AS i SET resolved_at = now(), resolved_by = $12, action = 'settled', note = $13
		FROM freed AS p WHERE i.payment_key = p.payment_key AND i.resolved_at IS NULL AND i.kind = ANY($15::text[])
		  AND NOT (p.status = 'PAID' AND i.kind = 'unexpected_state' AND ` + partlyBefore + `)
	)
	SELECT ` + columns + ` FROM freed AS p`

// Release gives the lease back and says when to look again. Only with an incident that was not open it raises the
// version, for the event of it. An observation that agrees with the row closes the incidents about a contradiction.
// NoRows: the row is no longer at the version read. A
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
	closes := []payment.IncidentKind{}
	if r.Incident == "" {
		closes = append(closes, explains(p, r.Observation)...)
	}
	_, ending, err := s.writePayment(ctx, statement{"release payment", releaseSQL, []any{
		p.ID, p.Version, r.Park, nextLook(p, r.DueIn), r.Forget, r.NotSent, r.Sent, r.KeySpent, r.Told,
		string(r.Incident), evidenceOf(r.Observation, r.Reason), string(r.Actor), clean(r.Reason), orNull(r.DueBy), closes,
	}})
	return ending, err
}

const (
	firstDepositLook, mostDepositLook = 10 * time.Minute, 6 * time.Hour
	// depositSlack lets Toss notice first that a due date has passed.
	depositSlack = time.Minute
)

// nextLook is the delay until the next look at p: in, or if that is negative one that grows with every look.
func nextLook(p payment.Payment, in time.Duration) time.Duration {
	if in >= 0 {
		return in
	}
	if p.Status == payment.AwaitingDeposit {
		return depositLook(p.VirtualAccount, p.Looks, p.ReadAt)
	}
	return payment.LookIn(p.Looks)
}

// depositLook also looks when the account is due, and when it can no longer be paid into. After that it has to be
// canceled, which is no longer a wait for the buyer.
func depositLook(account *payment.VirtualAccount, looks int, now time.Time) time.Duration {
	delay := min(firstDepositLook<<min(looks, 10), mostDepositLook)
	if account == nil || account.DueDate.IsZero() {
		return delay
	}
	for _, mark := range []time.Time{account.DueDate, account.DueDate.Add(payment.DepositGrace)} {
		if left := mark.Add(depositSlack).Sub(now); left > 0 {
			return min(left, delay)
		}
	}
	return payment.LookIn(looks)
}

// The age is PostgreSQL's, so that no clock of an instance can stretch the gateway's window.
// The doubt begins with the first send, so its delays do too.
const beginSendSQL = `WITH sending AS (
		UPDATE payments AS p
		SET version = p.version + 1, leased = true, due_at = now() + $3::interval, maybe_sent = true,
			first_sent_at = CASE WHEN p.maybe_sent THEN COALESCE(p.first_sent_at, now()) ELSE now() END,
			last_sent_at = now(), sends = p.sends + CASE WHEN $4 THEN 1 ELSE 0 END, key_spent = p.key_spent AND NOT $4,
			looks = CASE WHEN p.maybe_sent THEN p.looks ELSE 0 END
		WHERE p.id = $1 AND p.version = $2 AND p.status = 'PENDING'
		  AND ($5::interval IS NULL OR p.reserved_at > now() - $5::interval)
		RETURNING ` + columns + `
	), event AS (
		INSERT INTO payment_events (payment_id, version, from_status, to_status, actor, reason)
		SELECT p.id, p.version, p.status, p.status, $6, 'send: ' || $7 FROM sending AS p
	)
	SELECT ` + columns + ` FROM sending AS p`

// BeginSend stores a send before it happens, with its event. NoRows: the fence is lost, or the reservation is older than b.Within.
func (s *Store) BeginSend(ctx context.Context, b approval.BeginSend) (payment.Payment, payment.Ending, error) {
	var within *time.Duration
	if b.Within > 0 {
		within = &b.Within
	}
	return s.writePayment(ctx, statement{"begin send", beginSendSQL, []any{
		b.Payment.ID, b.Payment.Version, b.Lease, b.NextKey, within, string(b.Actor), clean(b.Reason),
	}})
}
