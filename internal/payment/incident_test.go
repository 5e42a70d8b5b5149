package payment_test

import (
	"testing"
	"time"

	"paymentd/internal/payment"
)

// TestRemedy is the whole rule: what an operator may ask for, and what it does.
func TestRemedy(t *testing.T) {
	t.Parallel()
	const (
		none     = payment.IncidentAction("")
		accept   = payment.ResolveAccept
		giveBack = payment.ResolveGiveBack
		notOurs  = payment.ResolveNotOurs
	)
	here := func(s payment.Status) *payment.Payment {
		return &payment.Payment{PaymentKey: "k", OrderID: "order-1", Amount: 100, Currency: payment.KRW, Status: s}
	}
	seen := payment.Observation{
		Sighting: payment.SeenDone, PaymentKey: "k", OrderID: "order-1", Total: 80, Balance: 80, Currency: payment.KRW,
	}
	but := func(change func(*payment.Observation)) payment.Observation {
		o := seen
		change(&o)
		return o
	}
	otherOrder := but(func(o *payment.Observation) { o.OrderID = "order-2" })
	otherKey := but(func(o *payment.Observation) { o.PaymentKey = "l" })
	otherCurrency := but(func(o *payment.Observation) { o.Currency = "USD" })
	sameAmount := but(func(o *payment.Observation) { o.Total, o.Balance = 100, 60 })
	returned := but(func(o *payment.Observation) { o.Balance = 0 })
	nothing := payment.Observation{}
	noOrder := but(func(o *payment.Observation) { o.OrderID = "" })
	noCurrency := but(func(o *payment.Observation) { o.Currency = "" })
	const needed = "is required: accept, give_back or not_ours"
	const takesNone = "an incident of this kind takes none; a note closes it"
	const known = "the payment is known by now: sync its order; a note closes the incident"
	tests := []struct {
		name    string
		kind    payment.IncidentKind
		seen    payment.Observation
		here    *payment.Payment
		action  payment.IncidentAction
		want    payment.Remedy
		refusal string
	}{
		{"mismatch needs one", payment.Mismatch, seen, here(payment.Pending), none, "", needed},
		{"a word that is none", payment.Mismatch, seen, here(payment.Pending), "refund", "", "must be accept, give_back or not_ours"},
		{"the machine's own word", payment.Mismatch, seen, here(payment.Pending), payment.ResolveSettled, "", "must be accept, give_back or not_ours"},
		{"accept", payment.Mismatch, seen, here(payment.Pending), accept, payment.RemedyAmount, ""},
		{"accept a virtual account", payment.Mismatch, seen, here(payment.AwaitingDeposit), accept, payment.RemedyAmount, ""},
		{"accept on PAID", payment.Mismatch, seen, here(payment.Paid), accept, payment.RemedyAmount, ""},
		{"accept on FAILED", payment.Mismatch, seen, here(payment.Failed), accept, "", "accept: the payment is finished and not PAID"},
		{"accept on CANCELED", payment.Mismatch, seen, here(payment.Canceled), accept, "", "accept: the payment is finished and not PAID"},
		{"accept another order", payment.Mismatch, otherOrder, here(payment.Pending), accept, "", "accept: the approval is of another order; not_ours or give_back"},
		{"accept another paymentKey", payment.Mismatch, otherKey, here(payment.Pending), accept, "", "accept: the approval is of another order; not_ours or give_back"},
		{"accept another currency", payment.Mismatch, otherCurrency, here(payment.Pending), accept, "", "accept: the currency differs; give_back"},
		{"accept what differs otherwise", payment.Mismatch, sameAmount, here(payment.Pending), accept, "", "accept: the amount is not what differs; give_back"},
		{"accept without evidence", payment.Mismatch, nothing, here(payment.Pending), accept, "", "accept: the approval is of another order; not_ours or give_back"},

		{"give back", payment.Mismatch, seen, here(payment.Pending), giveBack, payment.RemedyCancel, ""},
		{"give back another order's", payment.Mismatch, otherOrder, here(payment.Pending), giveBack, payment.RemedyCancel, ""},
		{"give back on PAID", payment.Mismatch, seen, here(payment.Paid), giveBack, payment.RemedyCancel, ""},
		{"give back on FAILED", payment.Mismatch, otherOrder, here(payment.Failed), giveBack, payment.RemedyCancel, ""},
		{"give back on CANCELED", payment.Mismatch, seen, here(payment.Canceled), giveBack, "", "give_back: the payment is CANCELED already"},
		{"give back another paymentKey", payment.Mismatch, otherKey, here(payment.Pending), giveBack, "", "give_back: the approval has another paymentKey; not_ours"},
		{"give back nothing", payment.Mismatch, returned, here(payment.Pending), giveBack, "", "give_back: the evidence shows no balance"},

		{"not ours", payment.Mismatch, otherOrder, here(payment.Pending), notOurs, payment.RemedyFail, ""},
		{"not our virtual account", payment.Mismatch, otherKey, here(payment.AwaitingDeposit), notOurs, payment.RemedyFail, ""},
		{"not ours, PAID stays", payment.Mismatch, otherOrder, here(payment.Paid), notOurs, payment.RemedyNone, ""},
		{"not ours, FAILED stays", payment.Mismatch, otherOrder, here(payment.Failed), notOurs, payment.RemedyNone, ""},
		{"not ours, but it is", payment.Mismatch, seen, here(payment.Pending), notOurs, "", "not_ours: paymentKey and orderId are ours; accept or give_back"},

		{"orphan needs one", payment.OrphanApproval, seen, nil, none, "", needed},
		{"adopt", payment.OrphanApproval, seen, nil, accept, payment.RemedyAdopt, ""},
		{"adopt to return", payment.OrphanApproval, seen, nil, giveBack, payment.RemedyReturn, ""},
		{"orphan of others", payment.OrphanApproval, seen, nil, notOurs, payment.RemedyNone, ""},
		{"orphan without evidence", payment.OrphanApproval, nothing, nil, accept, "", "the evidence names no order, amount or currency; not_ours"},
		{"orphan without order", payment.OrphanApproval, noOrder, nil, giveBack, "", "the evidence names no order, amount or currency; not_ours"},
		{"orphan without currency", payment.OrphanApproval, noCurrency, nil, accept, "", "the evidence names no order, amount or currency; not_ours"},
		{"orphan without evidence, of others", payment.OrphanApproval, nothing, nil, notOurs, payment.RemedyNone, ""},
		{"orphan that is known by now", payment.OrphanApproval, seen, here(payment.Pending), accept, "", known},
		{"orphan that is known by now, a note", payment.OrphanApproval, seen, here(payment.Paid), none, payment.RemedyNone, ""},

		{"cancel failed, a note", payment.CancelFailed, seen, here(payment.Failed), none, payment.RemedyNone, ""},
		{"cancel failed, again", payment.CancelFailed, seen, here(payment.Failed), giveBack, payment.RemedyRetry, ""},
		{"cancel of a virtual account failed", payment.CancelFailed, seen, here(payment.AwaitingDeposit), giveBack, payment.RemedyRetry, ""},
		{"cancel of a mismatch failed", payment.CancelFailed, seen, here(payment.Pending), giveBack, "", "give_back: the payment is undecided; resolve its mismatch"},
		{"cancel failed, accept", payment.CancelFailed, seen, here(payment.Failed), accept, "", "must be give_back, or absent"},
		{"cancel failed on PAID", payment.CancelFailed, seen, here(payment.Paid), giveBack, "", "give_back: the payment stands; ask for a new cancel"},
		{"cancel failed, payment gone", payment.CancelFailed, seen, nil, giveBack, "", takesNone},

		{"unknown outcome", payment.UnknownOutcome, nothing, here(payment.Pending), none, payment.RemedyNone, ""},
		{"unknown outcome, accept", payment.UnknownOutcome, nothing, here(payment.Pending), accept, "", takesNone},
		{"unexpected state", payment.UnexpectedState, seen, here(payment.Paid), none, payment.RemedyNone, ""},
		{"unexpected state, accept", payment.UnexpectedState, seen, here(payment.Paid), accept, "", takesNone},
		{"dead notice", payment.DeadNotice, nothing, here(payment.Paid), none, payment.RemedyNone, ""},
		{"dead notice, not ours", payment.DeadNotice, nothing, here(payment.Paid), notOurs, "", takesNone},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got, refusal := test.action.Remedy(test.kind, test.seen, test.here)
			if got != test.want || refusal != test.refusal {
				t.Errorf("%q %q, want %q %q", got, refusal, test.want, test.refusal)
			}
			if (got == "") == (refusal == "") {
				t.Error("a refusal has a reason and no remedy, and nothing else has")
			}
		})
	}
}

func TestIncidentState(t *testing.T) {
	t.Parallel()
	if got := (payment.Incident{}).State(); got != payment.IncidentOpen {
		t.Errorf("not resolved: %s", got)
	}
	if got := (payment.Incident{ResolvedAt: time.Unix(1, 0)}).State(); got != payment.IncidentResolved {
		t.Errorf("resolved: %s", got)
	}
}

func TestMoneyIncidents(t *testing.T) {
	t.Parallel()
	for _, kind := range payment.IncidentKinds() {
		if got, want := kind.Money(), kind != payment.DeadNotice; got != want {
			t.Errorf("%s is about money: %v, want %v", kind, got, want)
		}
	}
}
