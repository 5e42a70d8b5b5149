package payment_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"paymentd/internal/payment"
)

func TestCheckLedger(t *testing.T) {
	t.Parallel()
	at := func(key string, canceled payment.Amount) payment.Approval {
		return payment.Approval{PaymentKey: key, OrderID: "order-" + key, Times: 1, Total: 100, Canceled: canceled}
	}
	here := func(key string, s payment.Status, canceled payment.Amount) payment.LedgerRow {
		return payment.LedgerRow{PaymentKey: key, OrderID: "order-" + key, Status: s, Amount: 100, CanceledAmount: canceled}
	}
	incident := func(r payment.LedgerRow) payment.LedgerRow { r.MoneyIncident = true; return r }
	byHand := func(r payment.LedgerRow) payment.LedgerRow { r.ByHand = true; return r }
	cancels := func(r payment.LedgerRow) payment.LedgerRow { r.DoneCancels = true; return r }
	sameOrder := func(a payment.Approval) payment.Approval { a.OrderID = "order-a"; return a }
	twice := at("a", 0)
	twice.Times, twice.Total = 2, 200
	type ledger = payment.Ledger
	broken := func(l ledger, what ...string) ledger {
		for i := 0; i < len(what); i += 2 {
			l.Violations = append(l.Violations, payment.Violation{PaymentKey: what[i], OrderID: "order-" + what[i], What: what[i+1]})
		}
		return l
	}
	tests := []struct {
		name    string
		gateway []payment.Approval
		local   []payment.LedgerRow
		want    ledger
	}{
		{"nothing", nil, nil, ledger{}},
		{"rows that Toss never approved", nil, []payment.LedgerRow{
			here("a", payment.Pending, 0), here("b", payment.Failed, 0), incident(here("c", payment.Pending, 0)),
		}, ledger{}},
		{
			"one of each box", []payment.Approval{at("a", 0), at("b", 30), at("c", 100), at("d", 100), at("e", 10), at("f", 0), at("g", 0), at("h", 0)},
			[]payment.LedgerRow{
				here("a", payment.Paid, 0), here("b", payment.Paid, 30), here("c", payment.Canceled, 100),
				cancels(here("d", payment.Failed, 0)), incident(here("e", payment.Failed, 0)),
				incident(here("f", payment.Pending, 0)), here("g", payment.Pending, 0), here("h", payment.AwaitingDeposit, 0),
			},
			ledger{Approved: 8, Paid: 2, Returned: 2, Incident: 2, Doubt: 2, AtToss: 560, PaidSum: 170, IncidentSum: 190, DoubtSum: 200},
		},
		{
			"an orphan under its incident", []payment.Approval{at("a", 0)}, []payment.LedgerRow{{PaymentKey: "a", MoneyIncident: true}},
			ledger{Approved: 1, Incident: 1, AtToss: 100, IncidentSum: 100},
		},
		{
			"by hand: failed, partly returned, canceled, and an orphan", []payment.Approval{at("a", 0), at("b", 40), at("c", 10), at("d", 0)},
			[]payment.LedgerRow{
				byHand(here("a", payment.Failed, 0)), byHand(cancels(here("b", payment.Failed, 0))), byHand(here("c", payment.Canceled, 100)),
				{PaymentKey: "d", ByHand: true},
			},
			ledger{Approved: 4, ByHand: 4, AtToss: 350, ByHandSum: 350},
		},
		{
			"by hand goes last", []payment.Approval{at("a", 0), at("b", 100), at("c", 0), at("d", 0)},
			[]payment.LedgerRow{
				byHand(here("a", payment.Paid, 0)), byHand(cancels(here("b", payment.Failed, 0))), byHand(here("c", payment.Pending, 0)),
				byHand(incident(here("d", payment.Failed, 0))),
			},
			ledger{Approved: 4, Paid: 1, Returned: 1, Doubt: 1, Incident: 1, AtToss: 300, PaidSum: 100, DoubtSum: 100, IncidentSum: 100},
		},
		{
			"an order charged again, which somebody answered for", []payment.Approval{at("a", 0), sameOrder(at("b", 60))},
			[]payment.LedgerRow{here("a", payment.Paid, 0), byHand(here("b", payment.Failed, 0))},
			ledger{Approved: 2, Paid: 1, ByHand: 1, AtToss: 140, PaidSum: 100, ByHandSum: 40},
		},
		{
			"PAID by hand must agree all the same", []payment.Approval{at("a", 40)}, []payment.LedgerRow{byHand(here("a", payment.Paid, 0))},
			broken(ledger{Approved: 1, Paid: 1, AtToss: 60, PaidSum: 100}, "a", "PAID with 100 here, 60 at the gateway"),
		},
		{
			"PAID and returned go before an incident", []payment.Approval{at("a", 0), at("b", 100)},
			[]payment.LedgerRow{incident(here("a", payment.Paid, 0)), incident(here("b", payment.Canceled, 100))},
			ledger{Approved: 2, Paid: 1, Returned: 1, AtToss: 100, PaidSum: 100},
		},
		{
			"in none: unknown here", []payment.Approval{at("a", 0)}, nil,
			broken(ledger{Approved: 1, AtToss: 100}, "a", "in no box: unknown here"),
		},
		{
			"in none: FAILED, charged", []payment.Approval{at("a", 0)}, []payment.LedgerRow{here("a", payment.Failed, 0)},
			broken(ledger{Approved: 1, AtToss: 100}, "a", "in no box: FAILED here, balance 100 at the gateway"),
		},
		{
			"in none: FAILED, partly given back", []payment.Approval{at("a", 40)}, []payment.LedgerRow{cancels(here("a", payment.Failed, 0))},
			broken(ledger{Approved: 1, AtToss: 60}, "a", "in no box: FAILED here, balance 60 at the gateway"),
		},
		{
			"in none: FAILED, returned without a record", []payment.Approval{at("a", 100)}, []payment.LedgerRow{here("a", payment.Failed, 0)},
			broken(ledger{Approved: 1}, "a", "in no box: FAILED here, balance 0 at the gateway"),
		},
		{
			"in none: CANCELED, money left", []payment.Approval{at("a", 40)}, []payment.LedgerRow{here("a", payment.Canceled, 100)},
			broken(ledger{Approved: 1, AtToss: 60}, "a", "in no box: CANCELED here, balance 60 at the gateway"),
		},
		{
			"in two", []payment.Approval{at("a", 0)}, []payment.LedgerRow{here("a", payment.Paid, 0), here("a", payment.Pending, 0)},
			broken(ledger{Approved: 1, Paid: 1, AtToss: 100, PaidSum: 100}, "a", "in two boxes: 2 rows, [paid doubt]"),
		},
		{
			"twice in one", []payment.Approval{at("a", 0)}, []payment.LedgerRow{here("a", payment.Paid, 0), here("a", payment.Paid, 0)},
			broken(ledger{Approved: 1, Paid: 1, AtToss: 100, PaidSum: 200}, "a", "in two boxes: 2 rows, [paid]"),
		},
		{
			"approved twice", []payment.Approval{twice}, []payment.LedgerRow{here("a", payment.Paid, 0)},
			broken(ledger{Approved: 1, Paid: 1, AtToss: 200, PaidSum: 100},
				"a", "PAID with 100 here, 200 at the gateway", "a", "approved 2 times"),
		},
		{
			"listed twice", []payment.Approval{at("a", 100), at("a", 100)}, []payment.LedgerRow{here("a", payment.Canceled, 100)},
			broken(ledger{Approved: 2, Returned: 2}, "a", "listed twice by the gateway"),
		},
		{
			"an order charged twice", []payment.Approval{at("a", 0), sameOrder(at("b", 60))},
			[]payment.LedgerRow{here("a", payment.Paid, 0), incident(here("b", payment.Failed, 0))},
			broken(ledger{Approved: 2, Paid: 1, Incident: 1, AtToss: 140, PaidSum: 100, IncidentSum: 40}, "a", "order charged twice: a, b"),
		},
		{
			"an order charged twice, once returned", []payment.Approval{at("a", 0), sameOrder(at("b", 100))},
			[]payment.LedgerRow{here("a", payment.Paid, 0), cancels(here("b", payment.Failed, 0))},
			ledger{Approved: 2, Paid: 1, Returned: 1, AtToss: 100, PaidSum: 100},
		},
		{
			"PAID here alone", nil, []payment.LedgerRow{here("a", payment.Paid, 0)},
			broken(ledger{PaidSum: 100}, "a", "PAID here, never approved at the gateway"),
		},
		{
			"PAID here, canceled there", []payment.Approval{at("a", 100)}, []payment.LedgerRow{here("a", payment.Paid, 0)},
			broken(ledger{Approved: 1, Paid: 1, PaidSum: 100}, "a", "PAID with 100 here, 0 at the gateway"),
		},
		{
			"two faults that cancel each other out", []payment.Approval{at("a", 30), at("b", 0)},
			[]payment.LedgerRow{here("a", payment.Paid, 0), here("b", payment.Paid, 30)},
			broken(ledger{Approved: 2, Paid: 2, AtToss: 170, PaidSum: 170},
				"a", "PAID with 100 here, 70 at the gateway", "b", "PAID with 70 here, 100 at the gateway"),
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got := payment.CheckLedger(test.gateway, test.local)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("ledger (-want +got):\n%s", diff)
			}
			if want := len(test.want.Violations) == 0; got.Holds() != want {
				t.Errorf("holds: %v, want %v", got.Holds(), want)
			}
		})
	}
}

func TestLedgerString(t *testing.T) {
	t.Parallel()
	holds := payment.Ledger{Approved: 5, Paid: 1, Returned: 1, Incident: 1, Doubt: 1, ByHand: 1, AtToss: 65, PaidSum: 30, IncidentSum: 20, DoubtSum: 10, ByHandSum: 5}
	broken := payment.Ledger{Approved: 1, AtToss: 100}
	for i := range 6 {
		broken.Violations = append(broken.Violations, payment.Violation{PaymentKey: fmt.Sprint("k", i), OrderID: "o", What: "bad"})
	}
	tests := []struct {
		name string
		have payment.Ledger
		want string
	}{
		{"holds", holds, "ledger holds: 5 approved, 1 paid + 1 returned + 1 under incident + 1 in doubt + 1 by hand; money 65 = 30 + 20 + 10 + 5; 0 violations"},
		{
			"broken", broken, "ledger BROKEN: 1 approved, 0 paid + 0 returned + 0 under incident + 0 in doubt + 0 by hand; money 100 ≠ 0 + 0 + 0 + 0; 6 violations" +
				"; k0 (order o): bad; k1 (order o): bad; k2 (order o): bad; k3 (order o): bad; k4 (order o): bad; …",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(test.want, test.have.String()); diff != "" {
				t.Errorf("line (-want +got):\n%s", diff)
			}
		})
	}
}

// TestLedgerProperty: whatever the rows, a ledger without violations is balanced and has each approval in one box.
func TestLedgerProperty(t *testing.T) {
	t.Parallel()
	held := 0
	rapid.Check(t, func(t *rapid.T) {
		var gateway []payment.Approval
		var local []payment.LedgerRow
		for i := range rapid.IntRange(0, 4).Draw(t, "keys") {
			key := fmt.Sprint("key-", i)
			canceled := rapid.SampledFrom([]payment.Amount{0, 40, 100})
			order := rapid.SampledFrom([]string{"x", "y", "z", key}).Draw(t, "order")
			if rapid.Bool().Draw(t, "approved") {
				gateway = append(gateway, payment.Approval{
					PaymentKey: key, OrderID: order, Times: 1, Total: 100, Canceled: canceled.Draw(t, "canceled there"),
				})
			}
			if rapid.IntRange(0, 4).Draw(t, "known") > 0 {
				local = append(local, payment.LedgerRow{
					PaymentKey: key, OrderID: order, Status: statusGen.Draw(t, "status"), Amount: 100,
					CanceledAmount: canceled.Draw(t, "canceled here"),
					MoneyIncident:  rapid.Bool().Draw(t, "incident"), DoneCancels: rapid.Bool().Draw(t, "cancels"),
					ByHand: rapid.Bool().Draw(t, "by hand"),
				})
			}
		}
		l := payment.CheckLedger(gateway, local)
		boxed := l.Paid + l.Returned + l.Incident + l.Doubt + l.ByHand
		if boxed > l.Approved {
			t.Fatalf("%d in boxes of %d", boxed, l.Approved)
		}
		if len(l.Violations) > 0 {
			return
		}
		held++
		if !l.Balanced() || boxed != l.Approved {
			t.Fatalf("no violation, but %s", l)
		}
	})
	if held == 0 {
		t.Error("no ledger held: the property was never tried")
	}
}
