package main

import (
	"strings"
	"syscall"
	"testing"

	"paymentd/internal/tosssim"
)

// TestKilled: a process that dies at any moment of a confirm leaves a payment that its successor finishes: paid,
// charged once.
func TestKilled(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		fault tosssim.Fault
		// done says that the gateway has got where the process shall die.
		done func(w *world, o order) bool
	}{
		{
			name: "before the gateway saw it", fault: tosssim.Fault{Op: tosssim.OpConfirm, Hang: true},
			done: func(w *world, _ order) bool { return w.sent() == 1 },
		},
		{
			name: "between approval and commit", fault: tosssim.Fault{Op: tosssim.OpConfirm, Hang: true, Work: tosssim.WorkDo},
			done: func(w *world, o order) bool { return w.entry(o).Approvals == 1 },
		},
		{
			name: "before a late approval", fault: tosssim.Fault{Op: tosssim.OpConfirm, Late: 1, Hold: true},
			done: func(w *world, _ order) bool { return w.sent() == 1 },
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, quick...)
			p := w.spawn("PAYMENTD_TOSS_CONFIRM_TIMEOUT=30s")
			w.faults(tc.fault)
			o := newOrder("killed")
			p.confirmLater(o)
			eventually(t, "the gateway has it", func() bool { return tc.done(w, o) })
			p.kill()
			if r, _ := w.row(o); r.Status != "PENDING" || !r.Holds || !r.MaybeSent {
				t.Errorf("what the dead process left: %+v", r)
			}
			w.faults()
			w.ghosts()
			w.leaseEnds(o)
			next := w.spawn()
			second := o
			second.key += "9"
			next.confirm(second).want(t, 409, "order_conflict")
			w.settles(o, "PAID")
			next.confirm(o).want(t, 200, "PAID")
			w.ledgerHolds()
		})
	}
}

// TestTrap30_OrderedStop: SIGTERM takes the process out of the balancer, lets what runs finish, and ends it with status 0.
func TestTrap30_OrderedStop(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.spawn()
	w.holds()
	eventually(t, "ready", func() bool { return p.call("GET", p.admin+"/readyz", "", "").status == 200 })
	o := newOrder("drain")
	answered := p.confirmLater(o)
	w.arrived(tosssim.OpConfirm, 1)
	p.signal(syscall.SIGTERM)
	eventually(t, "not ready while it drains", func() bool {
		a, err := call(t, "GET", p.admin+"/readyz", "", "")
		if err != nil {
			t.Fatalf("the private door closed before the work was done: %v", err)
		}
		return a.status == 503 && a.body["draining"] == true
	})
	w.faults()
	answered().want(t, 200, "PAID")
	if status := p.wait(); status != 0 {
		t.Errorf("exit status %d", status)
	}
	if !strings.Contains(w.log.String(), `"msg":"stopped"`) {
		t.Error("the log does not tell of the ordered stop")
	}
	if r, _ := w.row(o); r.Status != "PAID" || r.Due {
		t.Errorf("row %+v", r)
	}
	w.ledgerHolds()
}
