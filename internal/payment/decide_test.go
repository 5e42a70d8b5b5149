package payment_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"paymentd/internal/payment"
)

type decideCase struct {
	name string
	row  payment.Payment
	saw  payment.Observation
	want payment.Action
}

// The actions that many rows share.
var (
	toPaid = payment.Action{Do: payment.Settle, To: payment.Paid, Reason: "approved"}
	parked = payment.Action{
		Do: payment.Park, Incident: payment.Mismatch, Reason: "the approval differs from the order",
	}
	sendAgain  = payment.Action{Do: payment.Send, Reason: "open at the gateway"}
	waitWindow = payment.Action{Do: payment.Wait, Reason: "the gateway's window is open"}
	waitSilent = payment.Action{Do: payment.Wait, Reason: "no usable answer"}
	asKnown    = payment.Action{Do: payment.Stay, Reason: "as known"}
	staySilent = payment.Action{Do: payment.Stay, Reason: "no usable answer"}
	lost       = payment.Action{
		Do: payment.Settle, To: payment.Failed, Failure: &payment.Failure{Code: payment.FailExpired},
		VerifyIn: 30 * time.Minute, Reason: "the gateway's window is over",
	}
)

func failed(code payment.FailureCode, reason string) payment.Action {
	return payment.Action{Do: payment.Settle, To: payment.Failed, Failure: &payment.Failure{Code: code}, Reason: reason}
}

func failedWithWords(code payment.FailureCode, reason string) payment.Action {
	a := failed(code, reason)
	a.Failure.GatewayCode, a.Failure.Message = "REJECT_CARD_PAYMENT", "한도초과"
	return a
}

func unexpected(reason string) payment.Action {
	return payment.Action{Do: payment.Stay, Incident: payment.UnexpectedState, Reason: reason}
}

func runDecide(t *testing.T, tests []decideCase) {
	t.Helper()
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(test.want, rules.Decide(test.row, test.saw, now)); diff != "" {
				t.Errorf("action (-want +got):\n%s", diff)
			}
		})
	}
}

// TestDecidePending has one case and its edges for each PENDING row of the state table.
func TestDecidePending(t *testing.T) {
	t.Parallel()
	pending := row(payment.Pending, time.Minute)
	mixed := returned(payment.SeenPartlyCanceled, foreignReason)
	mixed.Cancels = append(mixed.Cancels, payment.GatewayCancel{Reason: ourReason})
	runDecide(t, []decideCase{
		{"DONE as ordered", pending, full(payment.SeenDone), toPaid},
		{"DONE as ordered, years later", row(payment.Pending, 9000*time.Hour), full(payment.SeenDone), toPaid},
		{"DONE, other paymentKey", pending, other(full(payment.SeenDone), "paymentKey"), parked},
		{"DONE, other orderId", pending, other(full(payment.SeenDone), "orderId"), parked},
		{"DONE, other amount", pending, other(full(payment.SeenDone), "amount"), parked},
		{"DONE, other currency", pending, other(full(payment.SeenDone), "currency"), parked},
		{"DONE, but some went back", pending, other(full(payment.SeenDone), "balance"), parked},
		{
			"WAITING_FOR_DEPOSIT", pending, full(payment.SeenWaiting),
			payment.Action{Do: payment.Settle, To: payment.AwaitingDeposit, Reason: "virtual account issued"},
		},
		// Not said by the table, but an account over another amount is as wrong as an approval over it.
		{"WAITING_FOR_DEPOSIT, other amount", pending, other(full(payment.SeenWaiting), "amount"), parked},
		{
			"CANCELED, balance 0, ours", pending, returned(payment.SeenCanceled, ourReason),
			failed(payment.FailGivenBack, "given back by us"),
		},
		{
			"PARTIAL_CANCELED, balance 0, ours", pending, returned(payment.SeenPartlyCanceled, ourReason),
			failed(payment.FailGivenBack, "given back by us"),
		},
		{
			"CANCELED, balance 0, foreign", pending, returned(payment.SeenCanceled, foreignReason),
			failed(payment.FailCanceledAtGateway, "canceled at the gateway"),
		},
		{
			"PARTIAL_CANCELED, balance 0, foreign", pending, returned(payment.SeenPartlyCanceled, foreignReason),
			failed(payment.FailCanceledAtGateway, "canceled at the gateway"),
		},
		{
			"balance 0, a foreign cancel and then ours", pending, mixed, failed(payment.FailGivenBack, "given back by us"),
		},
		{
			"CANCELED, balance 0, no cancels listed", pending, saw(payment.SeenCanceled, 0),
			failed(payment.FailCanceledAtGateway, "canceled at the gateway"),
		},
		{
			"PARTIAL_CANCELED, balance left", pending, saw(payment.SeenPartlyCanceled, 5000),
			payment.Action{
				Do: payment.Settle, To: payment.Paid, Incident: payment.UnexpectedState,
				Reason: "partly canceled before we knew of the approval",
			},
		},
		// The same with a difference is never PAID.
		{"PARTIAL_CANCELED, balance left, other amount", pending, other(saw(payment.SeenPartlyCanceled, 5000), "amount"), parked},
		{"CANCELED, balance left", pending, saw(payment.SeenCanceled, 5000), unexpected("canceled with a balance left")},
		{
			"CANCELED, balance left, other amount", pending, other(saw(payment.SeenCanceled, 5000), "amount"),
			unexpected("canceled with a balance left"),
		},
		{"ABORTED", pending, refusedWith(payment.SeenAborted), failedWithWords(payment.FailDeclined, "declined")},
		{"definite decline", pending, refusedWith(payment.SeenDeclined), failedWithWords(payment.FailDeclined, "declined")},
		{"EXPIRED", pending, full(payment.SeenExpired), failed(payment.FailExpired, "expired at the gateway")},
		{"no session", pending, refusedWith(payment.SeenSessionGone), failedWithWords(payment.FailExpired, "expired at the gateway")},
		{"a word that is no sighting", pending, full("SETTLED"), unexpected("unlisted sighting")},
	})
}

// TestDecidePendingTimes has the PENDING rows in which an age decides; each limit from both sides.
func TestDecidePendingTimes(t *testing.T) {
	t.Parallel()
	nothing := payment.Observation{Sighting: payment.SeenNothing}
	silent := payment.Observation{Sighting: payment.SeenNoAnswer}
	unknownWord := payment.Observation{Sighting: payment.SeenUnknownStatus}
	absent := payment.Observation{Sighting: payment.SeenNotFound}
	firstSend := payment.Action{Do: payment.Send, Reason: "never sent"}
	neverInTime := failed(payment.FailExpired, "never sent in time")
	incident := waitSilent
	incident.Incident = payment.UnknownOutcome
	pending := func(age time.Duration) payment.Payment { return row(payment.Pending, age) }
	sentLate := pending(15 * time.Minute)
	sentLate.LastSentAt = now.Add(-5*time.Minute + 1)
	sentLateOver := pending(15 * time.Minute)
	sentLateOver.LastSentAt = now.Add(-5 * time.Minute)
	firstSentLate := pending(20 * time.Minute)
	firstSentLate.FirstSentAt = now.Add(-15*time.Minute + 1)
	noTimes := pending(15*time.Minute - 1)
	noTimes.FirstSentAt, noTimes.LastSentAt = time.Time{}, time.Time{}
	runDecide(t, []decideCase{
		{"never sent, in time", neverSent(9*time.Minute - 1), nothing, firstSend},
		{"never sent, too late", neverSent(9 * time.Minute), nothing, neverInTime},
		{"never sent, looked up all the same", neverSent(time.Minute), absent, firstSend},
		{"never sent, but approved", neverSent(time.Hour), full(payment.SeenDone), toPaid},
		{"READY, young", pending(2*time.Minute - 1), full(payment.SeenReady), sendAgain},
		{"IN_PROGRESS, young", pending(2*time.Minute - 1), full(payment.SeenInProgress), sendAgain},
		{"not found, young", pending(2*time.Minute - 1), absent, sendAgain},
		{"READY, window open", pending(2 * time.Minute), full(payment.SeenReady), waitWindow},
		{"IN_PROGRESS, window open", pending(2 * time.Minute), full(payment.SeenInProgress), waitWindow},
		{"not found, window open", pending(2 * time.Minute), absent, waitWindow},
		{"READY, window and margin nearly over", pending(15*time.Minute - 1), full(payment.SeenReady), waitWindow},
		{"READY, window and margin over", pending(15 * time.Minute), full(payment.SeenReady), lost},
		{"IN_PROGRESS, window and margin over", pending(15 * time.Minute), full(payment.SeenInProgress), lost},
		{"not found, window and margin over", pending(15 * time.Minute), absent, lost},
		{"last send under 5 min ago", sentLate, absent, waitWindow},
		{"last send 5 min ago", sentLateOver, absent, lost},
		{"the window counts from the first send", firstSentLate, absent, waitWindow},
		{"a send without a time counts from the reservation", noTimes, absent, waitWindow},
		{"no answer", pending(time.Hour - 1), silent, waitSilent},
		{"unknown word", pending(time.Hour - 1), unknownWord, waitSilent},
		{"no answer for long", pending(time.Hour), silent, incident},
		{"unknown word for long", pending(time.Hour), unknownWord, incident},
		// A payment that may have been sent is never moved without a lookup.
		{"maybe sent, no lookup", pending(time.Minute), nothing, waitSilent},
		{"maybe sent, no lookup for long", pending(time.Hour), nothing, incident},
	})
}

func TestDecideResendOff(t *testing.T) {
	t.Parallel()
	off := rules
	off.ResendWithin = 0
	for _, age := range []time.Duration{-time.Second, 0, time.Second} {
		if got := off.Decide(row(payment.Pending, age), full(payment.SeenReady), now); got.Do != payment.Wait {
			t.Errorf("reserved %v ago with RESEND_WITHIN off: %s, want wait", age, got.Do)
		}
	}
}

// TestDecideAwaitingDeposit: no answer and an unknown word are no news here, on purpose without an incident.
func TestDecideAwaitingDeposit(t *testing.T) {
	t.Parallel()
	open := awaiting(-time.Hour)
	none := open
	none.VirtualAccount = nil
	undated := open
	undated.VirtualAccount = &payment.VirtualAccount{}
	waits := payment.Action{Do: payment.Wait, Reason: "waiting for the deposit"}
	noAccount := unexpected("not a state of a virtual account")
	runDecide(t, []decideCase{
		{"DONE as ordered", open, full(payment.SeenDone), toPaid},
		{"DONE, other amount", open, other(full(payment.SeenDone), "amount"), parked},
		{"balance 0, ours, nobody had paid", open, neverPaid(returned(payment.SeenCanceled, ourReason)), failed(payment.FailExpired, "canceled by us, nobody had paid")},
		{"balance 0, ours", open, returned(payment.SeenCanceled, ourReason), failed(payment.FailGivenBack, "given back by us")},
		{
			"balance 0, foreign", open, returned(payment.SeenPartlyCanceled, foreignReason),
			failed(payment.FailCanceledAtGateway, "canceled at the gateway"),
		},
		{"EXPIRED", open, full(payment.SeenExpired), failed(payment.FailExpired, "no deposit")},
		{"ABORTED", open, full(payment.SeenAborted), failed(payment.FailExpired, "no deposit")},
		{"WAITING_FOR_DEPOSIT, not due", open, full(payment.SeenWaiting), waits},
		{"WAITING_FOR_DEPOSIT, a day overdue", awaiting(24 * time.Hour), full(payment.SeenWaiting), waits},
		{
			"WAITING_FOR_DEPOSIT, more than a day overdue", awaiting(24*time.Hour + 1), full(payment.SeenWaiting),
			payment.Action{Do: payment.CancelDeposit, Reason: "deposit overdue"},
		},
		{"WAITING_FOR_DEPOSIT, no account known", none, full(payment.SeenWaiting), waits},
		{"WAITING_FOR_DEPOSIT, no due date known", undated, full(payment.SeenWaiting), waits},
		{"no answer", open, full(payment.SeenNoAnswer), waitSilent},
		{"unknown word", open, full(payment.SeenUnknownStatus), waitSilent},
		{"no lookup", open, full(payment.SeenNothing), waitSilent},
		{"READY", open, full(payment.SeenReady), noAccount},
		{"IN_PROGRESS", open, full(payment.SeenInProgress), noAccount},
		{"not found", open, full(payment.SeenNotFound), noAccount},
		{"PARTIAL_CANCELED, balance left", open, saw(payment.SeenPartlyCanceled, 5000), noAccount},
		{"CANCELED, balance left", open, saw(payment.SeenCanceled, 5000), noAccount},
		{"declined", open, full(payment.SeenDeclined), noAccount},
	})
}

// TestDecideFailedOfAnotherOrder: another system of the merchant had the paymentKey approved for an order of its own;
// giving that back would take another buyer's money away.
func TestDecideFailedOfAnotherOrder(t *testing.T) {
	t.Parallel()
	p := payment.Payment{PaymentKey: "key-1", OrderID: "order-1", Amount: 15000, Currency: payment.KRW, Status: payment.Failed}
	for _, s := range []payment.Sighting{payment.SeenDone, payment.SeenPartlyCanceled, payment.SeenWaiting} {
		if a := rules.Decide(p, other(full(s), "orderId"), now); a.Do != payment.Stay || a.Incident != payment.Mismatch {
			t.Errorf("%s of another order: %+v", s, a)
		}
	}
}

// TestDecideFailed: what is consistent with FAILED is no incident, also where the table is silent.
func TestDecideFailed(t *testing.T) {
	t.Parallel()
	have := row(payment.Failed, time.Hour)
	back := payment.Action{Do: payment.GiveBack, Reason: "approved after it failed here"}
	runDecide(t, []decideCase{
		{"DONE", have, full(payment.SeenDone), back},
		{"DONE, other amount", have, other(full(payment.SeenDone), "amount"), back},
		{"PARTIAL_CANCELED, balance left", have, saw(payment.SeenPartlyCanceled, 5000), back},
		{"CANCELED, balance left", have, saw(payment.SeenCanceled, 5000), back},
		{
			"WAITING_FOR_DEPOSIT", have, full(payment.SeenWaiting),
			payment.Action{Do: payment.CancelDeposit, Reason: "virtual account of a failed payment"},
		},
		{"CANCELED, balance 0", have, returned(payment.SeenCanceled, ourReason), asKnown},
		{"PARTIAL_CANCELED, balance 0", have, returned(payment.SeenPartlyCanceled, foreignReason), asKnown},
		{"READY", have, full(payment.SeenReady), asKnown},
		{"IN_PROGRESS", have, full(payment.SeenInProgress), asKnown},
		{"ABORTED", have, full(payment.SeenAborted), asKnown},
		{"EXPIRED", have, full(payment.SeenExpired), asKnown},
		{"not found", have, full(payment.SeenNotFound), asKnown},
		{"no answer", have, full(payment.SeenNoAnswer), staySilent},
		{"unknown word", have, full(payment.SeenUnknownStatus), staySilent},
	})
}

func TestDecidePaid(t *testing.T) {
	t.Parallel()
	have := paid(0)
	differs := payment.Action{Do: payment.Stay, Incident: payment.Mismatch, Reason: "the approval differs from the order"}
	contradicts := unexpected("contradicts PAID")
	toCanceled := payment.Action{Do: payment.Settle, To: payment.Canceled, Reason: "fully canceled"}
	partly := payment.Action{Do: payment.Settle, To: payment.Paid, Reason: "partly canceled"}
	runDecide(t, []decideCase{
		{"CANCELED, balance 0", have, returned(payment.SeenCanceled, foreignReason), toCanceled},
		{"PARTIAL_CANCELED, balance 0", have, returned(payment.SeenPartlyCanceled, ourReason), toCanceled},
		{"DONE, balance 0", have, saw(payment.SeenDone, 0), toCanceled},
		{"PARTIAL_CANCELED", have, saw(payment.SeenPartlyCanceled, 5000), partly},
		{"PARTIAL_CANCELED again", paid(5000), saw(payment.SeenPartlyCanceled, 5000), partly},
		{"PARTIAL_CANCELED, other amount", have, other(saw(payment.SeenPartlyCanceled, 5000), "amount"), differs},
		{"DONE as ordered", have, full(payment.SeenDone), asKnown},
		{"DONE, other paymentKey", have, other(full(payment.SeenDone), "paymentKey"), differs},
		{"DONE, other orderId", have, other(full(payment.SeenDone), "orderId"), differs},
		{"DONE, other amount", have, other(full(payment.SeenDone), "amount"), differs},
		{"DONE, other currency", have, other(full(payment.SeenDone), "currency"), differs},
		{"DONE, but some went back", have, other(full(payment.SeenDone), "balance"), differs},
		{"DONE in full after a partial cancel", paid(5000), full(payment.SeenDone), contradicts},
		{"CANCELED, balance left", have, saw(payment.SeenCanceled, 5000), contradicts},
		{"WAITING_FOR_DEPOSIT", have, full(payment.SeenWaiting), contradicts},
		{"READY", have, full(payment.SeenReady), contradicts},
		{"IN_PROGRESS", have, full(payment.SeenInProgress), contradicts},
		{"ABORTED", have, full(payment.SeenAborted), contradicts},
		{"EXPIRED", have, full(payment.SeenExpired), contradicts},
		{"not found", have, full(payment.SeenNotFound), contradicts},
		{"no answer", have, full(payment.SeenNoAnswer), staySilent},
		{"unknown word", have, full(payment.SeenUnknownStatus), staySilent},
	})
}

func TestDecideCanceled(t *testing.T) {
	t.Parallel()
	have := row(payment.Canceled, time.Hour)
	have.CanceledAmount = 15000
	contradicts := unexpected("contradicts CANCELED")
	runDecide(t, []decideCase{
		{"CANCELED, balance 0", have, returned(payment.SeenCanceled, foreignReason), asKnown},
		{"PARTIAL_CANCELED, balance 0", have, returned(payment.SeenPartlyCanceled, foreignReason), asKnown},
		{"DONE, balance 0", have, saw(payment.SeenDone, 0), asKnown},
		{"DONE", have, full(payment.SeenDone), contradicts},
		{"PARTIAL_CANCELED, balance left", have, saw(payment.SeenPartlyCanceled, 5000), contradicts},
		{"CANCELED, balance left", have, saw(payment.SeenCanceled, 5000), contradicts},
		{"READY", have, full(payment.SeenReady), contradicts},
		{"not found", have, full(payment.SeenNotFound), contradicts},
		{"no answer", have, full(payment.SeenNoAnswer), staySilent},
		{"unknown word", have, full(payment.SeenUnknownStatus), staySilent},
		{"a state that is none", row("REFUNDED", 0), full(payment.SeenDone), unexpected("unknown local state")},
	})
}

// TestLookIn is the growing delay of a doubt.
func TestLookIn(t *testing.T) {
	t.Parallel()
	want := []time.Duration{5 * time.Second, 15 * time.Second, time.Minute, 5 * time.Minute, 10 * time.Minute, 10 * time.Minute}
	for looks, in := range want {
		if got := payment.LookIn(looks); got != in {
			t.Errorf("after %d looks %s, want %s", looks, got, in)
		}
	}
	if got := payment.LookIn(-1); got != 5*time.Second {
		t.Errorf("after -1 looks %s", got)
	}
}
