package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"paymentd/internal/payment"
)

// The row counts as sent from the start: a crash between here and the send must not let the order go.
const reserveSQL = `INSERT INTO payments AS p (order_id, payment_key, amount, currency, member_id, receipt_email,
		status, holds_order, version, maybe_sent, leased, due_at, reserved_at, first_sent_at, last_sent_at, sends,
		created_at, updated_at)
	VALUES ($1, $2, $3, $4, $5, $6, 'PENDING', true, 1, true, true, now() + $7::interval, now(), now(), now(), 1, now(), now())
	ON CONFLICT DO NOTHING
	RETURNING ` + columns

// reservation is one call of Reserve.
type reservation struct {
	order payment.Order
	lease time.Duration
}

// Reserve inserts the order as PENDING, leased until now + lease, as if it were sent. NoRows: its key was used
// before or another payment holds the order; who it is only a new statement can see.
func (s *Store) Reserve(ctx context.Context, o payment.Order, lease time.Duration) (payment.Payment, payment.Ending, error) {
	do := s.reserveAlone
	if s.reserves != nil {
		do = s.reserves.do
	}
	w := do(ctx, reservation{o, lease})
	return w.results()
}

func (s *Store) reserveAlone(ctx context.Context, r reservation) written {
	o := r.order
	return s.writeRow(ctx, statement{"reserve payment", reserveSQL, []any{
		o.OrderID, o.PaymentKey, o.Amount, o.Currency, o.MemberID, o.ReceiptEmail, r.lease,
	}})
}

// The key decides: its payment is the caller's own, whoever holds the order.
const findSQL = `SELECT ` + columns + ` FROM payments AS p
	WHERE p.payment_key = $1 OR (p.order_id = $2 AND p.holds_order)
	ORDER BY p.payment_key = $1 DESC LIMIT 1`

// Find reads the payment by its key, else the one that holds the order; found is false if neither is there.
func (s *Store) Find(ctx context.Context, paymentKey, orderID string) (p payment.Payment, found bool, err error) {
	return s.readOne(ctx, "find payment", findSQL, paymentKey, orderID)
}

// findNowWait is how long the refusing path waits for a read that has its connection.
const findNowWait = 50 * time.Millisecond

// FindNow is Find for the refusing path: read is false if no connection is free at this instant, if the read fails
// or if it takes more than 50 ms. A slow read runs on to the end of every statement, so that giving up costs no connection.
func (s *Store) FindNow(ctx context.Context, paymentKey, orderID string) (p payment.Payment, found, read bool) {
	type result struct {
		payment payment.Payment
		err     error
	}
	if !s.pool.free() {
		return p, false, false
	}
	done := make(chan result, 1)
	go func() {
		var r result
		conn := s.pool.tryAcquire(context.WithoutCancel(ctx))
		if conn == nil {
			r.err = errBusy
		} else {
			r.err = conn.run(context.WithoutCancel(ctx), func(ctx context.Context, conn *lentConn) error {
				return scanPayment(conn.QueryRow(ctx, findSQL, paymentKey, orderID), &r.payment)
			})
		}
		done <- r
	}()
	patience := time.NewTimer(findNowWait)
	defer patience.Stop()
	select {
	case r := <-done:
		return r.payment, r.err == nil, r.err == nil || endingOf(r.err) == payment.NoRows
	case <-patience.C:
		return p, false, false
	case <-ctx.Done():
		return p, false, false
	}
}

// holderDied is true for an unfinished row whose lease ran out: its holder may have answered 202 without coming to
// store it, and cannot be asked. To tell one caller too many of a failure is harmless, to leave one waiting is not. A
// finished row keeps what it has: MarkTold writes the notice of a failure only where told was false.
const holderDied = `(p.leased AND p.due_at <= now() AND p.status IN ('PENDING', 'AWAITING_DEPOSIT'))`

const takeOverSQL = `UPDATE payments AS p
	SET version = p.version + 1, leased = true, due_at = now() + $3::interval, told = p.told OR ` + holderDied + `
	WHERE p.id = $1 AND p.version = $2 AND p.status = 'PENDING' AND (NOT p.leased OR p.due_at <= now())
	RETURNING ` + columns

// TakeOver leases a PENDING row that nobody works on, under the version read. NoRows: it changed or is leased.
func (s *Store) TakeOver(ctx context.Context, p payment.Payment, lease time.Duration) (payment.Payment, payment.Ending, error) {
	return s.writePayment(ctx, statement{"take over payment", takeOverSQL, []any{p.ID, p.Version, lease}})
}

// A new key, because Toss replays under the old one what kept it from being sent.
const reopenSQL = `WITH moved AS (
		UPDATE payments AS p
		SET status = 'PENDING', holds_order = true, version = p.version + 1, maybe_sent = true, leased = true,
			due_at = now() + $3::interval, reserved_at = now(), first_sent_at = now(), last_sent_at = now(),
			sends = p.sends + 1, key_spent = false, looks = 0, told = false, updated_at = now(),
			failure_code = '', failure_gateway_code = '', failure_message = ''
		WHERE p.id = $1 AND p.version = $2 AND p.status = 'FAILED' AND NOT p.maybe_sent
		  AND p.failure_code = ANY($4::text[])
		  AND NOT EXISTS (SELECT FROM cancels AS c WHERE c.payment_id = p.id)
		RETURNING ` + columns + `
	), event AS (
		INSERT INTO payment_events (payment_id, version, from_status, to_status, actor, reason)
		SELECT p.id, p.version, 'FAILED', 'PENDING', 'confirm', 'reopened' FROM moved AS p
	)
	SELECT ` + columns + ` FROM moved AS p`

// heldOrderKey is the unique index of the orders that are held.
const heldOrderKey = "payments_order_id_held_key"

// Reopen moves a reopenable FAILED row back to PENDING under the version read and leases it, with the next confirm
// key. NoRows: the row changed or another payment holds the order by now.
func (s *Store) Reopen(ctx context.Context, p payment.Payment, lease time.Duration) (payment.Payment, payment.Ending, error) {
	q, ending, err := s.writePayment(ctx, statement{"reopen payment", reopenSQL, []any{p.ID, p.Version, lease, reopenable()}})
	if violates(err, heldOrderKey) {
		return q, payment.NoRows, nil
	}
	return q, ending, err
}

// reopenable asks the vocabulary, so that the guard cannot differ from it.
func reopenable() []string {
	var codes []string
	for _, c := range []payment.FailureCode{
		payment.FailDeclined, payment.FailExpired, payment.FailGivenBack, payment.FailCanceledAtGateway, payment.FailMismatch,
		payment.FailAbandoned, payment.FailPGUnavailable, payment.FailBusy, payment.FailMisconfigured,
	} {
		if (&payment.Failure{Code: c}).Reopens() {
			codes = append(codes, string(c))
		}
	}
	return codes
}

// markTold also writes the notice of a failure that was committed just before the caller was answered 202.
const markToldSQL = `WITH told AS (
		UPDATE payments AS p SET told = true WHERE p.payment_key = $1 AND NOT p.told RETURNING p.id, p.version, p.status, p.reserved_at
	), notice AS (
		INSERT INTO notices (payment_id, kind, event, sequence)
		SELECT p.id, 'payment.failed', ` + failedEvent + `, p.version FROM told AS p WHERE p.status = 'FAILED'
		ON CONFLICT DO NOTHING
	)
	SELECT count(*) FROM told`

// MarkTold remembers that a caller was answered 202 for the payment. It raises no version.
func (s *Store) MarkTold(ctx context.Context, paymentKey string) error {
	var n int
	_, err := s.write(ctx, statement{"mark told", markToldSQL, []any{paymentKey}}, func(row pgx.Row) error { return row.Scan(&n) })
	return err
}
