package payment_test

import (
	"time"

	"paymentd/internal/payment"
)

// The time limits of the tests: the defaults of the configuration.
var rules = payment.Rules{
	SendWithin: 9 * time.Minute, ResendWithin: 2 * time.Minute, Window: 10 * time.Minute, Margin: 5 * time.Minute,
	UnknownIncidentAfter: time.Hour, VerifyAfter: 30 * time.Minute,
}

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

const (
	ourReason     = "too late [c-abcdefghijklmnopqrstuvwxyz]"
	foreignReason = "the buyer changed their mind"
)

// row is a payment of 15000 won that was reserved and sent that long before now.
func row(s payment.Status, age time.Duration) payment.Payment {
	at := now.Add(-age)
	return payment.Payment{
		PaymentKey: "key-1", OrderID: "order-1", Amount: 15000, Currency: payment.KRW, Status: s,
		MaybeSent: true, ReservedAt: at, FirstSentAt: at, LastSentAt: at,
	}
}

// neverSent is a PENDING payment of which no try can have reached Toss.
func neverSent(age time.Duration) payment.Payment {
	p := row(payment.Pending, age)
	p.MaybeSent, p.FirstSentAt, p.LastSentAt = false, time.Time{}, time.Time{}
	return p
}

// paid is a PAID payment of which that much was returned.
func paid(canceled payment.Amount) payment.Payment {
	p := row(payment.Paid, time.Hour)
	p.CanceledAmount = canceled
	return p
}

// awaiting is an AWAITING_DEPOSIT payment whose virtual account was due that long before now.
func awaiting(overdue time.Duration) payment.Payment {
	p := row(payment.AwaitingDeposit, 7*24*time.Hour)
	p.VirtualAccount = &payment.VirtualAccount{DueDate: now.Add(-overdue)}
	return p
}

// saw is what Toss says of the payment that row makes, with that balance left.
func saw(s payment.Sighting, balance payment.Amount) payment.Observation {
	return payment.Observation{
		Sighting: s, PaymentKey: "key-1", OrderID: "order-1", Total: 15000, Balance: balance, Currency: payment.KRW,
	}
}

// full is saw with all the money still there.
func full(s payment.Sighting) payment.Observation { return saw(s, 15000) }

// returned is saw with nothing left and one cancel for that reason.
func returned(s payment.Sighting, reason string) payment.Observation {
	o := saw(s, 0)
	o.Cancels = []payment.GatewayCancel{{TransactionKey: "t-1", Amount: 15000, Reason: reason}}
	o.ApprovedAt = time.Unix(1, 0)
	return o
}

// refusedWith is saw with Toss's reason of a failure.
func refusedWith(s payment.Sighting) payment.Observation {
	o := full(s)
	o.FailureCode, o.FailureMessage = "REJECT_CARD_PAYMENT", "한도초과"
	return o
}

// other is an observation that differs from the order in one field.
func other(o payment.Observation, field string) payment.Observation {
	switch field {
	case "paymentKey":
		o.PaymentKey = "key-2"
	case "orderId":
		o.OrderID = "order-2"
	case "amount":
		o.Total = 14999
	case "currency":
		o.Currency = "USD"
	case "balance":
		o.Balance = 14999
	}
	return o
}

// neverPaid is a virtual account that was canceled before its deposit.
func neverPaid(o payment.Observation) payment.Observation {
	o.ApprovedAt = time.Time{}
	return o
}
