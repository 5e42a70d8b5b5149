package main

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

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

// A SIGKILL between that cancel and the answer is the story "cannot be saved" of TestCrash (crashStories), which kills
// before, during and after the cancel and the commit of its outcome.

// s6 approves one order, breaks the database before the commit, repairs it after the answer, and holds what follows to:
// told given back means balance 0, and never PAID here and canceled there.
func s6(t *testing.T, w *world, in *instance, f tosssim.Fault, fail, repair func()) {
	t.Helper()
	w.faults(tosssim.Fault{Op: tosssim.OpConfirm, Hold: true}, f)
	o := newOrder("s6")
	answered := in.confirmLater(o)
	w.arrived(tosssim.OpConfirm, 1)
	fail()
	w.faults(f)
	a := answered()
	if a.status != 202 && (a.status != 503 || a.text("code") != "db_failed") {
		t.Errorf("answered %d %s", a.status, a.raw)
	}
	if e := w.entry(o); a.status == 503 && (e.Balance != 0 || e.Cancels != 1) {
		t.Errorf("told that it was given back: %+v", e)
	}
	time.Sleep(time.Second) // a late cancel is done by now, and recovery may have seen the approval before
	repair()
	w.leaseEnds(o)
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
				w := newPrivateWorld(t, append(brief, "PAYMENTD_DB_ACQUIRE_TIMEOUT=200ms", "PAYMENTD_TOSS_CONFIRM_TIMEOUT=30s")...)
				in := w.start("PAYMENTD_ON_COMMIT_FAILURE=" + policy)
				s6(t, w, in, f, w.killDB, w.restartDB)
				if n := w.toss.Counters().Ops[tosssim.OpCancel].Calls; policy == "hold" && n != 0 {
					t.Errorf("%d cancels", n)
				}
			})
		}
	}
}

// sleeping makes the session of every reservation of these orders sleep until wake.
func (w *world) sleeping(kind string) (wake func()) {
	w.t.Helper()
	conn, err := pgx.Connect(w.t.Context(), w.db.DSN)
	if err == nil {
		_, err = conn.Exec(w.t.Context(), fmt.Sprintf(`
			CREATE FUNCTION sleeps() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock_shared(6); RETURN NEW; END $$;
			CREATE TRIGGER sleeps BEFORE INSERT ON payments FOR EACH ROW WHEN (NEW.order_id LIKE 'order-%s%%') EXECUTE FUNCTION sleeps();
			SELECT pg_advisory_lock(6)`, kind))
	}
	if err != nil {
		w.t.Fatal(err)
	}
	wake = func() { _ = conn.Close(context.Background()) }
	w.t.Cleanup(wake)
	return wake
}

// TestS6b_AllConnectionsAreHeld: sleeping sessions hold every connection for a while at the moment of the commit: it is
// tried again within COMMIT_WITHIN, so neither policy cancels and the payment is PAID. With PAYMENTD_TEST_REAL_TIME=1
// they are 10 sessions that sleep for 6 s.
func TestS6b_AllConnectionsAreHeld(t *testing.T) {
	t.Parallel()
	set, conns := []string{"PAYMENTD_DB_ACQUIRE_TIMEOUT=2s"}, 1
	if realTime() {
		set, conns = []string{"PAYMENTD_DB_STATEMENT_TIMEOUT=7s"}, 10
	}
	for _, policy := range []string{"hold", "cancel"} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			in := w.start(append(set, "PAYMENTD_ON_COMMIT_FAILURE="+policy, "PAYMENTD_DB_MAX_CONNS="+strconv.Itoa(conns), "PAYMENTD_DB_MERGE=off",
				"PAYMENTD_ANSWER_WITHIN=40s", "PAYMENTD_COMMIT_WITHIN=30s")...)
			w.holds()
			wake := w.sleeping("sleeper")
			o := newOrder("s6b")
			answered := in.confirmLater(o)
			w.arrived(tosssim.OpConfirm, 1)
			var sleepers []func() answer
			for _, other := range newOrders("sleeper", conns) {
				sleepers = append(sleepers, in.confirmLater(other))
			}
			eventually(t, "every connection is in use", func() bool {
				return in.number(`paymentd_db_connections{pool="request",state="in_use"}`) == conns
			})
			if r, _ := w.row(o); r.Status != "PENDING" {
				t.Errorf("it is %s before the connections were held", r.Status)
			}
			w.faults()
			if realTime() {
				time.Sleep(6 * time.Second)
			}
			eventually(t, "the commit has waited in vain", func() bool {
				return in.number(`paymentd_db_acquire_timeouts_total{pool="request"}`) > 0
			})
			wake()
			answered().want(t, 200, "PAID")
			for _, sleeper := range sleepers {
				sleeper().want(t, 200, "PAID")
			}
			if e := w.entry(o); e.Cancels != 0 || e.Balance != 15000 {
				t.Errorf("the simulator has %+v", e)
			}
			w.ledgerHolds()
		})
	}
}
