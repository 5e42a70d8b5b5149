package main

import (
	"slices"
	"testing"
	"time"

	"paymentd/internal/tosssim"
	"paymentd/loadtest/rig"
)

// awaits is a virtual account that the buyer has to pay into.
func (in *instance) awaits() order {
	in.t.Helper()
	o := newOrder("va_")
	a := in.confirm(o).want(in.t, 202, "AWAITING_DEPOSIT")
	if account, _ := a.body["virtualAccount"].(map[string]any); account["accountNumber"] == "" || account["dueDate"] == nil {
		in.t.Errorf("no account to pay into: %s", a.raw)
	}
	return o
}

func (w *world) deposit(o order) {
	w.t.Helper()
	if _, err := w.toss.Deposit(o.key); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) hears(o order, types ...string) {
	w.t.Helper()
	eventually(w.t, "the shop hears", func() bool { return slices.Equal(w.hook.types(o), types) })
}

// TestDepositByWebhook: the callback names the order alone, and the payment is paid at once. A duplicate meanwhile gets
// the account again.
func TestDepositByWebhook(t *testing.T) {
	t.Parallel()
	w := newWorld(t, idle...)
	in := w.start()
	o := in.awaits()
	a := in.confirm(o).want(t, 202, "AWAITING_DEPOSIT")
	if account, _ := a.body["virtualAccount"].(map[string]any); account["accountNumber"] == nil || a.header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("the duplicate is answered %v %s", a.header, a.raw)
	}
	if got := in.metric(`paymentd_confirm_total{result="awaiting_deposit"}`); got != "2" {
		t.Errorf("awaiting_deposit %s", got)
	}
	if got := in.webhook(tosssim.Webhook{PaymentKey: o.key}); got != 200 { // the account was issued
		t.Errorf("answered %d", got)
	}
	in.read(o).want(t, 200, "AWAITING_DEPOSIT")
	w.deposit(o)
	if got := in.webhook(tosssim.Webhook{PaymentKey: o.key}); got != 200 {
		t.Errorf("answered %d", got)
	}
	in.read(o).want(t, 200, "PAID")
	if got := in.webhook(tosssim.Webhook{PaymentKey: o.key, Event: tosssim.EventStatusChanged}); got != 200 { // Toss sends both
		t.Errorf("answered %d", got)
	}
	in.confirm(o).want(t, 200, "PAID")
	w.hears(o, "payment.paid")
	w.ledgerHolds()
}

// TestDepositWithoutWebhook: recovery finds the deposit.
func TestDepositWithoutWebhook(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.start()
	o := in.awaits()
	w.deposit(o)
	w.settles(o, "PAID")
	w.hears(o, "payment.paid")
	w.ledgerHolds()
}

// TestDepositOverdue: a day after its due date the account is closed at Toss and the order is free.
func TestDepositOverdue(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.start()
	o := in.awaits()
	w.exec(`UPDATE payments SET virtual_account = jsonb_set(virtual_account, '{dueDate}', to_jsonb(now() - interval '25 h')) WHERE payment_key = $1`, o.key)
	w.settles(o, "FAILED")
	if e := w.entry(o); e.Status != tosssim.Canceled || e.Approvals != 0 {
		t.Errorf("the simulator has %+v", e)
	}
	if a := in.confirm(o).want(t, 410, "expired"); a.header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("headers %v", a.header)
	}
	w.hears(o, "payment.failed")
	if n := w.count(`SELECT count(*) FROM incidents`); n != 0 {
		t.Errorf("%d incidents", n)
	}
	second := o
	second.key += "9"
	in.confirm(second).want(t, 202, "AWAITING_DEPOSIT")
	w.ledgerHolds()
}

// TestDepositOfAnotherAmount is for a person.
func TestDepositOfAnotherAmount(t *testing.T) {
	t.Parallel()
	w := newWorld(t, idle...)
	in := w.start()
	o := in.awaits()
	w.deposit(o)
	w.faults(tosssim.Fault{Op: tosssim.OpLookup, Patch: map[string]rawJSON{"totalAmount": rawJSON("14000"), "balanceAmount": rawJSON("14000")}})
	for range 2 {
		if got := in.webhook(tosssim.Webhook{PaymentKey: o.key}); got != 200 {
			t.Errorf("answered %d", got)
		}
	}
	in.read(o).want(t, 200, "AWAITING_DEPOSIT")
	if n := w.incidents(o, "mismatch"); n != 1 {
		t.Errorf("%d incidents, want 1", n)
	}
	if n := w.count(`SELECT count(*) FROM payments WHERE due_at = 'infinity' AND NOT leased`); n != 1 {
		t.Error("not parked")
	}
	w.ledgerHolds()
	w.faults() // the right amount after all: a further webhook settles it and closes the incident
	if got := in.webhook(tosssim.Webhook{PaymentKey: o.key}); got != 200 {
		t.Errorf("answered %d", got)
	}
	in.read(o).want(t, 200, "PAID")
	if n := w.incidents(o, "mismatch"); n != 0 {
		t.Error("the incident stays open")
	}
	w.ledgerHolds()
}

// TestDepositReversal: a bank takes a deposit back. The payment stays PAID, which is final; a person decides.
func TestDepositReversal(t *testing.T) {
	t.Parallel()
	for name, seenBy := range map[string]func(in *instance, o order){
		"webhook": func(in *instance, o order) {
			if got := in.webhook(tosssim.Webhook{PaymentKey: o.key}); got != 200 {
				in.t.Errorf("answered %d", got)
			}
		},
		"second look": func(in *instance, o order) {
			eventually(in.t, "the second look finds it", func() bool { in.hasten(); return in.incidents(o, "unexpected_state") == 1 })
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			in := w.start()
			o := in.awaits()
			w.exec(`UPDATE payments SET due_at = now() + interval '1 h'`)
			w.deposit(o)
			if got := in.webhook(tosssim.Webhook{PaymentKey: o.key}); got != 200 {
				t.Errorf("answered %d", got)
			}
			in.read(o).want(t, 200, "PAID")
			if _, err := w.toss.ReverseDeposit(o.key); err != nil {
				t.Fatal(err)
			}
			seenBy(in, o)
			in.read(o).want(t, 200, "PAID")
			if n := w.incidents(o, "unexpected_state"); n != 1 {
				t.Errorf("%d incidents, want 1", n)
			}
		})
	}
}

// TestDepositNews: every status that a webhook may bring for an account is looked up; an expired one frees the order.
func TestDepositNews(t *testing.T) {
	t.Parallel()
	w := newWorld(t, idle...)
	in := w.start()
	o := in.awaits()
	if _, err := w.toss.Cancel(o.key, 0); err != nil {
		t.Fatal(err)
	}
	stood, begin := rig.Standstill(t.Context()), time.Now()
	if got := in.webhook(tosssim.Webhook{PaymentKey: o.key}); got != 200 {
		t.Errorf("answered %d", got)
	}
	if took, longest := time.Since(begin), stood(begin, time.Now()); took >= 10*time.Second && longest < time.Second {
		t.Errorf("answered after %s; Toss waits 10 s, and the machine stood still for %s at most", took, longest)
	}
	in.read(o).want(t, 200, "FAILED")
	in.confirm(o).want(t, 409, "payment_canceled")
	w.ledgerHolds()
}
