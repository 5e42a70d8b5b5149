package main

import (
	"net/http"
	"testing"

	"paymentd/internal/tosssim"
)

// said is an answer as a test expects it.
type said struct {
	status int
	word   string
}

// ending is one way in which the gateway can answer a confirm, told to its end.
type ending struct {
	name string
	// kind begins the paymentKey and lets the simulator decline or expire it.
	kind string
	set  []string
	// hangs says that the gateway lets us wait; early that the answer comes while it still does.
	hangs, early bool
	// before makes the gateway sick.
	before func(w *world, o order)
	first  said
	// row is the state after the first answer.
	row string
	// again is what a second call is answered once the gateway is well; the zero value makes no second call.
	again    said
	replayed bool
	// final is where recovery brings the payment; empty: it is at its end already.
	final string
	// sends is how many confirms reached the gateway at the end; 0: it does not matter.
	sends int64
	// oneKey says that all of them carried the same Idempotency-Key.
	oneKey bool
	// incident is the kind of the one that is open at the end.
	incident string
}

func fault(f tosssim.Fault) func(*world, order) {
	return func(w *world, _ order) { w.faults(f) }
}

func made(n tosssim.NewPayment) func(*world, order) {
	return func(w *world, o order) {
		n.PaymentKey, n.OrderID = o.key, o.id
		if _, err := w.toss.AddPayment(n); err != nil {
			w.t.Fatal(err)
		}
	}
}

// endings are the answers after which the gateway is well again and the payment comes to its end.
func endings() []ending {
	paid, pending := said{200, "PAID"}, said{202, "PENDING"}
	confirm := tosssim.OpConfirm
	return []ending{
		// The gateway says no.
		{
			name: "declined", kind: "decline_", first: said{402, "declined"}, row: "FAILED",
			again: said{402, "declined"}, replayed: true, sends: 1,
		},
		{
			name: "session expired", kind: "expired_", first: said{410, "expired"}, row: "FAILED",
			again: said{410, "expired"}, replayed: true, sends: 1,
		},
		{
			name: "other amount, not paid", before: made(tosssim.NewPayment{Amount: 20000}),
			first: said{402, "declined"}, row: "FAILED", again: said{402, "declined"}, replayed: true, sends: 1,
		},
		// Nothing was charged and a second call may try again.
		{
			name: "key refused", before: fault(tosssim.Fault{Op: confirm, Code: "INVALID_API_KEY", Status: 401}),
			first: said{502, "gateway_misconfigured"}, row: "FAILED", again: paid, sends: 2,
		},
		{
			name: "throttled", before: fault(tosssim.Fault{Op: confirm, Status: 429, RetryAfter: 1}),
			first: said{503, "pg_unavailable"}, row: "FAILED", again: paid, sends: 2,
		},
		{
			name: "dial refused", before: func(w *world, _ order) { w.listen(false) },
			first: said{503, "pg_unavailable"}, row: "FAILED", again: paid, sends: 1,
		},
		// One stumble is absorbed.
		{
			name: "a proxy's 503 once", before: fault(tosssim.Fault{Op: confirm, Status: 503, Next: 1}),
			first: paid, row: "PAID", again: paid, replayed: true, sends: 2,
		},
		{
			name: "reset before the work", before: fault(tosssim.Fault{Op: confirm, Drop: tosssim.DropBefore, Next: 1}),
			first: paid, row: "PAID", sends: 2, oneKey: true,
		},
		{
			name: "reset after the work", before: fault(tosssim.Fault{Op: confirm, Drop: tosssim.DropAfter, Next: 1}),
			first: paid, row: "PAID", again: paid, replayed: true, sends: 2, oneKey: true,
		},
		// A lookup decides.
		{
			name: "500 after the work", before: fault(tosssim.Fault{
				Op: confirm, Code: "FAILED_INTERNAL_SYSTEM_PROCESSING", Work: tosssim.WorkDo, Next: 1,
			}), first: paid, row: "PAID", sends: 1,
		},
		{
			name: "body cut short", before: fault(tosssim.Fault{Op: confirm, Malformed: tosssim.MalformedTruncated, Next: 1}),
			first: paid, row: "PAID",
		},
		{
			name: "body of another amount", before: fault(tosssim.Fault{
				Op: confirm, Patch: map[string]rawJSON{"totalAmount": rawJSON("1")}, Next: 1,
			}), first: paid, row: "PAID",
		},
		{
			name: "approved behind our back", before: made(tosssim.NewPayment{Amount: 15000, Status: tosssim.Done}),
			first: paid, row: "PAID", again: paid, replayed: true, sends: 1,
		},
		{
			name: "approved behind our back with another amount", before: made(tosssim.NewPayment{Amount: 20000, Status: tosssim.Done}),
			first: pending, row: "PENDING", again: pending, replayed: true, incident: "mismatch", sends: 1,
		},
		{
			name: "provider error after the work", before: fault(tosssim.Fault{Op: confirm, Code: "PROVIDER_ERROR", Work: tosssim.WorkDo}),
			first: paid, row: "PAID", sends: 1,
		},
		// Nobody knows: 202, and recovery finishes it.
		{
			name: "provider error", before: fault(tosssim.Fault{Op: confirm, Code: "PROVIDER_ERROR"}),
			first: pending, row: "PENDING", final: "PAID", sends: 2,
		},
		{
			name: "another try under the key is running",
			before: fault(tosssim.Fault{
				Op: confirm, Status: 409, Code: "IDEMPOTENT_REQUEST_PROCESSING",
			}), first: pending, row: "PENDING", final: "PAID", sends: 2, oneKey: true,
		},
		{
			name: "hangs, never seen", before: fault(tosssim.Fault{Op: confirm, Hang: true}), hangs: true, early: true,
			set:   []string{"PAYMENTD_ANSWER_WITHIN=300ms", "PAYMENTD_TOSS_CONFIRM_TIMEOUT=30s"},
			first: pending, row: "PENDING", final: "PAID", sends: 2, oneKey: true,
		},
		{
			name: "hangs, approved", hangs: true, before: fault(tosssim.Fault{Op: confirm, Hang: true, Work: tosssim.WorkDo}),
			first: paid, row: "PAID", sends: 1,
		},
		{
			name: "approved after we gave up", hangs: true, before: fault(tosssim.Fault{Op: confirm, Late: 1, Hold: true}),
			first: pending, row: "PENDING", final: "PAID", oneKey: true,
		},
		{
			name: "confirm and lookup hang", hangs: true, set: brief, before: fault(tosssim.Fault{Op: tosssim.OpAny, Hang: true, Work: tosssim.WorkDo}),
			first: pending, row: "PENDING", final: "PAID", sends: 1,
		},
		{
			name: "a status that nobody knows", before: fault(tosssim.Fault{
				Op: tosssim.OpAny, Patch: map[string]rawJSON{"status": rawJSON(`"NEW_WORD"`)},
			}), first: pending, row: "PENDING", final: "PAID", sends: 1,
		},
	}
}

// TestEveryAnswerOfTheGateway: whatever Toss says, no order is charged twice, no caller waits too long or is told of a
// failure that none knows, and the payment comes to its end without a hand.
func TestEveryAnswerOfTheGateway(t *testing.T) {
	t.Parallel()
	for _, e := range endings() {
		t.Run(e.name, func(t *testing.T) {
			t.Parallel()
			var set []string
			if e.hangs {
				set = append(set, quick...)
			}
			w := newWorld(t, append(set, e.set...)...)
			in := w.start()
			o := newOrder(e.kind)
			if e.before != nil {
				e.before(w, o)
			}
			e.confirmed(t, in, o)
			w.faults()
			w.listen(true)
			if e.again.status != 0 {
				a := in.confirm(o).want(t, e.again.status, e.again.word)
				if got := a.header.Get("Idempotent-Replayed") == "true"; got != e.replayed {
					t.Errorf("replayed: %t, want %t", got, e.replayed)
				}
			}
			if e.final != "" {
				w.settles(o, e.final)
				in.read(o).want(t, 200, e.final)
			}
			e.atTheGateway(w, o)
			w.ledgerHolds()
		})
	}
}

// confirmed makes the first call and looks at what it left.
func (e ending) confirmed(t *testing.T, in *instance, o order) {
	t.Helper()
	a := in.confirm(o).want(t, e.first.status, e.first.word)
	if n := in.toss.Counters().Ops[tosssim.OpConfirm].Running; e.early && n != 1 {
		t.Errorf("answered with %d calls at the gateway, so not within ANSWER_WITHIN but by the end of the call", n)
	}
	if a.header.Get("Idempotent-Replayed") != "" {
		t.Error("the first answer calls itself a replay")
	}
	switch e.first.status {
	case http.StatusAccepted:
		if a.header.Get("Location") != "/payments/"+o.id || a.header.Get("Retry-After") == "" {
			t.Errorf("headers of a 202: %v", a.header)
		}
	case http.StatusServiceUnavailable:
		if a.header.Get("Retry-After") == "" {
			t.Errorf("headers of a 503: %v", a.header)
		}
	}
	r, _ := in.row(o)
	if holds := e.row != "FAILED"; r.Status != e.row || r.Holds != holds {
		t.Errorf("row %+v, want %s that holds its order: %t", r, e.row, holds)
	}
}

func (e ending) atTheGateway(w *world, o order) {
	w.t.Helper()
	calls := w.toss.CallsOf(tosssim.CallQuery{Op: tosssim.OpConfirm, PaymentKey: o.key})
	if e.sends != 0 && int64(len(calls)) != e.sends {
		w.t.Errorf("%d confirms reached the gateway, want %d: %+v", len(calls), e.sends, calls)
	}
	for _, c := range calls {
		if e.oneKey && c.IdempotencyKey != calls[0].IdempotencyKey {
			w.t.Errorf("an unanswered confirm was sent again under another key: %+v", calls)
		}
	}
	if n := w.count(`SELECT count(*) FROM incidents WHERE resolved_at IS NULL AND kind <> $1`, e.incident); n != 0 {
		w.t.Errorf("%d incidents, want none but %q", n, e.incident)
	}
	if e.incident != "" && w.incidents(o, e.incident) != 1 {
		w.t.Errorf("no open incident %s", e.incident)
	}
}

// TestVirtualAccount: the order waits for the deposit, and is paid when it comes.
func TestVirtualAccount(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.start()
	o := newOrder("va_")
	a := in.confirm(o).want(t, 202, "AWAITING_DEPOSIT")
	account, _ := a.body["virtualAccount"].(map[string]any)
	if account["accountNumber"] == "" || account["bankCode"] == "" || account["dueDate"] == nil {
		t.Errorf("no account to pay into: %s", a.raw)
	}
	in.confirm(o).want(t, 202, "AWAITING_DEPOSIT")
	second := o
	second.key += "9"
	in.confirm(second).want(t, 409, "order_conflict")
	w.ledgerHolds()

	if _, err := w.toss.Deposit(o.key); err != nil {
		t.Fatal(err)
	}
	report := in.sync(`{"orderIds":["`+o.id+`"]}`).want(t, 200, "")
	if report.body["paid"] != 1.0 {
		t.Errorf("sync: %s", report.raw)
	}
	in.confirm(o).want(t, 200, "PAID")
	w.ledgerHolds()
}

// TestRefundedAtToss: a payment that was canceled in Toss's own office is replayed as canceled once sync has seen it.
func TestRefundedAtToss(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.start()
	o := newOrder("refund")
	in.confirm(o).want(t, 200, "PAID")
	if _, err := w.toss.Cancel(o.key, 5000); err != nil {
		t.Fatal(err)
	}
	in.sync(`{"orderIds":["`+o.id+`"]}`).want(t, 200, "")
	if a := in.read(o).want(t, 200, "PAID"); a.body["canceledAmount"] != 5000.0 {
		t.Errorf("after a partial refund: %s", a.raw)
	}
	w.ledgerHolds()
	if _, err := w.toss.Cancel(o.key, 0); err != nil {
		t.Fatal(err)
	}
	in.sync(`{"orderIds":["`+o.id+`"]}`).want(t, 200, "")
	in.read(o).want(t, 200, "CANCELED")
	in.confirm(o).want(t, 409, "payment_canceled")
	w.ledgerHolds()
}
