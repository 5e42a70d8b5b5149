package main

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"paymentd/internal/tosssim"
)

// TestMainJob is the way of one payment through the whole program: confirm, replay, read, notices, metrics.
func TestMainJob(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.start()
	o := newOrder("main")

	a := in.confirm(o).want(t, 200, "PAID")
	if a.header.Get("Idempotent-Replayed") != "" || !strings.Contains(a.header.Get("Server-Timing"), "gateway;dur=") {
		t.Errorf("headers of the first answer: %v", a.header)
	}
	if e := w.entry(o); e.Approvals != 1 || e.Amount != 15000 || string(e.Status) != "DONE" {
		t.Errorf("the simulator has %+v", e)
	}
	again := in.confirm(o).want(t, 200, "PAID")
	if again.header.Get("Idempotent-Replayed") != "true" || again.raw != a.raw {
		t.Errorf("replay: %v %s", again.header, again.raw)
	}
	in.read(o).want(t, 200, "PAID")
	if r, _ := w.row(o); r.Due || !r.Holds || !r.MaybeSent {
		t.Errorf("row %+v", r)
	}
	eventually(t, "payment.paid is delivered once and the receipt is logged", func() bool {
		return slices.Equal(w.hook.types(o), []string{"payment.paid"}) &&
			w.count(`SELECT count(*) FROM notices WHERE state = 'delivered'`) == 2
	})
	metrics := in.call(http.MethodGet, in.admin+"/metrics", "", "").raw
	for _, line := range []string{
		`paymentd_confirm_total{result="approved"} 1`, `paymentd_confirm_total{result="replayed"} 1`,
		`paymentd_confirm_total{result="declined"} 0`, `paymentd_settled_total{actor="confirm",status="PAID"} 1`,
		`paymentd_gateway_attempts_total{op="confirm",outcome="approved"} 1`, `paymentd_breaker_state{state="closed"} 1`,
	} {
		if !strings.Contains(metrics, line+"\n") {
			t.Errorf("metrics lack %s", line)
		}
	}
}

// TestTrap11_OneOrderManyCallers: 100 confirms at once of one order, two instances, exactly one approval, equal answers.
func TestTrap11_OneOrderManyCallers(t *testing.T) {
	t.Parallel()
	for _, instances := range []int{1, 2} {
		w := newWorld(t)
		if err := w.toss.SetFaults(tosssim.Fault{Op: tosssim.OpConfirm, Latency: tosssim.Fixed(300 * time.Millisecond)}); err != nil {
			t.Fatal(err)
		}
		ins := make([]*instance, instances)
		for i := range ins {
			ins[i] = w.start()
		}
		o := newOrder("many")
		answers, first := storm(t, 100, func(i int) (answer, error) {
			return call(t, http.MethodPost, ins[i%instances].url+"/payments/confirm", checkoutSecret, o.json())
		})
		for _, a := range answers {
			if a.status != 200 || a.raw != answers[0].raw {
				t.Fatalf("answers differ: %d %s and %d %s", answers[0].status, answers[0].raw, a.status, a.raw)
			}
		}
		if first != 1 {
			t.Errorf("%d answers were not replays, want 1", first)
		}
		if e := w.entry(o); e.Approvals != 1 || w.toss.Counters().Ops[tosssim.OpConfirm].Calls != 1 {
			t.Errorf("the simulator has %+v after %+v", e, w.toss.Counters())
		}
	}
}

// TestTrap12_OneOrderManyKeys: the order is unique, not only the key.
func TestTrap12_OneOrderManyKeys(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.start()
	o := newOrder("keys")
	answers, _ := storm(t, 20, func(i int) (answer, error) {
		p := o
		p.key += "-" + string(rune('a'+i))
		return call(t, http.MethodPost, in.url+"/payments/confirm", checkoutSecret, p.json())
	})
	paid := 0
	for _, a := range answers {
		switch {
		case a.status == 200:
			paid++
		case a.status != 409 || a.text("code") != "order_conflict":
			t.Errorf("answered %d %s", a.status, a.raw)
		}
	}
	if got := w.toss.Ledger().Approvals; paid != 1 || got != 1 {
		t.Errorf("%d answers say paid, the simulator approved %d", paid, got)
	}
}

// storm makes n calls at once and counts the answers that are no replay.
func storm(t *testing.T, n int, do func(i int) (answer, error)) (answers []answer, first int) {
	t.Helper()
	answers = make([]answer, n)
	var calls sync.WaitGroup
	for i := range answers {
		calls.Go(func() {
			a, err := do(i)
			if err != nil {
				t.Error(err)
			}
			answers[i] = a
		})
	}
	calls.Wait()
	for _, a := range answers {
		if a.header.Get("Idempotent-Replayed") == "" {
			first++
		}
	}
	return answers, first
}

// TestRequestEvent: one line tells a confirm whole, and one more what became of it when its caller could not wait.
func TestRequestEvent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.start()
	o := newOrder("event")
	in.confirm(o).want(t, 200, "PAID")
	late := newOrder("late")
	w.holds()
	w.start("PAYMENTD_ANSWER_WITHIN=1s").confirm(late).want(t, 202, "PENDING")
	w.faults()
	w.becomes(late, "PAID")

	event := w.logged(t, "request", o)
	for field, want := range map[string]any{
		"status": 200.0, "result": "approved", "attempts": 1.0, "breaker": "closed", "key": "shop", "route": "/payments/confirm",
	} {
		if event[field] != want {
			t.Errorf("%s: %v, want %v", field, event[field], want)
		}
	}
	for _, field := range []string{"request_id", "trace_id", "gateway_ms", "db_ms", "own_ms"} {
		if event[field] == nil || event[field] == "" {
			t.Errorf("the event lacks %s", field)
		}
	}
	if e := w.logged(t, "request", late); e["result"] != "pending_running" {
		t.Errorf("the early answer is logged as %v", e)
	}
	if e := w.logged(t, "confirm ended after its caller was answered", late); e["result"] != "approved" || e["attempts"] != 1.0 {
		t.Errorf("the late end is logged as %v", e)
	}
}

// logged finds the log line with this message about this order.
func (w *world) logged(t *testing.T, message string, o order) (line map[string]any) {
	t.Helper()
	eventually(t, "a log line "+message, func() bool {
		for text := range strings.Lines(w.log.String()) {
			line = nil
			if json.Unmarshal([]byte(text), &line) == nil && line["msg"] == message && line["order_id"] == o.id {
				return true
			}
		}
		return false
	})
	return line
}
