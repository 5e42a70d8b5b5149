package main

import (
	"fmt"
	"net/http"
	"strconv"
	"syscall"
	"testing"
	"time"

	"paymentd/internal/tosssim"
)

// looked counts the lookups that reached the gateway.
func (w *world) looked() int { return int(w.toss.Counters().Ops[tosssim.OpLookup].Calls) }

func (in *instance) recovered(action string) int {
	n, err := strconv.ParseFloat(in.metric(fmt.Sprintf("paymentd_recovery_total{action=%q}", action)), 64)
	if err != nil {
		in.t.Error(err)
	}
	return int(n)
}

// TestInstancesShareASweep: three instances sweep one database, and each payment is looked at once.
func TestInstancesShareASweep(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.start(atRest...)
	const all = 20
	orders := make([]order, all)
	for i := range orders {
		orders[i] = first.doubt("shared")
	}
	first.stop()
	w.exec("UPDATE payments SET due_at = now() + interval '1 year'") // a due loop would never come to it
	before := w.looked()
	w.faults(tosssim.Fault{Op: tosssim.OpLookup, Hold: true}) // until a second one has come: each looks at one at a time
	instances := make([]*instance, 3)
	for i := range instances {
		instances[i] = w.start("PAYMENTD_RECOVERY_DUE_EVERY=1000h", "PAYMENTD_RECOVERY_EVERY=1s", "PAYMENTD_RESEND_WITHIN=2100h")
	}
	w.arrived(tosssim.OpLookup, int64(before+2))
	w.faults()
	for _, o := range orders {
		w.becomes(o, "PAID")
	}
	time.Sleep(2 * time.Second) // the next sweeps find nothing
	if n := w.looked() - before; n != all {
		t.Errorf("%d lookups for %d payments", n, all)
	}
	sum, shared := 0, 0
	for _, in := range instances {
		n := in.recovered("paid")
		sum += n
		if n > 0 {
			shared++
		}
	}
	if sum != all || shared < 2 {
		t.Errorf("%d payments by %d instances, want %d by at least 2", sum, shared, all)
	}
	w.ledgerHolds()
}

// TestSyncsAtOnce: two operators, or one twice, start the same work; each payment is handled once.
func TestSyncsAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.start(atRest...), w.start(atRest...)
	const all = 10
	for range all {
		a.doubt("twice")
	}
	before := w.looked()
	w.faults(tosssim.Fault{Op: tosssim.OpLookup, Latency: tosssim.Fixed(400 * time.Millisecond)})
	reports, _ := storm(t, 2, func(i int) (answer, error) {
		return call(t, http.MethodPost, []*instance{a, b}[i].url+"/payments/sync", operatorSecret, `{}`)
	})
	if n := w.looked() - before; n != all {
		t.Errorf("%d lookups for %d payments", n, all)
	}
	approved := 0
	for _, r := range reports {
		results, _ := r.want(t, 200, "").body["results"].([]any)
		for _, one := range results {
			switch reason := one.(map[string]any)["reason"]; reason {
			case "approved":
				approved++
			case "in_progress", "settled meanwhile":
			default:
				t.Errorf("reason %v", reason)
			}
		}
	}
	if approved != all {
		t.Errorf("%d were settled by the two, want %d", approved, all)
	}
	w.ledgerHolds()
}

// TestKilledHolder: an instance is killed while it looks at a payment; another takes the payment over when the lease is
// over, and not before.
func TestKilledHolder(t *testing.T) {
	t.Parallel()
	w := newWorld(t, brief...)
	in := w.start(atRest...)
	o := in.doubt("orphaned")
	in.stop()
	before := w.looked()
	w.faults(tosssim.Fault{Op: tosssim.OpLookup, Hang: true})
	w.hasten()
	p := w.spawn()
	w.arrived(tosssim.OpLookup, int64(before+1))
	p.kill()
	w.faults()
	begun := time.Now()
	left := time.Duration(w.count(`SELECT (EXTRACT(EPOCH FROM due_at - now()) * 1000)::int FROM payments WHERE leased AND payment_key = $1`, o.key)) * time.Millisecond
	w.start()
	w.becomes(o, "PAID")
	if took := time.Since(begun); took < left-100*time.Millisecond {
		t.Errorf("taken over after %s, the lease had %s left", took, left)
	}
	w.ledgerHolds()
}

// TestStopDuringALook: a short SHUTDOWN_WITHIN is enough although a lookup hangs, and its payment is due at once.
func TestStopDuringALook(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.start(atRest...)
	o := in.doubt("patient")
	in.stop()
	before := w.looked()
	w.faults(tosssim.Fault{Op: tosssim.OpLookup, Hang: true})
	w.hasten()
	p := w.spawn("PAYMENTD_SHUTDOWN_WITHIN=15s")
	w.arrived(tosssim.OpLookup, int64(before+1))
	p.signal(syscall.SIGTERM)
	if status := p.wait(); status != 0 {
		t.Errorf("exit status %d", status)
	}
	if n := w.count("SELECT count(*) FROM payments WHERE payment_key = $1 AND status = 'PENDING' AND NOT leased AND due_at <= now()", o.key); n != 1 {
		t.Error("the payment is not due")
	}
	w.faults()
	w.start()
	w.becomes(o, "PAID")
}
