package main

import (
	"testing"
	"time"

	"paymentd/internal/tosssim"
)

// cancelFaults are what may happen to the one cancel that ON_COMMIT_FAILURE=cancel sends.
func cancelFaults() map[string]tosssim.Fault {
	return map[string]tosssim.Fault{
		"cancel ok":      {Op: tosssim.OpCancel, Latency: tosssim.Fixed(time.Millisecond)},
		"cancel refused": {Op: tosssim.OpCancel, Code: "NOT_CANCELABLE_PAYMENT", Next: 1},
		"cancel lost":    {Op: tosssim.OpCancel, Hang: true, Next: 1},
		"cancel late":    {Op: tosssim.OpCancel, Late: tosssim.Duration(1500 * time.Millisecond), Next: 1},
	}
}

// s6 approves one order, breaks the database before the commit, repairs it after the answer, and holds what follows to:
// told given back means balance 0, and never PAID here and canceled there.
func s6(t *testing.T, w *world, in *instance, f tosssim.Fault, fail, repair func()) {
	t.Helper()
	w.faults(tosssim.Fault{Op: tosssim.OpConfirm, Latency: tosssim.Fixed(time.Second)}, f)
	o := newOrder("s6")
	answered := in.confirmLater(o)
	w.arrived(tosssim.OpConfirm, 1)
	fail()
	a := answered()
	if a.status != 202 && (a.status != 503 || a.text("code") != "db_failed") {
		t.Errorf("answered %d %s", a.status, a.raw)
	}
	if e := w.entry(o); a.status == 503 && (e.Balance != 0 || e.Cancels != 1) {
		t.Errorf("told that it was given back: %+v", e)
	}
	time.Sleep(time.Second) // a late cancel is done by now, and recovery may have seen the approval before
	repair()
	eventually(t, "the payment is settled as Toss has it", func() bool {
		w.hasten()
		r, ok := w.row(o)
		e := w.entry(o)
		return ok && e.Approvals == 1 && (r.Status == "PAID" && e.Balance == 15000 || (r.Status == "FAILED" || r.Status == "CANCELED") && e.Balance == 0)
	})
	w.ledgerHolds()
}

// TestS6a_DatabaseStopsBeforeTheCommit: with "hold" no cancel and PAID; with "cancel" given back or PAID, whatever
// happens to the cancel.
func TestS6a_DatabaseStopsBeforeTheCommit(t *testing.T) {
	t.Parallel()
	for name, f := range cancelFaults() {
		for _, policy := range []string{"hold", "cancel"} {
			if policy == "hold" && name != "cancel ok" {
				continue
			}
			t.Run(policy+", "+name, func(t *testing.T) {
				t.Parallel()
				w := newPrivateWorld(t, append(quick, "PAYMENTD_DB_ACQUIRE_TIMEOUT=200ms", "PAYMENTD_TOSS_CONFIRM_TIMEOUT=3s")...)
				in := w.start("PAYMENTD_ON_COMMIT_FAILURE=" + policy)
				s6(t, w, in, f, w.killDB, w.restartDB)
				if n := w.toss.Counters().Ops[tosssim.OpCancel].Calls; policy == "hold" && n != 0 {
					t.Errorf("%d cancels", n)
				}
			})
		}
	}
}

// TestS6b_AllConnectionsAreHeld: sleeping sessions hold every connection for a while at the moment of the commit: it is
// tried again within COMMIT_WITHIN, so neither policy cancels and the payment is PAID.
func TestS6b_AllConnectionsAreHeld(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"hold", "cancel"} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			in := w.start("PAYMENTD_ON_COMMIT_FAILURE="+policy, "PAYMENTD_DB_ACQUIRE_TIMEOUT=200ms", "PAYMENTD_DB_MAX_CONNS=1")
			w.slow()
			o, other := newOrder("s6b"), newOrder("other")
			answered := in.confirmLater(o)
			w.arrived(tosssim.OpConfirm, 1)
			release := w.hold()
			answeredOther := in.confirmLater(other)
			in.allLent()
			time.AfterFunc(2*time.Second, release)
			answered().want(t, 200, "PAID")
			answeredOther().want(t, 200, "PAID")
			if e := w.entry(o); e.Cancels != 0 || e.Balance != 15000 {
				t.Errorf("the simulator has %+v", e)
			}
			w.ledgerHolds()
		})
	}
}
