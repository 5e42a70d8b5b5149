package main

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"paymentd/internal/tosssim"
)

// cancel asks for a cancel as an operator.
func (in *instance) cancelAs(secret string, o order, key, body string) answer {
	in.t.Helper()
	req, err := http.NewRequest(http.MethodPost, in.url+"/payments/"+o.id+"/cancel", strings.NewReader(body))
	if err != nil {
		in.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+secret)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		in.t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		in.t.Fatal(err)
	}
	a := answer{status: resp.StatusCode, header: resp.Header, raw: string(raw)}
	_ = json.Unmarshal(raw, &a.body)
	return a
}

func (in *instance) giveBack(o order, key, body string) answer {
	in.t.Helper()
	return in.cancelAs(operatorSecret, o, key, body)
}

// cancelStatus is the status word of the cancel in an answer.
func (a answer) cancelStatus() string {
	c, _ := a.body["cancel"].(map[string]any)
	s, _ := c["status"].(string)
	return s
}

// TestCancel: parts, the rest, repetitions, and one notice each.
func TestCancel(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.start()
	o := newOrder("cancel")
	in.confirm(o).want(t, 200, "PAID")
	in.cancelAs(checkoutSecret, o, "k0", `{"reason":"r"}`).want(t, 403, "forbidden")
	if a := in.giveBack(o, "k1", `{"reason":"one article","amount":5000}`).want(t, 200, "PAID"); a.cancelStatus() != "done" || a.body["canceledAmount"] != 5000.0 {
		t.Error(a.raw)
	}
	if a := in.giveBack(o, "k1", `{"reason":"one article","amount":5000}`).want(t, 200, "PAID"); a.header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("repeated: %v", a.header)
	}
	in.giveBack(o, "k1", `{"reason":"one article","amount":5001}`).want(t, 409, "idempotency_key_reused")
	in.giveBack(o, "k2", `{"reason":"too much","amount":10001}`).want(t, 409, "not_cancelable")
	in.giveBack(o, "k3", `{"reason":"the rest"}`).want(t, 200, "CANCELED")
	in.giveBack(o, "k3", `{"reason":"the rest"}`).want(t, 200, "CANCELED")
	in.giveBack(o, "k4", `{"reason":"once more"}`).want(t, 409, "payment_canceled")
	if e := w.entry(o); e.Balance != 0 || e.Cancels != 2 {
		t.Errorf("the simulator has %+v", e)
	}
	eventually(t, "a notice per cancel", func() bool {
		return strings.Count(strings.Join(w.hook.types(o), " "), "payment.canceled") == 2
	})
	w.ledgerHolds()
}

// TestTrap20_CancelsAtOnce: 20 callers want 1,000 won each of 15,000; nothing is given back twice, whatever each is told.
func TestTrap20_CancelsAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.start()
	o := newOrder("parts")
	in.confirm(o).want(t, 200, "PAID")
	answers := make([]answer, 20)
	storm(t, len(answers), func(i int) (answer, error) {
		for end := time.Now().Add(90 * time.Second); time.Now().Before(end); {
			answers[i] = in.giveBack(o, "k"+string(rune('a'+i)), `{"reason":"part","amount":1000}`)
			if code := answers[i].text("code"); code != "cancel_in_progress" && code != "in_progress" {
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
		return answers[i], nil
	})
	done := 0
	for _, a := range answers {
		if a.status == 200 {
			done++
		} else if code := a.text("code"); code != "not_cancelable" && code != "payment_canceled" {
			t.Errorf("answered %d %s", a.status, a.raw)
		}
	}
	if e := w.entry(o); done != 15 || e.Balance != 0 || e.Cancels != 15 {
		t.Errorf("%d told done, the simulator has %+v", done, e)
	}
	w.ledgerHolds()
}

// TestTrap19_CancelUnheard: the cancel hangs, is done or not or late; the answer is 202, and recovery ends it once.
func TestTrap19_CancelUnheard(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]tosssim.Fault{
		"lost before": {Op: tosssim.OpCancel, Hang: true, Next: 3},
		"lost after":  {Op: tosssim.OpCancel, Hang: true, Work: tosssim.WorkDo, Next: 3},
		"late":        {Op: tosssim.OpCancel, Late: tosssim.Duration(12 * time.Second), Next: 3},
		"an error":    {Op: tosssim.OpCancel, Code: "FAILED_INTERNAL_SYSTEM_PROCESSING", Next: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, brief...)
			in := w.start("PAYMENTD_ANSWER_WITHIN=500ms")
			o := newOrder("unheard")
			in.confirm(o)
			w.settles(o, "PAID") // a busy machine may be late with the answer
			w.faults(f)
			a := in.giveBack(o, "k1", `{"reason":"part","amount":5000}`)
			if a.status != 202 && (name != "an error" || a.status != 200) || a.status == 202 && (a.cancelStatus() != "pending" || a.header.Get("Location") == "") {
				t.Errorf("answered %d %s", a.status, a.raw)
			}
			eventually(t, "the cancel is done", func() bool {
				w.hasten()
				return in.giveBack(o, "k1", `{"reason":"part","amount":5000}`).cancelStatus() == "done"
			})
			if e := w.entry(o); e.Balance != 10000 || e.Cancels != 1 {
				t.Errorf("the simulator has %+v", e)
			}
			w.ledgerHolds()
		})
	}
}

// TestAbandon: a checkout gives up what was never sent; the order is free, and a repetition does not touch the next
// payment of the order.
func TestAbandon(t *testing.T) {
	t.Parallel()
	w := newWorld(t, sensitive...)
	in := w.start(append(asleep, "PAYMENTD_ON_UNAVAILABLE=pending")...)
	w.listen(false)
	o := newOrder("abandon")
	in.confirm(o).want(t, 202, "PENDING")
	if a := in.cancelAs(checkoutSecret, o, "k1", `{"reason":"changed my mind"}`).want(t, 200, "FAILED"); a.body["cancel"] != nil {
		t.Error(a.raw)
	}
	w.listen(true)
	in.confirm(o).want(t, 409, "payment_canceled")
	second := o
	second.key += "9"
	eventually(t, "the order is free", func() bool { return in.confirm(second).status == 200 })
	in.cancelAs(operatorSecret, o, "k1", `{"reason":"changed my mind"}`).want(t, 200, "FAILED")
	if e := w.entry(second); e.Balance != 15000 {
		t.Errorf("the repetition canceled the next payment: %+v", e)
	}
	w.ledgerHolds()
}

// TestCancelVirtualAccount: unpaid it is canceled as a whole, paid it wants an account, which nobody keeps.
func TestCancelVirtualAccount(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.start()
	unpaid := newOrder("va_")
	in.confirm(unpaid).want(t, 202, "AWAITING_DEPOSIT")
	in.giveBack(unpaid, "k1", `{"reason":"part","amount":1}`).want(t, 409, "not_cancelable")
	in.giveBack(unpaid, "k2", `{"reason":"all"}`).want(t, 200, "FAILED")
	if failure, _ := in.read(unpaid).body["failure"].(map[string]any); failure["code"] != "abandoned" {
		t.Error(in.read(unpaid).raw)
	}
	o := newOrder("va_")
	in.confirm(o).want(t, 202, "AWAITING_DEPOSIT")
	if _, err := w.toss.Deposit(o.key); err != nil {
		t.Fatal(err)
	}
	w.settles(o, "PAID")
	in.giveBack(o, "k1", `{"reason":"all"}`).want(t, 409, "refund_account_required")
	const account = `"refundReceiveAccount":{"bank":"20","accountNumber":"10021234567890","holderName":"refund-holder"}`
	in.giveBack(o, "k1", `{"reason":"all",`+account+`}`).want(t, 200, "CANCELED")
	if n := w.count(`SELECT count(*) FROM cancels AS c WHERE c::text LIKE '%10021234567890%'`); n != 0 || strings.Contains(w.log.String(), "10021234567890") {
		t.Error("the account was kept")
	}
	w.ledgerHolds()
}
