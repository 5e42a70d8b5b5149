package main

import (
	"cmp"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"paymentd/internal/tosssim"
)

// TestTrap36_TheWorstHeardDecides: the answer of an approval is lost and the next try is refused. The last error says
// "unavailable", the money is gone: the order must not be let go.
func TestTrap36_TheWorstHeardDecides(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.start("PAYMENTD_RETRY_DELAY=1s")
	w.holds()
	o := newOrder("worst")
	answered := in.confirmLater(o)
	w.arrived(tosssim.OpConfirm, 1)
	w.listen(false) // which resets the call; its work goes on
	w.faults()
	eventually(t, "the gateway approves", func() bool { return w.entry(o).Approvals == 1 })
	answered().want(t, 202, "PENDING")
	second := o
	second.key += "9"
	in.confirm(second).want(t, 409, "order_conflict")
	w.listen(true)
	w.settles(o, "PAID")
	w.ledgerHolds()
}

// TestTrap36_ADeclineAfterSilence: a try that hangs is approved late; the decline that another try is answered in
// between settles nothing.
func TestTrap36_ADeclineAfterSilence(t *testing.T) {
	t.Parallel()
	w := newWorld(t, brief...)
	in := w.start()
	o := newOrder("silence")
	w.faults(
		tosssim.Fault{Op: tosssim.OpConfirm, Late: 1, Hold: true, Next: 1},
		tosssim.Fault{Op: tosssim.OpConfirm, Code: "EXCEED_MAX_AMOUNT", Work: tosssim.WorkSkip},
		tosssim.Fault{Op: tosssim.OpLookup, Hang: true, Next: 1},
	)
	in.confirm(o).want(t, 202, "PENDING")
	eventually(t, "recovery sends it again and is declined", func() bool {
		w.hasten()
		return w.toss.Counters().Codes["EXCEED_MAX_AMOUNT"] > 0
	})
	if r, _ := w.row(o); r.Status != "PENDING" {
		t.Errorf("a decline after a try that nobody heard of settled it: %+v", r)
	}
	w.faults()
	w.settles(o, "PAID")
	w.ledgerHolds()
}

// TestUnprotectedGateway: on a gateway that charges again whoever asks again, an order is charged once all the same
// when resending is off: what is not known is looked up, never sent a second time.
func TestUnprotectedGateway(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]tosssim.Fault{
		"reset after the work": {Op: tosssim.OpConfirm, Drop: tosssim.DropAfter},
		"hangs after the work": {Op: tosssim.OpConfirm, Hang: true, Work: tosssim.WorkDo},
		"late":                 {Op: tosssim.OpConfirm, Late: 1, Hold: true},
		"500 after the work":   {Op: tosssim.OpConfirm, Code: "FAILED_INTERNAL_SYSTEM_PROCESSING", Work: tosssim.WorkDo},
		"body cut short":       {Op: tosssim.OpConfirm, Malformed: tosssim.MalformedTruncated},
		"lookup down as well":  {Op: tosssim.OpAny, Drop: tosssim.DropAfter},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, append(quick, "PAYMENTD_RETRY_MAX=2", "PAYMENTD_RETRY_ON=connect", "PAYMENTD_RESEND_WITHIN=0")...)
			w.toss.Configure(func(s *tosssim.Settings) { s.Idempotency, s.SingleUse = false, false })
			in := w.start()
			w.faults(f)
			o := newOrder("naked")
			if a := in.confirm(o); a.status != 200 && a.status != 202 {
				t.Errorf("answered %d %s", a.status, a.raw)
			}
			in.confirm(o)
			w.faults()
			w.settles(o, "PAID")
			in.confirm(o).want(t, 200, "PAID")
			if e := w.entry(o); e.Approvals != 1 {
				t.Errorf("the simulator has %+v", e)
			}
			w.ledgerHolds()
		})
	}
}

// TestLimits: bulkhead and limiter refuse at once what is too much, the breaker does not mind, and a second call of
// the refused payment is paid.
func TestLimits(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		set  []string
		// pass is how many of eight calls at once get through.
		pass int
	}{
		{name: "bulkhead", set: []string{"PAYMENTD_BULKHEAD=3"}, pass: 3},
		{name: "limiter", set: []string{"PAYMENTD_RATE_LIMIT=1/m", "PAYMENTD_RATE_BURST=4", "PAYMENTD_RATE_WAIT=0s"}, pass: 4},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			in := w.start(tc.set...)
			w.holds()
			go func() { // what got through is answered when the rest has been refused
				got := func(c tosssim.Counters) bool { return c.Ops[tosssim.OpConfirm].Calls >= int64(tc.pass) }
				_ = w.toss.Await(t.Context(), got)
				eventually(t, "the others are refused", func() bool { return in.confirmed("busy") == 8-tc.pass })
				w.faults()
			}()
			orders := make([]order, 8)
			for i := range orders {
				orders[i] = newOrder("limit")
				orders[i].id += string(rune('a' + i))
				orders[i].key += string(rune('0' + i))
			}
			answers, _ := storm(t, len(orders), func(i int) (answer, error) {
				return call(t, http.MethodPost, in.url+"/payments/confirm", checkoutSecret, orders[i].json())
			})
			paid := 0
			for i, a := range answers {
				if a.status == 200 {
					paid++
					continue
				}
				if a.want(t, 503, "busy"); a.header.Get("Retry-After") == "" {
					t.Errorf("headers of a refusal: %v", a.header)
				}
				if e := w.entry(orders[i]); e.Approvals != 0 {
					t.Errorf("refused and charged: %+v", e)
				}
			}
			if n := w.toss.Counters().Ops[tosssim.OpConfirm]; paid != tc.pass || n.Calls != int64(tc.pass) || n.MaxRunning > int64(tc.pass) {
				t.Errorf("%d of 8 were paid, want %d; the simulator has %+v", paid, tc.pass, n)
			}
			if got := in.metric(`paymentd_breaker_results_total{result="failure"}`); got != "0" {
				t.Errorf("the breaker counted %s failures", got)
			}
			w.faults()
			in = w.start("PAYMENTD_RATE_LIMIT=0", "PAYMENTD_BULKHEAD=0")
			for _, o := range orders {
				in.confirm(o).want(t, 200, "PAID")
			}
			w.ledgerHolds()
		})
	}
}

// TestSpareTheDatabase: while the gateway thinks, a payment holds no connection.
func TestSpareTheDatabase(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.start("PAYMENTD_DB_MAX_CONNS=1", "PAYMENTD_DB_ACQUIRE_TIMEOUT=20s", "PAYMENTD_RECOVERY_DUE_EVERY=1000h", "PAYMENTD_RECOVERY_EVERY=1000h",
		"PAYMENTD_ANSWER_WITHIN=30s")
	const n = 12
	w.holds()
	waits := make([]func() answer, n)
	for i := range waits {
		o := newOrder("spare")
		o.id += string(rune('A' + i))
		waits[i] = in.confirmLater(o)
	}
	w.arrived(tosssim.OpConfirm, n)
	if got := in.metric(`paymentd_db_connections{pool="request",state="in_use"}`); got != "0" {
		t.Errorf("%s connections are in use while the gateway thinks", got)
	}
	w.faults()
	for _, answered := range waits {
		answered().want(t, 200, "PAID")
	}
	if got := w.toss.Counters().Ops[tosssim.OpConfirm].MaxRunning; got < n/2 {
		t.Errorf("%d confirms of %d ran at once on one connection", got, n)
	}
	w.ledgerHolds()
}

// TestTrap13_AlreadyProcessed: "already processed" is neither a failure nor a success. What was processed is looked up
// and compared.
func TestTrap13_AlreadyProcessed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.start()
	for _, tc := range []struct {
		name     string
		there    tosssim.NewPayment
		want     said
		row      string
		incident int
	}{
		{name: "the same payment", there: tosssim.NewPayment{Amount: 15000, Status: tosssim.Done}, want: said{200, "PAID"}, row: "PAID"},
		{name: "another amount", there: tosssim.NewPayment{Amount: 20000, Status: tosssim.Done}, want: said{202, "PENDING"}, row: "PENDING", incident: 1},
		{
			name: "another order", there: tosssim.NewPayment{OrderID: "order-of-others", Amount: 15000, Status: tosssim.Done},
			want: said{202, "PENDING"}, row: "PENDING", incident: 1,
		},
		{name: "given back", there: tosssim.NewPayment{Amount: 15000, Status: tosssim.Canceled}, want: said{409, "payment_canceled"}, row: "FAILED"},
	} {
		o := newOrder("processed")
		tc.there.PaymentKey, tc.there.OrderID = o.key, cmp.Or(tc.there.OrderID, o.id)
		if _, err := w.toss.AddPayment(tc.there); err != nil {
			t.Fatal(err)
		}
		heard := w.toss.Counters().Codes["ALREADY_PROCESSED_PAYMENT"]
		if a := in.confirm(o); a.status != tc.want.status || a.text("code") != tc.want.word && a.text("status") != tc.want.word {
			t.Errorf("%s: answered %d %s", tc.name, a.status, a.raw)
		}
		w.equal(tc.name+": heard", int(w.toss.Counters().Codes["ALREADY_PROCESSED_PAYMENT"]-heard), 1)
		if r, _ := w.row(o); r.Status != tc.row || w.incidents(o, "mismatch") != tc.incident {
			t.Errorf("%s: %+v, %d incidents", tc.name, r, w.incidents(o, "mismatch"))
		}
	}
	w.ledgerHolds()
}

// TestTrap26_TheLogTellsTheCause: one event per request and one per try that went wrong, found by the order, with the
// cause of each.
func TestTrap26_TheLogTellsTheCause(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "PAYMENTD_RETRY_MAX=1")
	in := w.start()
	w.listen(false)
	o := newOrder("cause")
	in.confirm(o).want(t, 503, "pg_unavailable")
	events, causes := 0, 0
	for line := range strings.Lines(w.log.String()) {
		var event struct {
			Msg, Code, Error string
			Order            string `json:"order_id"`
		}
		if err := json.Unmarshal([]byte(line), &event); err != nil {
			t.Errorf("%s: %v", line, err)
		}
		switch {
		case event.Order != o.id:
		case event.Msg == "request" && event.Code == "pg_unavailable" && event.Error != "":
			events++
		case event.Msg == "gateway answer" && strings.Contains(event.Error, "connection refused"):
			causes++
		}
	}
	w.equal("events of the request", events, 1)
	w.equal("causes of its tries", causes, 2)
}

// TestTrap27_BigAmounts: amounts beyond 32 bits, and beyond what a float keeps exact in a sum, come through whole.
func TestTrap27_BigAmounts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.start()
	for _, amount := range []int{50_000_000_000, 999_999_999_999_999} {
		o := newOrder("big")
		o.amount = amount
		want := `"amount":` + strconv.Itoa(amount) + ","
		if a := in.confirm(o).want(t, 200, "PAID"); !strings.Contains(a.raw, want) {
			t.Errorf("the answer lacks %s: %s", want, a.raw)
		}
		if a := in.read(o).want(t, 200, "PAID"); !strings.Contains(a.raw, want) {
			t.Errorf("read later it lacks %s: %s", want, a.raw)
		}
		w.equal("in the database", w.count(`SELECT amount FROM payments WHERE payment_key = $1`, o.key), amount)
		w.equal("at the gateway", int(w.entry(o).Balance), amount)
		in.confirm(order{key: o.key, id: o.id, amount: amount - 1}).want(t, 409, "order_conflict")
	}
	w.ledgerHolds()
}

// TestTrap30_NotDrained: a stop that does not wait for the gateway says what it leaves behind, and recovery of another
// instance finds it.
func TestTrap30_NotDrained(t *testing.T) {
	t.Parallel()
	w := newWorld(t, append(quick, "PAYMENTD_TOSS_CONFIRM_TIMEOUT=30s")...)
	in := w.start("PAYMENTD_SHUTDOWN_WITHIN=200ms")
	w.holds()
	o := newOrder("left")
	in.confirmLater(o)
	w.arrived(tosssim.OpConfirm, 1)
	in.cancel()
	if err := <-in.done; err == nil || !strings.Contains(err.Error(), "SHUTDOWN_WITHIN") {
		t.Errorf("the stop says %v", err)
	}
	close(in.done)
	w.faults()
	w.leaseEnds(o)
	w.start()
	w.settles(o, "PAID")
	w.equal("approvals", w.entry(o).Approvals, 1)
	w.ledgerHolds()
}

// TestTrap40_TheNewestAttempt: an order is read as the payment that holds it, not as the one that came last.
func TestTrap40_TheNewestAttempt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.start()
	o := newOrder("newest")
	in.confirm(o).want(t, 200, "PAID")
	w.exec(`INSERT INTO payments (order_id, payment_key, amount, currency, status, holds_order, version, maybe_sent, leased,
		reserved_at, sends, created_at, updated_at)
		VALUES ($1, $2, 15000, 'KRW', 'FAILED', false, 2, true, false, now(), 1, now() + interval '1 hour', now())`, o.id, o.key+"9")
	if a := in.read(o).want(t, 200, "PAID"); a.text("paymentKey") != o.key {
		t.Errorf("read as %s", a.raw)
	}
	in.confirm(o).want(t, 200, "PAID")
	third := o
	third.key += "8"
	in.confirm(third).want(t, 409, "order_conflict")
	w.ledgerHolds()
}
