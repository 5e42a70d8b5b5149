package main

import (
	"fmt"
	"net/http"
	"testing"

	"paymentd/internal/tosssim"
)

// listed are the incidents of the order in a state, as operators see them.
func (in *instance) listed(o order, state string) []map[string]any {
	in.t.Helper()
	a := in.call(http.MethodGet, in.url+"/incidents?state="+state+"&orderId="+o.id, operatorSecret, "").want(in.t, 200, "")
	list, ok := a.body["incidents"].([]any)
	if !ok {
		in.t.Fatalf("no list: %s", a.raw)
	}
	var out []map[string]any
	for _, i := range list {
		out = append(out, i.(map[string]any))
	}
	return out
}

// resolve answers the only open incident of the order with an action, if it is not empty.
func (in *instance) resolve(o order, action string) answer {
	in.t.Helper()
	open := in.listed(o, "open")
	if len(open) != 1 {
		in.t.Fatalf("%d open incidents: %v", len(open), open)
	}
	body := `{"note":"as agreed with the shop"}`
	if action != "" {
		body = fmt.Sprintf(`{"note":"as agreed with the shop","action":%q}`, action)
	}
	return in.call(http.MethodPost, fmt.Sprintf("%s/incidents/%.0f/resolve", in.url, open[0]["id"]), operatorSecret, body)
}

// mismatched is a payment that the gateway approved behind our back as something else.
func (in *instance) mismatched(there func(*order)) order {
	in.t.Helper()
	o := newOrder("doubt")
	approved := o
	there(&approved)
	in.confirmedBySomebody(approved)
	in.confirm(o).want(in.t, 202, "PENDING")
	eventually(in.t, "the mismatch is seen", func() bool { return in.incidents(o, "mismatch") == 1 })
	return o
}

func TestMismatchAccepted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.start()
	o := in.mismatched(func(there *order) { there.amount = 14000 })
	i := in.listed(o, "open")[0]
	if e, _ := i["evidence"].(map[string]any); i["kind"] != "mismatch" || i["state"] != "open" || i["paymentKey"] != o.key || e["total"] != 14000.0 {
		t.Errorf("listed: %v", i)
	}
	in.resolve(o, "").want(t, 400, "invalid_request")
	in.resolve(o, "not_ours").want(t, 400, "invalid_request")
	a := in.resolve(o, "accept").want(t, 200, "")
	if a.text("resolvedBy") != "ops" || a.text("action") != "accept" || a.text("state") != "resolved" {
		t.Errorf("resolved: %s", a.raw)
	}
	w.becomes(o, "PAID")
	if got := in.read(o); got.body["amount"] != 14000.0 {
		t.Errorf("read: %s", got.raw)
	}
	in.confirm(o).want(t, 409, "order_conflict")
	again := in.call(http.MethodPost, fmt.Sprintf("%s/incidents/%.0f/resolve", in.url, i["id"]), operatorSecret, `{"note":"too late"}`).want(t, 200, "")
	if again.raw != a.raw {
		t.Errorf("resolved again: %s, first %s", again.raw, a.raw)
	}
	w.ledgerHolds()
}

func TestMismatchNotOurs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.start()
	o := in.mismatched(func(there *order) { there.id += "-of-others" })
	in.resolve(o, "accept").want(t, 400, "invalid_request")
	in.resolve(o, "not_ours").want(t, 200, "")
	if r, _ := w.row(o); r.Status != "FAILED" || r.Holds || r.Due {
		t.Errorf("%+v", r)
	}
	eventually(t, "who was answered 202 hears of it", func() bool { return len(w.hook.types(o)) == 1 })
	in.confirm(o).want(t, 409, "payment_canceled")
	in.sync(fmt.Sprintf(`{"orderIds":[%q]}`, o.id)).want(t, 200, "")
	if n := len(in.listed(o, "open")); n != 0 {
		t.Errorf("opened again: %d", n)
	}
	second := o
	second.key += "9"
	in.confirm(second).want(t, 200, "PAID")
	if l := w.ledgerHolds(); l.ByHand != 1 || l.Paid != 1 {
		t.Error(l)
	}
}

// TestCancelFailedRetried: a late approval cannot be given back, until somebody has removed the cause.
func TestCancelFailedRetried(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.start()
	o := newOrder("refused")
	w.faults(
		tosssim.Fault{Op: tosssim.OpConfirm, Code: "REJECT_CARD_PAYMENT", Abort: new(false), Cache: new(false), Next: 1},
		tosssim.Fault{Op: tosssim.OpCancel, Code: "NOT_CANCELABLE_PAYMENT"},
	)
	in.confirm(o).want(t, 402, "declined")
	w.confirmedBySomebody(o)
	in.sync(fmt.Sprintf(`{"orderIds":[%q]}`, o.id)).want(t, 200, "")
	eventually(t, "the cancel is refused", func() bool { return w.incidents(o, "cancel_failed") == 1 })
	w.faults()
	eventually(t, "the cancel is tried again", func() bool { return in.resolve(o, "give_back").status == 200 })
	eventually(t, "the money is back", func() bool { w.hasten(); r, _ := w.row(o); return w.entry(o).Balance == 0 && !r.Holds })
	if n := w.incidents(o, "cancel_failed"); n != 0 {
		t.Errorf("%d incidents are open", n)
	}
	w.ledgerHolds()
}

// TestMismatchGivenBack: what was approved for another amount goes back as soon as an operator says so.
func TestMismatchGivenBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.start()
	o := in.mismatched(func(there *order) { there.amount = 14000 })
	if e := w.entry(o); e.Balance != 14000 || e.Cancels != 0 {
		t.Fatalf("before anybody decided: %+v", e)
	}
	in.resolve(o, "give_back").want(t, 200, "")
	w.settles(o, "FAILED")
	if e := w.entry(o); e.Balance != 0 || e.Cancels != 1 {
		t.Errorf("the simulator has %+v", e)
	}
	if n := w.count(`SELECT count(*) FROM payments WHERE payment_key = $1 AND failure_code = 'mismatch' AND NOT holds_order`, o.key); n != 1 {
		t.Error("it did not fail as mismatch")
	}
	if got := in.listed(o, "resolved"); len(got) != 1 || got[0]["action"] != "give_back" || got[0]["resolvedBy"] != "ops" {
		t.Errorf("resolved: %v", got)
	}
	if n := len(in.listed(o, "open")); n != 0 {
		t.Errorf("%d open incidents", n)
	}
	w.hears(o, "payment.failed")
	if l := w.ledgerHolds(); l.Returned != 1 {
		t.Error(l)
	}
}

// orphaned is an approval that we have never heard of, told by a webhook.
func (in *instance) orphaned(kind string) order {
	in.t.Helper()
	o := newOrder(kind)
	in.confirmedBySomebody(o)
	in.toldAgain(o)
	eventually(in.t, "the orphan is seen", func() bool { return in.incidents(o, "orphan_approval") == 1 })
	return o
}

// toldAgain returns when one more webhook of the payment is worked off.
func (in *instance) toldAgain(o order) {
	in.t.Helper()
	if a := in.hint("", o.says("DONE")); a.status != 200 {
		in.t.Errorf("answered %d", a.status)
	}
	eventually(in.t, "the webhook is worked off", func() bool { return in.count(`SELECT count(*) FROM webhook_deliveries WHERE due_at IS NOT NULL`) == 0 })
}

func TestOrphanAccepted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.start()
	o := in.orphaned("adopted")
	in.resolve(o, "accept").want(t, 200, "")
	w.settles(o, "PAID")
	w.hears(o, "payment.paid")
	in.read(o).want(t, 200, "PAID")
	if e := w.entry(o); e.Balance != 15000 || e.Approvals != 1 {
		t.Errorf("the simulator has %+v", e)
	}
	if l := w.ledgerHolds(); l.Paid != 1 || l.Incident != 0 {
		t.Error(l)
	}
}

func TestOrphanGivenBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.start()
	o := in.orphaned("sentback")
	in.resolve(o, "give_back").want(t, 200, "")
	eventually(t, "the money is back", func() bool { w.hasten(); r, _ := w.row(o); return w.entry(o).Balance == 0 && !r.Holds && !r.Due })
	if r, _ := w.row(o); r.Status != "FAILED" || w.entry(o).Cancels != 1 {
		t.Errorf("%+v, the simulator has %+v", r, w.entry(o))
	}
	if l := w.ledgerHolds(); l.Returned != 1 || l.Incident != 0 {
		t.Error(l)
	}
}

// TestOrphanNotOurs: once somebody has said that an approval is another's, no webhook of it asks again.
func TestOrphanNotOurs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.start()
	o := in.orphaned("foreign")
	in.resolve(o, "not_ours").want(t, 200, "")
	before := w.lookups()
	in.toldAgain(o)
	if w.lookups() == before {
		t.Error("the further webhook is not looked at")
	}
	if n := len(in.listed(o, "all")); n != 1 || w.incidents(o, "orphan_approval") != 0 {
		t.Errorf("opened again: %d incidents", n)
	}
	if r, here := w.row(o); here {
		t.Errorf("a payment was made of it: %+v", r)
	}
	w.ledgerHolds()
}
