package protocol

import (
	"fmt"

	"paymentd/internal/payment"
)

// wrongNow says what must never be true, or "".
func (x *explorer) wrongNow(s state) string {
	for k := range s.Rows {
		a, r := s.Toss[k], s.Rows[k]
		switch {
		case a.Times > 1:
			return fmt.Sprintf("%s was charged %d times", paymentKey(k), a.Times)
		case r.status() == payment.Paid && r.There && a.Times == 0:
			return fmt.Sprintf("%s is PAID here and was never approved", paymentKey(k))
		case s.Client[k].Paid && a.Times == 0:
			return fmt.Sprintf("the client was told that %s is paid, and it was never approved", paymentKey(k))
		case r.Paid > 1:
			return fmt.Sprintf("%d notices payment.paid of %s", r.Paid, paymentKey(k))
		}
	}
	if s.Toss[keyA].balance() > 0 && s.Toss[keyB].balance() > 0 {
		switch {
		case s.Stolen:
			return "the order is charged twice: it was let go while a give back of it was not finished"
		case !x.cfg.late:
			return "the order is charged twice"
		}
	}
	return ""
}

// wrongAtEnd says what must not be left when faults have ended and recovery found nothing more to do.
func (x *explorer) wrongAtEnd(s state) string {
	var approvals []payment.Approval
	var rows []payment.LedgerRow
	for k := range s.Rows {
		a, r := s.Toss[k], s.Rows[k]
		if a.Times > 0 {
			approvals = append(approvals, payment.Approval{
				PaymentKey: paymentKey(k), OrderID: orderID, Times: int(a.Times), Total: price, Canceled: price - a.balance(),
			})
		}
		if r.There {
			rows = append(rows, r.ledger(k))
		}
		if wrong := x.wrongPayment(s, k); wrong != "" {
			return wrong
		}
	}
	ledger := payment.CheckLedger(approvals, rows)
	switch {
	case x.cfg.late && s.Toss[keyA].balance() > 0 && s.Toss[keyB].balance() > 0:
		// Toss broke its promise and then refused to give back: an incident is all that can be had.
		if !rows[keyA].MoneyIncident && !rows[keyB].MoneyIncident {
			return "charged twice without an incident: " + ledger.String()
		}
	case !ledger.Holds():
		return ledger.String()
	case ledger.Doubt > 0:
		return "doubt left: " + ledger.String()
	}
	return ""
}

func (x *explorer) wrongPayment(s state, k int) string {
	a, r, told := s.Toss[k], s.Rows[k], s.Client[k]
	incident := r.ledger(k).MoneyIncident
	switch {
	case r.There && r.unfinished() && !incident:
		return fmt.Sprintf("%s is left %s", paymentKey(k), r.status())
	case a.balance() > 0 && !incident && (!r.There || r.status() != payment.Paid):
		return fmt.Sprintf("%s is charged and neither PAID nor under an incident", paymentKey(k))
	case told.Failed && a.balance() > 0:
		return fmt.Sprintf("the client was told that %s failed, and it is left charged", paymentKey(k))
	case told.Paid && a.balance() == 0 && (r.status() != payment.Canceled || r.Refunded == 0):
		return fmt.Sprintf("the client was told that %s is paid, and it is not, and no notice tells", paymentKey(k))
	case told.Paid && a.balance() == 0 && !x.cfg.cancel:
		return fmt.Sprintf("the client was told that %s is paid, and it was given back", paymentKey(k))
	case r.There && (r.status() == payment.Paid || r.status() == payment.Canceled) && r.Paid != 1:
		return fmt.Sprintf("%s is %s with %d notices payment.paid", paymentKey(k), r.status(), r.Paid)
	case r.There && r.status() == payment.Failed && r.Paid != 0:
		return fmt.Sprintf("%s is FAILED with a notice payment.paid", paymentKey(k))
	default:
		return ""
	}
}

func (r row) ledger(k int) payment.LedgerRow {
	l := payment.LedgerRow{PaymentKey: paymentKey(k), OrderID: orderID, Status: r.status(), Amount: price}
	if r.Canceled {
		l.CanceledAmount = price
	}
	for i, kind := range payment.IncidentKinds() {
		l.MoneyIncident = l.MoneyIncident || kind.Money() && r.Incidents&(1<<i) != 0
	}
	for _, c := range r.Cancels {
		l.DoneCancels = l.DoneCancels || c.State == cancelDone
	}
	return l
}
