package main

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"

	"paymentd/internal/payment"
)

type rawJSON = json.RawMessage

// ledgerHolds fails unless the ledger identity holds between the simulator and our tables, and every payment has its
// notices.
func (w *world) ledgerHolds() payment.Ledger {
	w.t.Helper()
	l := payment.CheckLedger(w.approvals(), w.ledgerRows())
	if !l.Holds() {
		w.t.Error(l)
	}
	if n := w.count(`SELECT count(*) FROM payments AS p, (VALUES ('payment.paid'), ('receipt')) AS k (kind)
		WHERE (SELECT count(*) FROM notices AS n WHERE n.payment_id = p.id AND n.kind = k.kind)
		   <> CASE WHEN p.status IN ('PAID', 'CANCELED') THEN 1 ELSE 0 END`); n != 0 {
		w.t.Errorf("%d payments have not exactly the payment.paid and the receipt that they should have", n)
	}
	return l
}

// approvals are the payments of which the simulator ever took the money.
func (w *world) approvals() []payment.Approval {
	var out []payment.Approval
	for _, e := range w.toss.Ledger().Payments {
		if e.Approvals > 0 {
			out = append(out, payment.Approval{
				PaymentKey: e.PaymentKey, OrderID: e.OrderID, Times: e.Approvals,
				Total: payment.Amount(e.Total), Canceled: payment.Amount(e.Total - e.Balance),
			})
		}
	}
	return out
}

// ledgerRows are our payments, and the incidents about payments that we do not have.
func (w *world) ledgerRows() []payment.LedgerRow {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	rows, err := w.pool.Query(ctx, `
		SELECT p.payment_key, p.order_id, p.status, p.amount, p.canceled_amount,
			EXISTS (SELECT FROM incidents AS i WHERE i.payment_key = p.payment_key AND i.resolved_at IS NULL AND i.kind <> 'dead_notice'),
			EXISTS (SELECT FROM cancels AS c WHERE c.payment_id = p.id AND c.state = 'done'),
			EXISTS (SELECT FROM incidents AS h WHERE h.payment_key = p.payment_key AND h.resolved_at IS NOT NULL AND h.action <> 'settled'
				AND h.kind <> 'dead_notice')
		FROM payments AS p
		UNION ALL
		SELECT i.payment_key, max(i.order_id), '', 0, 0, bool_or(i.resolved_at IS NULL),
			bool_or(i.resolved_at IS NOT NULL AND i.action = 'settled'),
			bool_or(i.resolved_at IS NOT NULL AND i.action <> 'settled')
		FROM incidents AS i
		WHERE i.kind <> 'dead_notice' AND NOT EXISTS (SELECT FROM payments AS p WHERE p.payment_key = i.payment_key)
		GROUP BY i.payment_key`)
	if err != nil {
		w.t.Fatal(err)
	}
	out, err := pgx.CollectRows(rows, pgx.RowToStructByPos[payment.LedgerRow])
	if err != nil {
		w.t.Fatal(err)
	}
	return out
}
