package main

import (
	"testing"
	"time"

	"paymentd/internal/tosssim"
)

// TestTrap14_SyncComesTooEarly: a sync in the middle of a live confirm leaves it alone.
func TestTrap14_SyncComesTooEarly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.start()
	w.holds()
	o := newOrder("early")
	answered := in.confirmLater(o)
	w.arrived(tosssim.OpConfirm, 1)
	a := in.sync(`{"orderIds":["`+o.id+`"]}`).want(t, 200, "")
	if results, _ := a.body["results"].([]any); len(results) != 1 || results[0].(map[string]any)["reason"] != "in_progress" {
		t.Errorf("sync said %s", a.raw)
	}
	w.faults()
	answered().want(t, 200, "PAID")
	w.ledgerHolds()
}

// TestTrap15_RecoveryRacesTheConfirm: however often recovery looks, a living lease keeps it away, and everything is
// written once.
func TestTrap15_RecoveryRacesTheConfirm(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start("PAYMENTD_RECOVERY_DUE_EVERY=20ms", "PAYMENTD_RECOVERY_EVERY=50ms")
	in := w.start("PAYMENTD_RECOVERY_DUE_EVERY=20ms", "PAYMENTD_RECOVERY_EVERY=50ms")
	w.faults(tosssim.Fault{Op: tosssim.OpConfirm, Latency: tosssim.Fixed(time.Second)})
	o := newOrder("race")
	in.confirm(o).want(t, 200, "PAID")
	if n := w.looked(); n != 0 {
		t.Errorf("%d lookups beside a live confirm", n)
	}
	if r, _ := w.row(o); r.Version != 2 {
		t.Errorf("row %+v", r)
	}
	if n := w.count("SELECT count(*) FROM payment_events AS e JOIN payments AS p ON p.id = e.payment_id WHERE p.payment_key = $1", o.key); n != 1 {
		t.Errorf("%d events", n)
	}
	w.ledgerHolds()
}

// TestTrap18_NeverFailedWithoutEvidence: a payment of whatever age is not failed while Toss cannot be asked.
func TestTrap18_NeverFailedWithoutEvidence(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.start(atRest...)
	o := in.doubt("mute")
	in.stop()
	w.exec(`UPDATE payments SET reserved_at = reserved_at - interval '2 h', first_sent_at = first_sent_at - interval '2 h',
		last_sent_at = last_sent_at - interval '2 h' WHERE payment_key = $1`, o.key)
	w.faults(tosssim.Fault{Op: tosssim.OpLookup, Drop: tosssim.DropBefore})
	w.hasten()
	w.start("PAYMENTD_RESEND_WITHIN=0")
	eventually(t, "the incident is open", func() bool { return w.incidents(o, "unknown_outcome") == 1 })
	if r, _ := w.row(o); r.Status != "PENDING" || !r.Holds {
		t.Errorf("row %+v", r)
	}
	w.faults()
	w.settles(o, "PAID")
	if w.incidents(o, "unknown_outcome") != 0 {
		t.Error("the incident is still open")
	}
	w.ledgerHolds()
}

// TestTrap17_TheSweepReadsState: rows as a crash or a bug would leave them, which no due time leads to, are brought back
// by the sweep alone.
func TestTrap17_TheSweepReadsState(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.start(atRest...)
	const byKey = " WHERE payment_key = $1"
	kinds := []struct{ name, sql, want string }{
		{"due in a year", "UPDATE payments SET due_at = now() + interval '1 year'" + byKey, "PAID"},
		{"parked for nothing", "UPDATE payments SET due_at = 'infinity'" + byKey, "PAID"},
		{"lease of a day", "UPDATE payments SET leased = true, due_at = now() + interval '1 day'" + byKey, "PAID"},
		{"deposit without a look", "UPDATE payments SET status = 'AWAITING_DEPOSIT', due_at = NULL" + byKey, "PAID"},
		{"never sent", `UPDATE payments SET maybe_sent = false, reserved_at = now() - interval '1 h', due_at = now() + interval '1 year'` + byKey, "FAILED"},
		{"failed, order held", "UPDATE payments SET status = 'FAILED', failure_code = 'expired', due_at = NULL" + byKey, "returned"},
		{"second look lost", `WITH p AS (UPDATE payments SET status = 'FAILED', failure_code = 'expired', holds_order = false, due_at = NULL` + byKey + ` RETURNING id, version)
			INSERT INTO payment_events (payment_id, version, from_status, to_status, actor, reason)
			SELECT id, version, 'PENDING', 'FAILED', 'recovery', 'the gateway''s window is over' FROM p`, "returned"},
	}
	orders := make([]order, len(kinds))
	for i, k := range kinds {
		orders[i] = in.doubt("state")
		if _, err := w.pool.Exec(t.Context(), k.sql, orders[i].key); err != nil {
			t.Fatal(err)
		}
	}
	in.stop()
	w.start("PAYMENTD_RECOVERY_DUE_EVERY=1000h", "PAYMENTD_RECOVERY_EVERY=500ms", "PAYMENTD_RESEND_WITHIN=0")
	for i, k := range kinds {
		if k.want == "returned" {
			eventually(t, k.name+": given back", func() bool { r, _ := w.row(orders[i]); return !r.Holds && !r.Due && w.entry(orders[i]).Balance == 0 })
			continue
		}
		eventually(t, k.name+" becomes "+k.want, func() bool { r, _ := w.row(orders[i]); return r.Status == k.want })
	}
}
