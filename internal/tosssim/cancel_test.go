package tosssim_test

import (
	"sync"
	"testing"

	"paymentd/internal/tosssim"
)

func TestCancel(t *testing.T) {
	t.Parallel()
	const account = `"refundReceiveAccount":{"bank":"20","accountNumber":"123456","holderName":"kim"}`
	done := tosssim.NewPayment{PaymentKey: "pay_a", OrderID: "order-1", Amount: 10000, Status: tosssim.Done}
	with := func(f func(*tosssim.NewPayment)) tosssim.NewPayment {
		n := done
		f(&n)
		return n
	}
	paidAccount := with(func(n *tosssim.NewPayment) { n.Method = tosssim.VirtualAccount })
	waiting := with(func(n *tosssim.NewPayment) { n.Method, n.Status = tosssim.VirtualAccount, tosssim.WaitingForDeposit })
	tests := []struct {
		name    string
		payment tosssim.NewPayment
		body    string
		status  int
		code    string
		word    string
		balance int64
	}{
		{"full", done, `{"cancelReason":"x"}`, 200, "", "CANCELED", 0},
		{"partial", done, `{"cancelReason":"x","cancelAmount":4000}`, 200, "", "PARTIAL_CANCELED", 6000},
		{"unknown fields are ignored", done, `{"cancelReason":"x","cancelAmount":4000.0,"new":1}`, 200, "", "PARTIAL_CANCELED", 6000},
		{"guard holds", done, `{"cancelReason":"x","cancelAmount":4000,"refundableAmount":10000}`, 200, "", "PARTIAL_CANCELED", 6000},
		{"guard differs", done, `{"cancelReason":"x","cancelAmount":4000,"refundableAmount":9000}`, 400, "NOT_MATCHES_REFUNDABLE_AMOUNT", "", 10000},
		{"above the balance", done, `{"cancelReason":"x","cancelAmount":10001}`, 403, "NOT_CANCELABLE_AMOUNT", "", 10000},
		{"zero", done, `{"cancelReason":"x","cancelAmount":0}`, 400, "INVALID_REQUEST", "", 10000},
		{"no reason", done, `{"cancelAmount":1}`, 400, "INVALID_REQUEST", "", 10000},
		{"no body", done, ``, 400, "INVALID_REQUEST", "", 10000},
		{"other currency", done, `{"cancelReason":"x","currency":"USD"}`, 400, "INVALID_REQUEST", "", 10000},
		{"not partially cancelable", with(func(n *tosssim.NewPayment) { n.NoPartialCancel = true }),
			`{"cancelReason":"x","cancelAmount":1}`, 403, "NOT_ALLOWED_PARTIAL_REFUND", "", 10000},
		{"not approved", with(func(n *tosssim.NewPayment) { n.Status = tosssim.InProgress }), `{"cancelReason":"x"}`, 403, "NOT_CANCELABLE_PAYMENT", "", 0},
		{"cancelled before", with(func(n *tosssim.NewPayment) { n.Status = tosssim.Canceled }), `{"cancelReason":"x"}`, 400, "ALREADY_CANCELED_PAYMENT", "", 0},
		{"account before the deposit", waiting, `{"cancelReason":"x"}`, 200, "", "CANCELED", 0},
		{"account before the deposit, in part", waiting, `{"cancelReason":"x","cancelAmount":1}`, 403, "NOT_ALLOWED_PARTIAL_REFUND_WAITING_DEPOSIT", "", 0},
		{"account paid in", paidAccount, `{"cancelReason":"x",` + account + `}`, 200, "", "CANCELED", 0},
		{"account paid in, refund account missing", paidAccount, `{"cancelReason":"x"}`, 400, "INVALID_REFUND_ACCOUNT_INFO", "", 10000},
		{"account paid in, refund account with a dash", paidAccount,
			`{"cancelReason":"x","refundReceiveAccount":{"bank":"20","accountNumber":"12-3","holderName":"kim"}}`, 400, "INVALID_REFUND_ACCOUNT_NUMBER", "", 10000},
		{"account paid in, no bank", paidAccount,
			`{"cancelReason":"x","refundReceiveAccount":{"accountNumber":"123","holderName":"kim"}}`, 400, "INVALID_BANK", "", 10000},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			if _, err := b.sim.AddPayment(tt.payment); err != nil {
				t.Fatal(err)
			}
			r := b.cancel("pay_a", tt.body, "c1")
			b.want(r, tt.status, tt.code)
			if r.str("status") != tt.word {
				t.Errorf("status word: want %q, got %q", tt.word, r.str("status"))
			}
			if again := b.cancel("pay_a", tt.body, "c1"); again.raw != r.raw {
				t.Errorf("replay: want %s\ngot %s", r.raw, again.raw)
			}
			if e, _ := b.sim.Payment("pay_a"); e.Balance != tt.balance {
				t.Errorf("balance: want %d, got %+v", tt.balance, e)
			}
		})
	}
}

func TestPartialCancelsUntilNothingIsLeft(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.confirm("test_a", "k")
	b.want(b.cancel("test_a", `{"cancelReason":"one","cancelAmount":5000}`, "c1"), 200, "")
	last := b.cancel("test_a", `{"cancelReason":"two"}`, "c2")
	b.want(last, 200, "")
	if last.str("status") != "PARTIAL_CANCELED" || last.num("balanceAmount") != "0" || last.num("totalAmount") != "15000" {
		t.Errorf("last: %s", last.raw)
	}
	cancels, _ := last.body["cancels"].([]any)
	if len(cancels) != 2 {
		t.Fatalf("cancels: %s", last.raw)
	}
	first, second := cancels[0].(map[string]any), cancels[1].(map[string]any)
	if first["refundableAmount"].(interface{ String() string }).String() != "10000" || second["cancelReason"] != "two" ||
		first["transactionKey"] == second["transactionKey"] || second["transactionKey"] != last.body["lastTransactionKey"] {
		t.Errorf("cancels: %v", cancels)
	}
	b.want(b.cancel("test_a", `{"cancelReason":"three"}`, "c3"), 400, "ALREADY_CANCELED_PAYMENT")
	b.wantLedger("test_a", 1, 2, 0)
}

func TestCancelsAtOnceNeverGiveBackTooMuch(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.confirm("test_a", "k")
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() { b.cancel("test_a", `{"cancelReason":"x","cancelAmount":4000}`, string(rune('a'+i))) })
	}
	wg.Wait()
	b.wantLedger("test_a", 1, 3, 3000)
}
