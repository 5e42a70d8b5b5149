package rig

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"paymentd/internal/payment"
)

// with opens a connection for one step, since the database may have been killed meanwhile.
func (r *Rig) with(ctx context.Context, noun string, step func(*pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, r.dsn)
	if err != nil {
		return fmt.Errorf("%s: %w", noun, err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if err := step(conn); err != nil {
		return fmt.Errorf("%s: %w", noun, err)
	}
	return nil
}

// Session runs statements one after the other on a connection of its own, and closes it, whatever transaction is open
// then. It is how a scenario locks rows and fills the server with sleepers.
func (r *Rig) Session(ctx context.Context, statements ...string) error {
	return r.with(ctx, "session", func(conn *pgx.Conn) error {
		for _, sql := range statements {
			if _, err := conn.Exec(ctx, sql); err != nil {
				return err
			}
		}
		return nil
	})
}

// Crowd takes every connection that the server has left, for d, and says how many these were.
func (r *Rig) Crowd(ctx context.Context, d time.Duration) (taken int) {
	var held []*pgx.Conn
	for {
		conn, err := pgx.Connect(ctx, r.dsn)
		if err != nil {
			break
		}
		held = append(held, conn)
	}
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
	for _, conn := range held {
		_ = conn.Close(context.WithoutCancel(ctx))
	}
	return len(held)
}

// Count is a query that returns one number.
func (r *Rig) Count(ctx context.Context, sql string, args ...any) (n int, err error) {
	err = r.with(ctx, "count", func(conn *pgx.Conn) error { return conn.QueryRow(ctx, sql, args...).Scan(&n) })
	return n, err
}

// Text is a query that returns lines.
func (r *Rig) Text(ctx context.Context, sql string, args ...any) (lines []string, err error) {
	err = r.with(ctx, "read", func(conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, sql, args...)
		if err != nil {
			return err
		}
		lines, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	return lines, err
}

// Ledger is the identity between the simulator and paymentd's database.
func (r *Rig) Ledger(ctx context.Context) (payment.Ledger, error) {
	var approved []payment.Approval
	for _, e := range r.Toss.Ledger().Payments {
		if e.Approvals > 0 {
			approved = append(approved, payment.Approval{
				PaymentKey: e.PaymentKey, OrderID: e.OrderID, Times: e.Approvals,
				Total: payment.Amount(e.Total), Canceled: payment.Amount(e.Total - e.Balance),
			})
		}
	}
	rows, err := r.ledgerRows(ctx)
	return payment.CheckLedger(approved, rows), err
}

func (r *Rig) ledgerRows(ctx context.Context) (rows []payment.LedgerRow, err error) {
	err = r.with(ctx, "read ledger", func(conn *pgx.Conn) error {
		found, err := conn.Query(ctx, `
			SELECT p.payment_key, p.order_id, p.status, p.amount, p.canceled_amount,
				EXISTS (SELECT FROM incidents AS i WHERE i.payment_key = p.payment_key AND i.resolved_at IS NULL AND i.kind <> 'dead_notice'),
				EXISTS (SELECT FROM cancels AS c WHERE c.payment_id = p.id AND c.state = 'done'),
				EXISTS (SELECT FROM incidents AS h WHERE h.payment_key = p.payment_key AND h.resolved_at IS NOT NULL
					AND h.action <> 'settled' AND h.kind <> 'dead_notice')
			FROM payments AS p
			UNION ALL
			SELECT i.payment_key, max(i.order_id), '', 0, 0, bool_or(i.resolved_at IS NULL), false,
				bool_or(i.resolved_at IS NOT NULL AND i.action <> 'settled')
			FROM incidents AS i
			WHERE i.kind <> 'dead_notice' AND NOT EXISTS (SELECT FROM payments AS p WHERE p.payment_key = i.payment_key)
			GROUP BY i.payment_key`)
		if err != nil {
			return err
		}
		rows, err = pgx.CollectRows(found, pgx.RowToStructByPos[payment.LedgerRow])
		return err
	})
	return rows, err
}

// Unfinished counts what recovery has still to do: payments that are not final, orders held by a failed payment, open
// cancels, leases, and notices that are not delivered. Payments parked under a mismatch wait for an operator and do
// not count.
func (r *Rig) Unfinished(ctx context.Context) (int, error) {
	return r.Count(ctx, `SELECT (SELECT count(*) FROM payments AS p
			WHERE (p.status NOT IN ('PAID', 'FAILED', 'CANCELED') OR p.status = 'FAILED' AND p.holds_order OR p.leased)
			AND NOT EXISTS (SELECT FROM incidents AS i WHERE i.payment_key = p.payment_key AND i.resolved_at IS NULL AND i.kind = 'mismatch'))
		+ (SELECT count(*) FROM cancels WHERE done_at IS NULL) + (SELECT count(*) FROM notices WHERE state = 'queued')`)
}

// Hasten makes every later look and every notice due now, so that a scenario need not wait out growing delays. The
// leases of payments are left alone, and so is what is being written just now: many rows at once would deadlock with it; a notice in hand may be sent twice under its id, as after a crash.
func (r *Rig) Hasten(ctx context.Context) error {
	return r.Session(ctx,
		`UPDATE payments SET due_at = now() WHERE id IN (
			SELECT id FROM payments WHERE due_at > now() AND due_at < 'infinity' AND NOT leased FOR UPDATE SKIP LOCKED)`,
		`UPDATE notices SET due_at = now() WHERE id IN (
			SELECT id FROM notices WHERE state = 'queued' AND due_at > now() FOR UPDATE SKIP LOCKED)`)
}

// EndLeases ends the leases of dead holders. It may be called only while no instance runs.
func (r *Rig) EndLeases(ctx context.Context) error {
	return r.Session(ctx, `UPDATE payments SET due_at = now() WHERE leased`, `UPDATE notices SET due_at = now() WHERE state = 'queued'`)
}

// Notices lists payments whose outbox is wrong: every PAID or CANCELED has exactly one payment.paid and one receipt,
// no other payment has any, and who was answered 202 for a payment that failed has one payment.failed.
func (r *Rig) Notices(ctx context.Context) (wrong []string, err error) {
	return r.Text(ctx, `
		SELECT p.order_id || ' ' || p.status || ' has ' || n.paid || ' payment.paid, ' || n.receipts || ' receipt, ' || n.failed || ' payment.failed'
		FROM payments AS p, LATERAL (
			SELECT count(*) FILTER (WHERE kind = 'payment.paid') AS paid, count(*) FILTER (WHERE kind = 'receipt') AS receipts,
				count(*) FILTER (WHERE kind = 'payment.failed') AS failed
			FROM notices WHERE payment_id = p.id) AS n
		WHERE n.paid <> CASE WHEN p.status IN ('PAID', 'CANCELED') THEN 1 ELSE 0 END OR n.receipts <> n.paid
			OR p.status = 'FAILED' AND p.told AND n.failed = 0 ORDER BY p.id`)
}
