package store

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"paymentd/internal/payment"
)

// maxUnknownHints bounds what the open door can make us store and ask for: at 1 lookup per s nearly 3 hours of work.
const maxUnknownHints = 10_000

// transmissionKey is the primary key of webhook_deliveries.
const transmissionKey = "webhook_deliveries_pkey"

// KnowsHint reports whether the delivery with Toss's id was handled, or stored to be handled.
func (s *Store) KnowsHint(ctx context.Context, transmissionID string) (known bool, err error) {
	err = s.pool.run(ctx, func(ctx context.Context, conn *lentConn) error {
		return conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM webhook_deliveries WHERE transmission_id = $1)`, transmissionID).Scan(&known)
	})
	return known, wrap("find webhook", err)
}

const noteHintSQL = `WITH noted AS (
		INSERT INTO webhook_deliveries (transmission_id, event_type, payment_key, order_id, claim, state, done_at)
		VALUES ($1, $2, $3, $4, $5, 'handled', now())
		ON CONFLICT DO NOTHING
	)
	SELECT 1`

// NoteHint remembers that a delivery was handled, so that its repetition is not. One without Toss's id is not remembered.
func (s *Store) NoteHint(ctx context.Context, h payment.Hint) error {
	if h.TransmissionID == "" {
		return nil
	}
	_, err := s.count(ctx, "note webhook", noteHintSQL,
		clean(h.TransmissionID), clean(h.Event), clean(h.PaymentKey), clean(h.OrderID), clean(string(h.Claim)))
	return err
}

// A further webhook of the same payment joins the row of work, and raises its version: whoever works on it at the
// moment may have looked before this news.
const keepHintSQL = `WITH kept AS (
		INSERT INTO webhook_deliveries AS w (transmission_id, event_type, payment_key, order_id, claim, state, due_at)
		SELECT $1, $2, $3, $4, $5, $6, now() + $7::interval
		WHERE $6 <> 'unknown'
		   OR EXISTS (SELECT FROM webhook_deliveries AS v WHERE v.payment_key = $3 AND v.order_id = $4 AND v.due_at IS NOT NULL)
		   OR (SELECT count(*) FROM (
				SELECT FROM webhook_deliveries AS u WHERE u.state = 'unknown' AND u.due_at IS NOT NULL LIMIT $8) AS counted) < $8
		ON CONFLICT (payment_key, order_id) WHERE due_at IS NOT NULL DO UPDATE
		SET version = w.version + 1, claim = CASE WHEN w.claim = EXCLUDED.claim THEN w.claim ELSE '' END
		RETURNING 1
	)
	SELECT count(*) FROM kept`

// KeepHint stores a hint to be handled in a while, as payment.KeptHint or payment.UnknownHint; all hints of one
// paymentKey, or of one order if there is no key, are one row of work. kept is false if 10,000 unknown ones are stored.
func (s *Store) KeepHint(ctx context.Context, h payment.Hint, state payment.HintState, dueIn time.Duration) (kept bool, err error) {
	id := clean(h.TransmissionID)
	if id == "" {
		id = "none-" + rand.Text()
	}
	if h.PaymentKey != "" {
		h.OrderID = ""
	}
	n, err := s.count(ctx, "keep webhook", keepHintSQL, id, clean(h.Event), clean(h.PaymentKey), clean(h.OrderID),
		clean(string(h.Claim)), string(state), dueIn, maxUnknownHints)
	if violates(err, transmissionKey) {
		return true, nil // the same delivery at the same moment
	}
	return n > 0, err
}

const claimHintSQL = `WITH due AS (
		SELECT d.transmission_id FROM webhook_deliveries AS d
		WHERE d.state = $1 AND d.due_at <= now() ORDER BY d.due_at LIMIT 1 FOR UPDATE SKIP LOCKED
	)
	UPDATE webhook_deliveries AS w SET version = w.version + 1, due_at = now() + $2::interval
	FROM due WHERE w.transmission_id = due.transmission_id
	RETURNING w.transmission_id, w.event_type, w.payment_key, w.order_id, w.claim, w.state, w.version,
		EXTRACT(EPOCH FROM now() - w.received_at)::float8`

// ClaimHint leases the row of work in a state that is due longest; found is false if none is due.
func (s *Store) ClaimHint(ctx context.Context, state payment.HintState, lease time.Duration) (w payment.KeptWork, found bool, err error) {
	var age float64
	ending, err := s.write(ctx, statement{"claim webhook", claimHintSQL, []any{string(state), lease}}, func(row pgx.Row) error {
		return row.Scan(&w.ID, &w.Event, &w.PaymentKey, &w.OrderID, &w.Claim, &w.State, &w.Version, &age)
	})
	w.Age = time.Duration(age * float64(time.Second))
	return w, ending == payment.Applied, err
}

// News that joined after the claim asks for another look.
const endHintSQL = `WITH ended AS (
		UPDATE webhook_deliveries AS w
		SET due_at = CASE WHEN $3::interval IS NOT NULL THEN now() + $3 WHEN w.version <> $2 THEN now() + interval '1 s' END,
			done_at = CASE WHEN $3::interval IS NULL AND w.version = $2 THEN now() END,
			state = CASE WHEN $3::interval IS NULL AND w.version = $2 THEN 'handled' ELSE w.state END
		WHERE w.transmission_id = $1 AND w.version >= $2 AND w.due_at IS NOT NULL
		RETURNING 1
	)
	SELECT count(*) FROM ended`

// EndHint ends claimed work, or puts it off by again if that is above 0. If a further hint joined it meanwhile, it stays
// due.
func (s *Store) EndHint(ctx context.Context, w payment.KeptWork, again time.Duration) error {
	var in *time.Duration
	if again > 0 {
		in = &again
	}
	_, err := s.count(ctx, "end webhook", endHintSQL, w.ID, w.Version, in)
	return err
}

// hintsKept is how long deliveries are remembered: Toss repeats one for 3 days and 19 hours.
const hintsKept = 4 * 24 * time.Hour

const (
	sweepHintsBatch = 10_000
	sweepHintsSQL   = `WITH old AS (
		DELETE FROM webhook_deliveries WHERE transmission_id IN (
			SELECT d.transmission_id FROM webhook_deliveries AS d WHERE d.done_at < now() - $1::interval LIMIT $2)
		RETURNING 1
	)
	SELECT count(*) FROM old`
	knownOrphansSQL = `WITH closed AS (
		UPDATE incidents AS i SET resolved_at = now(), resolved_by = 'recovery', action = 'settled', note = 'the payment is known'
		FROM payments AS p
		WHERE i.kind = 'orphan_approval' AND i.resolved_at IS NULL AND p.payment_key = i.payment_key AND p.status IN ('PAID', 'CANCELED')
		RETURNING 1
	)
	SELECT count(*) FROM closed`
)

// SweepHints forgets deliveries that Toss repeats no more and closes orphan_approval where the payment turned up.
// Evidence is kept with the incidents and is not touched.
func (s *Store) SweepHints(ctx context.Context) error {
	_, closing := s.count(ctx, "close orphan approvals", knownOrphansSQL)
	for {
		n, err := s.count(ctx, "forget webhooks", sweepHintsSQL, hintsKept, sweepHintsBatch)
		if err != nil || n < sweepHintsBatch {
			return errors.Join(closing, err)
		}
		if ctx.Err() != nil {
			return fmt.Errorf("forget webhooks: %w", ctx.Err())
		}
	}
}
