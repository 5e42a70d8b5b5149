package main

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"paymentd/internal/tosssim"
	"paymentd/loadtest/rig"
)

// webhook lets the simulator send one webhook and returns what it was answered. Toss sends again what was not handled in
// time: so does this, but only where the machine stood still.
func (in *instance) webhook(h tosssim.Webhook) int {
	in.t.Helper()
	ctx, end := context.WithCancel(context.Background())
	defer end()
	h.URL = in.url + "/webhooks/toss"
	stood := rig.Standstill(ctx)
	for tries := 1; ; tries++ {
		begin := time.Now()
		d, err := in.toss.SendWebhook(ctx, h)
		longest := stood(begin, time.Now())
		if (err != nil || d.Status == http.StatusServiceUnavailable) && tries < 3 && longest > time.Second {
			in.t.Logf("the machine stood still for %s: %d, %v", longest, d.Status, err)
			continue
		}
		if err != nil {
			in.t.Fatal(err)
		}
		return d.Status
	}
}

// hint is a webhook of anybody's making.
func (in *instance) hint(id, body string) answer {
	in.t.Helper()
	a, err := hint(in.url, id, body)
	if err != nil {
		in.t.Fatal(err)
	}
	return a
}

// hint is safe outside the test's goroutine.
func hint(url, id, body string) (a answer, err error) {
	req, err := http.NewRequest(http.MethodPost, url+"/webhooks/toss", strings.NewReader(body))
	if err != nil {
		return a, err
	}
	req.Header.Set("Content-Type", "application/json")
	if id != "" {
		req.Header.Set("tosspayments-webhook-transmission-id", id)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return a, err
	}
	defer resp.Body.Close()
	return answer{status: resp.StatusCode, header: resp.Header}, nil
}

func (o order) says(status string) string {
	return fmt.Sprintf(`{"eventType":"PAYMENT_STATUS_CHANGED","createdAt":"2026-03-01T09:00:00.65327","data":{"paymentKey":%q,"orderId":%q,"status":%q}}`,
		o.key, o.id, status)
}

func (w *world) lookups() int64 { return w.toss.Counters().Ops[tosssim.OpLookup].Calls }

// idle are settings under which nothing but webhooks settles a doubt.
var idle = asleep

// inDoubt is a payment that Toss approved without our knowing.
func (in *instance) inDoubt(kind string) order {
	in.t.Helper()
	o := newOrder(kind)
	in.faults(tosssim.Fault{Op: tosssim.OpAny, Drop: tosssim.DropAfter})
	in.confirm(o).want(in.t, 202, "PENDING")
	in.faults()
	return o
}

// TestWebhookSettles: a webhook settles a doubt at once by one lookup; its repetition costs none.
func TestWebhookSettles(t *testing.T) {
	t.Parallel()
	w := newWorld(t, idle...)
	in := w.start()
	o := in.inDoubt("hinted")
	before := w.lookups()
	h := tosssim.Webhook{PaymentKey: o.key, TransmissionID: "whtrans_settles"}
	if got := in.webhook(h); got != 200 {
		t.Fatalf("answered %d", got)
	}
	in.read(o).want(t, 200, "PAID")
	if n := w.lookups() - before; n != 1 {
		t.Errorf("%d lookups, want 1", n)
	}
	h.Retried = 1
	if got := in.webhook(h); got != 200 || w.lookups()-before != 1 {
		t.Errorf("the repetition is answered %d after %d lookups", got, w.lookups()-before)
	}
	for series, want := range map[string]string{
		`paymentd_settled_total{actor="webhook",status="PAID"}`:           "1",
		`paymentd_http_requests_total{code="2xx",route="/webhooks/toss"}`: "2",
		`paymentd_gateway_attempts_total{op="lookup",outcome="approved"}`: "1",
		`paymentd_confirm_total{result="pending_unknown"}`:                "1",
		`paymentd_http_requests_total{code="5xx",route="/webhooks/toss"}`: "0",
		`paymentd_incidents_open{kind="orphan_approval"}`:                 "0",
		`paymentd_settle_duration_seconds_count{actor="webhook"}`:         "1",
	} {
		if got := in.metric(series); got != want {
			t.Errorf("%s is %q, want %q", series, got, want)
		}
	}
	w.ledgerHolds()
}

// TestTrap16_FailedAfterPaid: news that comes late, out of order or from a stranger never overwrites a final state.
func TestTrap16_FailedAfterPaid(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.start()
	o := newOrder("late")
	in.confirm(o).want(t, 200, "PAID")
	for _, status := range []string{"ABORTED", "EXPIRED", "CANCELED", "WAITING_FOR_DEPOSIT", "PARTIAL_CANCELED", "DONE"} {
		if a := in.hint("", o.says(status)); a.status != 200 {
			t.Errorf("%s is answered %d", status, a.status)
		}
		in.read(o).want(t, 200, "PAID")
	}
	declined := newOrder("decline_")
	in.confirm(declined).want(t, 402, "declined")
	if a := in.hint("", declined.says("DONE")); a.status != 200 {
		t.Errorf("answered %d", a.status)
	}
	in.read(declined).want(t, 200, "FAILED")
	if _, err := w.toss.Cancel(o.key, 0); err != nil {
		t.Fatal(err)
	}
	if a := in.hint("", o.says("DONE")); a.status != 200 { // what Toss says counts, not the body
		t.Errorf("answered %d", a.status)
	}
	in.read(o).want(t, 200, "CANCELED")
	if n := w.count(`SELECT count(*) FROM incidents`); n != 0 {
		t.Errorf("%d incidents", n)
	}
	w.ledgerHolds()
}

// TestTrap16_WebhookBeforeTheAnswer: Toss tells of an approval whose confirm still waits for its answer. The confirm is
// not raced: the hint is kept, and what is left of it is done when the confirm is over.
func TestTrap16_WebhookBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.start()
	w.holds()
	o := newOrder("early")
	answered := in.confirmLater(o)
	w.arrived(tosssim.OpConfirm, 1)
	for range 3 {
		if a := in.hint("", o.says("DONE")); a.status != 200 {
			t.Errorf("answered %d", a.status)
		}
	}
	if n := w.count(`SELECT count(*) FROM webhook_deliveries WHERE state = 'kept' AND due_at IS NOT NULL`); n != 1 {
		t.Errorf("%d rows of work, want 1", n)
	}
	w.faults()
	answered().want(t, 200, "PAID")
	w.exec(`UPDATE webhook_deliveries SET due_at = now() WHERE due_at IS NOT NULL`)
	eventually(t, "the hint is handled", func() bool { return w.count(`SELECT count(*) FROM webhook_deliveries WHERE due_at IS NOT NULL`) == 0 })
	if n := w.lookups(); n != 0 {
		t.Errorf("%d lookups for what was known", n)
	}
	w.ledgerHolds()
}

// TestWebhookAfterADeadConfirm: the holder of the lease dies; the kept hint is handled when the lease is over.
func TestWebhookAfterADeadConfirm(t *testing.T) {
	t.Parallel()
	w := newWorld(t, quick...)
	a := w.spawn("PAYMENTD_RECOVERY_DUE_EVERY=1000h", "PAYMENTD_RECOVERY_EVERY=1000h", "PAYMENTD_TOSS_CONFIRM_TIMEOUT=30s")
	w.faults(tosssim.Fault{Op: tosssim.OpConfirm, Hang: true, Work: tosssim.WorkDo})
	o := newOrder("dead")
	go func() { _, _ = call(t, http.MethodPost, a.url+"/payments/confirm", checkoutSecret, o.json()) }()
	eventually(t, "the gateway approves", func() bool { return w.entry(o).Approvals == 1 })
	a.kill()
	in := w.start("PAYMENTD_RECOVERY_CONCURRENCY=1")
	w.exec(`UPDATE payments SET due_at = now() + interval '2 s' WHERE payment_key = $1`, o.key)
	if got := in.webhook(tosssim.Webhook{PaymentKey: o.key}); got != 200 {
		t.Errorf("answered %d", got)
	}
	w.becomes(o, "PAID")
	eventually(t, "the hint is handled", func() bool { return w.count(`SELECT count(*) FROM webhook_deliveries WHERE due_at IS NOT NULL`) == 0 })
	w.ledgerHolds()
}

// TestTrap21_FailedHandlingIsNoDuplicate: a webhook whose first handling failed is handled when it comes again under
// its id.
func TestTrap21_FailedHandlingIsNoDuplicate(t *testing.T) {
	t.Parallel()
	w := newWorld(t, slices.Concat(quick, idle, []string{"PAYMENTD_TOSS_LOOKUP_TIMEOUT=5s"})...)
	in := w.start()
	o := in.inDoubt("again")
	h := tosssim.Webhook{PaymentKey: o.key, TransmissionID: "whtrans_again"}
	for name, f := range map[string]tosssim.Fault{
		"500":   {Op: tosssim.OpLookup, Status: 500},
		"hangs": {Op: tosssim.OpLookup, Hang: true},
		"reset": {Op: tosssim.OpLookup, Drop: tosssim.DropBefore},
	} {
		w.faults(f)
		if got := in.webhook(h); got != 503 {
			t.Errorf("%s: answered %d, so Toss does not send it again", name, got)
		}
		in.read(o).want(t, 200, "PENDING")
	}
	w.faults()
	h.Retried = 1
	if got := in.webhook(h); got != 200 {
		t.Errorf("answered %d", got)
	}
	in.read(o).want(t, 200, "PAID")
	w.ledgerHolds()
}

// TestWebhookSendsNothing: for a payment that Toss shows open a webhook only asks recovery to look soon.
func TestWebhookSendsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, append(quick, idle...)...)
	in := w.start()
	o := newOrder("open")
	w.faults(tosssim.Fault{Op: tosssim.OpConfirm, Hang: true})
	in.confirm(o).want(t, 202, "PENDING")
	w.faults()
	w.exec(`UPDATE payments SET due_at = now() + interval '5 min' WHERE payment_key = $1`, o.key)
	if a := in.hint("", o.says("DONE")); a.status != 200 {
		t.Errorf("answered %d", a.status)
	}
	if w.sent() != 1 {
		t.Errorf("%d confirms sent", w.sent())
	}
	if n := w.count(`SELECT count(*) FROM payments WHERE NOT leased AND due_at < now() + interval '6 s'`); n != 1 {
		t.Error("it is not due soon")
	}
}

// TestOrphanApproval: money that Toss holds for a payment that we do not know becomes an incident, once, and what is no
// money does not.
func TestOrphanApproval(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.start()
	paid, deposit, open := newOrder("foreign"), newOrder("va_foreign"), newOrder("open")
	made(tosssim.NewPayment{Amount: 20000, Status: tosssim.Done})(w, paid)
	made(tosssim.NewPayment{Amount: 30000, Status: tosssim.WaitingForDeposit, Method: tosssim.VirtualAccount})(w, deposit)
	if _, err := w.toss.Deposit(deposit.key); err != nil {
		t.Fatal(err)
	}
	made(tosssim.NewPayment{Amount: 1000})(w, open)
	for _, h := range []tosssim.Webhook{{PaymentKey: paid.key}, {PaymentKey: paid.key}, {PaymentKey: deposit.key}} {
		if got := in.webhook(h); got != 200 {
			t.Errorf("answered %d", got)
		}
	}
	for _, o := range []order{open, {key: "test_nobody", id: "order-nobody"}} {
		if a := in.hint("", o.says("DONE")); a.status != 200 {
			t.Errorf("answered %d", a.status)
		}
	}
	eventually(t, "all are looked up", func() bool { return w.count(`SELECT count(*) FROM webhook_deliveries WHERE due_at IS NOT NULL`) == 0 })
	if w.incidents(paid, "orphan_approval") != 1 || w.incidents(deposit, "orphan_approval") != 1 || w.count(`SELECT count(*) FROM incidents`) != 2 {
		t.Errorf("incidents: %d, %d of %d", w.incidents(paid, "orphan_approval"), w.incidents(deposit, "orphan_approval"),
			w.count(`SELECT count(*) FROM incidents`))
	}
	if n := w.count(`SELECT count(*) FROM incidents WHERE evidence->>'total' = '20000' AND evidence->>'sighting' = 'DONE'
		AND evidence->>'paymentKey' = payment_key AND order_id = $1`, paid.id); n != 1 {
		t.Error("the incident does not hold what Toss showed")
	}
	if n := w.lookups(); n < 4 || n > 5 { // one more if a webhook came while its payment was looked up
		t.Errorf("%d lookups, want one for each payment", n)
	}
	w.ledgerHolds()
}

// TestWebhookOfAnotherAttempt: a webhook names an order of ours and a paymentKey that is not: both are looked at.
func TestWebhookOfAnotherAttempt(t *testing.T) {
	t.Parallel()
	w := newWorld(t, idle...)
	in := w.start()
	o := in.inDoubt("attempt")
	other := order{key: o.key + "9", id: o.id}
	if a := in.hint("whtrans_both", other.says("DONE")); a.status != 200 {
		t.Errorf("answered %d", a.status)
	}
	in.read(o).want(t, 200, "PAID")
	if n := w.count(`SELECT count(*) FROM webhook_deliveries WHERE state = 'unknown' AND payment_key = $1`, other.key); n != 1 {
		t.Error("the unknown paymentKey is forgotten")
	}
}

// TestTrap41_WebhookFlood: a flood of webhooks of unknown payments does not spend the lookups that recovery needs, does not
// grow without bound, and does not keep a buyer from paying meanwhile.
func TestTrap41_WebhookFlood(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "PAYMENTD_LOOKUP_RATE=5/s", "PAYMENTD_BREAKER_WINDOW=0")
	in := w.start("PAYMENTD_RESEND_WITHIN=0")
	w.faults(tosssim.Fault{Op: tosssim.OpAny, Drop: tosssim.DropAfter})
	doubts := make([]order, 10)
	for i := range doubts {
		doubts[i] = newOrder("flood")
		in.confirm(doubts[i]).want(t, 202, "PENDING")
	}
	var number, flooded, refused atomic.Int64
	ctx, stop := context.WithCancel(context.Background())
	flood := func() {
		for ctx.Err() == nil {
			n := number.Add(1)
			o := order{key: fmt.Sprintf("test_flood%d", n), id: fmt.Sprintf("order-flood-%d", n)}
			switch a, err := hint(in.url, fmt.Sprintf("whtrans_flood_%d", n), o.says("DONE")); {
			case err != nil:
			case a.status == 429:
				refused.Add(1)
				time.Sleep(50 * time.Millisecond) // leaves something of the machine to the others
			case a.status == 200:
				flooded.Add(1)
			}
			// A known order's webhooks may not starve recovery either.
			if n%2 == 0 {
				_, _ = hint(in.url, "", doubts[0].says("DONE"))
			}
		}
	}
	var flooders sync.WaitGroup
	for range 32 { // more than are handled at once, so that it is a flood on a slow machine too
		flooders.Go(flood)
	}
	eventually(t, "the flood is on", func() bool { return refused.Load() > 0 })
	w.faults()
	begin := time.Now()
	for _, o := range doubts {
		w.settles(o, "PAID")
	}
	took := time.Since(begin)
	in.confirm(newOrder("beside")).want(t, 200, "PAID")
	stop()
	flooders.Wait()
	if took > time.Minute {
		t.Errorf("recovery took %s for 10 payments", took)
	}
	if n := w.count(`SELECT count(*) FROM webhook_deliveries WHERE state = 'unknown'`); int64(n) > flooded.Load() {
		t.Errorf("%d rows of %d hints", n, flooded.Load())
	}
	t.Logf("recovery took %s beside %d webhooks taken and %d refused", took, flooded.Load(), refused.Load())
	w.ledgerHolds()
}

// TestWebhooksDoNotPutOffRecovery: whoever knows an orderId and repeats a forged webhook of it keeps recovery from
// nothing: here from the first send of a payment that waits for the gateway.
func TestWebhooksDoNotPutOffRecovery(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "PAYMENTD_ON_UNAVAILABLE=pending", "PAYMENTD_BREAKER_WINDOW=0")
	in := w.start()
	o := newOrder("putoff")
	w.listen(false)
	in.confirm(o).want(t, 202, "PENDING")
	w.listen(true)
	for end := time.Now().Add(90 * time.Second); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		if a := in.hint("", o.says("DONE")); a.status != 200 {
			t.Fatalf("answered %d %s", a.status, a.raw)
		}
		if r, _ := w.row(o); r.Status == "PAID" {
			return
		}
	}
	t.Error("recovery never came to send it")
}

// TestWebhooksOfAPaidOrderFillNoTable: what is remembered of forged webhooks is bounded by the lookups they may cost.
func TestWebhooksOfAPaidOrderFillNoTable(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "PAYMENTD_LOOKUP_RATE=1/m")
	in := w.start(idle...)
	o := newOrder("remembered")
	in.confirm(o).want(t, 200, "PAID")
	for n := range 60 {
		if a := in.hint(fmt.Sprintf("whtrans_paid_%d", n), o.says("DONE")); a.status != 200 {
			t.Fatalf("answered %d %s", a.status, a.raw)
		}
	}
	if n := w.count(`SELECT count(*) FROM webhook_deliveries`); n > 5 {
		t.Errorf("%d deliveries are remembered", n)
	}
}
