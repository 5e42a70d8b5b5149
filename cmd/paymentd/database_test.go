package main

import (
	"testing"

	"paymentd/internal/tosssim"
)

func (w *world) killDB() {
	w.t.Helper()
	if err := w.db.Server.Kill(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) restartDB() {
	w.t.Helper()
	if err := w.db.Server.Restart(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
}

// holds lets the gateway work on confirms until the test has done something meanwhile and says faults.
func (w *world) holds() {
	w.t.Helper()
	w.faults(tosssim.Fault{Op: tosssim.OpConfirm, Hold: true})
}

// TestDatabaseGone: without a database nothing is sent; as soon as it is back payments go on. A statement that was
// under way in a connection that died may have committed, so the first answers may be 202, never 200.
func TestDatabaseGone(t *testing.T) {
	t.Parallel()
	w := newPrivateWorld(t, append(brief, "PAYMENTD_DB_ACQUIRE_TIMEOUT=2s", "PAYMENTD_TOSS_CONFIRM_TIMEOUT=5s", "PAYMENTD_COMMIT_WITHIN=10s")...)
	in := w.start()
	before := newOrder("before")
	in.confirm(before).want(t, 200, "PAID")
	w.killDB()
	o := newOrder("gone")
	eventually(t, "confirms are refused", func() bool {
		a := in.confirm(o)
		if a.status != 503 && a.status != 202 {
			t.Fatalf("without a database a confirm was answered %d %s", a.status, a.raw)
		}
		return a.status == 503 && a.text("code") == "db_unavailable"
	})
	in.call("GET", in.admin+"/livez", "", "").want(t, 200, "")
	in.call("GET", in.admin+"/readyz", "", "").want(t, 503, "")
	in.read(before).want(t, 503, "db_unavailable")
	if w.sent() != 1 {
		t.Errorf("%d confirms were sent without a reservation", w.sent()-1)
	}
	w.restartDB()
	eventually(t, "ready again", func() bool { return in.call("GET", in.admin+"/readyz", "", "").status == 200 })
	in.confirm(o).want(t, 200, "PAID")
	w.ledgerHolds()
}

// TestDatabaseDiesBeforeTheCommit: the approval is not thrown away. With "hold" the payment is paid when the
// database is back; with "cancel" it is given back or paid, never paid here and canceled there.
func TestDatabaseDiesBeforeTheCommit(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"hold", "cancel"} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			w := newPrivateWorld(t, append(brief, "PAYMENTD_DB_ACQUIRE_TIMEOUT=200ms", "PAYMENTD_TOSS_CONFIRM_TIMEOUT=30s")...)
			in := w.start("PAYMENTD_ON_COMMIT_FAILURE=" + policy)
			w.holds()
			o := newOrder("died")
			answered := in.confirmLater(o)
			w.arrived(tosssim.OpConfirm, 1)
			w.killDB()
			w.faults()
			a := answered()
			switch {
			case a.status == 202:
			case policy == "cancel" && a.status == 503 && a.text("code") == "db_failed":
				if e := w.entry(o); e.Balance != 0 || e.Cancels != 1 {
					t.Errorf("told that it was given back: %+v", e)
				}
			default:
				t.Errorf("answered %d %s", a.status, a.raw)
			}
			w.restartDB()
			w.leaseEnds(o)
			final := "PAID"
			if a.status == 503 {
				final = "FAILED"
			}
			w.settles(o, final)
			if e := w.entry(o); e.Approvals != 1 || (final == "PAID") != (e.Balance == 15000) {
				t.Errorf("%s here, the simulator has %+v", final, e)
			}
			w.ledgerHolds()
		})
	}
}

// TestFailoverBeforeTheCommit: all connections break at once; the commit is tried again and the buyer sees success.
func TestFailoverBeforeTheCommit(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"hold", "cancel"} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			in := w.start("PAYMENTD_ON_COMMIT_FAILURE=" + policy)
			w.holds()
			o := newOrder("failover")
			answered := in.confirmLater(o)
			w.arrived(tosssim.OpConfirm, 1)
			if n, err := w.db.Cluster.Disconnect(t.Context(), w.db.Name); err != nil || n == 0 {
				t.Fatalf("broke %d connections: %v", n, err)
			}
			w.faults()
			answered().want(t, 200, "PAID")
			if e := w.entry(o); e.Cancels != 0 {
				t.Errorf("the simulator has %+v", e)
			}
			w.ledgerHolds()
		})
	}
}

// TestPoolExhaustedAtTheCommit: with "hold" 202 and paid by recovery; with "cancel" the approval certainly is not
// recorded, so it is given back at once, told so, and recorded as failed later.
func TestPoolExhaustedAtTheCommit(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		policy string
		first  said
		final  string
		again  said
	}{
		{policy: "hold", first: said{202, "PENDING"}, final: "PAID", again: said{200, "PAID"}},
		{policy: "cancel", first: said{503, "db_failed"}, final: "FAILED", again: said{503, "db_failed"}},
	} {
		t.Run(tc.policy, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, append(quick, "PAYMENTD_TOSS_CONFIRM_TIMEOUT=30s", "PAYMENTD_COMMIT_WITHIN=5s")...)
			in := w.start("PAYMENTD_ON_COMMIT_FAILURE="+tc.policy, "PAYMENTD_DB_MAX_CONNS=1", "PAYMENTD_DB_ACQUIRE_TIMEOUT=2s")
			w.holds()
			o, other := newOrder("exhausted"), newOrder("other")
			answered := in.confirmLater(o)
			w.arrived(tosssim.OpConfirm, 1)
			release := w.hold()
			answeredOther := in.confirmLater(other)
			in.allLent()
			w.faults()
			a := answered().want(t, tc.first.status, tc.first.word)
			if tc.policy == "cancel" && a.header.Get("Retry-After") != "" {
				t.Error("db_failed asks to try again, but the payment is over")
			}
			release()
			w.leaseEnds(o)
			answeredOther().want(t, 200, "PAID")
			w.settles(o, tc.final)
			in.confirm(o).want(t, tc.again.status, tc.again.word)
			if e := w.entry(o); e.Approvals != 1 || (tc.final == "PAID") != (e.Balance == 15000) {
				t.Errorf("%s here, the simulator has %+v", tc.final, e)
			}
			if tc.final == "FAILED" {
				// The order is free for another payment.
				o.key += "9"
				in.confirm(o).want(t, 200, "PAID")
			}
			w.ledgerHolds()
		})
	}
}
